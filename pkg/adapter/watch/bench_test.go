package watch

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// million lists a million objects, made page by page.
type million struct {
	objects int
	version string
	listed  chan struct{} // has a value after each list
	watched chan struct{} // has a value once it is watched for good; nil: each watch ends soon
}

func (m *million) Resolve(context.Context, objects.Account, string, string, string) (objects.Resource, error) {
	return website, nil
}

func (m *million) List(_ context.Context, _ objects.Account, q objects.Query, _ objects.Turn, each func(*objects.Object) error) (objects.Page, error) {
	from, _ := strconv.Atoi(q.Continue)
	to := min(from+500, m.objects)
	for i := from; i < to; i++ {
		err := each(objects.FromMetadata(map[string]any{
			"name": fmt.Sprintf("website-%07d", i), "namespace": "ops", "uid": fmt.Sprintf("00000000-0000-4000-8000-%012d", i),
			"resourceVersion": "1", "generation": int64(1), "creationTimestamp": "2020-01-01T00:00:00Z",
			"labels": map[string]any{"app": "website", "team": "a"},
		}))
		if err != nil {
			return objects.Page{}, err
		}
	}
	page := objects.Page{Version: m.version}
	if to < m.objects {
		page.Continue = strconv.Itoa(to)
	}
	return page, nil
}

func (m *million) Newest(_ context.Context, _ objects.Account, q objects.Query) (string, error) {
	return q.Version, nil
}

func (m *million) Watch(ctx context.Context, _ objects.Account, q objects.Query, _ objects.Handler) error {
	if m.watched != nil {
		m.watched <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	m.listed <- struct{}{}
	select {
	case <-time.After(100 * time.Millisecond):
		return objects.ErrGone // and list again
	case <-ctx.Done():
		return ctx.Err()
	}
}

// BenchmarkList lists objects twice, the first time with all of them new, and reports
// how much more memory is in use at most: in the first list also for the keys that it
// schedules, which the engine of the store buffers; and after a restart with the marks
// alone.
func BenchmarkList(b *testing.B) {
	for _, n := range []int{20_000, 1_000_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) { benchmarkList(b, n) })
	}
}

func benchmarkList(b *testing.B, n int) {
	for b.Loop() {
		dir := b.TempDir()
		db, err := store.Open(store.Options{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		q, err := queue.Open(queue.Config{Store: db})
		if err != nil {
			b.Fatal(err)
		}
		src := sourceOf()
		src.MaxPending = 10_000_000
		s, err := q.Set(src)
		if err != nil {
			b.Fatal(err)
		}
		before := inUse()
		most := make(chan uint64) // of memory in use since the last value
		done := make(chan struct{})
		go func() {
			peak := uint64(0)
			for {
				select {
				case most <- peak:
					peak = 0
				case <-done:
					return
				case <-time.After(200 * time.Millisecond):
					peak = max(peak, inUse())
				}
			}
		}()
		api := &million{objects: n, version: "1", listed: make(chan struct{})}
		m, err := New(Config{API: api, Random: func() float64 { return 0 }})
		if err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		m.Set(src, &s.Marks)
		<-api.listed
		first := time.Since(start)
		b.ReportMetric(float64(int64(<-most-before))/1e6, "MB-first")
		between := inUse()
		<-api.listed
		again := time.Since(start) - first
		b.ReportMetric(float64(int64(<-most-between))/1e6, "MB-again")
		m.Close()
		close(done)
		b.ReportMetric(first.Seconds(), "s-first")
		b.ReportMetric(again.Seconds(), "s-again")
		if st, _ := s.Counts(); st.Pending != int64(api.objects) {
			b.Errorf("%d keys are pending", st.Pending)
		}
		if _, err := s.CancelAll(b.Context(), ""); err != nil { // what follows is about marks
			b.Fatal(err)
		}
		q.Close()
		if err := db.Close(); err != nil {
			b.Error(err)
		}
		restarted(b, dir, src) // it reads the log of the changes before
		b.ReportMetric(float64(int64(restarted(b, dir, src)-restarted(b, b.TempDir(), src)))/1e6, "MB-restarted")
	}
}

// restarted is the memory in use after a start that goes on watching.
func restarted(b *testing.B, dir string, src *schedule.Spec) uint64 {
	before := inUse()
	db, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	q, err := queue.Open(queue.Config{Store: db})
	if err != nil {
		b.Fatal(err)
	}
	defer q.Close()
	s, err := q.Set(src)
	if err != nil {
		b.Fatal(err)
	}
	api := &million{objects: 1, version: "2", watched: make(chan struct{}, 1)}
	m, err := New(Config{API: api, Random: func() float64 { return 0 }})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	m.Set(src, &s.Marks)
	<-api.watched
	return inUse() - before
}

func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// nothing is a queue that remembers nothing.
type nothing struct{}

func (nothing) Report([]queue.Item, []store.MarkChange) error         { return nil }
func (nothing) List(uint64, string, int) ([]store.Mark, bool, error)  { return nil, false, nil }
func (nothing) Get(uint64, string) (m store.Mark, ok bool, err error) { return m, false, nil }
func (nothing) Count(uint64) (int64, int64, error)                    { return 0, 0, nil }
func (nothing) States() ([]store.WatchState, error)                   { return nil, nil }
func (nothing) SetState(store.WatchState) error                       { return nil }
func (nothing) Remove(uint64) error                                   { return nil }

// BenchmarkEngine lists a million objects without a store, and reports how much more
// memory is in use at most.
func BenchmarkEngine(b *testing.B) {
	for b.Loop() {
		before := inUse()
		api := &million{objects: 1_000_000, version: "1", listed: make(chan struct{})}
		m, err := New(Config{API: api, Random: func() float64 { return 0 }})
		if err != nil {
			b.Fatal(err)
		}
		m.Set(sourceOf(), nothing{})
		peak := uint64(0)
		for listed := false; !listed; {
			select {
			case <-api.listed:
				listed = true
			case <-time.After(200 * time.Millisecond):
				peak = max(peak, inUse())
			}
		}
		m.Close()
		b.ReportMetric(float64(int64(peak-before))/1e6, "MB-more")
	}
}
