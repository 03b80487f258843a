//go:build e2e

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"testing"
	"time"
)

var seedFlag = flag.Uint64("seed", 0, "of what is random in the tests; 0: a new one")

// What TestMain makes for all tests.
var (
	world  *cluster
	images struct{ recorder, function, nodekill, operator, chaospod, cainjector, helm, resident string } // by digest
	seed   uint64
	logs   string // where what is left of failed tests goes
)

// imagesBuilt waits for the images of the tests, which are built while the quick start begins.
var imagesBuilt func() error

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	if err := prepare(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	imagesBuilt = sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(ctx, 15*time.Minute) // a cold build among it
		defer cancel()
		err := buildImages(ctx)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return err
	})
	go func() { _ = imagesBuilt() }()
	code := m.Run()
	if code == 0 {
		_ = os.Remove(logs) // if nothing is in it
		return 0
	}
	fmt.Fprintf(os.Stderr, "logs and objects of what failed are in %s; the same again: -seed=%d\n", logs, seed)
	return code
}

func prepare(ctx context.Context) error {
	seed = *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	fmt.Fprintf(os.Stderr, "seed: %d\n", seed)
	var err error
	if world, err = connect(); err != nil {
		return err
	}
	if missing := world.missing(ctx); len(missing) > 0 {
		return errors.Join(missing...)
	}
	if logs = os.Getenv("E2E_LOGS"); logs == "" {
		logs, err = os.MkdirTemp("", "reschedule-e2e-")
	}
	return err
}

// random is a test's source of what is random: the same for the same seed,
// whatever else runs.
func random(t *testing.T) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(t.Name()))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}
