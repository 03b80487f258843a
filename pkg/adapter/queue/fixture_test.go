package queue

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// fixture is a queue with several sources over a store that can be opened again.
type fixture struct {
	t        *testing.T
	fs       *vfs.MemFS
	db       *store.DB
	q        *Queue
	settings []*schedule.Spec
	sources  []*Source
	wrap     func(store.Store) store.Store
	now      func() time.Time // nil: the clock of the bubble
}

// tenantSource is a source of a namespace, with the ceilings of that.
func tenantSource(namespace, name string, c schedule.Ceilings) *schedule.Spec {
	return &schedule.Spec{
		UID: namespace + "/" + name, Namespace: namespace, Name: name, Policy: schedule.Replace, Ingest: schedule.Ingest{Policy: schedule.Earliest},
		Delivery: schedule.Delivery{BackoffDelay: time.Second}, Limits: schedule.Limits{MaxInFlight: 100, MaxPending: 1_000_000}, Ceilings: c,
	}
}

func newFixture(t *testing.T, settings ...*schedule.Spec) *fixture {
	return newFixtureOn(t, nil, settings...)
}

// newFixtureOn is a fixture whose store is wrapped, and whose disk has a gigabyte.
func newFixtureOn(t *testing.T, wrap func(store.Store) store.Store, settings ...*schedule.Spec) *fixture {
	t.Helper()
	h := &fixture{t: t, fs: vfs.NewMem(), settings: settings, wrap: wrap}
	h.fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: diskBytes, TotalBytes: diskBytes})
	h.open()
	t.Cleanup(h.close)
	return h
}

const diskBytes = 1 << 30

// free lets so much of the disk be free. The store keeps the answer for a second of fake time.
func (h *fixture) free(n uint64) {
	h.fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: n, TotalBytes: diskBytes})
	time.Sleep(time.Second)
}

// restart closes all and opens it again.
func (h *fixture) restart() {
	h.t.Helper()
	h.close()
	h.open()
}

func (h *fixture) open() {
	h.t.Helper()
	fatal := func(err error) { h.t.Errorf("fatal: %v", err) }
	var err error
	h.db, err = store.Open(store.Options{Dir: "data", FS: h.fs, Fatal: fatal})
	must(h.t, err)
	var db store.Store = h.db
	if h.wrap != nil {
		db = h.wrap(db)
	}
	h.q, err = Open(Config{Store: db, Now: h.now, Fatal: fatal, Log: slog.New(slog.DiscardHandler), Random: func() float64 { return 0 }})
	must(h.t, err)
	h.sources = nil
	for _, s := range h.settings {
		h.set(s)
	}
}

func (h *fixture) set(settings *schedule.Spec) {
	h.t.Helper()
	s, err := h.q.Set(settings)
	must(h.t, err)
	h.sources = append(h.sources, s)
}

func (h *fixture) close() {
	h.t.Helper()
	h.q.Close()
	must(h.t, h.db.Close())
}

// scan adds up the keys and bytes that the store holds of a source.
func (h *fixture) scan(uid string) (keys, bytes int64) {
	h.t.Helper()
	for _, list := range []func(after string) ([]store.Item, bool, error){
		func(after string) ([]store.Item, bool, error) { return h.db.List(uid, "", after, 100, true) },
		func(after string) ([]store.Item, bool, error) { return h.db.DeadLetters(uid, after, 100) },
	} {
		for after, more := "", true; more; {
			items, next, err := list(after)
			must(h.t, err)
			for _, i := range items {
				bytes += i.Entry.Size(i.Key)
				if !schedule.IsDeadLetterKey(i.Key) {
					keys++
				}
				after = i.Key
			}
			more = next
		}
	}
	return keys, bytes
}

