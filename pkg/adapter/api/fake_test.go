package api

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/recent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// now is the time of every test.
var now = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)

// fake is a source that keeps its keys in a map and applies requests as the queue does.
type fake struct {
	sync.Mutex
	entries  map[string]*schedule.Entry
	inFlight map[string]bool // a delivery of the entry is under way
	revision uint64
	settings *schedule.Spec
	requests []schedule.Request // as they arrived
	fail     error              // the answer to every call
	overtake func()             // runs before a change
	counts   queue.Counts

	letters  map[string]*schedule.Entry
	outcomes []recent.Outcome
	feeds    *recent.Feeds
	slot     recent.FeedRef
}

func newFake() *fake {
	return &fake{
		letters: map[string]*schedule.Entry{}, feeds: recent.NewFeeds(),
		entries: map[string]*schedule.Entry{}, inFlight: map[string]bool{}, revision: 100,
		settings: &schedule.Spec{Policy: schedule.Replace, Delay: time.Minute, Limits: schedule.Limits{MaxPending: 2000}},
	}
}

func (f *fake) Schedule(key string, r *schedule.Request, _ queue.ClaimMemory) (queue.Scheduled, error) {
	if f.overtake != nil {
		f.overtake()
	}
	f.Lock()
	defer f.Unlock()
	s, err := f.schedule(key, r)
	if err != nil {
		return queue.Scheduled{}, err
	}
	return s, nil
}

func (f *fake) schedule(key string, r *schedule.Request) (s queue.Scheduled, err error) {
	if f.fail != nil {
		return s, f.fail
	}
	f.requests = append(f.requests, *r)
	cur := f.entries[key]
	if cur == nil && int64(len(f.entries)) >= f.settings.MaxPending {
		return s, &schedule.Error{Code: schedule.CodeQuota, Detail: "limits.maxPending: full", RetryAfter: 1500 * time.Millisecond}
	}
	f.revision++
	c, err := r.Apply(schedule.Inputs{Key: key, Source: f.settings, Revision: f.revision, Now: now, Random: 0.5}, cur, f.inFlight[key])
	if err != nil {
		return s, err
	}
	s.Result, s.View = c.Result, schedule.NewView(key, c.Entry, f.inFlight[key], false, now)
	f.entries[key] = c.Entry
	return s, nil
}

func (f *fake) ScheduleAll(items []queue.Item, _ queue.ClaimMemory) ([]queue.Scheduled, error) {
	f.Lock()
	defer f.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	out := make([]queue.Scheduled, len(items))
	for i := range items {
		s, err := f.schedule(items[i].Key, &items[i].Request)
		if err != nil && !errors.As(err, &s.Err) {
			return nil, err
		}
		out[i] = s
	}
	return out, nil
}

func (f *fake) Cancel(key string, c schedule.Conditions) error {
	f.Lock()
	defer f.Unlock()
	if f.fail != nil {
		return f.fail
	}
	if err := c.Check(key, f.entries[key]); err != nil {
		return err
	}
	delete(f.entries, key)
	return nil
}

func (f *fake) CancelAll(_ context.Context, prefix string) (int, error) {
	f.Lock()
	defer f.Unlock()
	n := 0
	for key := range f.entries {
		if strings.HasPrefix(key, prefix) {
			delete(f.entries, key)
			n++
		}
	}
	return n, f.fail
}

func (f *fake) Get(key string) (schedule.View, bool, error) {
	f.Lock()
	defer f.Unlock()
	e := f.entries[key]
	if e == nil || f.fail != nil {
		return schedule.View{}, false, f.fail
	}
	return f.view(key), true, nil
}

func (f *fake) view(key string) schedule.View {
	return schedule.NewView(key, f.entries[key], f.inFlight[key], f.inFlight[key], now)
}

func (f *fake) List(o queue.ListOptions) ([]schedule.View, string, error) {
	f.Lock()
	defer f.Unlock()
	if f.fail != nil {
		return nil, "", f.fail
	}
	var views []schedule.View
	for key := range f.entries {
		if strings.HasPrefix(key, o.Prefix) {
			views = append(views, f.view(key))
		}
	}
	slices.SortFunc(views, func(a, b schedule.View) int {
		if o.ByDue {
			return cmp.Or(a.DueAt.Compare(b.DueAt), cmp.Compare(a.Key, b.Key))
		}
		return cmp.Compare(a.Key, b.Key)
	})
	if o.Continue != "" {
		i := slices.IndexFunc(views, func(v schedule.View) bool { return v.Key == o.Continue })
		if i < 0 {
			return nil, "", schedule.Invalid("continue", "is not a token of this list")
		}
		views = views[i+1:]
	}
	if len(views) > o.Limit {
		return views[:o.Limit], views[o.Limit-1].Key, nil
	}
	return views, "", nil
}

