package sim

import (
	"flag"
	"fmt"
	"math"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seedFlag  = flag.Uint64("sim.seed", 0, "replay this one history")
	seedsFlag = flag.Uint64("sim.seeds", 0, "play so many histories, from random seeds")
	hoursFlag = flag.Float64("sim.hours", 0, "play histories, from random seeds, until so many hours have passed in them")
	stepsFlag = flag.Int("sim.steps", historySteps, "steps of a history")
)

// fixedSeeds is what every run of the tests plays.
const fixedSeeds = 2000

// No promise is broken in random histories.
func TestHistory_KeepsEveryPromise(t *testing.T) {
	first, n := uint64(1), uint64(fixedSeeds)
	switch {
	case *seedFlag != 0:
		first, n = *seedFlag, 1
	case *seedsFlag != 0:
		first, n = uint64(time.Now().UnixNano()), *seedsFlag
	case *hoursFlag != 0:
		first, n = uint64(time.Now().UnixNano()), math.MaxInt64
	case testing.Short():
		n = fixedSeeds / 80
	}
	// Where the core panics or hangs, the traces of all goroutines tell the seed:
	// it is an argument of play.
	debug.SetTraceback("all")
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // a seventh of the time
	start := time.Now()
	var next, played, broken, steps atomic.Uint64
	var passed atomic.Int64 // in the histories, in seconds
	t.Run("worker", func(t *testing.T) {
		for i := range 2 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				for {
					k := next.Add(1) - 1
					if k >= n || broken.Load() > 0 || *hoursFlag != 0 && float64(passed.Load())/3600 >= *hoursFlag {
						return
					}
					h := play(t, first+k, &broken)
					passed.Add(int64(h.took / time.Second))
					steps.Add(uint64(len(h.steps)))
					played.Add(1)
				}
			})
		}
	})
	took := time.Since(start)
	t.Logf("%d histories from seed %d, %d steps, %d hours simulated in %s; %.0f histories a second; %d broken promises",
		played.Load(), first, steps.Load(), passed.Load()/3600, took.Round(time.Second), float64(played.Load())/took.Seconds(), broken.Load())
}

//go:noinline
func play(t *testing.T, seed uint64, broken *atomic.Uint64) *history {
	h := newHistory(seed, *stepsFlag)
	failed := h.run(t)
	if failed == "" {
		return h
	}
	broken.Add(1)
	small := h.shrink(t, 20*time.Second)
	again := small.run(t)
	t.Errorf("seed %d: a promise is broken: %s\nreplay: go test ./internal/sim -sim.seed=%d -sim.steps=%d\nin short, steps %v: %s\n%s",
		seed, failed, seed, *stepsFlag, small.steps, again, text(small.trace))
	return h
}
