package controller

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	crcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	crevent "sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/reschedule-dev/reschedule/sdk"
	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

const (
	low  = handler.LowPriority
	high = -handler.LowPriority
)

func (s step) with(priority int) step {
	s.result.Priority = &priority
	return s
}

// adding adds a request with a priority.
type adding struct {
	at       time.Duration
	name     string
	priority int
}

// ranked is a reconciler that does the steps of each request, which take a second, and notes
// the order of the runs with their priorities.
type ranked struct {
	steps map[string][]step
	mu    sync.Mutex
	runs  []string
	// priority is the priority of the run that begins.
	priority func(context.Context, reconcile.Request) int
}

// Reconcile implements reconcile.Reconciler.
func (k *ranked) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	k.mu.Lock()
	s := zero
	if steps := k.steps[r.Name]; len(steps) > 0 {
		s, k.steps[r.Name] = steps[0], steps[1:]
	}
	k.runs = append(k.runs, fmt.Sprintf("%s %s", r.Name, bandOf(k.priority(ctx, r))))
	k.mu.Unlock()
	time.Sleep(time.Second)
	if s.panicked {
		panic("boom")
	}
	return s.result, s.err
}

// play adds, and returns the runs of the next day.
func (k *ranked) play(adds []adding, add func(adding)) string {
	start := time.Now()
	for _, a := range adds {
		time.Sleep(a.at - time.Since(start))
		add(a)
	}
	time.Sleep(24 * time.Hour)
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Join(k.runs, ", ")
}

// notingQueue is controller-runtime's own queue, and knows the priorities of what it handed out.
type notingQueue struct {
	priorityqueue.PriorityQueue[reconcile.Request]
	handedOut sync.Map
}

func (q *notingQueue) GetWithPriority() (reconcile.Request, int, bool) {
	r, priority, shutdown := q.PriorityQueue.GetWithPriority()
	q.handedOut.Store(r, priority)
	return r, priority, shutdown
}

// rankedResident is the order under controller-runtime's queue and one worker.
func rankedResident(t *testing.T, steps map[string][]step, adds []adding) (runs string) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var q *notingQueue
		k := &ranked{steps: maps.Clone(steps), priority: func(_ context.Context, r reconcile.Request) int {
			priority, _ := q.handedOut.Load(r)
			return priority.(int)
		}}
		skip := true
		c, err := crcontroller.NewUnmanaged("resident", crcontroller.Options{
			Reconciler: k, SkipNameValidation: &skip,
			NewQueue: func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
				q = &notingQueue{PriorityQueue: priorityqueue.New(name, func(o *priorityqueue.Opts[reconcile.Request]) { o.RateLimiter = limiter })}
				return q
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = c.Start(ctx) }()
		synctest.Wait()
		runs = k.play(adds, func(a adding) { q.AddWithOpts(priorityqueue.AddOpts{Priority: &a.priority}, requestOf("/"+a.name)) })
		cancel()
		synctest.Wait()
	})
	return runs
}

// rankedBehindSource is the order behind a source that delivers one key at a time.
func rankedBehindSource(t *testing.T, steps map[string][]step, adds []adding) (runs string) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		k := &ranked{steps: maps.Clone(steps), priority: func(ctx context.Context, _ reconcile.Request) int {
			is := ctx.Value(runContextKey{}).(runContext)
			is.queue.mu.Lock()
			defer is.queue.mu.Unlock()
			return is.run.priority
		}}
		f := newFakeSource(t, 5*ms)
		f.slots, f.sink = 1, newHandler(ctx, k)
		runs = k.play(adds, func(a adding) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.put(a.name, sdk.Request{Delay: new(time.Duration(0)), Policy: sdk.Earliest, Priority: bandOf(a.priority), Event: &sdk.Event{Type: cloudevent.DueType}})
		})
		f.close()
		cancel()
		synctest.Wait()
	})
	return runs
}

