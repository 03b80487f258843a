package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// counterMerger adds up the operands of a counter row: six zigzag varints, the fields of a sum. Its
// name is stored with the data: another arithmetic needs another name.
var counterMerger = &pebble.Merger{
	Name: "reschedule.counter.v1",
	Merge: func(_, value []byte) (pebble.ValueMerger, error) {
		s := &sum{}
		return s, s.add(value)
	},
}

var errCounter = errors.New("store: a counter that is not of this format")

// sum is what a source has.
type sum struct {
	keys, dead int64 // keys and dead letters
	bytes      int64 // the sum of [schedule.Entry.Size]
	// unsized counts the entries that could not be read when they were replaced or removed. How large
	// they were is not known, so bytes is too large until the next start counts the records.
	unsized   int64
	high, low int64 // keys of these priorities
}

func (s *sum) add(value []byte) error {
	var fields [6]int64
	for i := range fields {
		n := 0
		if fields[i], n = binary.Varint(value); n <= 0 {
			return errCounter
		}
		value = value[n:]
	}
	if len(value) > 0 {
		return errCounter
	}
	s.plus(sum{fields[0], fields[1], fields[2], fields[3], fields[4], fields[5]})
	return nil
}

func (s *sum) plus(o sum) {
	s.keys += o.keys
	s.dead += o.dead
	s.bytes += o.bytes
	s.unsized += o.unsized
	s.high += o.high
	s.low += o.low
}

func (s *sum) append(dst []byte) []byte {
	for _, n := range [...]int64{s.keys, s.dead, s.bytes, s.unsized, s.high, s.low} {
		dst = binary.AppendVarint(dst, n)
	}
	return dst
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
	*records
	sources sync.Map // source → *counter
	load    sync.Mutex
}

type counter struct{ keys, dead, bytes, high, low atomic.Int64 }

func (c *counter) add(s *sum) {
	c.keys.Add(s.keys)
	c.dead.Add(s.dead)
	c.bytes.Add(s.bytes)
	c.high.Add(s.high)
	c.low.Add(s.low)
}

// counter loads the source's counter at its first use, which is before its
// first change in this process, so no change is counted twice or missed.
func (db *counters) counter(source string) (*counter, error) {
	if c, ok := db.sources.Load(source); ok {
		return c.(*counter), nil
	}
	db.load.Lock()
	defer db.load.Unlock()
	if c, ok := db.sources.Load(source); ok {
		return c.(*counter), nil
	}
	s, err := db.storedCounter(source)
	if err != nil {
		return nil, err
	}
	c := &counter{}
	c.add(&s)
	db.sources.Store(source, c)
	return c, nil
}

// storedCounter reads the counter row. If it cannot be read or is not exact, the records are counted.
func (db *counters) storedCounter(source string) (sum, error) {
	var s sum
	value, closer, err := db.db.Get(appendCounterKey(nil, source))
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		return s, nil
	case err == nil:
		defer closer.Close()
		if err = s.add(value); err == nil && s.unsized == 0 {
			return s, nil
		}
	case !pebble.IsCorruptionError(err):
		return s, fmt.Errorf("store: counting source %q: %w", source, err)
	}
	if err != nil {
		db.corruptAt(fmt.Sprintf("the counter of source %q", source), err)
	}
	start := time.Now()
	if s, err = db.recount(source); err != nil {
		return s, err
	}
	db.log.Info("the records of a source were counted, because its counter was damaged", "source", source, "entries", s.keys+s.dead, "bytes", s.bytes, "took", time.Since(start))
	if db.readOnly {
		return s, nil
	}
	// A value, not an operand: what lies below it is not read any more.
	return s, db.write(appendCounterKey(nil, source), s.append(nil), true)
}

// recount adds up from the records what the counter row should say. An entry that cannot be read
// counts without its bytes.
func (db *counters) recount(source string) (s sum, err error) {
	err = db.eachRecord(source, func(key string, read func() (*schedule.Entry, error)) error {
		e, err := read()
		s.count(key, e, 1)
		s.bytes += e.Size(key)
		return err
	})
	return s, err
}

// eachRecord visits the records of a source, also records in a block that cannot
// be read, as far as the due index names them. read decodes the record, without its event;
// the entry is nil when it cannot be read.
func (db *records) eachRecord(source string, visit func(key string, read func() (*schedule.Entry, error)) error) (err error) {
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

// count adds n times the entry of the key, nil if it cannot be read: this function is the
// only place that defines what a counter counts.
func (s *sum) count(key string, e *schedule.Entry, n int64) {
	if schedule.IsDeadLetterKey(key) {
		s.dead += n
		return
	}
	s.keys += n
	switch {
	case e == nil:
	case e.Priority == schedule.HighPriority:
		s.high += n
	case e.Priority == schedule.LowPriority:
		s.low += n
	}
}

// Count implements Store.
func (db *counters) Count(source string) (keys, deadLetters int64, err error) {
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

// Bands implements Store.
func (db *counters) Bands(source string) (keys [schedule.Bands]int64, err error) {
	if !db.gate.enter() {
		return keys, ErrClosed
	}
	defer db.gate.leave()
	c, err := db.counter(source)
	if err != nil {
		return keys, err
	}
	high, low := c.high.Load(), c.low.Load()
	keys[schedule.HighPriority.Band()], keys[schedule.LowPriority.Band()] = high, low
	keys[schedule.NormalPriority.Band()] = c.keys.Load() - high - low
	return keys, nil
}

// Bytes implements Store.
func (db *counters) Bytes(source string) (int64, error) {
	if !db.gate.enter() {
		return 0, ErrClosed
	}
	defer db.gate.leave()
	c, err := db.counter(source)
	if err != nil {
		return 0, err
	}
	return max(c.bytes.Load(), 0), nil
}
