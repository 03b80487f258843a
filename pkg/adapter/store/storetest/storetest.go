// Package storetest is the conformance suite of the store seam: what the queue
// relies on, tried on any implementation.
//
// It guarantees that a store which passes keeps the promises written on
// [store.Store]: what reads return (held against a small model over random
// histories), what is durable when, and what may be missing after a crash.
//
// How it works: every test runs in a bubble of fake time with an empty store;
// reopen ends the store, as by Close or as by a power loss, and opens what is
// left. The seed of a random test is in its failure message and can be given by
// STORETEST_SEED.
//
// It leaves the damage of disks, and what only one implementation has, to that
// implementation's own tests.
package storetest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Open opens an empty store. reopen ends it, with kill as by a power loss after
// which as little is left as the store's promises allow, else by Close, and
// opens it again; it may be called again and again. Whatever is open at the end
// of the test Open closes by t.Cleanup.
type Open func(t *testing.T) (s store.Store, reopen func(kill bool) store.Store)

// Run tries the store.
func Run(t *testing.T, open Open) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *fixture)
	}{
		{"an entry comes back as it was", entryComesBack},
		{"an event is kept, replaced and removed", eventKept},
		{"a change is visible before it is durable", visibleAtOnce},
		{"changes of one Apply follow one another", changesInOrder},
		{"names that start with one another do not mix", namesDoNotMix},
		{"dead letters are due but not listed", deadLetters},
		{"a position is passed with all its revisions", positions},
		{"a list of due keys is resumed where it stopped", listDueResumes},
		{"a backlog counts retries by their original time", backlog},
		{"instants before 1970 and far ahead keep their order", instants},
		{"a purge removes one source and nothing else", purge},
		{"a mark comes back as it was", markComesBack},
		{"a mark is there with its changes or not at all", markedTogether},
		{"the marks of a watch end with it and with its source", marksEnd},
		{"reads agree with a model over a random history", agreesWithModel},
		{"revisions are never handed out twice", revisions},
		{"the id stays and is one's own", identity},
		{"the clock is the instant that was set last", clock},
		{"what Wait returned for survives a power loss", durable},
		{"lazy changes survive after LazySync", lazy},
		{"waiting for a lazy change makes it durable", lazyWait},
		{"after a power loss there is a prefix of the history", prefix},
		{"an empty change is durable", nothing},
		{"many callers at once", concurrent},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, reopen := open(t)
				f := &fixture{t: t, Store: s, now: time.Now().UTC()}
				f.reopen = func(kill bool) { f.Store = reopen(kill) }
				test.run(t, f)
			})
		})
	}
}

// fixture is a store under test.
type fixture struct {
	store.Store
	t      *testing.T
	now    time.Time
	reopen func(kill bool)
}

// Seed makes a random source whose seed is printed if the test fails.
func Seed(t *testing.T) *rand.Rand {
	n := rand.Uint64()
	if s := os.Getenv("STORETEST_SEED"); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("STORETEST_SEED: %v", err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("STORETEST_SEED=%d", n)
		}
	})
	return rand.New(rand.NewPCG(n, n))
}

func (f *fixture) revision() uint64 {
	f.t.Helper()
	r, err := f.NextRevision()
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

// entry is a new entry, due after the given time from now.
func (f *fixture) entry(after time.Duration) *schedule.Entry {
	f.t.Helper()
	r := f.revision()
	return &schedule.Entry{Revision: r, Occurrence: r, ScheduledAt: f.now, DueAt: f.now.Add(after)}
}

// with returns a changed copy.
func with(e *schedule.Entry, change func(*schedule.Entry)) *schedule.Entry {
	c := *e
	change(&c)
	return &c
}

// put replaces a key's entry, durably; nil removes it.
func (f *fixture) put(source, key string, e *schedule.Entry) {
	f.t.Helper()
	f.apply(false, f.change(source, key, e))
}

func (f *fixture) change(source, key string, e *schedule.Entry) store.Change {
	f.t.Helper()
	return store.Change{Source: source, Key: key, Old: f.get(source, key), New: e}
}

func (f *fixture) get(source, key string) *schedule.Entry {
	f.t.Helper()
	e, err := f.Get(source, key)
	if err != nil {
		f.t.Fatal(err)
	}
	return e
}

// apply applies, and waits unless it is lazy.
func (f *fixture) apply(lazy bool, changes ...store.Change) {
	f.t.Helper()
	f.applyMarked(lazy, nil, changes...)
}

func (f *fixture) applyMarked(lazy bool, marks []store.MarkChange, changes ...store.Change) {
	f.t.Helper()
	c, err := f.ApplyMarked(lazy, marks, changes...)
	if err != nil {
		f.t.Fatal(err)
	}
	if lazy {
		return
	}
	if err := c.Wait(); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) dueKeys(source string) []string {
	f.t.Helper()
	keys := []string{}
	for _, p := range schedule.Priorities {
		rows, more, err := f.Due(nil, source, p, store.Position{}, 1000)
		if err != nil || more {
			f.t.Fatal(more, err)
		}
		for _, r := range rows {
			keys = append(keys, r.Key)
		}
	}
	return keys
}

func keysOf(items []store.Item) []string {
	keys := []string{}
	for _, i := range items {
		keys = append(keys, i.Key)
	}
	return keys
}
