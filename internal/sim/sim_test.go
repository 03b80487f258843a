package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seedFlag  = flag.Uint64("sim.seed", 0, "replay this one history")
	seedsFlag = flag.Uint64("sim.seeds", 0, "play so many histories, from random seeds")
	stepsFlag = flag.Int("sim.steps", historySteps, "steps of a history")
)

// fixedSeeds is what every run of the tests plays.
const fixedSeeds = 2000

func TestNoPromiseIsBrokenInRandomHistories(t *testing.T) {
	first, n := uint64(1), uint64(fixedSeeds)
	switch {
	case *seedFlag != 0:
		first, n = *seedFlag, 1
	case *seedsFlag != 0:
		first, n = uint64(time.Now().UnixNano()), *seedsFlag
	case os.Getenv("SIM_SEEDS") != "":
		seeds, err := strconv.ParseUint(os.Getenv("SIM_SEEDS"), 10, 64)
		if err != nil {
			t.Fatalf("SIM_SEEDS: %v", err)
		}
		first, n = uint64(time.Now().UnixNano()), seeds
	case testing.Short():
		n = fixedSeeds / 10
	}
	// Where the core panics or hangs, the traces of all goroutines tell the seed:
	// it is an argument of play.
	debug.SetTraceback("all")
	start := time.Now()
	var next, broken atomic.Uint64
	var simulated atomic.Int64
	t.Run("worker", func(t *testing.T) {
		for i := range 2 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				for {
					k := next.Add(1) - 1
					if k >= n || broken.Load() > 0 {
						return
					}
					simulated.Add(int64(play(t, first+k, &broken)))
				}
			})
		}
	})
	hours, seconds := time.Duration(simulated.Load()).Hours(), time.Since(start).Seconds()
	t.Logf("%d histories from seed %d, %.0f a second; %.0f simulated hours, %.0f a second", min(n, next.Load()), first, float64(min(n, next.Load()))/seconds, hours, hours/seconds)
}

//go:noinline
func play(t *testing.T, seed uint64, broken *atomic.Uint64) time.Duration {
	h := newHistory(seed, *stepsFlag)
	failed, _ := h.run(t)
	if failed == "" {
		return h.took
	}
	broken.Add(1)
	small := h.shrink(t, 20*time.Second)
	again, trace := small.run(t)
	t.Errorf("seed %d: a promise is broken: %s\nreplay: go test ./internal/sim -sim.seed=%d -sim.steps=%d\nin short, steps %v: %s\n%s",
		seed, failed, seed, *stepsFlag, small.steps, again, trace)
	return h.took
}
