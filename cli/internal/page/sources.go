package page

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
	"github.com/reschedule-dev/reschedule/sdk"
)

const (
	sourcesPerPage = 50
	// callsAtOnce is how many calls a view makes at one time.
	callsAtOnce = 8
	// late is how long a key may be overdue before a source is shown as late.
	late = 5 * time.Second
)

// sourceRow is a source in the list of all.
type sourceRow struct {
	*Source
	Badge   badge
	Counts  *sdk.Counts // nil: it does not answer
	Trouble string      // why
	Late    bool
}

// badge is a state: the word says it, the colour repeats it.
type badge struct{ Class, Word string }

// sources shows all sources, page by page. The counts are asked for one page alone.
func (h *handler) sources(r *http.Request) (*view, error) {
	all, err := h.Sources(r.Context())
	if err != nil {
		return nil, err
	}
	search, after := r.FormValue("q"), r.FormValue("after")
	found := make([]*Source, 0, len(all))
	for i := range all {
		if strings.Contains(all[i].Namespace+"/"+all[i].Name, search) {
			found = append(found, &all[i])
		}
	}
	byName := func(a, b *Source) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	}
	slices.SortFunc(found, byName)
	ns, name, _ := strings.Cut(after, "/")
	first, _ := slices.BinarySearchFunc(found, &Source{Namespace: ns, Name: name + "\x00"}, byName)
	shown := found[first:min(len(found), first+sourcesPerPage)]
	rows := make([]sourceRow, len(shown))
	var group why.Group
	var calls errgroup.Group
	calls.SetLimit(callsAtOnce)
	calls.Go(func() error { group = h.Members(r.Context()); return nil })
	for i := range shown {
		calls.Go(func() error { rows[i] = readRow(r.Context(), shown[i]); return nil })
	}
	_ = calls.Wait() // each row has its own error
	links := pager{What: "Sources"}
	if after != "" {
		links.First = href("./", nil, "q", search)
	}
	if first+len(shown) < len(found) {
		last := shown[len(shown)-1]
		links.Next = href("./", nil, "q", search, "after", last.Namespace+"/"+last.Name)
	}
	sentence, problem := group.Sentence()
	return &view{name: "sources", Title: "Sources", Live: true, Body: struct {
		Search     string
		All, Found int
		Rows       []sourceRow
		Pager      pager
		Group      why.Group
		Sentence   string // about the group
		Problem    bool
	}{search, len(all), len(found), rows, links, group, sentence, problem}}, nil
}

// pager are the links between the pages of a list, "" where there is none.
type pager struct{ What, First, Next string }

// readRow asks a source for its counts.
func readRow(ctx context.Context, s *Source) sourceRow {
	t := s.Target(ctx)
	f := t.Count(ctx)
	if f.Counts == nil {
		return sourceRow{Source: s, Badge: badge{"bad", "unknown"}, Trouble: why.Explain(f).Sentence}
	}
	return sourceRow{Source: s, Badge: health(ctx, t, &f), Counts: f.Counts, Late: isLate(&f)}
}

// isLate reports whether a due key is late. Without a sink keys are due for as long as the workload works.
func isLate(f *why.Facts) bool {
	n := f.Counts
	return !n.OldestDueAt.IsZero() && n.CompanyUntil.IsZero() && f.Now.Sub(n.OldestDueAt) > late && !f.Source.Works(f.Scale())
}

// health is the state of a source in a word.
func health(ctx context.Context, t *why.Target, f *why.Facts) badge {
	n, s := f.Counts, cmp.Or(f.Source, &why.Source{})
	switch {
	case s.Deleting:
		return badge{"bad", "deleted"}
	case slices.ContainsFunc(s.Conditions, func(c why.Condition) bool { return c.Type == "Ready" && c.Status != "True" }):
		return badge{"bad", "not ready"}
	case s.Suspended:
		return badge{"held", "suspended"}
	case n.Retrying > 0:
		return badge{"warn", "retrying"}
	case isLate(f):
		return badge{"warn", "late"}
	}
	f.Measure(t.Metrics(ctx))
	switch why.Explain(*f).Cause {
	case why.GivenUp:
		return badge{"bad", "giving up"}
	case why.StorageFull, why.Quota:
		return badge{"warn", "full"}
	case why.Unscaled:
		return badge{"bad", "not scaled"}
	}
	scale := cmp.Or(f.Scale(), &sdk.Scale{})
	switch {
	case n.DeadLetters > 0:
		return badge{"bad", "dead letters"}
	case n.InFlight > 0:
		return badge{"busy", "delivering"}
	case scale.State == "Starting":
		return badge{"busy", "starting"}
	case n.Due > 0 && f.Source.Works(scale):
		return badge{"busy", "working"}
	case scale.State == "Asleep":
		return badge{"idle", "asleep"}
	case n.Pending > 0:
		return badge{"good", "on time"}
	}
	return badge{"idle", "idle"}
}

// memberBadge is the state of a member of a group.
func memberBadge(m *why.Member) badge {
	switch m.State() {
	case why.MemberOwns:
		return badge{"good", "owner"}
	case why.MemberFollows:
		return badge{"idle", "standby"}
	case why.MemberLags:
		return badge{"warn", "behind"}
	case why.MemberAlone:
		return badge{"bad", "no majority"}
	}
	return badge{"bad", "no answer"}
}
