package page

import (
	"context"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
	"github.com/reschedule-dev/reschedule/sdk"
)

const (
	keysPerPage = 50
	// keysAhead is how many of the next keys the chart has.
	keysAhead = 500
)

// tab is a part of a source's keys.
type tab struct {
	Name, Label, empty string
	state              sdk.State // "" is dead letters
	count              func(*sdk.Counts) int
}

var tabs = []tab{
	{"overdue", "Overdue", "Nothing is overdue.", sdk.Due, func(n *sdk.Counts) int { return n.Due }},
	{"retrying", "Retrying", "No key waits for another attempt.", sdk.Retrying, func(n *sdk.Counts) int { return n.Retrying }},
	{"waiting", "Waiting", "No key waits for its time.", sdk.Waiting, func(n *sdk.Counts) int { return max(0, n.Pending-n.Due) }},
	{"flight", "In flight", "No delivery is under way.", sdk.InFlight, func(n *sdk.Counts) int { return n.InFlight }},
	{"dead", "Dead letters", "No event was given up.", "", func(n *sdk.Counts) int { return n.DeadLetters }},
}

// tabOf is the tab with the name, else the tab with trouble.
func tabOf(name string, n *sdk.Counts) *tab {
	at := slices.IndexFunc(tabs, func(t tab) bool { return t.Name == name })
	switch {
	case at >= 0:
	case n.Due > 0 || n.Pending+n.InFlight+n.DeadLetters == 0:
		at = 0
	case n.Pending > 0:
		at = 2
	case n.InFlight > 0:
		at = 3
	default:
		at = 4
	}
	return &tabs[at]
}

// tabLink leads to a tab.
type tabLink struct {
	*tab
	Count   int
	Current bool
	Href    string
}

// tile is a count.
type tile struct {
	Label, Class string
	Count        int
}

// table is a page of the keys of a tab.
type table struct {
	Tab     *tab
	Prefix  string
	Keys    []*sdk.Schedule
	Letters []*sdk.DeadLetter
	Empty   string // why it has no rows
	Pager   pager
}

// Dead says that the rows are dead letters.
func (t *table) Dead() bool { return t.Tab.state == "" }

