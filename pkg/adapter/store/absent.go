package store

import (
	"bytes"
	"hash/maphash"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/greatroar/blobloom"
)

// A PUT mostly reads a key that is not there. In the engine that is a search
// through all memtables; absent answers it from memory.
//
// It is a Bloom filter over the keys of all records, so it errs only in one
// direction: a key that it lacks has no record. It is complete or it is nil. An Apply
// adds its keys before its batch is visible. A filter is made from a scan of all
// records; keys that are applied meanwhile go into both, and the scan waits for every
// Apply that began before. A scan that meets an unreadable block ends without a
// filter, and so does one of a store that is too large. Keys that are removed stay in
// the filter until it is full and is made anew. No lock is taken: the filter's bits
// are set and read atomically, since every call comes here.
type absent struct {
	generation atomic.Int64    // of next
	applying   [2]atomic.Int64 // how many Applies began in an even generation, in an odd one

	filter atomic.Pointer[keyFilter] // nil: nothing is known
	next   atomic.Pointer[keyFilter] // while it is made
	asked  chan struct{}             // for a filter, or for a larger one
}

// keyFilter is a filter of a fixed size. Its seed is its own, so that callers cannot choose
// keys that it mistakes for others.
type keyFilter struct {
	seed maphash.Seed
	bits *blobloom.SyncFilter
	most int          // keys
	free atomic.Int64 // keys that it may still take
}

func newKeyFilter(most int) *keyFilter {
	return &keyFilter{seed: maphash.MakeSeed(), most: most, bits: blobloom.NewSyncOptimized(blobloom.Config{Capacity: uint64(most), FPRate: absentErrors})}
}

func (f *keyFilter) has(record []byte) bool { return f.bits.Has(maphash.Bytes(f.seed, record)) }

// add reports whether the key was new.
func (f *keyFilter) add(record []byte) bool {
	h := maphash.Bytes(f.seed, record)
	if f.bits.Has(h) {
		return false
	}
	f.bits.Add(h)
	return true
}

// absentKeys are the sizes of filters, in keys. A key takes about ten bits.
var absentKeys = []int{64 << 10, 512 << 10, 2 << 20, 4 << 20}

// absentRows bounds the rows of one step of a scan, between which changes go on.
var absentRows = 1000

// absentPoll is the pause between two reads of the Applies under way. One that waits for
// a full disk may take long.
const absentPoll = 5 * time.Millisecond

// absentBytes is how large the tables of records may be for a scan: a start must not
// read for long.
const absentBytes = 512 << 20

// absentErrors is the share of absent keys that a full filter cannot exclude.
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
	f := a.filter.Load()
	return f != nil && !f.has(record)
}

// add is called before the record can be read. It reads next first: end sets filter
// before it takes next away.
func (a *absent) add(record []byte) {
	if f := a.next.Load(); f != nil {
		f.add(record)
	}
	if f := a.filter.Load(); f != nil && f.add(record) && f.free.Add(-1) == 0 {
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
	if f := a.filter.Load(); f != nil {
		keys = max(keys, f.most+1)
	}
	most = absentKeys[len(absentKeys)-1]
	for _, size := range absentKeys {
		if size >= keys {
			most = size
			break
		}
	}
	a.next.Store(newKeyFilter(most))
	a.generation.Add(1)
	return most
}

// older reports that an Apply is under way that began before the last begin.
func (a *absent) older() bool { return a.applying[(a.generation.Load()+1)&1].Load() > 0 }

// end takes the next filter, which has so many keys, into use, or gives up both.
func (a *absent) end(keys int, complete bool) {
	f := a.next.Load()
	if !complete {
		f = nil
	}
	if f != nil {
		f.free.Store(int64(f.most - keys))
	}
	a.filter.Store(f)
	a.next.Store(nil)
}

// keepAbsent makes a filter each time that one is asked for.
func (db *housekeeper) keepAbsent() {
	for {
		select {
		case <-db.stop:
			return
		case <-db.absent.asked:
		}
		if err := db.buildAbsent(); err != nil && !db.ending() {
			db.logLimited(&db.trouble, slog.LevelWarn, "store: the keys cannot be read, so that each new one is looked up on the disk", err.Error())
		}
	}
}

// buildAbsent makes the filter.
func (db *housekeeper) buildAbsent() error {
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
			if !db.pause(absentPoll) {
				a.end(0, false)
				return nil
			}
		}
		keys, complete, err := db.addKeys(table, most/4*3)
		fits := keys <= most/4*3
		if fits || err != nil || most == absentKeys[len(absentKeys)-1] {
			a.end(keys, complete && fits)
			return err
		}
		want = most + 1
	}
}

// addKeys adds the keys of the table to the next filter, and stops beyond most.
func (db *housekeeper) addKeys(table []byte, most int) (keys int, complete bool, err error) {
	for from := table; from != nil; {
		if keys > most || db.ending() {
			return keys, false, nil
		}
		var n int
		var whole bool
		if from, n, whole, err = db.addSomeKeys(from, successor(table)); err != nil || !whole {
			return keys, false, err
		}
		keys += n
	}
	return keys, true, nil
}

// addSomeKeys adds some keys, and returns the key to go on with, nil at the end. whole is
// false when a block cannot be read.
func (db *housekeeper) addSomeKeys(from, upper []byte) (rest []byte, n int, whole bool, err error) {
	it, err := db.scan(db.db, from, upper)
	if err != nil {
		return nil, 0, false, err
	}
	defer it.done(&err)
	ok := it.First()
	next := db.absent.next.Load()
	for ; ok && it.gap == nil && n < absentRows; ok = it.Next() {
		next.add(it.Key())
		n++
	}
	if ok {
		rest = bytes.Clone(it.Key())
	}
	return rest, n, it.gap == nil, nil
}
