package watch

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

var (
	historySeed = flag.Uint64("watch.seed", 0, "the seed of the one history to play; 0 = some new ones")
	historyRuns = flag.Int("watch.histories", 40, "how many histories to play")
)

// In random histories the last change of each object has woken its key once things are
// quiet, and no key woke without a change. Objects change, streams break, versions
// expire, rights come and go, and the adapter stops and loses power at any point.
func TestHistory_EveryChangeAndNoOther(t *testing.T) {
	t.Parallel()
	histories(t, func(t *testing.T, seed uint64) {
		src := []func() *schedule.Spec{own, everywhere, labelled}[seed%3]
		h := &history{env: newEnv(t, src()), r: rand.New(rand.NewPCG(seed, 1)), wasIn: map[string]bool{}}
		defer h.stop()
		h.play()
	})
}

// histories plays a history for each of some seeds, in fake time, and prints how to play one that fails again.
func histories(t *testing.T, play func(t *testing.T, seed uint64)) {
	t.Helper()
	seeds := []uint64{*historySeed}
	if *historySeed == 0 {
		seeds = seeds[:0]
		for range *historyRuns {
			seeds = append(seeds, rand.Uint64())
		}
	}
	test := t.Name()
	for _, seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				play(t, seed)
				if t.Failed() {
					t.Logf("replay: go test ./pkg/adapter/watch -run %s -watch.seed=%d", test, seed)
				}
			})
		})
	}
}

type history struct {
	*env
	r     *rand.Rand
	wasIn map[string]bool // objects whose namespace left the selection: they may wake anew
	log   []string
}

func (h *history) note(format string, args ...any) {
	h.log = append(h.log, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

func (h *history) play() {
	all := h.src.Watch.Namespaces == "" && !h.src.Watch.OwnNamespace
	for _, name := range []string{"ops", "a", "b"} {
		h.api.put("Namespace", name, true, team("a"))
	}
	parts := h.src.Watch.Namespaces != "" && h.r.IntN(2) == 0
	rights := func(denied bool) func() {
		return func() {
			h.api.forbids = func(verb string, q objects.Query) bool {
				return denied || parts && q.Namespace == "" && q.Resource.Kind != "Namespace"
			}
		}
	}
	h.api.set(rights(false))
	h.start()
	running := true
	for range 60 {
		switch n := h.r.IntN(24); {
		case n < 12:
			h.touch()
		case n == 12:
			h.api.cut()
		case n == 13:
			h.api.compact()
		case n == 14:
			h.api.set(rights(h.r.IntN(2) == 0))
		case n == 15:
			h.api.set(func() { h.api.down = !h.api.down })
		case n == 16 && running:
			h.note("stop")
			h.env.stop()
			running = false
		case n == 17 && running:
			h.note("power is lost")
			h.lose(h.r.IntN(101), h.r)
			running = false
		case n == 18 && running:
			in, before := 1+h.r.IntN(4), h.r.IntN(2) == 0
			h.note("power is lost at a batch, before it: %t", before)
			h.mu.Lock()
			start := h.s.batch
			h.s.crash = func(batch int) (bool, bool) { return batch == start+in && before, batch == start+in && !before }
			h.mu.Unlock()
		case n == 19 && h.src.Watch.Namespaces != "":
			h.move()
		case n < 21:
			h.pass(time.Duration(h.r.Int64N(int64(10 * time.Minute))))
		default:
			h.pass(time.Duration(h.r.Int64N(int64(3 * time.Second))))
		}
		if running && h.died() {
			h.note("it lost power")
			h.lose(h.r.IntN(101), h.r)
			running = false
		}
		if !running && h.r.IntN(3) == 0 {
			h.note("start")
			h.start()
			running = true
		}
	}
	h.api.set(rights(false))
	h.api.set(func() { h.api.down = false })
	if running {
		h.lose(100, h.r)
	}
	h.start()
	h.pass(time.Hour)
	h.judge(all)
}

func (h *history) died() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.s.dead
}

func (h *history) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// touch makes, changes or removes an object.
func (h *history) touch() {
	path := []string{"ops", "a", "b"}[h.r.IntN(3)] + "/" + strconv.Itoa(h.r.IntN(5))
	switch h.r.IntN(6) {
	case 0:
		h.note("remove %s", path)
		h.api.remove("Website", path)
	case 1:
		h.note("status of %s", path)
		if h.api.live["Website/"+path] != nil {
			h.api.put("Website", path, false)
		}
	default:
		h.api.put("Website", path, true)
		h.note("put %s: %d", path, h.api.version)
	}
}

// move selects a namespace, or does not any more.
func (h *history) move() {
	name := []string{"a", "b"}[h.r.IntN(2)]
	to := []string{"a", "b"}[h.r.IntN(2)]
	h.note("namespace %s has team %s", name, to)
	h.api.put("Namespace", name, true, team(to))
	for i := range 5 {
		h.wasIn["Website/"+name+"/"+strconv.Itoa(i)] = true
	}
}

func (h *history) counts(namespace string) bool {
	switch w := h.src.Watch; {
	case w.OwnNamespace:
		return namespace == "ops"
	case w.Namespaces == "":
		return true
	}
	return h.api.live["Namespace/"+namespace].labels["team"] == "a"
}

// judge compares the wakes with the history of the API server.
func (h *history) judge(bool) {
	if got, want := h.status().Objects, int64(len(h.marks())); got != want {
		h.t.Errorf("the status says %d objects, and %d have a mark\n%s", got, want, strings.Join(h.log, "\n"))
	}
	h.sameBytes()
	stamps := map[string]int{} // of what counts, by the version of the object
	last := map[string]event{}
	for _, e := range h.api.history {
		if e.o.kind == "Website" {
			stamps[strconv.Itoa(e.version)] = e.o.stamp
			last["Website/"+e.o.path()] = e
		}
	}
	wakes := map[string][]wake{}
	for _, w := range h.wakes {
		wakes[w.key] = append(wakes[w.key], w)
	}
	fail := func(key, format string, args ...any) {
		h.t.Errorf("%s: %s\nwakes: %+v\nlast: %+v\n%s", key, fmt.Sprintf(format, args...), wakes[key], last[key], strings.Join(h.log, "\n"))
	}
	for _, key := range slices.Sorted(maps.Keys(wakes)) {
		for i, w := range wakes[key] {
			if i == 0 || h.wasIn[key] {
				continue
			}
			before := wakes[key][i-1]
			switch {
			case w.verb == "delete" && before.verb == "delete":
				fail(key, "was deleted twice")
			case w.verb != "delete" && before.verb != "delete" && stamps[w.version] == stamps[before.version]:
				fail(key, "woke at version %s without a change since %s", w.version, before.version)
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(last)) {
		e := last[key]
		if !h.counts(e.o.namespace) {
			continue
		}
		mine := wakes[key]
		if e.t == objects.Deleted {
			if len(mine) > 0 && mine[len(mine)-1].verb != "delete" && !h.wasIn[key] {
				fail(key, "its deletion is lost")
			}
			continue
		}
		if len(mine) == 0 || stamps[mine[len(mine)-1].version] != e.o.stamp {
			fail(key, "its last change is lost")
		}
	}
	if s := h.status(); s.Status != schedule.WatchTrue {
		h.t.Errorf("status %+v\n%s", s, strings.Join(h.log, "\n"))
	}
}
