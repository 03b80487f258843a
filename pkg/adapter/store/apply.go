package store

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// scratch is what an Apply encodes in.
type scratch struct {
	key, value []byte
	old, new   rows
}

var scratches = sync.Pool{New: func() any { return &scratch{} }}

// maxScratch bounds the buffers that are kept.
const maxScratch = 64 << 10

func (s *scratch) release() {
	if cap(s.value) <= maxScratch {
		scratches.Put(s)
	}
}

// delta is how a source's counters change.
type delta struct {
	source string
	*counter
	sum
}

// Apply implements Store.
func (db *DB) Apply(lazy bool, changes ...Change) (Commit, error) {
	return db.ApplyMarked(lazy, nil, changes...)
}

// ApplyMarked implements Store.
func (db *DB) ApplyMarked(lazy bool, marks []MarkChange, changes ...Change) (Commit, error) {
	if !db.gate.enter() {
		return nil, ErrClosed
	}
	defer db.gate.leave()
	if err := db.usable(); err != nil {
		return nil, err
	}
	// The housekeeper holds records and rows against each other meanwhile, or not.
	db.keeper.rows.RLock()
	defer db.keeper.rows.RUnlock()
	defer db.absent.leave(db.absent.enter())
	b := db.db.NewBatch()
	s := scratches.Get().(*scratch)
	defer s.release()
	var one [1]delta
	deltas := one[:0]
	for i := range changes {
		var err error
		if deltas, err = db.add(b, s, &changes[i], deltas); err != nil {
			b.Close()
			return nil, err
		}
	}
	for i := range deltas {
		d := &deltas[i]
		if d.sum == (sum{}) {
			continue
		}
		s.key = appendCounterKey(s.key[:0], d.source)
		s.value = d.sum.append(s.value[:0])
		if err := b.Merge(s.key, s.value, nil); err != nil {
			b.Close()
			return nil, fmt.Errorf("store: counting: %w", err)
		}
	}
	if len(marks) > 0 {
		if err := db.addMarks(b, s, marks); err != nil {
			b.Close()
			return nil, err
		}
	}
	c, err := db.commit(b, lazy)
	if err != nil {
		return nil, err
	}
	for i := range deltas {
		deltas[i].counter.add(&deltas[i].sum)
	}
	for i := range changes {
		if changes[i].Corrupt {
			db.keeper.want(changes[i].Source, true)
		}
	}
	return c, nil
}

// add puts one change into the batch.
func (db *DB) add(b *pebble.Batch, s *scratch, c *Change, deltas []delta) ([]delta, error) {
	if c.Old == nil && c.New == nil && !c.Corrupt {
		return deltas, nil
	}
	if err := checkNames(c.Source, c.Key); err != nil {
		return deltas, err
	}
	err := db.addEvent(b, s, c)
	s.key = appendRecordKey(s.key[:0], c.Source, c.Key)
	if err == nil && c.Corrupt {
		err = hide(b, s.key)
	}
	switch {
	case err != nil:
	case c.New == nil:
		db.reclaim.garbage.Add(rowBytes)
		err = b.Delete(s.key, nil)
	default:
		db.absent.add(s.key)
		if s.value, err = appendRecord(s.value[:0], c.New); err == nil {
			err = b.Set(s.key, s.value, nil)
		}
	}
	if err != nil {
		return deltas, fmt.Errorf("store: changing key %q of source %q: %w", c.Key, c.Source, err)
	}
	s.old.derive(c.Source, c.Key, c.Old)
	s.new.derive(c.Source, c.Key, c.New)
	for i := range s.old.n {
		if !s.new.has(&s.old, i) {
			if err := removeRow(b, s.old.key(i)); err != nil {
				return deltas, fmt.Errorf("store: removing a row: %w", err)
			}
		}
	}
	for i := range s.new.n {
		if !s.old.has(&s.new, i) {
			if err := b.Set(s.new.key(i), s.new.value(i), nil); err != nil {
				return deltas, fmt.Errorf("store: adding a row: %w", err)
			}
		}
	}
	change := sum{bytes: c.New.Size(c.Key) - c.Old.Size(c.Key)}
	if c.Old != nil || c.Corrupt {
		change.count(c.Key, c.Old, -1)
	}
	if c.New != nil {
		change.count(c.Key, c.New, 1)
	}
	if c.Corrupt {
		change.unsized++
	}
	if change == (sum{}) {
		return deltas, nil
	}
	return db.count(deltas, c.Source, change)
}

// removeRow removes an index row. A row with a revision is set once, so that a single delete
// ends with it where the two meet, most often in the first flush, instead of at the last level.
func removeRow(b *pebble.Batch, row []byte) error {
	if row[0] == tableUnfinished {
		return b.Delete(row, nil)
	}
	return b.SingleDelete(row, nil)
}

// rowBytes is about what the rows of an entry take, beside its event.
const rowBytes = 512

// hide removes a row that cannot be read. A range hides what is below without reading it; a
// key does not.
func hide(b *pebble.Batch, row []byte) error {
	return b.DeleteRange(row, append(bytes.Clone(row), end), nil)
}

// errOmitted is the error of a change that keeps an event where there is none.
var errOmitted = errors.New("the event was not read, and there is none to keep")

// addEvent puts the change of the key's event into the batch, if its body is apart. A change that keeps the
// event, as outcomes do, writes nothing of it.
func (db *DB) addEvent(b *pebble.Batch, s *scratch, c *Change) (err error) {
	old, event := apart(c.Old), apart(c.New)
	switch {
	case event != nil && event.Omitted && old == nil:
		return errOmitted
	case event != nil && old != nil && keeps(old, event), event == nil && old == nil && !c.Corrupt:
		return nil
	}
	if old != nil {
		db.reclaim.garbage.Add(old.Body())
	}
	s.key = appendEventKey(s.key[:0], c.Source, c.Key)
	if c.Corrupt {
		if err := hide(b, s.key); err != nil {
			return err
		}
	}
	if event == nil {
		return b.Delete(s.key, nil)
	}
	if s.value, err = appendEvent(s.value[:0], event); err != nil {
		return err
	}
	return b.Set(s.key, s.value, nil)
}

// keeps reports that the row of the old event is right for the new one too. Most often it is
// the same event, or one that has lost its ID. The zone of the time counts.
func keeps(old, event *schedule.Event) bool {
	return old == event || event.Omitted || old.Time == event.Time && old.SameBody(event)
}

func (db *DB) count(deltas []delta, source string, change sum) ([]delta, error) {
	i := len(deltas) - 1
	for ; i >= 0 && deltas[i].source != source; i-- {
	}
	if i < 0 {
		c, err := db.counter(source)
		if err != nil {
			return deltas, err
		}
		deltas = append(deltas, delta{source: source, counter: c})
		i = len(deltas) - 1
	}
	deltas[i].sum.plus(change)
	return deltas, nil
}
