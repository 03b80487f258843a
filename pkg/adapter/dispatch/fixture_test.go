package dispatch_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// core is store, queue and dispatcher with a fake sink, in a bubble of fake time.
type core struct {
	*testing.T
	db     *store.DB
	q      *queue.Queue
	d      *dispatch.Dispatcher
	began  time.Time
	meters *sdk.ManualReader
	offset atomic.Int64 // of the wall clock

	// answer is the sink: how long it takes, and what it says to the n-th
	// delivery of a key, from 0. Default: 2xx at once.
	answer func(a schedule.Attempt, n int) (time.Duration, schedule.Outcome)
	dials  time.Duration // how long it takes to reach the sink

	mu       sync.Mutex
	sent     []sent
	counts   map[string]int
	underWay map[string]int // by source
	most     map[string]int // the most of them at a time
	aborted  int
	warm     []string      // the calls that wake a sink
	warmsFor time.Duration // how long they take
	failing  atomic.Int64  // how often deliveries began to fail
	workload
	log bytes.Buffer
}

// workload is the one of each source that sleeps.
type workload struct {
	replicas atomic.Int32
	toStart  time.Duration // how long it takes to accept connections
	woken    []time.Duration
}

// wake is dispatch.Config.WarmUp.
func (c *core) wake(ctx context.Context, s *schedule.Spec) {
	c.mu.Lock()
	c.warm = append(c.warm, fmt.Sprintf("%s %s", time.Since(c.began), s.UID))
	c.mu.Unlock()
	_ = passes(ctx, c.warmsFor)
}

// passes reports whether the time passed before the context ended. Without a time there is no timer: two timers of one
// bubble that end at once crash the race detector (https://go.dev/issue/78156).
func passes(ctx context.Context, d time.Duration) bool {
	if d == 0 {
		return true
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *core) warmUps() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.warm)
}

// sent is a delivery that was started.
type sent struct {
	At      time.Duration // since the begin
	Source  string
	Key     string
	Attempt uint32
	Event   string // type
	ID      string
	Dead    bool
}

func (c *core) now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }

// Send implements dispatch.Sender.
func (c *core) Send(ctx context.Context, a schedule.Attempt) schedule.Outcome {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.OnCallOff(cancel)
	if !passes(ctx, c.dials) {
		return schedule.Outcome{}
	}
	wrote, ok := a.Begin()
	if !ok {
		return schedule.Outcome{}
	}
	wrote()
	c.mu.Lock()
	s := sent{At: time.Since(c.began), Source: a.Source.UID, Key: a.Key, Attempt: a.Number(), ID: a.ID, Dead: a.Entry.DeadLetter != nil}
	if a.Entry.Event != nil {
		s.Event = a.Entry.Event.Type
	}
	c.sent = append(c.sent, s)
	n := c.counts[s.Source+"/"+s.Key]
	c.counts[s.Source+"/"+s.Key]++
	c.underWay[s.Source]++
	c.most[s.Source] = max(c.most[s.Source], c.underWay[s.Source])
	took, o := time.Duration(0), schedule.Outcome{Kind: schedule.Succeeded}
	if c.answer != nil {
		took, o = c.answer(a, n)
	}
	c.mu.Unlock()
	if !passes(ctx, took) {
		o = schedule.Outcome{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underWay[s.Source]--
	if o.Kind == schedule.Aborted {
		c.aborted++
	}
	return o
}

// always makes the sink answer the same each time.
func (c *core) always(took time.Duration, o schedule.Outcome) {
	c.answer = func(schedule.Attempt, int) (time.Duration, schedule.Outcome) { return took, o }
}

// bubble runs a test on a core.
func bubble(t *testing.T, maxInFlight int, test func(*core)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &core{T: t, began: time.Now(), counts: map[string]int{}, underWay: map[string]int{}, most: map[string]int{}}
		c.open(vfs.NewMem(), maxInFlight)
		test(c)
		c.close()
	})
}

func (c *core) open(fs vfs.FS, maxInFlight int) {
	c.Helper()
	fatal := func(err error) { c.Errorf("fatal: %v", err) }
	var err error
	c.db, err = store.Open(store.Options{Dir: "data", FS: fs, Fatal: fatal})
	must(c, err)
	c.meters = sdk.NewManualReader()
	meter := sdk.NewMeterProvider(sdk.WithReader(c.meters)).Meter("")
	c.d, err = dispatch.New(dispatch.Config{Scale: scale.Config{API: c, Connect: c.connect}, Sender: c, Now: c.now, MaxInFlight: maxInFlight, WarmUp: c.wake, Meter: meter, Log: slog.New(slog.NewTextHandler(&c.log, nil)),
		Failing: func(*schedule.Spec, dispatch.Health) { c.failing.Add(1) }})
	must(c, err)
	c.q, err = queue.Open(queue.Config{Store: c.db, Now: c.now, Wake: c.d.Wake, Fatal: fatal, Random: func() float64 { return 0 }, PageRows: 8})
	must(c, err)
}

func (c *core) close() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c.d.Stop(ctx)
	c.q.Close()
	must(c, c.db.Close())
}

// source adds a source, or changes it.
func (c *core) source(uid string, change func(*schedule.Spec)) *queue.Source {
	c.Helper()
	settings := &schedule.Spec{
		UID: uid, Namespace: "ns", Name: uid, Targets: schedule.Targets{Sink: schedule.Target{URL: "http://sink"}}, Policy: schedule.Replace, Ingest: schedule.Ingest{Policy: schedule.Earliest},
		Delivery: schedule.Delivery{BackoffDelay: time.Second}, Limits: schedule.Limits{MaxInFlight: 100, MaxPending: 1_000_000},
	}
	if change != nil {
		change(settings)
	}
	s, err := c.q.Set(settings)
	must(c, err)
	return s
}

// pass lets time pass, until nothing moves any more.
func (c *core) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (c *core) put(s *queue.Source, key string, r schedule.Request) queue.Scheduled {
	c.Helper()
	got, err := s.Schedule(key, &r, nil)
	if err != nil {
		c.Fatalf("PUT %s: %v", key, err)
	}
	return got
}

// in is a request for a time from now.
func in(d time.Duration) schedule.Request { return schedule.Request{Delay: &d} }

// deliveries are the deliveries that were started so far, in order.
func (c *core) deliveries() []sent {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.sent)
}

// atATime is the most deliveries that each source had under way at a time.
func (c *core) atATime() map[string]int {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.most)
}

// starts lists the deliveries so far, as "1s k" or, with an event, "1s k event",
// sorted where they are of the same instant.
func (c *core) starts() []string {
	all := c.deliveries()
	slices.SortStableFunc(all, func(a, b sent) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Key, b.Key))
	})
	lines := make([]string, len(all))
	for i, s := range all {
		lines[i] = fmt.Sprintf("%s %s", s.At, s.Key)
		if s.Event != "" {
			lines[i] += " " + s.Event
		}
		if s.Dead {
			lines[i] += " dead"
		}
	}
	return lines
}

// must ends the test with an error of its own steps.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