// check holds what is counted against what the store holds.
func (h *fixture) check(when string) {
	h.t.Helper()
	type total struct{ keys, bytes int64 }
	namespaces := map[string]total{}
	for _, s := range h.sources {
		if s.Removed() {
			continue
		}
		keys, bytes := h.scan(s.uid)
		stored, err := h.db.Bytes(s.uid)
		if s.usage.keys.Load() != keys || s.usage.bytes.Load() != bytes || stored != bytes || err != nil {
			h.t.Fatalf("%s: source %s holds %d keys of %d bytes; counted are %d of %d, in the store %d (%v)",
				when, s.uid, keys, bytes, s.usage.keys.Load(), s.usage.bytes.Load(), stored, err)
		}
		marked := h.marked(s.uid)
		if got := s.Marks.Bytes(); got != marked {
			h.t.Fatalf("%s: source %s holds %d bytes of marks, counted are %d", when, s.uid, marked, got)
		}
		n := namespaces[s.Spec().Namespace]
		namespaces[s.Spec().Namespace] = total{n.keys + keys, n.bytes + bytes + marked}
	}
	if len(namespaces) != len(h.q.tenants) {
		h.t.Fatalf("%s: %d namespaces are counted, want %d", when, len(h.q.tenants), len(namespaces))
	}
	for name, want := range namespaces {
		if got := h.q.tenants[name]; got == nil || got.keys.Load() != want.keys || got.bytes.Load() != want.bytes {
			h.t.Fatalf("%s: namespace %s holds %+v, counted are %d and %d", when, name, want, got.keys.Load(), got.bytes.Load())
		}
	}
}

// sized is a request for an event with n bytes of data.
func sized(n int) schedule.Request {
	r := after(time.Hour)
	r.Event = &schedule.Event{Data: make([]byte, n)}
	return r
}

// bytesOf is what the request's entry counts.
func bytesOf(key string, r schedule.Request) int64 {
	return (&schedule.Entry{Event: r.Event, UID: r.UID, Cause: schedule.Cause{Reason: r.Reason}}).Size(key)
}

// refusal is the code and the quota of a refusal, "" for none.
func refusal(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	var e *schedule.Error
	if !errors.As(err, &e) || e.RetryAfter <= 0 {
		t.Fatal(err)
	}
	what, _, _ := strings.Cut(e.Detail, ":")
	return string(e.Code) + " " + what
}

func (h *fixture) put(source int, key string, r schedule.Request) string {
	h.t.Helper()
	_, err := h.sources[source].Schedule(key, &r, nil)
	return refusal(h.t, err)
}

// must ends the test with an error of its own steps.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errorOf is the error of a step whose value is not needed.
func errorOf[T any](_ T, err error) error { return err }

// open is a queue with one source over a store in memory, until the test ends or closes it.
func open(t *testing.T, change func(*Config, *schedule.Spec)) (_ *Source, done func()) {
	t.Helper()
	fatal := func(err error) { t.Errorf("fatal: %v", err) }
	db, err := store.Open(store.Options{Dir: "data", FS: vfs.NewMem(), Fatal: fatal})
	must(t, err)
	cfg := Config{Store: db, Fatal: fatal, Random: func() float64 { return 0 }}
	settings := &schedule.Spec{
		UID: "s", Namespace: "ns", Name: "s", Policy: schedule.Replace, Ingest: schedule.Ingest{Policy: schedule.Earliest},
		Delivery: schedule.Delivery{BackoffDelay: time.Second}, Limits: schedule.Limits{MaxInFlight: 100, MaxPending: 1_000_000},
	}
	if change != nil {
		change(&cfg, settings)
	}
	q, err := Open(cfg)
	must(t, err)
	s, err := q.Set(settings)
	must(t, err)
	done = sync.OnceFunc(func() {
		q.Close()
		must(t, db.Close())
	})
	t.Cleanup(done)
	return s, done
}

// take is the delivery of the next key, which must be due.
func take(t *testing.T, s *Source) *Delivery {
	t.Helper()
	synctest.Wait() // the page is loaded
	d, err := s.Take()
	if d == nil || err != nil {
		t.Fatal("nothing is due:", err)
	}
	return d
}

func after(d time.Duration) schedule.Request { return schedule.Request{Delay: &d} }

// fill schedules n keys for one instant.
func fill(t *testing.T, s *Source, n int, at time.Time) {
	t.Helper()
	for from := 0; from < n; from += 1000 {
		items := make([]Item, min(1000, n-from))
		for i := range items {
			items[i] = Item{Key: fmt.Sprintf("k%06d", from+i), Request: schedule.Request{DueAt: at}}
		}
		out, err := s.ScheduleAll(items, nil)
		must(t, err)
		for _, o := range out {
			if o.Err != nil {
				t.Fatal(o.Err)
			}
		}
	}
}

// deliver schedules a key for now and ends its delivery.
func deliver(t *testing.T, s *Source, key string, o schedule.Outcome) schedule.Disposition {
	t.Helper()
	must(t, errorOf(s.Schedule(key, &schedule.Request{Event: &schedule.Event{Type: "t-" + key}}, nil)))
	d := take(t, s)
	if d.Key != key {
		t.Fatalf("took %+v", d)
	}
	what, err := s.Finish(d, o)
	must(t, err)
	return what
}