// TestPriority_OrderIsControllerRuntimes runs the same additions, results and errors through
// the queue of controller-runtime and behind a source with its priorities.
func TestPriority_OrderIsControllerRuntimes(t *testing.T) {
	t.Parallel()
	busy := adding{0, "busy", high} // what is added in its second waits
	again := adding{10 * time.Second, "busy", high}
	later := func(more ...adding) []adding { return append([]adding{{0, "a", low}, again}, more...) }
	normal := adding{10500 * ms, "b", 0}
	at10 := after(9500 * ms) // of a run from 0 to 1 s: while busy runs again
	for name, row := range map[string]struct {
		adds  []adding
		steps map[string][]step
		// differs is the order behind a source, if it differs.
		differs string
	}{
		"a higher one first, then the oldest": {adds: []adding{busy, {100 * ms, "a", low}, {200 * ms, "b", 0}, {300 * ms, "c", high}, {400 * ms, "d", 0}, {500 * ms, "e", high}, {600 * ms, "f", low}}},
		"a second one lifts":                  {adds: []adding{busy, {100 * ms, "a", low}, {200 * ms, "b", 0}, {300 * ms, "a", high}}},
		"a second one never lowers":           {adds: []adding{busy, {100 * ms, "a", high}, {200 * ms, "b", 0}, {300 * ms, "a", low}}},
		"a lifted one keeps its age":          {adds: []adding{busy, {100 * ms, "a", low}, {200 * ms, "b", 0}, {300 * ms, "a", 0}}, differs: "busy high, a normal, b normal"},
		"a done run ends it":                  {adds: []adding{{0, "a", high}, {10 * time.Second, "a", 0}}},
		"RequeueAfter keeps it":               {adds: later(normal), steps: map[string][]step{"a": {at10}}},
		"RequeueAfter with a higher one":      {adds: later(normal), steps: map[string][]step{"a": {at10.with(high), at10}}},
		"RequeueAfter with a lower one":       {adds: []adding{{0, "a", high}, again, normal}, steps: map[string][]step{"a": {at10.with(low)}}},
		"RequeueAfter with normal":            {adds: []adding{{0, "a", low}, again, {10600 * ms, "b", low}, {10700 * ms, "c", high}}, steps: map[string][]step{"a": {at10.with(0)}}},
		"RequeueAfter, and lifted":            {adds: []adding{{0, "a", low}, {2 * time.Second, "a", high}}, steps: map[string][]step{"a": {after(time.Hour), after(time.Hour)}}},
		"RequeueAfter, and added low":         {adds: []adding{{0, "a", high}, {2 * time.Second, "a", low}}, steps: map[string][]step{"a": {after(time.Hour)}}},
		"an error keeps it":                   {adds: []adding{{0, "a", low}, {500 * ms, "b", 0}}, steps: map[string][]step{"a": {fails, fails}}},
		"an error with a priority":            {adds: []adding{{0, "a", low}, {500 * ms, "b", low}, {600 * ms, "c", 0}, {700 * ms, "d", low}}, steps: map[string][]step{"a": {fails.with(high), fails}}},
		"Requeue with a priority":             {adds: []adding{{0, "a", low}, {500 * ms, "b", low}, {600 * ms, "c", 0}}, steps: map[string][]step{"a": {requeue.with(high)}}},
		"a panic keeps it":                    {adds: []adding{{0, "a", low}, {500 * ms, "b", 0}}, steps: map[string][]step{"a": {panics}}},
		"a TerminalError ends it":             {adds: []adding{{0, "a", high}, {10 * time.Second, "a", low}}, steps: map[string][]step{"a": {terminal.with(high)}}},
		"added during a run":                  {adds: []adding{{0, "a", high}, {500 * ms, "a", low}, {600 * ms, "b", 0}}},
		"added during a run that comes again": {adds: []adding{{0, "a", high}, {500 * ms, "a", low}, {600 * ms, "b", 0}}, steps: map[string][]step{"a": {after(time.Hour)}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := rankedResident(t, row.steps, row.adds)
			if row.differs != "" {
				if want == row.differs {
					t.Error("there is no difference any more: take it out of the table")
				}
				want = row.differs
			}
			if got := rankedBehindSource(t, row.steps, row.adds); got != want {
				t.Errorf("behind a source: %s; should be: %s", got, want)
			}
		})
	}
}

