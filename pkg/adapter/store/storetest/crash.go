package storetest

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

func revisions(t *testing.T, f *fixture) {
	seen := map[uint64]bool{}
	last := uint64(0)
	for range 4 {
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 1000 {
					r, err := f.NextRevision()
					mu.Lock()
					if err != nil || seen[r] || r <= last {
						t.Errorf("revision %d after %d, seen %v: %v", r, last, seen[r], err)
					}
					seen[r] = true
					mu.Unlock()
				}
			})
		}
		all.Wait()
		for r := range seen {
			last = max(last, r)
		}
		f.reopen(true)
	}
}

func identity(t *testing.T, f *fixture) {
	id := f.ID()
	if id == "" {
		t.Fatal("no id")
	}
	for _, kill := range []bool{true, false} {
		f.reopen(kill)
		if f.ID() != id {
			t.Fatalf("it was %q, now %q", id, f.ID())
		}
	}
}

func clock(t *testing.T, f *fixture) {
	at := func() time.Time {
		t.Helper()
		c, err := f.Clock()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if !at().IsZero() {
		t.Fatal(at())
	}
	for _, d := range []time.Duration{time.Second, time.Hour, time.Minute} {
		if err := f.SetClock(f.now.Add(d)); err != nil {
			t.Fatal(err)
		}
	}
	same(t, "clock", f.now.Add(time.Minute), at())
	time.Sleep(store.LazySync)
	synctest.Wait()
	f.reopen(true)
	same(t, "clock after a power loss", f.now.Add(time.Minute), at())
}

func durable(t *testing.T, f *fixture) {
	want := map[string]*schedule.Entry{}
	for round := range 5 {
		for i := range 10 {
			key := fmt.Sprintf("%d/%d", round, i)
			want[key] = f.entry(time.Hour)
			f.put("s", key, want[key])
		}
		f.reopen(true)
		for key, e := range want {
			same(t, key, e, f.get("s", key))
		}
		if keys, _, err := f.Count("s"); keys != int64(len(want)) || err != nil {
			t.Fatal(keys, err)
		}
	}
}

// lazy relies on fake time: the disk takes none of it.
func lazy(t *testing.T, f *fixture) {
	for i := range 3 {
		e := f.entry(0)
		f.apply(true, store.Change{Source: "s", Key: fmt.Sprint(i), New: e})
		time.Sleep(store.LazySync)
		synctest.Wait()
		f.reopen(true)
		same(t, "after LazySync", e, f.get("s", fmt.Sprint(i)))
	}
}

func lazyWait(t *testing.T, f *fixture) {
	e := f.entry(0)
	c, err := f.Apply(true, store.Change{Source: "s", Key: "k", New: e})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	f.reopen(true)
	same(t, "after Wait", e, f.get("s", "k"))
}

func nothing(t *testing.T, f *fixture) {
	f.apply(false)
	f.apply(false, store.Change{Source: "s", Key: "k"})
	e := f.entry(0)
	f.apply(true, store.Change{Source: "s", Key: "k", New: e})
	f.apply(false) // whatever was before it is durable with it
	f.reopen(true)
	same(t, "what was before", e, f.get("s", "k"))
}

// prefix kills a random history and finds out where it stands.
func prefix(t *testing.T, f *fixture) {
	r := Seed(t)
	h := NewHistory(r, f.now, f.revision)
	crashes := 30
	if testing.Short() {
		crashes = 8
	}
	for range crashes {
		states := []State{h.State()}
		acknowledged := 0
		for i := range 1 + r.IntN(20) {
			lazily := r.IntN(3) > 0
			f.applyMarked(lazily, h.Marks(), h.Changes()...)
			states = append(states, h.State())
			if !lazily {
				acknowledged = i + 1
			}
		}
		f.reopen(true)
		found, err := Find(f)
		if err != nil {
			t.Fatal(err)
		}
		at := -1
		for i := range states {
			if gocmp.Equal(states[i], found, cmpopts.EquateEmpty()) {
				at = i
			}
		}
		if at < acknowledged {
			t.Fatalf("after the power loss the history stands at %d of %d (-1: nowhere), %d were acknowledged", at, len(states)-1, acknowledged)
		}
		h.Set(found)
		agree(t, f, h)
	}
}

func concurrent(t *testing.T, f *fixture) {
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			var old *schedule.Entry
			for i := range 50 {
				e := f.entry(time.Duration(i))
				c, err := f.Apply(i%2 == 0, store.Change{Source: "s", Key: fmt.Sprint(g), Old: old, New: e})
				if err != nil {
					t.Error(err)
					return
				}
				if err := c.Wait(); err != nil {
					t.Error(err)
					return
				}
				if got, err := f.Get("s", fmt.Sprint(g)); err != nil || got.Revision != e.Revision {
					t.Errorf("got %+v, %v", got, err)
				}
				old = e
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	f.reopen(true)
	same(t, "due", []string{"0", "1", "2", "3", "4", "5", "6", "7"}, f.dueKeys("s"))
	if keys, dead, err := f.Count("s"); keys != 8 || dead != 0 || err != nil {
		t.Fatal(keys, dead, err)
	}
}
