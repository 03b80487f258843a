package controller

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	crcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/reschedule-dev/reschedule/sdk"
)

var errBoom = errors.New("boom")

// step is what one run does.
type step struct {
	takes    time.Duration
	result   reconcile.Result
	err      error
	panicked bool
}

func after(d time.Duration) step { return step{result: reconcile.Result{RequeueAfter: d}} }

var (
	zero     = step{}
	fails    = step{err: errBoom}
	requeue  = step{result: reconcile.Result{Requeue: true}}
	terminal = step{err: reconcile.TerminalError(errBoom)}
	panics   = step{panicked: true}
)

func (s step) in(d time.Duration) step {
	s.takes = d
	return s
}

// play is a reconciler that does the steps one after the other, and notes when.
type play struct {
	steps []step
	start time.Time
	mu    sync.Mutex
	at    []time.Duration
	busy  bool
	twice bool
}

// Reconcile implements reconcile.Reconciler.
func (p *play) Reconcile(context.Context, reconcile.Request) (reconcile.Result, error) {
	p.mu.Lock()
	s := zero
	if n := len(p.at); n < len(p.steps) {
		s = p.steps[n]
	}
	p.at = append(p.at, time.Since(p.start))
	p.twice = p.twice || p.busy
	p.busy = true
	p.mu.Unlock()
	time.Sleep(s.takes)
	p.mu.Lock()
	p.busy = false
	p.mu.Unlock()
	if s.panicked {
		panic("boom")
	}
	return s.result, s.err
}

const ms = time.Millisecond

// TestResult_MeansWhatControllerRuntimeSays runs the same reconciler under the default
// queue of controller-runtime and under the queue of this package, behind a source with
// the back-off of the default queue. It compares when the runs were.
func TestResult_MeansWhatControllerRuntimeSays(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		steps  []step
		events []time.Duration // after the first, at 0
		// differs is when the runs are behind a source, if they differ.
		differs []time.Duration
	}{
		"zero":                                  {steps: []step{zero}},
		"an error":                              {steps: []step{fails}},
		"errors":                                {steps: []step{fails, fails, fails, fails, fails}},
		"an error with RequeueAfter":            {steps: []step{{result: reconcile.Result{RequeueAfter: time.Hour}, err: errBoom}}},
		"a panic":                               {steps: []step{panics, panics, zero}},
		"RequeueAfter":                          {steps: []step{after(time.Minute), after(time.Hour), after(1)}},
		"RequeueAfter with Requeue":             {steps: []step{{result: reconcile.Result{Requeue: true, RequeueAfter: time.Minute}}}},
		"RequeueAfter with a priority":          {steps: []step{{result: reconcile.Result{RequeueAfter: time.Minute, Priority: new(7)}}}},
		"Requeue with a priority":               {steps: []step{{result: reconcile.Result{Requeue: true, Priority: new(7)}}}},
		"RequeueAfter below zero":               {steps: []step{after(-time.Minute)}},
		"RequeueAfter resets the counter":       {steps: []step{fails, fails, fails, after(100 * ms), fails, fails}},
		"Requeue":                               {steps: []step{requeue, requeue, requeue}},
		"Requeue counts like an error":          {steps: []step{fails, requeue, fails, requeue}},
		"errors, RequeueAfter, Requeue":         {steps: []step{fails, fails, fails, fails, after(100 * ms), requeue}},
		"zero resets the counter":               {steps: []step{fails, fails, zero, fails, fails}, events: []time.Duration{time.Second}},
		"a TerminalError":                       {steps: []step{terminal}},
		"a TerminalError keeps the counter":     {steps: []step{fails, terminal, fails, zero}, events: []time.Duration{time.Second}, differs: []time.Duration{0, 5 * ms, 1000 * ms, 1005 * ms}},
		"an event before RequeueAfter":          {steps: []step{after(time.Minute), zero}, events: []time.Duration{10 * time.Second}},
		"an event, and again RequeueAfter":      {steps: []step{after(time.Minute), after(time.Minute)}, events: []time.Duration{10 * time.Second}},
		"an event during a back-off":            {steps: []step{fails, fails, fails, fails}, events: []time.Duration{20 * ms}},
		"an event that ends a back-off":         {steps: []step{fails, fails, fails, zero, fails}, events: []time.Duration{20 * ms, time.Second}},
		"an event before a RequeueAfter":        {steps: []step{after(time.Minute).in(time.Second)}, events: []time.Duration{500 * ms}},
		"an event during a run that fails":      {steps: []step{fails.in(time.Second), zero}, events: []time.Duration{500 * ms}},
		"an event during a run of zero":         {steps: []step{zero.in(time.Second), zero}, events: []time.Duration{500 * ms}},
		"events during a run are one":           {steps: []step{zero.in(time.Second), zero}, events: []time.Duration{500 * ms, 600 * ms, 700 * ms}},
		"an event while RequeueAfter's run is":  {steps: []step{after(time.Minute), after(time.Minute).in(time.Second)}, events: []time.Duration{time.Minute + 500*ms}},
		"two times RequeueAfter and two events": {steps: []step{after(time.Minute), after(time.Hour), zero}, events: []time.Duration{time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := resident(t, row.steps, row.events)
			if row.differs != nil {
				if reflect.DeepEqual(want, row.differs) {
					t.Error("there is no difference any more: take it out of the table and of docs/sdk.md")
				}
				want = row.differs
			}
			if got := behindSource(t, row.steps, row.events); !reflect.DeepEqual(got, want) {
				t.Errorf("behind a source it runs at %v, and should at %v", got, want)
			}
		})
	}
}

var playRequest = reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "a"}}

// resident runs the steps in a controller with its own queue.
func resident(t *testing.T, steps []step, events []time.Duration) (at []time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		p := &play{steps: steps, start: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var queue workqueue.TypedRateLimitingInterface[reconcile.Request]
		skip := true
		c, err := crcontroller.NewUnmanaged("resident", crcontroller.Options{Reconciler: p, SkipNameValidation: &skip})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Watch(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			queue = q
			return nil
		})); err != nil {
			t.Fatal(err)
		}
		go func() { _ = c.Start(ctx) }()
		synctest.Wait()
		at = p.watch(t, events, func() { queue.Add(playRequest) })
		cancel()
		synctest.Wait()
	})
	return at
}

var playEvent = sdk.Event{
	Type: "dev.knative.apiserver.ref.update",
	Data: []byte(`{"apiVersion":"v1","kind":"ConfigMap","namespace":"ns","name":"a"}`),
}

// behindSource runs the steps behind a source that gets the events.
func behindSource(t *testing.T, steps []step, events []time.Duration) (at []time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		p := &play{steps: steps, start: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		f := newFakeSource(t, 5*ms)
		f.sink = newHandler(ctx, p)
		at = p.watch(t, events, func() { f.ingest("ConfigMap/ns/a", playEvent) })
		if len(f.calls) > 0 {
			t.Errorf("it called the source: %q", f.calls)
		}
		f.close()
		cancel()
		synctest.Wait()
	})
	return at
}

// watch sends an event now and at the instants, and returns when the runs of the next
// day were.
func (p *play) watch(t *testing.T, events []time.Duration, send func()) []time.Duration {
	send()
	for _, at := range events {
		time.Sleep(at - time.Since(p.start))
		send()
	}
	time.Sleep(24 * time.Hour)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.twice {
		t.Error("one request was run twice at once")
	}
	return slices.Clone(p.at)
}