func (f *fake) History(string) ([]recent.Outcome, time.Time, error) {
	return f.outcomes, now.Add(-time.Hour), f.fail
}

func (f *fake) Follow(after uint64, resume bool) (*recent.Follower, bool, error) {
	if f.fail != nil {
		return nil, false, f.fail
	}
	w, whole := f.feeds.Follow(&f.slot, after, resume)
	return w, whole, nil
}

// fakeLetters are the dead letters of a fake.
type fakeLetters struct{ *fake }

func (f fakeLetters) Get(key string) (queue.Letter, bool, error) {
	e := f.letters[key]
	return queue.Letter{Key: key, Entry: e}, e != nil, f.fail
}

func (f fakeLetters) List(prefix, token string, limit int) (all []queue.Letter, next string, _ error) {
	for _, key := range slices.Sorted(maps.Keys(f.letters)) {
		switch {
		case !strings.HasPrefix(key, prefix) || key <= token:
		case len(all) == limit:
			return all, all[limit-1].Key, f.fail
		default:
			all = append(all, queue.Letter{Key: key, Entry: f.letters[key]})
		}
	}
	return all, "", f.fail
}

func (f fakeLetters) Discard(key string) error {
	delete(f.letters, key)
	return f.fail
}

func (f fakeLetters) DiscardAll(_ context.Context, prefix string) (n int, _ error) {
	for key := range f.letters {
		if strings.HasPrefix(key, prefix) {
			delete(f.letters, key)
			n++
		}
	}
	return n, f.fail
}

func (f fakeLetters) Redrive(key string, replace bool, _ queue.ClaimMemory) (bool, error) {
	e := f.letters[key]
	if e != nil && f.entries[key] != nil && !replace {
		return false, schedule.Refuse(schedule.CodeExists, "newer")
	}
	delete(f.letters, key)
	return e != nil, f.fail
}

func (f fakeLetters) RedriveAll(ctx context.Context, prefix string, replace bool, _ queue.ClaimMemory) (redriven, skipped int, err error) {
	if !replace {
		skipped = 1
	}
	redriven, err = f.DiscardAll(ctx, prefix)
	return redriven, skipped, err
}

func (f *fake) ScheduleTogether([]queue.Item) error { return nil }

func (f *fake) Spec() *schedule.Spec { return f.settings }

func (f *fake) Counts() (queue.Counts, error) {
	f.Lock()
	defer f.Unlock()
	return f.counts, f.fail
}

// edge is a handler over one fake source, default/demo.
type edge struct {
	*Handler
	*fake
	ingested []string // bodies
	resyncs  []string // prefixes and times
	refusal  error    // the ingester's answer
}

func newEdge(t testing.TB, change ...func(*Config)) *edge {
	t.Helper()
	e := &edge{fake: newFake()}
	cfg := Config{Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler), BudgetWait: time.Millisecond}
	cfg.Watched = func(string) int64 { return 3 }
	cfg.Resync = func(_ context.Context, _, prefix string, over *time.Duration) (int, error) {
		asked := prefix + " "
		if over != nil {
			asked += over.String()
		}
		e.resyncs = append(e.resyncs, asked)
		return 7, e.fail
	}
	for _, c := range change {
		c(&cfg)
	}
	e.Handler = newHandler(cfg)
	e.lookup = func(namespace, name string) (source, letters, bool) {
		if namespace != "default" || name != "demo" {
			return nil, nil, false
		}
		return e.fake, fakeLetters{e.fake}, true
	}
	e.ingest = func(_ context.Context, _ ingest.Source, _ http.Header, body []byte, judge access.Judge) ([]queue.Item, error) {
		if judge != nil {
			return nil, judge(nil)
		}
		e.ingested = append(e.ingested, string(body))
		return []queue.Item{{Key: "ingested"}}, e.refusal
	}
	return e
}

// do makes a call; the headers are name, value, name, value.
func (e *edge) do(method, target, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if body == "" {
		r.Body = http.NoBody
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	return w
}

// put schedules a key and returns its request as it reached the queue.
func (e *edge) put(t testing.TB, key, body string, headers ...string) schedule.Request {
	t.Helper()
	w := e.do("PUT", base+"/schedules/"+key, body, headers...)
	if w.Code != http.StatusCreated && w.Code != http.StatusOK {
		t.Fatalf("PUT %s %s: %d %s", key, body, w.Code, w.Body)
	}
	return e.requests[len(e.requests)-1]
}

const base = "/default/demo"

// must ends the test with an error of its own steps.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
