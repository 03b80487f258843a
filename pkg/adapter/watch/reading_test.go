package watch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Of many watches that have events to read a few read, and a namespace with one of them is
// next, behind one of the namespace with many. Each of 320 watches of one ConfigMap of 250 KB
// held its own copy, and the adapter grew from 64 to 670 MB.
func TestReading_FewAtOnceAndFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		reads := func(namespace string) (began chan struct{}, r *reading) {
			s := newSource(m, &schedule.Spec{UID: namespace, Namespace: namespace, Name: "x"}, nil)
			began, r = make(chan struct{}), &reading{}
			go func() {
				if err := r.begin(t.Context(), s, nil); err == nil {
					close(began)
				}
			}()
			synctest.Wait()
			return began, r
		}
		var first []*reading
		for _, namespace := range []string{"many", "many", "other", "other"} {
			began, r := reads(namespace)
			<-began
			first = append(first, r)
		}
		more, _ := reads("many")
		more2, _ := reads("many")
		calm, _ := reads("calm")
		for _, c := range []chan struct{}{more, more2, calm} {
			select {
			case <-c:
				t.Error("more than a few read")
			default:
			}
		}
		first[0].done()
		<-more
		first[1].done()
		<-calm
		select {
		case <-more2:
			t.Error("the namespace with many watches went first twice")
		default:
		}
		first[2].done()
		<-more2
	})
}

// The watches of one namespace leave others a turn, however long their events take to arrive. Four
// events without an end kept all watches from reading, for ten minutes.
func TestReading_OneNamespaceLeavesTurns(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		for range 2 * maxReading {
			go func() {
				_, _ = w.m.reading.Take(t.Context(), "slow", "s") // as many as it gets
			}()
		}
		synctest.Wait()
		w.api.put("Website", "ops/a", true)
		w.want("beside slow events", time.Second, "add Website/ops/a")
	})
}

// A watch that always has more events stores what it has and lets others go first.
func TestReading_LongOnePassesItOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		m.reading = budget.NewTurns(1, 1, 0)
		s := newSource(m, &schedule.Spec{UID: "a", Namespace: "a", Name: "x"}, nil)
		stored := 0
		store := func() error { stored++; return nil }
		var long, other reading
		begin := func() {
			t.Helper()
			if err := long.begin(t.Context(), s, store); err != nil {
				t.Fatal(err)
			}
		}
		begin()
		time.Sleep(readingTurn)
		begin() // no other one waits
		if stored != 0 {
			t.Error("it stored although no other watch waits")
		}
		began := make(chan struct{})
		go func() {
			if other.begin(t.Context(), s, nil) == nil {
				close(began)
				other.done()
			}
		}()
		synctest.Wait()
		begin()
		<-began
		if stored != 1 {
			t.Errorf("it stored %d times before it passed the turn on", stored)
		}
		long.done()
	})
}

// A watch that waits for events has no turn, nor does one that ended.
func TestReading_IdleWatchHasNoTurn(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		for range maxReading + 1 {
			w.api.put("Website", "ops/a", true)
			if got := w.settle(time.Second); len(got) != 1 {
				t.Fatalf("%q were scheduled", keys(got))
			}
		}
		w.api.put("Website", "ops/a", true)
		w.m.Remove(w.src.UID)
		synctest.Wait()
		for i := range maxReading {
			if _, err := w.m.reading.Take(t.Context(), fmt.Sprint(i), "s"); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Expressions are evaluated at the turn of their source: thousands of watches evaluated one
// change at once.
func TestEvaluate_InTurn(t *testing.T) {
	run(t, func() *schedule.Spec {
		return sourceOf(schedule.WatchResource{Group: "example.com", Version: "v1", Kind: "Website", Key: "object.metadata.name", Changes: schedule.ChangesAny})
	}, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		var held []*budget.Claim
		for range budget.HalfOfProcessors() {
			turn, err := w.m.evaluating.Take(t.Context(), "other", "s")
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, turn)
		}
		w.api.put("Website", "ops/a", true)
		w.want("no turn is free", time.Minute)
		for _, turn := range held {
			turn.Release()
		}
		w.want("a turn is free", time.Second, "dev.reschedule.due a")
	})
}
