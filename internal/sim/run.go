package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// history is what a run does: the given steps of a seed.
type history struct {
	seed  uint64
	steps []int

	keys  int
	took  time.Duration // in the bubble's time
	trace []moment
}

const historySteps = 60

func newHistory(seed uint64, n int) *history {
	h := &history{seed: seed}
	for i := range n {
		h.steps = append(h.steps, i)
	}
	return h
}

// run plays the history and returns the broken promise, "" if none is.
func (h *history) run(t *testing.T) (failed string) {
	synctest.Test(t, func(*testing.T) {
		w, start := &world{h: h}, time.Now()
		w.play()
		h.took = time.Since(start)
		failed, h.trace = w.judge.failed, w.trace
	})
	return failed
}

func (w *world) play() {
	r := rand.New(rand.NewPCG(w.h.seed, 0))
	w.h.keys = 3 + r.IntN(6)
	w.pageRows = pick(r, 2, 2, 3, 5, 4096)
	w.disk = newDisk(vfs.NewCrashableMem())
	w.settings, w.sent, w.hangs, w.workloads = map[string]*schedule.Spec{}, map[string]int{}, map[string]bool{}, map[string]scaled{}
	w.judge = newJudge()
	w.maxInFlight = pick(r, 2, 4, 8, 4096)
	for i := range 2 + r.IntN(2) {
		w.apply(w.randomSettings(r, fmt.Sprintf("s%d", i)))
	}
	if err := w.start(); err != nil {
		w.broken("start: %v", err)
		return
	}
	w.deliver()
	for _, i := range w.h.steps {
		if w.step(i); !w.ok() {
			break
		}
	}
	if w.ok() {
		w.drain(r)
	}
	w.mu.Lock()
	w.p.dead = w.judge.failed != ""
	w.mu.Unlock()
	w.stop(0)
	w.calls.Wait()
	if w.ok() {
		w.note(down{})
		w.resume()
		w.p.ready.Store(false)
		w.stop(0)
	}
}

// shrink leaves out steps as long as a promise is broken without them.
func (h *history) shrink(t *testing.T, within time.Duration) *history {
	end := time.Now().Add(within)
	best := *h
	for size := len(best.steps) / 2; size > 0; size /= 2 {
		for from := 0; from < len(best.steps) && time.Now().Before(end); {
			try := best
			try.steps = slices.Delete(slices.Clone(best.steps), from, min(from+size, len(best.steps)))
			if try.run(t) != "" {
				best = try
			} else {
				from += size
			}
		}
	}
	return &best
}
