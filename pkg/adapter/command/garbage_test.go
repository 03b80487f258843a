package command

import (
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The percentage bounds garbage to a share of the limit, whatever is in use.
func TestMemory_GarbageFollowsTheLimit(t *testing.T) {
	inUse := uint64(0)
	var set []int
	c := &collector{
		garbage:   28 << 20,
		inUse:     func() uint64 { return inUse },
		allocated: func() uint64 { return 0 },
		percent:   func(p int) { set = append(set, p) },
	}
	for _, inUse = range []uint64{0, 4 << 20, 28 << 20, 40 << 20, 56 << 20, 800 << 20} {
		c.collected()
	}
	if want := []int{100, 100, 100, 70, 50, 25}; !slices.Equal(set, want) {
		t.Errorf("it was set to %d, want %d", set, want)
	}
}

// The memory limit of the process decides, and a GOGC in its environment is kept.
func TestMemory_GOGCIsKept(t *testing.T) {
	was := debug.SetMemoryLimit(880 << 20)
	t.Cleanup(func() { debug.SetMemoryLimit(was) })
	t.Setenv("GOGC", "80")
	c := newCollector()
	if c.garbage != 880<<20/32 || c.percent != nil {
		t.Errorf("garbage may be %d, GOGC is set: %v", c.garbage, c.percent != nil)
	}
	debug.SetMemoryLimit(math.MaxInt64)
	t.Setenv("GOGC", "")
	if c = newCollector(); c.garbage != 28<<20 || c.percent == nil {
		t.Errorf("without either garbage may be %d, GOGC is set: %v", c.garbage, c.percent != nil)
	}
}

// After the last call of many the process kept what it needed while it was busy: Go plans the next collection by the last
// one, and without calls there is none for two minutes. It held 137 MiB with a million schedules, and needed 70.
func TestMemory_GoesBackAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var allocated, releases atomic.Uint64
		c := &collector{allocated: allocated.Load, release: func() {
			allocated.Add(restBytes / 2) // what a collection allocates itself
			releases.Add(1)
		}}
		after := func(d time.Duration, want uint64) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := releases.Load(); got != want {
				t.Fatalf("there were %d releases, want %d", got, want)
			}
		}
		for done := range uint64(2) {
			for range 10 { // busy
				allocated.Add(restBytes)
				c.collected()
				allocated.Add(restBytes)
				after(restTime, done)
			}
			after(restTime, done+1)
			c.collected()
			after(time.Hour, done+1) // little was allocated, so nothing is waited for
		}
	})
}

// Memory goes back also when there was no call since the last collection, so each collection counts.
func TestMemory_EachCollectionIsSeen(t *testing.T) {
	seen := make(chan struct{})
	end := make(chan struct{})
	defer close(end)
	afterCollections(func() {
		select {
		case seen <- struct{}{}:
		case <-end:
		}
	})
	for range 3 {
		runtime.GC()
		<-seen
	}
}
