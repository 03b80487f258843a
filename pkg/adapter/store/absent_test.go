package store

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Every record is found while filters are made, filled and replaced during changes, and after each start.
func TestAbsent_FindsEveryRecord(t *testing.T) {
	defer func(sizes []int, rows int) { absentKeys, absentRows = sizes, rows }(absentKeys, absentRows)
	absentKeys, absentRows = []int{100, 400, 2000}, 7
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	fs := vfs.NewMem()
	var held [4]map[string]uint64 // of each caller: key → revision
	for g := range held {
		held[g] = map[string]uint64{}
	}
	made, off := 0, 0
	starts := 12
	if testing.Short() {
		starts = 2
	}
	for start := range starts {
		db := open(t, Options{FS: fs})
		var callers sync.WaitGroup
		for g := range held {
			random := rand.New(rand.NewPCG(seed, uint64(start*10+g)))
			callers.Go(func() {
				for range 600 {
					db.absent.ask() // beside the changes, one filter after the other
					change(t, db, random, fmt.Sprint("source", g), held[g])
				}
			})
		}
		callers.Wait()
		if db.absent.filter.Load() != nil {
			made++
		} else {
			off++
		}
		must(t, db.Close())
	}
	t.Logf("%d ends with a filter, %d without", made, off)
	if made == 0 {
		t.Error("there was never a filter")
	}
}

// change does one random change or look-up, alone or of several keys.
func change(t *testing.T, db *DB, random *rand.Rand, source string, held map[string]uint64) {
	keys := make([]string, 1+random.IntN(3))
	for i := range keys {
		keys[i] = fmt.Sprint(i, "/", random.IntN(100))
	}
	entries := make([]*schedule.Entry, len(keys))
	var err error
	if len(keys) == 1 {
		entries[0], err = db.Get(source, keys[0])
	} else {
		err = db.Outlines(source, keys, entries)
	}
	if err != nil {
		t.Error(err)
		return
	}
	for i, key := range keys {
		want, found := held[key], uint64(0)
		if entries[i] != nil {
			found = entries[i].Revision
		}
		if found != want {
			t.Errorf("%s of %s has revision %d, want %d", key, source, found, want)
			continue
		}
		c := Change{Source: source, Key: key, Old: entries[i]}
		if random.IntN(3) > 0 {
			revision, err := db.NextRevision()
			if err != nil {
				t.Error(err)
				return
			}
			now := time.Now()
			c.New = &schedule.Entry{Revision: revision, Occurrence: revision, ScheduledAt: now, DueAt: now, Event: &schedule.Event{}}
		}
		commit, err := db.Apply(true, c)
		if err == nil && random.IntN(20) == 0 {
			err = commit.Wait()
		}
		if err != nil {
			t.Error(err)
			return
		}
		if delete(held, key); c.New != nil {
			held[key] = c.New.Revision
		}
	}
}

// A full filter is replaced by a larger one. A filter that would be too large is given up.
func TestAbsent_Sizes(t *testing.T) {
	defer func(sizes []int) { absentKeys = sizes }(absentKeys)
	absentKeys = []int{10, 40, 200}
	db := open(t, Options{FS: vfs.NewMem()})
	db.keeper.end() // only the test makes filters
	db.keeper.work.Wait()
	db.keeper.stop = make(chan struct{})
	db.keeper.once = sync.Once{}
	n := 0
	for _, step := range []struct {
		keys, size int
		known      bool
	}{{6, 0, true}, {7, 1, true}, {30, 1, true}, {31, 2, true}, {150, 2, true}, {151, 2, false}} {
		for ; n < step.keys; n++ {
			now := time.Now()
			e := &schedule.Entry{Revision: uint64(n + 1), Occurrence: 1, ScheduledAt: now, DueAt: now, Event: &schedule.Event{}}
			must(t, errorOf(db.Apply(true, Change{Source: "s", Key: fmt.Sprint(n), New: e})))
		}
		db.absent.filter.Store(nil)
		must(t, db.keeper.buildAbsent())
		f := db.absent.filter.Load()
		if (f != nil) != step.known || f != nil && f.most != absentKeys[step.size] {
			t.Errorf("%d keys: %+v", n, f)
		}
	}
}
