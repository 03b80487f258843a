package page

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/why"
)

const (
	sourcesPerPage = 50
	// callsAtOnce is how many calls a view, or a command, makes at one time.
	callsAtOnce = 8
	// late is how long a key may be overdue before a source is shown as late.
	late = 5 * time.Second
)

// Each calls f for 0 to n-1, some at a time, and returns when all have returned.
func Each(n int, f func(i int)) {
	var wait sync.WaitGroup
	slots := make(chan struct{}, callsAtOnce)
	for i := range n {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	wait.Wait()
}

func byName(a, b *Source) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// sourcesView shows all sources, page by page. The counts are asked for one page alone.
func (h *handler) sourcesView(r *http.Request) (*view, error) {
	all, err := h.Sources(r.Context())
	if err != nil {
		return nil, err
	}
	search, after := r.FormValue("q"), r.FormValue("after")
	found := make([]*Source, 0, min(len(all), 1024))
	for i := range all {
		if strings.Contains(all[i].Namespace+"/"+all[i].Name, search) {
			found = append(found, &all[i])
		}
	}
	slices.SortFunc(found, byName)
	ns, name, _ := strings.Cut(after, "/")
	first, _ := slices.BinarySearchFunc(found, &Source{Namespace: ns, Name: name + "\x00"}, byName)
	shown := found[first:min(len(found), first+sourcesPerPage)]
	rows := make([]markup, len(shown))
	now := h.Now()
	var group why.Group
	var asked sync.WaitGroup
	asked.Go(func() { group = h.Members(r.Context()) })
	Each(len(shown), func(i int) { rows[i] = h.sourceRow(r.Context(), shown[i], now) })
	asked.Wait()

	body := write(`<div class="title"><div><h1>Sources</h1><p class="sub">%s%s</p></div>
<form class="search" role="search"><label for="q">Namespace or name</label><input id="q" name="q" type="search" value="%s" maxlength="200" autocomplete="off" spellcheck="false"><button type="submit">Find</button></form></div>
`, plural(int64(len(found)), "source", "sources"), when(search != "", write(" match %s", text(search))), search)
	switch {
	case len(all) == 0:
		body += `<p class="empty">There is no RescheduleSource yet. Each one appears here with what waits, what is late, and why.</p>`
	case len(found) == 0:
		body += write(`<p class="empty">No source has %s in its namespace and name. <a href="./">Show all</a></p>`, text(search))
	default:
		body += write(`<div id="sources" data-live><table class="rows"><caption class="unseen">Sources</caption>
<thead><tr><th scope="col">Source</th><th scope="col">State</th><th scope="col" class="num">Pending</th><th scope="col" class="num">Overdue</th><th scope="col" class="num">Retrying</th><th scope="col" class="num">In flight</th><th scope="col" class="num">Dead letters</th><th scope="col">Next due</th></tr></thead>
<tbody>%s</tbody></table></div>`, join(rows))
	}
	var next string
	if first+len(shown) < len(found) {
		last := shown[len(shown)-1]
		next = href("./", "q", search, "after", last.Namespace+"/"+last.Name)
	}
	body += pager(after != "", href("./", "q", search), next, "Sources") + members(group)
	return &view{title: "Sources", body: body, live: true}, nil
}

// members shows a group: who owns it, and how far the others are behind.
func members(g why.Group) markup {
	if len(g) == 0 {
		return ""
	}
	sentence, problem := g.Sentence()
	var rows []markup
	for i := range g {
		m := &g[i]
		rows = append(rows, write(`<tr><th scope="row">%s</th><td data-label="State">%s</td><td class="what" data-label="Finding">%s</td></tr>`,
			text(m.Pod), memberBadge(m), text(g.About(m))))
	}
	return write(`<section id="members" class="members" aria-labelledby="members-head" data-live><h2 id="members-head">Adapters</h2><p class="%s">%s</p>
<table class="rows"><caption class="unseen">Adapters of the group</caption>
<thead><tr><th scope="col">Member</th><th scope="col">State</th><th scope="col">Finding</th></tr></thead>
<tbody>%s</tbody></table></section>`, when(problem, "banner bad")+when(!problem, "sub"), text(sentence), join(rows))
}

func memberBadge(m *why.Member) markup {
	switch m.State() {
	case why.MemberOwns:
		return badge("good", "owner")
	case why.MemberFollows:
		return badge("idle", "standby")
	case why.MemberLags:
		return badge("warn", "behind")
	case why.MemberAlone:
		return badge("bad", "no majority")
	}
	return badge("bad", "no answer")
}

// pager are the links between the pages of a list.
func pager(later bool, first, next string, what constant) markup {
	if !later && next == "" {
		return ""
	}
	var links markup
	if later {
		links = write(`<a class="button" href="%s">First page</a>`, first)
	}
	if next != "" {
		links += write(`<a class="button" rel="next" href="%s">Next page</a>`, next)
	}
	return write(`<nav class="pager" aria-label="Pages of %s">%s</nav>`, string(what), links)
}

// sourceRow is a source in the list of all.
func (h *handler) sourceRow(ctx context.Context, s *Source, now time.Time) markup {
	link := write(`<th scope="row"><a href="%s"><span class="ns">%s/</span>%s</a></th>`, href("source", of(s)...), s.Namespace, s.Name)
	var n counts
	if err := h.get(ctx, s, "", &n); err != nil {
		return write(`<tr>%s<td>%s</td><td colspan="6" class="trouble">%s</td></tr>`, link, badge("bad", "unknown"), text(err.Error()))
	}
	next := instant(n.NextDueAt, now)
	if !n.OldestDueAt.IsZero() {
		next = write(`<span class="%s">due %s</span>`, when(now.Sub(n.OldestDueAt) > late, "trouble"), instant(n.OldestDueAt, now))
	}
	cell := func(label constant, n int64, alarm constant) markup {
		class := constant("")
		if n == 0 {
			class = "zero"
		} else {
			class = alarm
		}
		return write(`<td class="num %s" data-label="%s">%s</td>`, string(class), string(label), number(n))
	}
	return write(`<tr>%s<td data-label="State">%s</td>%s%s%s%s%s<td data-label="Next due">%s</td></tr>`, link, h.health(ctx, s, &n, now),
		cell("Pending", n.Pending, ""), cell("Overdue", n.Due, "warn"), cell("Retrying", n.Retrying, "warn"), cell("In flight", n.InFlight, ""), cell("Dead letters", n.DeadLetters, "bad"), next)
}

// badge is a state: the word says it, the colour repeats it.
func badge(class constant, word constant) markup {
	return write(`<span class="badge %s">%s</span>`, string(class), string(word))
}

// health is the state of a source in a word.
func (h *handler) health(ctx context.Context, s *Source, n *counts, now time.Time) markup {
	switch {
	case s.Deleting:
		return badge("bad", "deleted")
	case unready(s):
		return badge("bad", "not ready")
	case s.Suspended:
		return badge("held", "suspended")
	case n.Retrying > 0:
		return badge("warn", "retrying")
	case !n.OldestDueAt.IsZero() && now.Sub(n.OldestDueAt) > late:
		return badge("warn", "late")
	}
	f := h.facts(s, now)
	f.Add(h.Metrics(ctx, s.Namespace, s.Name))
	f.Counts = facts(n)
	switch why.Explain(f).Cause {
	case why.GivenUp:
		return badge("bad", "giving up")
	case why.StorageFull, why.Quota:
		return badge("warn", "full")
	}
	switch {
	case n.DeadLetters > 0:
		return badge("bad", "dead letters")
	case n.InFlight > 0:
		return badge("busy", "delivering")
	case n.Pending > 0:
		return badge("good", "on time")
	}
	return badge("idle", "idle")
}

func unready(s *Source) bool {
	return slices.ContainsFunc(s.Conditions, func(c why.Condition) bool { return c.Type == "Ready" && c.Status != "True" })
}

// answer shows the sentence of package why, and its evidence.
func answer(a why.Answer) markup {
	class := constant("good")
	if a.Problem {
		class = "warn"
	}
	var facts []markup
	for _, e := range a.Evidence {
		facts = append(facts, write(`<div><dt>%s</dt><dd>%s</dd></div>`, e.Name, text(e.Value)))
	}
	return write(`<section class="why %s" aria-labelledby="why-head"><h2 id="why-head" class="unseen">Why</h2><p class="sentence">%s</p>
<details id="evidence"><summary>Evidence <span class="cause">%s</span></summary><dl class="facts">%s</dl></details></section>`,
		string(class), text(a.Sentence), string(a.Cause), join(facts))
}

func facts(n *counts) *why.Counts {
	return &why.Counts{Pending: n.Pending, Due: n.Due, InFlight: n.InFlight, Retrying: n.Retrying, DeadLetters: n.DeadLetters, NextDueAt: n.NextDueAt, OldestDueAt: n.OldestDueAt}
}

func (r *row) record() *why.Record {
	w := &why.Record{
		Key: r.Key, State: r.State, InFlight: r.InFlight, DueAt: r.DueAt, ScheduledAt: r.ScheduledAt, Attempt: int(r.Attempt), Tries: int(r.Tries),
		NextAttemptAt: r.NextAttemptAt, Reason: r.Reason, UID: r.UID, ExpiresAt: r.ExpiresAt,
	}
	if d, err := time.ParseDuration(r.MaxInterval); err == nil {
		w.MaxInterval = &d
	}
	if f := r.LastFailure; f != nil {
		w.LastFailure = &why.Failure{At: f.At, Status: f.Status, Error: f.Error, Detail: f.Detail}
	}
	return w
}

func (l *letterRow) letter() *why.DeadLetter {
	return &why.DeadLetter{Key: l.Key, At: l.At, DueAt: l.DueAt, Attempts: int(l.Attempts), Failure: why.Failure{At: l.At, Status: l.Status, Error: l.Error, Detail: l.Detail}}
}

// status is the answer of a sink in words.
func status(code int, failure string) markup {
	if code != 0 && failure != "bad_answer" {
		failure = strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
	}
	return text(cmp.Or(failure, "no answer"))
}