// TestPriority_QueueOrder adds to controller-runtime's queue and to the queue of this package
// while no worker is free: here what is lifted goes behind the others, and every number counts.
func TestPriority_QueueOrder(t *testing.T) {
	t.Parallel()
	real, ours := priorityqueue.New[reconcile.Request]("order"), newQueue("order", nil)
	defer real.ShutDown()
	adds := []adding{{0, "a", low}, {0, "b", 0}, {0, "c", 7}, {0, "d", 7}, {0, "a", 7}, {0, "b", low}, {0, "e", high}, {0, "f", low}, {0, "c", high}, {0, "g", -1}}
	for _, a := range adds {
		real.AddWithOpts(priorityqueue.AddOpts{Priority: &a.priority}, requestOf("/"+a.name))
		of := ours.target(requestOf("/" + a.name))
		of.priority = a.priority
		ours.join(of)
	}
	for range real.Len() {
		want, priority, _ := real.GetWithPriority()
		got, _, _ := ours.GetWithPriority()
		if have := ours.current(got).priority; got != want || have != priority {
			t.Errorf("%s with %d, and should be %s with %d", got, have, want, priority)
		}
	}
	if ours.Len() != 0 {
		t.Errorf("%d are left", ours.Len())
	}
}

// TestPriority_OfHandlers says that a handler's own priority counts, else the delivery's, and
// that it goes back in the answer or with the request that is scheduled.
func TestPriority_OfHandlers(t *testing.T) {
	t.Parallel()
	setup := func(mgr ctrl.Manager) error {
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Watches(&corev1.ServiceAccount{}, handler.Funcs{
			CreateFunc: func(_ context.Context, e crevent.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
				o := priorityqueue.AddOpts{Priority: map[string]*int{"low": new(low), "normal": new(0), "high": new(7)}[e.Object.GetAnnotations()["configs"]]}
				q.(priorityqueue.PriorityQueue[reconcile.Request]).AddWithOpts(o, playRequest)
			},
		}).Complete(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{RequeueAfter: time.Hour}, nil
		}))
	}
	f := newFakeSource(t, time.Second)
	defer f.close()
	f.suspended = true
	answers := startManager(t, cluster(configMap("a", 1)), setup)
	schedules := startManager(t, cluster(configMap("a", 1)), setup, WithClient(f.client()))
	for i, row := range []struct{ delivered, handler, answer, call string }{
		{"", "", "", ""},
		{"", "low", "low", " low"},
		{"", "normal", "", ""},
		{"", "high", "high", " high"},
		{"low", "", "", " low"},
		{"low", "low", "", " low"},
		{"low", "normal", "normal", ""},
		{"high", "", "", " high"},
		{"high", "low", "low", " low"},
	} {
		attributes := changed("resource.add", fmt.Sprint("ServiceAccount/ns/", i)) // a key without a timer
		attributes[cloudevent.PriorityAttribute] = row.delivered
		if a := answers.send(attributes, account(row.handler)); a.String() != "200 1h0m0s" || a.Get(cloudevent.PriorityHeader) != row.answer {
			t.Errorf("%+v: answered with %s, priority %q", row, a, a.Get(cloudevent.PriorityHeader))
		}
		a := schedules.send(attributes, account(row.handler))
		if call := f.called(); a.String() != "204" || call != "earliest ConfigMap/ns/a 0s"+row.call {
			t.Errorf("%+v: answered with %s, called %q", row, a, call)
		}
	}
}

// TestPriority_OfOneKey says that requests that share a key share the highest priority of what
// comes again, where a resync is low.
func TestPriority_OfOneKey(t *testing.T) {
	t.Parallel()
	in := func(priority int, o outcome) decision { return decision{target{priority: priority}, o} }
	done, again, failed := outcome{}, outcome{after: time.Minute}, outcome{err: errBoom}
	for i, row := range []struct {
		all  []decision
		want string
	}{
		{nil, "kept"},
		{[]decision{in(high, done)}, "kept"},
		{[]decision{in(high, done), in(low, again)}, "low"},
		{[]decision{in(high, again), in(low, again)}, "high"},
		{[]decision{in(low, failed), in(0, failed), in(high, done)}, "normal"},
		{[]decision{in(high, failed), in(low, again)}, "high"},
	} {
		got := "kept"
		if a := combine(row.all, time.Hour, func(target) bool { return true }); a.priority != nil {
			got = bandOf(*a.priority).String()
		}
		if got != row.want {
			t.Errorf("%d: %s, want %s", i, got, row.want)
		}
	}
}

