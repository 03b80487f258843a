package page

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
)

const keysPerPage = 50

// tab is a part of a source's keys.
type tab struct {
	name, state string
	label       constant
	empty       constant
	count       func(*counts) int64
}

var tabs = []tab{
	{"overdue", "due", "Overdue", "Nothing is overdue.", func(n *counts) int64 { return n.Due }},
	{"retrying", "retrying", "Retrying", "No key waits for another attempt.", func(n *counts) int64 { return n.Retrying }},
	{"waiting", "waiting", "Waiting", "No key waits for its time.", func(n *counts) int64 { return max(0, n.Pending-n.Due) }},
	{"flight", "inFlight", "In flight", "No delivery is under way.", func(n *counts) int64 { return n.InFlight }},
	{"dead", "", "Dead letters", "No event was given up.", func(n *counts) int64 { return n.DeadLetters }},
}

// first is the tab that a source opens with: the tab with trouble.
func first(n *counts) int {
	switch {
	case n.Due > 0 || n.Pending+n.InFlight+n.DeadLetters == 0:
		return 0
	case n.Pending > 0:
		return 2
	case n.InFlight > 0:
		return 3
	}
	return 4
}

// all leads from a source to its like.
var all = []crumb{{"Sources", "./"}}

func sourceCrumb(s *Source) crumb {
	return crumb{write("%s/%s", s.Namespace, s.Name), href("source", of(s)...)}
}

// listed is what a source's view found out, by calls that are made at once.
type listed struct {
	counts  counts
	trouble *row // the key that has retried, or waited, the longest
	letter  *letterRow
	recent  recent
	ahead   []row // due next
	more    bool
}

// sourceView shows one source.
func (h *handler) sourceView(r *http.Request) (*view, error) {
	s, err := h.source(r)
	if err != nil {
		return nil, err
	}
	var l listed
	if err := h.get(r.Context(), s, "", &l.counts); err != nil {
		return h.silent(s, err)
	}
	at := slices.IndexFunc(tabs, func(t tab) bool { return t.name == r.FormValue("tab") })
	if at < 0 {
		at = first(&l.counts)
	}
	var table markup
	var failed error
	now := h.Now()
	f := h.facts(s, now)
	Each(6, func(i int) {
		switch i {
		case 0:
			table, err = h.table(r, s, &tabs[at], now)
		case 1:
			l.recent = h.recent(r.Context(), s)
		case 2:
			if l.counts.Pending > l.counts.Due {
				rows, next, err := list[row](r.Context(), h, s, "/schedules", query("state", "waiting", "order", "due", "limit", strconv.Itoa(maxListItems)))
				l.ahead, l.more, failed = rows, next != "", err
			}
		case 3:
			l.trouble = h.trouble(r.Context(), s, &l.counts)
		case 4:
			if l.counts.DeadLetters > 0 {
				letters, _, _ := list[letterRow](r.Context(), h, s, "/deadletters", query("limit", "100"))
				if len(letters) > 0 {
					newest := slices.MaxFunc(letters, func(a, b letterRow) int { return a.At.Compare(b.At) })
					l.letter = &newest
				}
			}
		case 5:
			f.Add(h.Metrics(r.Context(), s.Namespace, s.Name))
		}
	})
	if err = cmp.Or(err, failed); err != nil {
		return nil, err
	}
	f.Counts = facts(&l.counts)
	if l.trouble != nil {
		f.Record = l.trouble.record()
		if f.WantsStart() {
			f.Record.StartedAt = h.started(r.Context(), s, l.trouble.Key)
		}
	}
	if l.letter != nil {
		f.DeadLetter = l.letter.letter()
	}
	body := write(`<div class="title"><div><h1><span class="ns">%s/</span>%s</h1><p class="sub">%s</p></div><a class="button" href="%s">Live events</a></div>
%s
<div id="summary" data-live>%s%s<div class="charts">%s%s</div></div>
<section id="keys" aria-label="Keys">%s%s
%s</section>`,
		s.Namespace, s.Name, when(s.SinkURI != "", write(`to <code>%s</code>`, text(s.SinkURI))), href("live", of(s)...),
		done(r), answer(why.Explain(f)), tiles(&l.counts, now), dueChart(l.ahead, l.more, now), l.recent.chart(now),
		tabLinks(s, at, &l.counts), h.filter(r, s, &tabs[at]), table)
	return &view{title: s.Namespace + "/" + s.Name, crumbs: all, body: body, live: true}, nil
}

// facts returns what is known before a call. The object is a copy, which the metrics
// may complete.
func (h *handler) facts(s *Source, now time.Time) why.Facts {
	object := s.Source
	return why.Facts{Now: now, Namespace: s.Namespace, Name: s.Name, Source: &object}
}

