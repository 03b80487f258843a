package store

import (
	"bytes"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bits-and-blooms/bloom/v3"
)

// A PUT mostly looks for a key that is not there. In the engine that is a search
// through all memtables; absent answers it from memory.
//
// It is a Bloom filter over the keys of all records, so it errs only in one
// direction: a key that it lacks has no record. It is complete or it is nil. An Apply
// adds its keys before its batch is visible. A filter is made from a scan of all
// records; keys that are applied meanwhile go into both, and the scan waits for every
// Apply that began before. A scan that meets an unreadable block ends without a
// filter, and so does one of a store that is too large. Keys that are removed stay in
// the filter until it is full and is made anew.
type absent struct {
	generation atomic.Int64    // of next
	applying   [2]atomic.Int64 // how many Applies began in an even generation, in an odd one

	mu     sync.RWMutex
	filter *bloom.BloomFilter // nil: nothing is known
	next   *bloom.BloomFilter // while it is made
	free   int                // keys that filter may still take
	size   int                // index in absentKeys
	asked  chan struct{}      // for a filter, or for a larger one
}

// absentKeys are the sizes of filters, in keys. A key takes ten bits.
var absentKeys = [3]int{64 << 10, 512 << 10, 4 << 20}

// absentRows bounds the rows of one step of a scan, between which changes go on.
var absentRows = 1000

// absentPoll is the pause between two looks at the Applies under way. One that waits for
// a full disk may take long.
const absentPoll = 5 * time.Millisecond

// absentBytes is how large the tables of records may be for a scan: a start must not
// read for long.
const absentBytes = 512 << 20

// absentErrors is the share of absent keys that a full filter does not know.
const absentErrors = 0.01

// enter is the begin of an Apply. It is given to leave, once the batch is visible.
func (a *absent) enter() (generation int64) {
	for {
		g := a.generation.Load()
		a.applying[g&1].Add(1)
		if a.generation.Load() == g {
			return g
		}
		a.applying[g&1].Add(-1)
	}
}

func (a *absent) leave(generation int64) { a.applying[generation&1].Add(-1) }

// lacks reports that the store has no record under the key.
func (a *absent) lacks(record []byte) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.filter != nil && !a.filter.Test(record)
}

// add is called before the record can be read.
func (a *absent) add(record []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next != nil {
		a.next.Add(record)
	}
	if a.filter == nil || a.filter.TestOrAdd(record) {
		return
	}
	if a.free--; a.free == 0 {
		a.ask()
	}
}

// ask has a filter made.
func (a *absent) ask() {
	select {
	case a.asked <- struct{}{}:
	default:
	}
}

// begin makes the next filter, for at least so many keys.
func (a *absent) begin(keys int) (most int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.filter != nil {
		keys = max(keys, absentKeys[a.size]+1)
	}
	for a.size = 0; a.size < len(absentKeys)-1 && absentKeys[a.size] < keys; a.size++ {
	}
	a.next = bloom.NewWithEstimates(uint(absentKeys[a.size]), absentErrors)
	a.generation.Add(1)
	return absentKeys[a.size]
}

// older reports that an Apply is under way that began before the last begin.
func (a *absent) older() bool { return a.applying[(a.generation.Load()+1)&1].Load() > 0 }

// end takes the next filter, which has so many keys, into use, or gives up both.
func (a *absent) end(keys int, complete bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.filter = nil
	if complete {
		a.filter, a.free = a.next, absentKeys[a.size]-keys
	}
	a.next = nil
}

// keepAbsent makes a filter each time that one is asked for.
func (db *DB) keepAbsent() {
	for {
		select {
		case <-db.keeper.stop:
			return
		case <-db.absent.asked:
		}
		if err := db.learnAbsent(); err != nil && !db.keeper.ending() {
			db.complain(&db.engine, slog.LevelWarn, "store: the keys cannot be read, so that each new one is looked up on the disk", err.Error())
		}
	}
}

// learnAbsent makes the filter.
func (db *DB) learnAbsent() error {
	a := &db.absent
	table := appendTable(nil, tableRecord)
	size, err := db.db.EstimateDiskUsage(table, successor(table))
	if err != nil || size > absentBytes {
		a.end(0, false)
		return err
	}
	for want := int(size / 128); ; {
		most := a.begin(want)
		for a.older() { // it may have passed the next filter by
			if !db.keeper.pause(absentPoll) {
				a.end(0, false)
				return nil
			}
		}
		keys, complete, err := db.learnKeys(table, most/4*3)
		fits := keys <= most/4*3
		if fits || err != nil || most == absentKeys[len(absentKeys)-1] {
			a.end(keys, complete && fits)
			return err
		}
		want = most + 1
	}
}

// learnKeys adds the keys of the table to the next filter, and stops beyond most.
func (db *DB) learnKeys(table []byte, most int) (keys int, complete bool, err error) {
	for from := table; from != nil; {
		if keys > most || db.keeper.ending() {
			return keys, false, nil
		}
		n, whole := 0, true
		if from, n, whole, err = db.learnStep(from, successor(table)); err != nil || !whole {
			return keys, false, err
		}
		keys += n
	}
	return keys, true, nil
}

// learnStep adds some keys, and returns where to go on, nil at the end. whole is
// false when a block cannot be read.
func (db *DB) learnStep(from, upper []byte) (next []byte, n int, whole bool, err error) {
	it, err := db.scan(db.db, from, upper)
	if err != nil {
		return nil, 0, false, err
	}
	defer it.done(&err)
	ok := it.First()
	db.absent.mu.Lock()
	for ; ok && it.gap == nil && n < absentRows; ok = it.Next() {
		db.absent.next.Add(it.Key())
		n++
	}
	db.absent.mu.Unlock()
	if ok {
		next = bytes.Clone(it.Key())
	}
	return next, n, it.gap == nil, nil
}
