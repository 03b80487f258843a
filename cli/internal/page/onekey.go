package page

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
)

// shownBytes is how much of an event's data a view has.
const shownBytes = 64 << 10

// maxAhead is how many keys before a due one are counted.
const maxAhead = 200

// keyView shows one key, also one that is gone.
func (h *handler) keyView(r *http.Request) (*view, error) {
	s, err := h.source(r)
	if err != nil {
		return nil, err
	}
	name, err := validKey(r)
	if err != nil {
		return nil, err
	}
	path := "/schedules/" + segment(name)
	var k key
	var n counts
	var past history
	var dead letter
	now := h.Now()
	f := h.facts(s, now)
	errs := make([]error, 4)
	Each(len(errs)+1, func(i int) {
		switch i {
		case 0:
			errs[i] = h.get(r.Context(), s, path, &k)
		case 1:
			errs[i] = h.get(r.Context(), s, "", &n)
		case 2:
			errs[i] = h.get(r.Context(), s, path+"/history", &past)
		case 3:
			errs[i] = h.get(r.Context(), s, "/deadletters/"+segment(name), &dead)
		case 4:
			f.Add(h.Metrics(r.Context(), s.Namespace, s.Name))
		}
	})
	absent, noLetter := isStatus(errs[0], http.StatusNotFound), isStatus(errs[3], http.StatusNotFound)
	for i, err := range errs {
		if err != nil && !(i == 0 && absent) && !(i == 3 && noLetter) {
			return nil, err
		}
	}
	f.Key, f.Counts, f.Since = name, facts(&n), past.Since
	for _, o := range past.Items {
		late, _ := time.ParseDuration(o.Lateness)
		took, _ := time.ParseDuration(o.Duration)
		f.History = append(f.History, why.Outcome{At: o.At, Result: o.Result, Status: o.Status, Attempt: int(o.Attempt), Lateness: late, Duration: took, Cause: o.Cause})
	}
	if !absent {
		f.Record = k.record()
		h.ahead(r, s, &k.row, &f)
		if f.WantsStart() {
			f.Record.StartedAt = h.started(r.Context(), s, name)
		}
	}
	if !noLetter {
		f.DeadLetter = dead.letter()
	}
	event := k.Event
	var letterLink markup
	if !noLetter {
		letterLink = write(`<p class="banner bad"><strong>Dead letter.</strong> An event of this key was given up %s. <a href="%s">Look at it</a></p>`, instant(dead.At, now), href("letter", of(s, "key", name)...))
	}
	body := write(`<div class="title"><div><h1 class="keyname">%s</h1></div>%s</div>%s%s%s
<div id="key" data-live>%s<div class="columns"><section class="card" aria-labelledby="facts-head"><h2 id="facts-head">Facts</h2>%s</section>
<section class="card" aria-labelledby="timeline-head"><h2 id="timeline-head">Timeline</h2>%s</section></div>%s</div>`,
		text(name), h.actions(s, &k.row, absent), done(r), banner(s), letterLink,
		answer(why.Explain(f)), keyFacts(&k.row, absent, now), timeline(&k.row, absent, &past, now), showEvent(event))
	return &view{title: name, crumbs: []crumb{sourceCrumb(s)}, body: body, live: true}, nil
}

// ahead counts the keys that became due before the key, while it waits for its turn.
func (h *handler) ahead(r *http.Request, s *Source, k *row, f *why.Facts) {
	if k.State != "due" || k.retrying() || k.InFlight {
		return
	}
	rows, next, err := list[row](r.Context(), h, s, "/schedules", query("state", "due", "order", "due", "limit", strconv.Itoa(maxAhead)))
	if err != nil {
		return // the sentence is right without it
	}
	f.AheadKnown, f.AheadMore = true, next != ""
	for _, other := range rows {
		if !f.CountAhead(other.Key, other.DueAt, other.NextAttemptAt) {
			f.AheadMore = false
			return
		}
	}
}

// actions are what a user can do with a key, as it is shown.
func (h *handler) actions(s *Source, k *row, absent bool) markup {
	if absent {
		return ""
	}
	revision := strconv.FormatUint(k.Revision, 10)
	return write(`<div class="actions" id="actions" data-live>%s<a class="button danger" href="%s">Cancel…</a>%s</div>`,
		h.form(s, "run", "Run now", "", "primary", "key", k.Key, "revision", revision),
		href("confirm", of(s, "what", "cancel", "key", k.Key, "revision", revision)...),
		when(k.InFlight, `<p class="hint">A delivery is under way. “Run now” runs the key once more after it.</p>`))
}

