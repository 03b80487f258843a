package crash

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

var (
	rounds = flag.Int("crash.rounds", 8, "how often the adapter is killed")
	seed   = flag.Uint64("crash.seed", 0, "of all that is random in the first history, the next ones count on; 0 draws one")
	jobs   = flag.Int("crash.jobs", 1, "how many histories go on at the same time")
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(string) (func() error, error) { return func() error { return nil }, nil }))
}

const (
	writers  = 8
	fewKeys  = 12 // of a writer that is fast
	manyKeys = 48 // of one that is slow
)

const manifest = `apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: crash, namespace: tests}
spec:
  sink: {uri: %q}
  delivery: {backoffDelay: PT0.02S, timeout: PT5S}
  limits: {maxInFlight: 500}
`

// historyRounds are the kills of one history: what is remembered of it, to be judged at its end, fits into memory.
const historyRounds = 200

// Nothing acknowledged is lost by kill -9.
func TestKill9_LosesNothingAcknowledged(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("seed %d: run again with -crash.seed=%d -crash.rounds=%d", *seed, *seed, *rounds)
	start := time.Now()
	var left atomic.Int64
	var all sums
	left.Store(int64(*rounds))
	each := int64(min(historyRounds, (*rounds+*jobs-1)/(*jobs)))
	t.Run("job", func(t *testing.T) {
		var next atomic.Uint64
		next.Store(*seed)
		for i := range *jobs {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				for !t.Failed() {
					n := int(min(each, left.Add(-each)+each))
					if n <= 0 {
						return
					}
					seed := next.Add(1) - 1
					t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { all.add(live(t, seed, n)) })
				}
			})
		}
	})
	t.Logf("in %s: %s", time.Since(start).Round(time.Second), &all)
}

// live kills an adapter so many times and judges its history.
func live(t *testing.T, seed uint64, rounds int) *sums {
	dir := t.TempDir()
	rec := &recorder{histories: map[string]*history{}, mood: rand.New(rand.NewPCG(seed, 1))}
	rec.sink = harness.NewSink()
	t.Cleanup(rec.sink.Close)
	rec.sink.Answer("crash", "", rec.deliver)
	file, data := filepath.Join(dir, "sources.yaml"), filepath.Join(dir, "data")
	if err := os.WriteFile(file, fmt.Appendf(nil, manifest, rec.sink.URL+"/crash"), 0o600); err != nil {
		t.Fatal(err)
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	for i := range writers {
		clients.Go(func() { rec.write(ctx, i, rand.New(rand.NewPCG(seed, uint64(100+i)))) })
	}
	when := rand.New(rand.NewPCG(seed, 2))
	for round := range rounds {
		this := life{launched: time.Now().Round(0)}
		a := harness.Start(t, harness.Flags(file, data)...)
		this.ready = time.Now().Round(0)
		rec.address(a.URL)
		select {
		case <-a.Exited():
			t.Fatalf("the adapter ended by itself in round %d:\n%s", round, a.Log())
		case <-time.After(time.Duration(when.IntN(1000)) * time.Millisecond):
		}
		rec.address("")
		this.killing = time.Now().Round(0)
		a.Kill()
		this.dead = time.Now().Round(0)
		rec.lived(this)
		if code, out := harness.Run("verify", data); code != 0 {
			t.Errorf("verify after the kill of round %d: status %d:\n%s", round, code, out)
		}
	}
	stop()
	clients.Wait()

	// Now it lives: all that is due comes, from a sink that accepts all.
	rec.settle()
	last := life{launched: time.Now().Round(0)}
	a := harness.Start(t, harness.Flags(file, data)...)
	last.ready = time.Now().Round(0)
	rec.lived(last)
	base := a.URL + "/tests/crash"
	deadline := time.Now().Add(3 * harness.Patience)
	for {
		r, err := harness.Do(t.Context(), "GET", base, "")
		if err != nil {
			t.Fatal(err)
		}
		var c harness.Counts
		if r.Into(t, &c); c.Pending+c.InFlight == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it does not come to rest: %s", r.Body)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-a.Exited():
			t.Fatalf("the adapter ended by itself:\n%s", a.Log())
		}
	}
	sum := rec.judge(t)
	if t.Failed() {
		t.Logf("the adapter's last log:\n%s", a.Log())
	}
	return sum
}