// silent is the view of a source about which the schedule API says nothing.
func (h *handler) silent(s *Source, err error) (*view, error) {
	p, ok := err.(*problem) //nolint:errorlint // call returns it as it is
	if !ok || p.Status == http.StatusUnauthorized {
		return nil, err
	}
	refusal := &why.Refusal{Status: p.answered, Code: p.Code, Detail: p.Detail}
	a := why.Explain(why.Facts{Now: h.Now(), Namespace: s.Namespace, Name: s.Name, Source: &s.Source, Refusal: refusal})
	return &view{title: s.Namespace + "/" + s.Name, crumbs: all, live: true, body: write(`<h1><span class="ns">%s/</span>%s</h1><div id="summary" data-live>%s</div>`, s.Namespace, s.Name, answer(a))}, nil
}

// trouble finds a key that shows what is wrong with a source: one between attempts, or one
// that is in flight for long, as with a sink that never answers.
func (h *handler) trouble(ctx context.Context, s *Source, n *counts) *row {
	for _, look := range []struct {
		state string
		count int64
	}{{"retrying", n.Retrying}, {"inFlight", n.InFlight}} {
		if look.count == 0 {
			continue
		}
		rows, _, err := list[row](ctx, h, s, "/schedules", query("state", look.state, "order", "due", "limit", "1"))
		if err == nil && len(rows) > 0 && (rows[0].LastFailure != nil || look.state == "inFlight") { // else the counts say what there is to say
			return &rows[0]
		}
	}
	return nil
}

func banner(s *Source) markup {
	return when(s.Suspended, `<p class="banner"><strong>Suspended.</strong> This source accepts schedules and delivers none until <code>spec.suspend</code> is false.</p>`)
}

func tiles(n *counts, now time.Time) markup {
	tile := func(label constant, value any, class constant) markup {
		return write(`<div class="tile %s"><dt>%s</dt><dd>%s</dd></div>`, string(class), string(label), value)
	}
	alarm := func(n int64, class constant) constant {
		if n == 0 {
			return ""
		}
		return class
	}
	overdue := constant("")
	if !n.OldestDueAt.IsZero() && now.Sub(n.OldestDueAt) > late {
		overdue = "warn"
	}
	last := tile("Next due", instant(n.NextDueAt, now), "")
	if !n.OldestDueAt.IsZero() {
		last = tile("Oldest due", instant(n.OldestDueAt, now), overdue)
	}
	return write(`<dl class="tiles">%s%s%s%s%s%s</dl>`, tile("Pending", number(n.Pending), ""), tile("Overdue", number(n.Due), overdue),
		tile("Retrying", number(n.Retrying), alarm(n.Retrying, "warn")), tile("In flight", number(n.InFlight), ""), tile("Dead letters", number(n.DeadLetters), alarm(n.DeadLetters, "bad")), last)
}

func tabLinks(s *Source, at int, n *counts) markup {
	var links []markup
	for i, t := range tabs {
		links = append(links, write(`<li><a href="%s"%s>%s <span class="count">%s</span></a></li>`, href("source", of(s, "tab", t.name)...)+"#keys",
			when(i == at, ` aria-current="page"`), string(t.label), number(t.count(n))))
	}
	return write(`<nav class="tabs" id="tabs" aria-label="Keys by state" data-live><ul>%s</ul></nav>`, join(links))
}

// filter is the box that selects keys by their prefix. Its form is a GET, so that the
// address can be kept.
func (h *handler) filter(r *http.Request, s *Source, t *tab) markup {
	prefix := r.FormValue("prefix")
	var many markup
	if t.state == "" {
		for _, what := range []struct{ name, label constant }{{"redrive", "Redrive"}, {"discard", "Discard"}} {
			label := write("%s all…", string(what.label))
			if prefix != "" {
				label = write("%s these…", string(what.label))
			}
			many += write(`<a class="button" href="%s">%s</a>`, href("confirm", of(s, "what", string(what.name), "prefix", prefix)...), label)
		}
	}
	return write(`<div class="bar"><form class="search" action="source#keys">%s<label for="prefix">Keys beginning with</label><input id="prefix" name="prefix" type="search" value="%s" maxlength="512" autocomplete="off" autocapitalize="off" spellcheck="false"><button type="submit">Filter</button>%s</form><div class="actions">%s</div></div>`,
		hidden(of(s, "tab", t.name)...), prefix, when(prefix != "", write(`<a href="%s">Clear</a>`, href("source", of(s, "tab", t.name)...)+"#keys")), many)
}