// keyFacts is what the key's record says.
func keyFacts(k *row, absent bool, now time.Time) markup {
	if absent {
		return `<p class="empty">Nothing waits and nothing is in flight.</p>`
	}
	fact := func(name constant, value markup) markup {
		return write(`<div><dt>%s</dt><dd>%s</dd></div>`, string(name), value)
	}
	m := fact("State", state(k, now)) + fact("Due", instant(k.DueAt, now))
	if k.retrying() {
		m += fact("Next attempt", instant(k.NextAttemptAt, now))
	}
	m += fact("Attempts so far", write("%s", k.Tries)) + fact("Failed runs in a row", write("%s", k.Attempt))
	if f := k.LastFailure; f != nil {
		m += fact("Last failure", write(`%s, %s`, status(f.Status, f.Error), instant(f.At, now)))
		if f.Detail != "" {
			m += fact("Answer", write(`<code class="detail">%s</code>`, text(f.Detail)))
		}
	}
	if k.Reason != "" {
		m += fact("Reason", text(k.Reason))
	}
	m += fact("Scheduled", instant(k.ScheduledAt, now))
	if k.MaxInterval != "" {
		m += fact("Again at least every", text(k.MaxInterval))
	}
	if !k.ExpiresAt.IsZero() {
		m += fact("Expires", instant(k.ExpiresAt, now))
	}
	if k.UID != "" {
		m += fact("Object uid", write(`<code>%s</code>`, text(k.UID)))
	}
	return write(`<dl class="facts">%s%s</dl>`, m, fact("Revision", write(`<code>%s</code>`, k.Revision)))
}

// results are the words and the colours of outcomes.
var results = map[string]struct{ class, word constant }{
	"delivered": {"good", "delivered"}, "retrying": {"warn", "failed"}, "dead_lettered": {"bad", "to the dead letter sink"}, "kept": {"bad", "given up, kept"},
	"dropped": {"bad", "given up, dropped"}, "expired": {"held", "expired"}, "superseded": {"idle", "replaced"}, "aborted": {"idle", "cut off"},
	"deleted": {"idle", "cancelled"},
}

func result(name string) markup {
	if r, ok := results[name]; ok {
		return badge(r.class, r.word)
	}
	return write(`<span class="badge idle">%s</span>`, text(name))
}

// timeline is what comes and what was, newest first.
func timeline(k *row, absent bool, past *history, now time.Time) markup {
	var items []markup
	add := func(class constant, at time.Time, what markup) {
		items = append(items, write(`<li class="%s"><span class="at">%s</span><div>%s</div></li>`, string(class), instant(at, now), what))
	}
	if !absent {
		switch {
		case k.InFlight || k.State == "inFlight":
			add("busy", now, `A delivery is under way.`)
		case k.retrying():
			add("next", k.NextAttemptAt, write(`Attempt %s begins.`, k.Tries+1))
		case k.DueAt.After(now):
			add("next", k.DueAt, `It becomes due.`)
		default:
			add("busy", k.DueAt, `It became due and waits for its turn.`)
		}
	}
	scheduled := absent
	for _, o := range past.Items {
		if !scheduled && !k.ScheduledAt.IsZero() && o.At.Before(k.ScheduledAt) {
			add("set", k.ScheduledAt, `Scheduled.`)
			scheduled = true
		}
		class := constant("idle")
		if r, ok := results[o.Result]; ok {
			class = r.class
		}
		late, _ := time.ParseDuration(o.Lateness)
		took, _ := time.ParseDuration(o.Duration)
		what := result(o.Result)
		if o.Status != 0 || took > 0 { // else it ended without an attempt
			what += write(` <span class="what">%s · %s late · took %s</span>`, status(o.Status, ""), span(late), span(took))
		}
		if o.Cause != "" {
			what += write(` <span class="what">because of %s</span>`, text(o.Cause))
		}
		add(class, o.At, what)
	}
	if !scheduled && !k.ScheduledAt.IsZero() {
		add("set", k.ScheduledAt, `Scheduled.`)
	}
	list := markup(`<p class="empty">No run is known.</p>`)
	if len(items) > 0 {
		list = write(`<ol class="timeline">%s</ol>`, join(items))
	}
	return write(`%s<p class="hint">Runs are remembered in the adapter's memory; none after %s is missing here.</p>`, list, past.Since.UTC().Format("2006-01-02 15:04 UTC"))
}

