package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// counterMerger adds up the operands of a counter row: two zigzag varints, how
// many keys and how many dead letters came (or went). Its name is stored with
// the data: another arithmetic needs another name.
var counterMerger = &pebble.Merger{
	Name: "reschedule.counter.v1",
	Merge: func(_, value []byte) (pebble.ValueMerger, error) {
		s := &sum{}
		return s, s.add(value)
	},
}

var errCounter = errors.New("store: a counter that is not of this format")

type sum struct{ keys, dead int64 }

func (s *sum) add(value []byte) error {
	keys, n := binary.Varint(value)
	if n <= 0 {
		return errCounter
	}
	dead, m := binary.Varint(value[n:])
	if m <= 0 || n+m != len(value) {
		return errCounter
	}
	s.keys += keys
	s.dead += dead
	return nil
}

func (s *sum) append(dst []byte) []byte {
	return binary.AppendVarint(binary.AppendVarint(dst, s.keys), s.dead)
}

// MergeNewer implements pebble.ValueMerger.
func (s *sum) MergeNewer(value []byte) error { return s.add(value) }

// MergeOlder implements pebble.ValueMerger; a sum has no order.
func (s *sum) MergeOlder(value []byte) error { return s.add(value) }

// Finish implements pebble.ValueMerger.
func (s *sum) Finish(bool) ([]byte, io.Closer, error) { return s.append(nil), nil, nil }

// counters holds the sums of the sources that were asked for: adding up the
// operands that wait in the memtable would take longer with every change.
type counters struct {
	sources sync.Map // source → *counter
	load    sync.Mutex
}

type counter struct{ keys, dead, bytes atomic.Int64 }

// counter loads the source's counter at its first use, which is before its
// first change in this process, so no change is counted twice or missed.
func (db *DB) counter(source string) (*counter, error) {
	if c, ok := db.counters.sources.Load(source); ok {
		return c.(*counter), nil
	}
	db.counters.load.Lock()
	defer db.counters.load.Unlock()
	if c, ok := db.counters.sources.Load(source); ok {
		return c.(*counter), nil
	}
	s, err := db.storedCounter(source)
	if err != nil {
		return nil, err
	}
	bytes, err := db.loadVolume(source, s.keys+s.dead)
	if err != nil {
		return nil, err
	}
	c := &counter{}
	c.keys.Store(s.keys)
	c.dead.Store(s.dead)
	c.bytes.Store(bytes)
	db.counters.sources.Store(source, c)
	return c, nil
}

func (db *DB) storedCounter(source string) (sum, error) {
	var s sum
	value, closer, err := db.db.Get(appendCounterKey(nil, source))
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		return s, nil
	case err == nil:
		defer closer.Close()
		if err = s.add(value); err == nil {
			return s, nil
		}
	case !pebble.IsCorruptionError(err):
		return s, fmt.Errorf("store: counting source %q: %w", source, err)
	}
	db.corruptAt(fmt.Sprintf("the counter of source %q", source), err)
	if s, err = db.recount(source); err != nil || db.readOnly {
		return s, err
	}
	// A value, not an operand: what lies below it is not read any more.
	if err := db.write(appendCounterKey(nil, source), s.append(nil), true); err != nil {
		return s, err
	}
	return s, nil
}

// recount adds up from the records what the counter row should say.
func (db *DB) recount(source string) (s sum, err error) {
	err = db.eachRecord(source, func(key string, _ func() (*schedule.Entry, error)) error {
		s.count(key, 1)
		return nil
	})
	return s, err
}

// eachRecord visits the records of a source, also records in a block that cannot
// be read, as far as the due index names them. read decodes the record, without its event;
// the entry is nil when it cannot be read.
func (db *DB) eachRecord(source string, visit func(key string, read func() (*schedule.Entry, error)) error) (err error) {
	prefix := appendSource(nil, tableRecord, source)
	it, err := db.scan(db.db, prefix, successor(prefix))
	if err != nil {
		return err
	}
	defer it.done(&err)
	for ok := it.First(); ok || it.gap != nil; ok = ok && it.Next() {
		if it.gap != nil {
			items, _, err := db.named(nil, source, it.gap, math.MaxInt, math.MaxInt, false)
			if err != nil {
				return err
			}
			for _, item := range items {
				if err := visit(item.Key, func() (*schedule.Entry, error) { return item.Entry, nil }); err != nil {
					return err
				}
			}
			if it.gap = nil; !ok {
				break
			}
		}
		key := string(it.Key()[len(prefix):])
		if err := visit(key, func() (*schedule.Entry, error) { return db.item(it, source, key, false) }); err != nil {
			return err
		}
	}
	return nil
}

// count adds n entries of the key: this function is the only place that defines
// what a counter counts.
func (s *sum) count(key string, n int64) {
	if schedule.IsDeadLetterKey(key) {
		s.dead += n
	} else {
		s.keys += n
	}
}

// Count implements Store.
func (db *DB) Count(source string) (keys, deadLetters int64, err error) {
	if !db.gate.enter() {
		return 0, 0, ErrClosed
	}
	defer db.gate.leave()
	c, err := db.counter(source)
	if err != nil {
		return 0, 0, err
	}
	return c.keys.Load(), c.dead.Load(), nil
}