// marked adds up the bytes of the marks that the store holds of a source.
func (h *fixture) marked(uid string) (sum int64) {
	h.t.Helper()
	states, err := h.db.WatchStates(uid)
	must(h.t, err)
	for _, state := range states {
		_, bytes, err := h.db.CountMarks(uid, state.Watch)
		must(h.t, err)
		sum += bytes
	}
	return sum
}

// hooked is a store whose calls a test can refuse or watch.
type hooked struct {
	store.Store
	before  func(call, key string) error // nil: nothing is refused
	applied func(lazy bool, marks []store.MarkChange, changes []store.Change) error
}

// try makes a call if the test lets it.
func try[T any](h *hooked, call, key string, do func() (T, error)) (result T, err error) {
	if h.before != nil {
		err = h.before(call, key)
	}
	if err == nil {
		result, err = do()
	}
	return result, err
}

// yields is a store that lets other calls go first while one asks for space.
func yields(s store.Store) store.Store {
	return &hooked{Store: s, before: func(call, _ string) error {
		for i := 0; i < 100 && call == "Space"; i++ {
			runtime.Gosched()
		}
		return nil
	}}
}

func (h *hooked) NextRevision() (uint64, error) {
	return try(h, "NextRevision", "", h.Store.NextRevision)
}

func (h *hooked) Get(source, key string) (*schedule.Entry, error) {
	return try(h, "Get", key, func() (*schedule.Entry, error) { return h.Store.Get(source, key) })
}

func (h *hooked) Outline(source, key string, most int64) (*schedule.Entry, error) {
	return try(h, "Outline", key, func() (*schedule.Entry, error) { return h.Store.Outline(source, key, most) })
}

func (h *hooked) GetAll(source string, keys []string, entries []*schedule.Entry, most int64) error {
	for _, key := range keys {
		if h.before != nil {
			if err := h.before("GetAll", key); err != nil {
				return err
			}
		}
	}
	return h.Store.GetAll(source, keys, entries, most)
}

func (h *hooked) Apply(lazy bool, changes ...store.Change) (store.Commit, error) {
	return h.ApplyMarked(lazy, nil, changes...)
}

func (h *hooked) ApplyMarked(lazy bool, marks []store.MarkChange, changes ...store.Change) (store.Commit, error) {
	if h.applied != nil {
		if err := h.applied(lazy, marks, changes); err != nil {
			return nil, err
		}
	}
	c, err := try(h, "Apply", "", func() (store.Commit, error) { return h.Store.ApplyMarked(lazy, marks, changes...) })
	return hookedCommit{c, h}, err
}

type hookedCommit struct {
	store.Commit
	of *hooked
}

func (c hookedCommit) Wait() error {
	return errorOf(try(c.of, "Wait", "", func() (any, error) { return nil, c.Commit.Wait() }))
}

func (h *hooked) List(source, prefix, after string, limit int, events bool) (items []store.Item, more bool, err error) {
	items, err = try(h, "List", "", func() (items []store.Item, err error) {
		items, more, err = h.Store.List(source, prefix, after, limit, events)
		return items, err
	})
	return items, more, err
}

func (h *hooked) Letters(source, prefix, after string, limit int, events bool) (items []store.Item, more bool, err error) {
	items, err = try(h, "Letters", "", func() (items []store.Item, err error) {
		items, more, err = h.Store.Letters(source, prefix, after, limit, events)
		return items, err
	})
	return items, more, err
}

func (h *hooked) Backlog(source string, now time.Time, slack time.Duration, limit int, skip func(string, uint64) bool) (store.Backlog, error) {
	return try(h, "Backlog", "", func() (store.Backlog, error) { return h.Store.Backlog(source, now, slack, limit, skip) })
}

func (h *hooked) SetClock(now time.Time) error {
	return errorOf(try(h, "SetClock", "", func() (any, error) { return nil, h.Store.SetClock(now) }))
}

func (h *hooked) WatchStates(source string) ([]store.WatchState, error) {
	return try(h, "WatchStates", "", func() ([]store.WatchState, error) { return h.Store.WatchStates(source) })
}

func (h *hooked) Space(growth, held int64) error {
	return errorOf(try(h, "Space", "", func() (any, error) { return nil, h.Store.Space(growth, held) }))
}

func (h *hooked) SpaceForOutcomes() bool {
	space, err := try(h, "SpaceForOutcomes", "", func() (bool, error) { return h.Store.SpaceForOutcomes(), nil })
	return space && err == nil
}

// bubble runs a test in fake time, beside others.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}