// showEvent shows an event; its data stays folded, since it may be private.
func showEvent(event json.RawMessage) markup {
	if len(event) == 0 || string(event) == "{}" || string(event) == "null" {
		return ""
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(event, &members); err != nil {
		return ""
	}
	data, encoded := members["data"], members["data_base64"]
	delete(members, "data")
	delete(members, "data_base64")
	attributes, _ := json.MarshalIndent(members, "", "  ") // of what was parsed
	body := write(`<pre tabindex="0" aria-label="Attributes">%s</pre>`, text(string(attributes)))
	if len(data) > 0 {
		body += folded(readable(data), int64(len(data)))
	} else if len(encoded) > 0 {
		raw := decode(encoded)
		body += folded(raw, int64(len(raw)))
	}
	return write(`<section class="card" aria-labelledby="event-head"><h2 id="event-head">Event</h2>%s</section>`, body)
}

// readable indents JSON; its numbers stay as they are.
func readable(data []byte) string {
	var b bytes.Buffer
	if len(data) > shownBytes || json.Indent(&b, data, "", "  ") != nil || b.Len() > 2*shownBytes {
		return string(data)
	}
	return b.String()
}

func decode(quoted []byte) string {
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return string(quoted)
	}
	raw, err := base64.StdEncoding.DecodeString(s)
	if err != nil || !utf8.Valid(raw) {
		return s
	}
	return string(raw)
}

func folded(data string, size int64) markup {
	cut := markup("")
	if len(data) > 2*shownBytes {
		data, cut = data[:shownBytes], `<p class="hint">This is its beginning. The schedule API has all of it.</p>`
	}
	return write(`<details id="data"><summary>Data <span class="cause">%s</span></summary><pre tabindex="0" aria-label="Data">%s</pre>%s</details>`, plural(size, "byte", "bytes"), text(data), cut)
}

// letterView shows a dead letter.
func (h *handler) letterView(r *http.Request) (*view, error) {
	s, err := h.source(r)
	if err != nil {
		return nil, err
	}
	name, err := validKey(r)
	if err != nil {
		return nil, err
	}
	var l letter
	if err := h.get(r.Context(), s, "/deadletters/"+segment(name), &l); err != nil {
		return nil, err
	}
	now := h.Now()
	detail := markup("")
	if l.Detail != "" {
		detail = write(`<div><dt>Answer</dt><dd><code class="detail">%s</code></dd></div>`, text(l.Detail))
	}
	body := write(`<div class="title"><div><h1 class="keyname">%s</h1><p class="sub">Dead letter</p></div><div class="actions">%s<a class="button danger" href="%s">Discard…</a></div></div>
<section class="why bad" aria-labelledby="why-head"><h2 id="why-head" class="unseen">Why</h2><p class="sentence">Given up %s after %s: %s.</p></section>
<section class="card" aria-labelledby="facts-head"><h2 id="facts-head">Facts</h2><dl class="facts"><div><dt>Was due</dt><dd>%s</dd></div><div><dt>Given up</dt><dd>%s</dd></div><div><dt>Last answer</dt><dd>%s</dd></div>%s<div><dt>Key</dt><dd><a href="%s">Look at the key</a></dd></div></dl></section>%s`,
		text(name), h.form(s, "redrive", "Redrive", "", "primary", "key", name, "at", stamp(l.At)), href("confirm", of(s, "what", "discard", "key", name, "at", stamp(l.At))...),
		instant(l.At, now), plural(int64(l.Attempts), "attempt", "attempts"), status(l.Status, l.Error),
		instant(l.DueAt, now), instant(l.At, now), status(l.Status, l.Error), detail, href("key", of(s, "key", name)...), showEvent(l.Event))
	return &view{title: name + " (dead letter)", crumbs: []crumb{sourceCrumb(s), {"Dead letters", href("source", of(s, "tab", "dead")...)}}, body: body}, nil
}