// source shows one source.
func (h *handler) source(r *http.Request) (*view, error) {
	s, t, err := h.find(r)
	if err != nil {
		return nil, err
	}
	f := t.Ask(r.Context(), "")
	if f.Counts == nil {
		return silent(s, &f), nil
	}
	at := tabOf(r.FormValue("tab"), f.Counts)
	var rows *table
	var ahead []*sdk.Schedule
	var next string
	var past recent
	var calls errgroup.Group
	calls.Go(func() (err error) { rows, err = readTable(r, s, t.Client, at); return err })
	calls.Go(func() error { past = readRecent(r.Context(), t.Client); return nil })
	if f.Counts.Pending > f.Counts.Due {
		calls.Go(func() (err error) {
			ahead, next, err = t.Client.ListPage(r.Context(), sdk.ListOptions{State: sdk.Waiting, Order: sdk.ByDue, PageSize: keysAhead})
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		return nil, err
	}
	var links []tabLink
	for i := range tabs {
		links = append(links, tabLink{&tabs[i], tabs[i].count(f.Counts), &tabs[i] == at, href("source", s, "tab", tabs[i].Name) + "#keys"})
	}
	return &view{name: "source", Title: s.Namespace + "/" + s.Name, Crumbs: top, Live: true, Source: s, Body: struct {
		Done     string
		Workload string
		Answer   why.Answer
		Counts   *sdk.Counts
		Tiles    []tile
		Late     bool
		Charts   []*chart
		Tabs     []tabLink
		Table    *table
	}{done(r), workload(&f), why.Explain(f), f.Counts, tiles(&f), isLate(&f), []*chart{dueChart(ahead, next != "", f.Now), past.chart(f.Now)}, links, rows}}, nil
}

// workload is the state of the source's workload in a line, "" without one.
func workload(f *why.Facts) string {
	s := f.Scale()
	if s == nil || s.State == "" {
		return ""
	}
	text := f.Workload() + ": " + s.State + why.Since(f.Now, s) + "; " + why.Plural(s.Starts, "start", "starts")
	if s.LastStart != "" {
		text += ", the last one took " + s.LastStart
	}
	return text
}

func tiles(f *why.Facts) []tile {
	n := f.Counts
	alarm := func(on bool, class string) string {
		if !on {
			return ""
		}
		return class
	}
	return []tile{
		{"Pending", "", n.Pending}, {"Overdue", alarm(isLate(f), "warn"), n.Due}, {"Retrying", alarm(n.Retrying > 0, "warn"), n.Retrying},
		{"In flight", "", n.InFlight}, {"Dead letters", alarm(n.DeadLetters > 0, "bad"), n.DeadLetters},
	}
}

// readTable reads a page of the keys of a tab.
func readTable(r *http.Request, s *Source, c *sdk.Client, t *tab) (*table, error) {
	rows := &table{Tab: t, Prefix: r.FormValue("prefix"), Pager: pager{What: t.Label}}
	o := sdk.ListOptions{Prefix: rows.Prefix, Continue: r.FormValue("continue"), PageSize: keysPerPage, State: t.state}
	if rows.Prefix == "" && t.state != "" {
		o.Order = sdk.ByDue
	}
	var next string
	var err error
	if t.state == "" {
		rows.Letters, next, err = c.DeadLettersPage(r.Context(), o)
	} else {
		rows.Keys, next, err = c.ListPage(r.Context(), o)
	}
	if err != nil {
		return nil, err
	}
	page := func(token string) string {
		return href("source", s, "tab", t.Name, "prefix", rows.Prefix, "continue", token) + "#keys"
	}
	if o.Continue != "" {
		rows.Pager.First = page("")
	}
	if next != "" {
		rows.Pager.Next = page(next)
	}
	switch {
	case len(rows.Keys)+len(rows.Letters) > 0:
	case next != "":
		rows.Empty = "None was found in the time of one look. The search goes on with the next page."
	case o.Continue != "":
		rows.Empty = "There are no more."
	case rows.Prefix != "":
		rows.Empty = "No key here begins with " + rows.Prefix + "."
	default:
		rows.Empty = t.empty
	}
	return rows, nil
}

// state is the state of a key.
func state(s *Source, now time.Time, k *sdk.Schedule) badge {
	switch {
	case !k.NextAttemptAt.IsZero():
		return badge{"warn", "retrying"}
	case k.State == sdk.InFlight || k.InFlight:
		return badge{"busy", "in flight"}
	case k.State == sdk.Due && now.Sub(k.DueAt) > late && !s.Sinkless():
		return badge{"warn", "overdue"}
	case k.State == sdk.Due:
		return badge{"busy", "due"}
	}
	return badge{"good", "waiting"}
}

const (
	// eventsMost bounds the events that a view shows, timesMost the keys whose history it
	// reads for their lateness.
	eventsMost = 200
	timesMost  = 24
)

// recent is what the API remembers of the last hour.
type recent struct {
	events []*sdk.Live     // oldest first
	late   []time.Duration // of the last runs, sorted
}

// readRecent reads the events that the API still has. It has some from the first look on,
// while the looks are not further apart than some minutes.
func readRecent(ctx context.Context, c *sdk.Client) recent {
	events, _, _ := c.Remembered(ctx) // without them the chart says that nothing is known
	return recent{events, lateness(ctx, c, events)}
}

// lateness asks how late the last runs of different keys were.
func lateness(ctx context.Context, c *sdk.Client, events []*sdk.Live) []time.Duration {
	var keys []string
	for _, e := range slices.Backward(events) {
		if e.Kind == sdk.KeyOutcome && !slices.Contains(keys, e.Key) {
			keys = append(keys, e.Key)
		}
		if len(keys) == timesMost {
			break
		}
	}
	found := make([]time.Duration, len(keys))
	var calls errgroup.Group
	calls.SetLimit(callsAtOnce)
	for i := range keys {
		calls.Go(func() error {
			found[i] = -1
			past, err := c.History(ctx, keys[i])
			// Later attempts are late because the sink failed.
			first := func(o sdk.PastAttempt) bool { return o.Attempt <= 1 }
			if err == nil && slices.ContainsFunc(past.Items, first) {
				found[i] = past.Items[slices.IndexFunc(past.Items, first)].Lateness
			}
			return nil
		})
	}
	_ = calls.Wait() // there is none
	found = slices.DeleteFunc(found, func(d time.Duration) bool { return d < 0 })
	slices.Sort(found)
	return found
}