// TestAdapter_KeepsPriorities has a key of each priority due while the only delivery is
// another's. They are delivered in order, and keep the priorities that their runs gave them.
func TestAdapter_KeepsPriorities(t *testing.T) {
	t.Parallel()
	l := listen(t)
	address := adapter(t, map[string]string{"ranked": fmt.Sprintf("\n  sink: {uri: \"http://%s\"}\n  limits: {maxInFlight: 1}\n  delivery: {backoffDelay: PT0.02S}\n", l.Addr())})
	c, err := sdk.New(address + "ranked")
	if err != nil {
		t.Fatal(err)
	}
	running, release := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var runs []string
	results := map[string][]step{
		"low": {after(time.Hour)}, "normal": {after(time.Hour).with(low)}, "high": {fails.with(low), after(time.Hour).with(high)}, "lifted": {after(time.Hour)}, "lowered": {after(time.Hour).with(0)},
	}
	h := newHandler(t.Context(), reconcile.Func(func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
		if r.Name == "first" {
			close(running)
			<-release
		}
		mu.Lock()
		defer mu.Unlock()
		if !slices.Contains(runs, r.Name) {
			runs = append(runs, r.Name)
		}
		s := zero
		if steps := results[r.Name]; len(steps) > 0 {
			s, results[r.Name] = steps[0], steps[1:]
		}
		return s.result, s.err
	}))
	server := &http.Server{Handler: h, ReadHeaderTimeout: patience}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	schedule := func(name string, p sdk.Priority) {
		if _, err := c.Schedule(t.Context(), name, sdk.Request{Delay: new(time.Duration(0)), Policy: sdk.Earliest, Priority: p}); err != nil {
			t.Fatal(err)
		}
	}
	schedule("first", sdk.NormalPriority)
	<-running
	schedule("low", sdk.LowPriority)
	schedule("lifted", sdk.LowPriority)
	schedule("normal", sdk.NormalPriority)
	schedule("high", sdk.HighPriority)
	schedule("lowered", sdk.HighPriority)
	schedule("lifted", sdk.HighPriority)
	close(release)
	for name, want := range map[string]sdk.Priority{"low": sdk.LowPriority, "normal": sdk.LowPriority, "high": sdk.HighPriority, "lifted": sdk.HighPriority, "lowered": sdk.NormalPriority} {
		eventually(t, name+" waits", func() (bool, string) {
			s, err := c.Get(t.Context(), name)
			return err == nil && s.State == sdk.Waiting && s.Attempt == 0 && s.Priority == want, fmt.Sprintf("%+v %v", s, err)
		})
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"first", "lifted", "high", "lowered", "normal", "low"}; !slices.Equal(runs, want) {
		t.Errorf("they ran first as %q, want %q", runs, want)
	}
}

// TestPriority_OfASecondEvent says that a change whose object was read with an event before
// keeps the priority of its delivery: controller-runtime's handlers take it for a resync.
func TestPriority_OfASecondEvent(t *testing.T) {
	t.Parallel()
	steps := []step{zero, after(time.Hour)}
	op := startManager(t, cluster(configMap("a", 1)), func(mgr ctrl.Manager) error {
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			s := steps[0]
			steps = steps[1:]
			return s.result, s.err
		}))
	})
	for _, version := range []string{"1", "2"} {
		attributes, data := sightedAt(updated, "ConfigMap/ns/a", "u", version)
		if a := op.send(attributes, data); a.code >= 300 || a.Get(cloudevent.PriorityHeader) != "" {
			t.Errorf("version %s: answered with %s, priority %q", version, a, a.Get(cloudevent.PriorityHeader))
		}
	}
	if len(steps) > 0 {
		t.Error("it ran once")
	}
}
