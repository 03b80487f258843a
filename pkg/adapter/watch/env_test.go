package watch

import (
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// env is an adapter over a disk that can lose power, and an API server.
type env struct {
	t   testing.TB
	api *server
	fs  *vfs.MemFS
	src *schedule.Spec

	lease *lease // nil: a single adapter's store
	db    *store.DB
	q     *queue.Queue
	m     *Manager
	s     *taped

	mu      sync.Mutex
	wakes   []wake        // durable, over all starts
	ordered chan struct{} // holds one: the wakes have the order of the reports; nil: two streams may report at once
	warned  []string
	changes int // of the status
	streams int64
	memory  int64 // of namespaces
	meter   metric.Meter
}

// wake is a key that was scheduled.
type wake struct {
	key, uid, verb, cause string
	version               string // of the object, by the event
	delay                 time.Duration
	reason                string
	hearsay, final        bool
}

// pass lets the time of the bubble pass.
func pass(d time.Duration) { time.Sleep(d) }

// taped records what a source reports. It can lose power before or after a batch.
type taped struct {
	*queue.Marks
	source   *queue.Source
	w        *env
	crash    func(batch int) (before, after bool)
	batch    int
	dead     bool
	most     int  // items of the largest batch
	yield    bool // others go first
	delivers bool // what is scheduled is delivered at once
	before   func()

	counted int // calls of Count
}

func (s *taped) Count(watch uint64) (n, bytes int64, err error) {
	s.w.mu.Lock()
	s.counted++
	s.w.mu.Unlock()
	return s.Marks.Count(watch)
}

var errPower = errors.New("the power is gone")

func (s *taped) Report(items []queue.Item, marks []store.MarkChange) error {
	s.w.mu.Lock()
	s.batch++
	s.most = max(s.most, len(items))
	before, after := false, false
	if s.crash != nil && !s.dead {
		before, after = s.crash(s.batch)
	}
	dead, yield, delivers, first := s.dead, s.yield, s.delivers, s.before
	s.dead = s.dead || before || after
	s.w.mu.Unlock()
	if first != nil {
		first()
	}
	if dead || before {
		return errPower
	}
	for i := 0; yield && i < 1000; i++ {
		runtime.Gosched()
	}
	if s.w.ordered != nil {
		s.w.ordered <- struct{}{}
		defer func() { <-s.w.ordered }()
	}
	err := s.Marks.Report(items, marks)
	if err != nil {
		return err
	}
	for i := 0; delivers && i < len(items); i++ {
		if err := s.source.Cancel(items[i].Key, schedule.Conditions{}); err != nil {
			return err
		}
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	for _, it := range items {
		r := it.Request
		w := wakeOf(r.Event)
		w.key, w.uid, w.delay, w.reason, w.hearsay = it.Key, r.UID, *r.Delay, r.Reason, r.UIDIfNone
		s.w.wakes = append(s.w.wakes, w)
	}
	if after {
		return errPower
	}
	return nil
}

// wakeOf is what an event says.
func wakeOf(e *schedule.Event) (w wake) {
	if e == nil {
		return w
	}
	w.verb = strings.TrimPrefix(e.Type, "dev.knative.apiserver.ref.")
	w.cause, _ = e.Extensions["reschedulecause"].(string)
	w.final, _ = e.Extensions["reschedulefinal"].(bool)
	var ref reference
	_ = json.Unmarshal(e.Data, &ref)
	w.version = ref.ResourceVersion
	return w
}

func (s *taped) SetState(state store.WatchState) error {
	s.w.mu.Lock()
	dead := s.dead
	s.w.mu.Unlock()
	if dead {
		return errPower
	}
	return s.Marks.SetState(state)
}

func (s *taped) Remove(watch uint64) error {
	s.w.mu.Lock()
	dead := s.dead
	s.w.mu.Unlock()
	if dead {
		return errPower
	}
	return s.Marks.Remove(watch)
}

// sourceOf watches websites in its own namespace.
func sourceOf(resources ...schedule.WatchResource) *schedule.Spec {
	if len(resources) == 0 {
		resources = []schedule.WatchResource{{Group: "example.com", Version: "v1", Kind: "Website", Changes: schedule.ChangesMetadata}}
	}
	return &schedule.Spec{
		UID: "6b1f6d6e-4f0c-4c5e-9a53-000000000001", Namespace: "ops", Name: "websites", Policy: schedule.Replace, Ingest: schedule.Ingest{Policy: schedule.Earliest},
		Limits: schedule.Limits{MaxPending: 1_000_000, MaxInFlight: 1},
		Watch:  &schedule.Watch{Account: "watcher", OwnNamespace: true, Resources: resources, ResyncOver: new(10 * time.Minute), Generation: 1, Since: time.Now()},
	}
}

func newEnv(t testing.TB, src *schedule.Spec) *env {
	w := &env{t: t, api: newServer(), fs: vfs.NewCrashableMem(), src: src}
	return w
}

// start opens the adapter.
func (w *env) start() *env {
	w.t.Helper()
	var err error
	fatal := func(err error) { w.t.Errorf("fatal: %v", err) }
	o := store.Options{Dir: "data", FS: w.fs, Fatal: fatal}
	if w.lease == nil {
		w.db, err = store.Open(o)
	} else if w.lease.view, err = store.OpenView(o); err == nil {
		w.db, err = w.lease.view.Own(w.lease)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	if w.q, err = queue.Open(queue.Config{Store: w.db, Fatal: fatal}); err != nil {
		w.t.Fatal(err)
	}
	s, err := w.q.Set(w.src)
	if err != nil {
		w.t.Fatal(err)
	}
	w.s = &taped{Marks: &s.Marks, source: s, w: w}
	w.m, err = New(Config{API: w.api, Meter: w.meter, Warn: func(_ *schedule.Spec, reason, message string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.warned = append(w.warned, reason+": "+message)
	}, Changed: func(string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.changes++
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	if w.streams > 0 {
		w.m.streams = budget.New(w.streams)
	}
	if w.memory > 0 {
		w.m.remembered = budget.New(w.memory)
	}
	w.m.Set(w.src, w.s)
	return w
}

// neighbour adds a source of its own websites in another namespace.
func (w *env) neighbour(namespace string) *schedule.Spec {
	src := own()
	src.UID, src.Namespace = "6b1f6d6e-4f0c-4c5e-9a53-000000000002", namespace
	q, err := w.q.Set(src)
	if err != nil {
		w.t.Fatal(err)
	}
	w.m.Set(src, &taped{Marks: &q.Marks, source: q, w: w})
	return src
}

// change gives the source other settings.
func (w *env) change(f func(*schedule.Spec)) {
	src := *w.src
	if src.Watch != nil {
		watch := *src.Watch
		watch.Resources = slices.Clone(watch.Resources)
		src.Watch = &watch
	}
	f(&src)
	w.src = &src
	if _, err := w.q.Set(w.src); err != nil {
		w.t.Fatal(err)
	}
	w.m.Set(w.src, w.s)
}

// stop ends the adapter.
func (w *env) stop() {
	if w.m == nil {
		return
	}
	w.m.Close()
	w.m = nil
	w.q.Close()
	err := w.db.Close()
	if w.lease != nil {
		err = errors.Join(err, w.lease.view.Close())
	}
	if err != nil {
		w.t.Error(err)
	}
}

// lose loses power: what was not synced is gone, or a part of it.
func (w *env) lose(percent int, r *rand.Rand) {
	synctest.Wait() // a batch under way would be recorded, but may be lost
	fs := w.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: r})
	w.mu.Lock()
	w.s.dead = true
	w.mu.Unlock()
	w.stop()
	w.fs = fs
}

// deliver makes what is scheduled be delivered at once.
func (w *env) deliver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.s.delivers = true
}

// settle lets time pass, and returns what was scheduled meanwhile.
func (w *env) settle(d time.Duration) []wake {
	time.Sleep(d)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	wakes := w.wakes
	w.wakes = nil
	return wakes
}

// keys are the keys of wakes, sorted, with the verbs.
func keys(wakes []wake) []string {
	all := make([]string, len(wakes))
	for i, w := range wakes {
		all[i] = strings.TrimSpace(w.verb + " " + w.key)
	}
	slices.Sort(all)
	return all
}

func (w *env) want(what string, d time.Duration, want ...string) []wake {
	w.t.Helper()
	wakes := w.settle(d)
	slices.Sort(want)
	if got := keys(wakes); !slices.Equal(got, want) {
		w.t.Fatalf("%s: scheduled %q, want %q", what, got, want)
	}
	return wakes
}

func (w *env) status() schedule.WatchStatus {
	s, _ := w.m.Status(w.src.UID)
	return s
}

// marks are the objects that the store remembers.
func (w *env) marks() []string {
	var all []string
	states, err := w.s.States()
	if err != nil {
		w.t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, state := range states {
		marks, _, err := w.s.List(state.Watch, "", 1000)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, m := range marks {
			seen[m.Object] = true
		}
	}
	all = slices.Sorted(maps.Keys(seen))
	return all
}

// sameBytes holds the bytes that the queue and the rows count against the marks.
func (w *env) sameBytes() {
	w.t.Helper()
	sum := int64(0)
	for _, r := range w.m.find(w.src.UID).resources {
		n, size, err := w.s.Marks.Count(r.id)
		if err != nil || n != r.marked() || size != r.bytes {
			w.t.Errorf("%d marks of %d bytes are counted, there are %d of %d: %v", r.marked(), r.bytes, n, size, err)
		}
		sum += size
	}
	if got := w.s.Bytes(); got != sum {
		w.t.Errorf("the namespace has %d bytes of marks, there are %d", got, sum)
	}
}

// run runs a test in fake time.
func run(t *testing.T, src func() *schedule.Spec, test func(t *testing.T, w *env)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newEnv(t, src())
		defer w.stop()
		test(t, w)
	})
}

func own() *schedule.Spec { return sourceOf() }

func denyAll(string, objects.Query) bool { return true }

func contains(text, part string) bool { return strings.Contains(text, part) }