// table is a page of the keys of a tab.
func (h *handler) table(r *http.Request, s *Source, t *tab, now time.Time) (markup, error) {
	prefix, token := r.FormValue("prefix"), r.FormValue("continue")
	q := query("prefix", prefix, "continue", token, "limit", strconv.Itoa(keysPerPage))
	var rows []markup
	var next string
	var head markup
	if t.state == "" {
		letters, more, err := list[letterRow](r.Context(), h, s, "/deadletters", q)
		if err != nil {
			return "", err
		}
		head, next = `<th scope="col">Key</th><th scope="col">Given up</th><th scope="col" class="num">Attempts</th><th scope="col">Because</th><th scope="col"><span class="unseen">Actions</span></th>`, more
		for i := range letters {
			rows = append(rows, h.letterLine(s, &letters[i], now))
		}
	} else {
		q.Set("state", t.state)
		if prefix == "" {
			q.Set("order", "due")
		}
		keys, more, err := list[row](r.Context(), h, s, "/schedules", q)
		if err != nil {
			return "", err
		}
		head, next = `<th scope="col">Key</th><th scope="col">State</th><th scope="col">Due</th><th scope="col" class="num">Attempts</th><th scope="col">What happened</th><th scope="col"><span class="unseen">Actions</span></th>`, more
		for i := range keys {
			rows = append(rows, h.keyLine(s, &keys[i], now))
		}
	}
	link := func(token string) string {
		return href("source", of(s, "tab", t.name, "prefix", prefix, "continue", token)...) + "#keys"
	}
	body := write(`<table class="rows keys"><caption class="unseen">%s</caption><thead><tr>%s</tr></thead><tbody>%s</tbody></table>`, string(t.label), head, join(rows))
	switch {
	case len(rows) == 0 && next != "":
		body = `<p class="empty">None was found in the time of one look. The search goes on with the next page.</p>`
	case len(rows) == 0 && (prefix != "" || token != ""):
		body = `<p class="empty">There are no more.</p>`
		if token == "" {
			body = write(`<p class="empty">No key here begins with %s.</p>`, text(prefix))
		}
	case len(rows) == 0:
		body = write(`<p class="empty">%s</p>`, string(t.empty))
	}
	if next != "" {
		next = link(next)
	}
	return write(`<div id="rows" data-live>%s%s</div>`, body, pager(token != "", link(""), next, t.label)), nil
}

func state(k *row, now time.Time) markup {
	switch {
	case k.retrying():
		return badge("warn", "retrying")
	case k.State == "inFlight" || k.InFlight:
		return badge("busy", "in flight")
	case k.State == "due" && now.Sub(k.DueAt) > late:
		return badge("warn", "overdue")
	case k.State == "due":
		return badge("busy", "due")
	}
	return badge("good", "waiting")
}

func (h *handler) keyLine(s *Source, k *row, now time.Time) markup {
	what := markup("")
	switch {
	case k.retrying() && k.LastFailure != nil:
		what = write(`%s, again %s`, status(k.LastFailure.Status, k.LastFailure.Error), instant(k.NextAttemptAt, now))
	case k.retrying():
		what = write(`again %s`, instant(k.NextAttemptAt, now))
	case k.LastFailure != nil:
		what = status(k.LastFailure.Status, k.LastFailure.Error)
	case k.Reason != "":
		what = text(k.Reason)
	}
	revision := strconv.FormatUint(k.Revision, 10)
	return write(`<tr><th scope="row"><a class="keyname" href="%s">%s</a></th><td data-label="State">%s</td><td data-label="Due">%s</td><td class="num %s" data-label="Attempts">%s</td><td data-label="What happened" class="what">%s</td><td class="act">%s</td></tr>`,
		href("key", of(s, "key", k.Key)...), text(k.Key), state(k, now), instant(k.DueAt, now), when(k.Tries == 0, "zero"), k.Tries, what,
		h.form(s, "run", "Run now", text(k.Key), "small", "key", k.Key, "revision", revision))
}

func (h *handler) letterLine(s *Source, l *letterRow, now time.Time) markup {
	return write(`<tr><th scope="row"><a class="keyname" href="%s">%s</a></th><td data-label="Given up">%s</td><td class="num" data-label="Attempts">%s</td><td data-label="Because" class="what">%s</td><td class="act">%s<a class="button small" href="%s">Discard…<span class="unseen"> %s</span></a></td></tr>`,
		href("letter", of(s, "key", l.Key)...), text(l.Key), instant(l.At, now), l.Attempts, status(l.Status, l.Error),
		h.form(s, "redrive", "Redrive", text(l.Key), "small", "key", l.Key, "at", stamp(l.At)), href("confirm", of(s, "what", "discard", "key", l.Key, "at", stamp(l.At))...), text(l.Key))
}
