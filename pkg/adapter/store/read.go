package store

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// records reads entries, and their order.
type records struct {
	*engine
	absent absent
}

// Get implements Store.
func (db *records) Get(source, key string) (*schedule.Entry, error) {
	return db.get(db.db, source, key, math.MaxInt64)
}

// Outline implements Store.
func (db *records) Outline(source, key string, most int64) (*schedule.Entry, error) {
	return db.get(db.db, source, key, most)
}

// wantsEvent reports that the event of an entry that was read must be read too: of an entry
// of at most most bytes.
func wantsEvent(e *schedule.Entry, key string, most int64) bool {
	return e != nil && e.Event != nil && e.Event.Omitted && e.Size(key) <= most
}

// get reads a record and its event at one moment: both with one iterator.
func (db *records) get(r pebble.Reader, source, key string, most int64) (*schedule.Entry, error) {
	if !db.gate.enter() {
		return nil, ErrClosed
	}
	defer db.gate.leave()
	s := scratches.Get().(*scratch)
	defer s.release()
	s.key = appendRecordKey(s.key[:0], source, key)
	if r == pebble.Reader(db.db) && db.absent.lacks(s.key) {
		return nil, nil
	}
	it, err := r.NewIter(&lookup)
	if err != nil {
		return nil, fmt.Errorf("store: reading key %q of source %q: %w", key, source, err)
	}
	find := func(row []byte, use func([]byte) error) (bool, error) { return seek(it, row, use) }
	e, err := db.read(find, s, source, key, most)
	if e := it.Close(); err == nil && e != nil {
		err = db.lookupError(source, key, e)
	}
	if isCorrupt(err) {
		return db.getNewest(r, s, source, key, most, err)
	}
	return e, err
}

// finding calls use with the value of a row, and reports whether there is one.
type finding func(row []byte, use func(value []byte) error) (bool, error)

// read reads a record and, if it is wanted, its event.
func (db *records) read(find finding, s *scratch, source, key string, most int64) (e *schedule.Entry, err error) {
	if e, err = db.readRecord(find, s, source, key); err == nil && wantsEvent(e, key, most) {
		err = db.readEvent(find, s, source, key, e)
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (db *records) readRecord(find finding, s *scratch, source, key string) (e *schedule.Entry, err error) {
	s.key = appendRecordKey(s.key[:0], source, key)
	_, err = find(s.key, func(value []byte) (err error) {
		if e, err = decodeRecord(value); err != nil {
			return db.undecodable(source, key, err)
		}
		return nil
	})
	return e, db.lookupError(source, key, err)
}

// errNoEvent is the error of a record whose event has no row.
var errNoEvent = errors.New("its event is missing")

func (db *records) readEvent(find finding, s *scratch, source, key string, e *schedule.Entry) error {
	s.key = appendEventKey(s.key[:0], source, key)
	found, err := find(s.key, func(value []byte) error {
		if err := decodeEvent(value, e); err != nil {
			return db.undecodable(source, key, err)
		}
		return nil
	})
	if err == nil && !found {
		return db.undecodable(source, key, errNoEvent)
	}
	return db.lookupError(source, key, err)
}

// seek finds a row with an iterator.
func seek(it *pebble.Iterator, row []byte, use func([]byte) error) (bool, error) {
	if !it.SeekPrefixGE(row) {
		return false, it.Error()
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return false, err
	}
	return true, use(value)
}

// getNewest reads one level of the store after the other, newest first, and
// not beyond the newest rows: below them a block may be unreadable that the
// iterator would open.
func (db *records) getNewest(r pebble.Reader, s *scratch, source, key string, most int64, corrupt error) (*schedule.Entry, error) {
	if r == pebble.Reader(db.db) { // both rows of one moment
		snap := db.db.NewSnapshot()
		defer snap.Close()
		r = snap
	}
	e, err := db.read(func(row []byte, use func([]byte) error) (bool, error) {
		value, closer, err := r.Get(row)
		if errors.Is(err, pebble.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		defer closer.Close()
		return true, use(value)
	}, s, source, key, most)
	if err != nil && !isCorrupt(err) {
		return nil, corrupt
	}
	return e, err
}

// GetAll implements Store.
func (db *records) GetAll(source string, keys []string, entries []*schedule.Entry, most int64) error {
	return db.getAll(source, keys, entries, true, most)
}

// Outlines implements Store.
func (db *records) Outlines(source string, keys []string, entries []*schedule.Entry) error {
	return db.getAll(source, keys, entries, false, math.MaxInt64)
}

func (db *records) getAll(source string, keys []string, entries []*schedule.Entry, events bool, most int64) (err error) {
	if !db.gate.enter() {
		return ErrClosed
	}
	defer db.gate.leave()
	s := scratches.Get().(*scratch)
	defer s.release()
	order := make([]int, 0, len(keys))
	for i, key := range keys {
		s.key = appendRecordKey(s.key[:0], source, key)
		if !db.absent.lacks(s.key) {
			order = append(order, i)
		}
	}
	if len(order) == 0 {
		return nil
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(keys[a], keys[b]) })
	it, err := db.db.NewIter(&lookup)
	if err != nil {
		return fmt.Errorf("store: reading %d keys of source %q: %w", len(keys), source, err)
	}
	defer func() {
		if e := it.Close(); e != nil && err == nil {
			err = fmt.Errorf("store: reading %d keys of source %q: %w", len(keys), source, e)
		}
	}()
	find := func(row []byte, use func([]byte) error) (bool, error) { return seek(it, row, use) }
	for _, i := range order {
		if entries[i], err = db.readRecord(find, s, source, keys[i]); err != nil {
			return err
		}
		if most -= entries[i].Size(keys[i]); most < 0 {
			return ErrLarge
		}
	}
	for _, i := range order {
		if events && wantsEvent(entries[i], keys[i], math.MaxInt64) {
			if err = db.readEvent(find, s, source, keys[i], entries[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookup makes an iterator ask the filter of the last level too, which a Get
// does not: most records are there, and most keys of a PUT are not.
var lookup = pebble.IterOptions{UseL6Filters: true}

func (db *records) lookupError(source, key string, err error) error {
	switch {
	case err == nil, isCorrupt(err):
		return err
	case pebble.IsCorruptionError(err):
		return db.corruptRecord(source, key, err)
	}
	return fmt.Errorf("store: reading key %q of source %q: %w", key, source, err)
}

// Due implements Store.
func (db *records) Due(dst []Row, source string, p schedule.Priority, after Position, limit int) (_ []Row, more bool, err error) {
	prefix := appendDue(nil, source, p)
	it, err := db.scan(db.db, appendAfter(bytes.Clone(prefix), after), successor(prefix))
	if err != nil {
		return dst, false, err
	}
	defer it.done(&err)
	n := 0
	for ok := it.First(); ok || it.gap != nil; ok = ok && it.Next() {
		if it.gap != nil {
			rows, err := db.hidden(it.gap, limit-n+1)
			if err != nil {
				return dst, false, err
			}
			if len(rows) > limit-n {
				return append(dst, rows[:limit-n]...), true, nil
			}
			dst, n = append(dst, rows...), n+len(rows)
			if it.gap = nil; !ok {
				break
			}
		}
		if n >= limit {
			return dst, true, nil
		}
		value, err := it.ValueAndErr()
		if err != nil {
			continue // it ends the scan with an error
		}
		row, err := parseDue(it.Key()[len(prefix)-1:], value)
		if err != nil {
			db.skip(it.Key(), err)
			continue
		}
		dst = append(dst, row)
		n++
	}
	return dst, false, nil
}

// List implements Store.
func (db *records) List(source, prefix, after string, limit int, events bool) ([]Item, bool, error) {
	if prefix == "" {
		after = max(after, lastDeadLetter)
	}
	if schedule.IsDeadLetterKey(prefix) {
		return nil, false, nil
	}
	return db.list(source, prefix, after, limit, events)
}

// Letters implements Store.
func (db *records) Letters(source, prefix, after string, limit int, events bool) ([]Item, bool, error) {
	if !schedule.IsDeadLetterKey(prefix) {
		return nil, false, nil
	}
	return db.list(source, prefix, after, limit, events)
}

// DeadLetters is List of dead letters.
func (db *records) DeadLetters(source, after string, limit int) ([]Item, bool, error) {
	return db.list(source, deadLetterPrefix, after, limit, true)
}

const (
	deadLetterPrefix = "\x01"
	lastDeadLetter   = "\x02" // it is none, but all of them come before it
)

func (db *records) list(source, prefix, after string, limit int, events bool) (items []Item, more bool, err error) {
	head := appendSource(nil, tableRecord, source)
	lower := appendRecordKey(nil, source, prefix)
	upper := successor(lower)
	if after >= prefix {
		lower = append(appendRecordKey(nil, source, after), end)
	}
	it, err := db.scan(db.db, lower, upper)
	if err != nil {
		return nil, false, err
	}
	defer it.done(&err)
	held := int64(0)
	for ok := it.First(); ok || it.gap != nil; ok = ok && it.Next() {
		if it.gap != nil {
			if items, more, err = db.named(items, source, it.gap, limit, pageBytes, events); more || err != nil {
				return items, more, err
			}
			if it.gap = nil; !ok {
				break
			}
		}
		key := string(it.Key()[len(head):])
		if len(items) >= limit || held >= pageBytes {
			return items, true, nil
		}
		e, err := db.item(it, source, key, events)
		if err != nil {
			return items, false, err
		}
		items = append(items, Item{Key: key, Entry: e})
		held += sizeInMemory(e, key)
	}
	return items, false, nil
}

// named appends the entries of the records in the span, up to limit items and about so
// many bytes.
// A block that cannot be read hides them; the due index has a row of each.
func (db *records) named(items []Item, source string, s *span, limit int, most int64, events bool) (_ []Item, more bool, err error) {
	prefix := appendSource(nil, tableDue, source)
	it, err := db.scan(db.db, prefix, successor(prefix))
	if err != nil {
		return items, false, err
	}
	defer it.done(&err)
	var keys []string
	for ok := it.First(); ok; ok = it.Next() {
		row, err := parseDueKey(it.Key()[len(prefix):])
		if err == nil && s.has(appendRecordKey(nil, source, row.Key)) {
			keys = append(keys, row.Key)
		}
	}
	slices.Sort(keys)
	held := int64(0)
	for _, key := range slices.Compact(keys) {
		e, err := db.get(db.db, source, key, mostWith(events))
		if err != nil && !isCorrupt(err) {
			return items, false, err
		}
		if e == nil && err == nil {
			continue // a row that does not follow from a record any more
		}
		if len(items) >= limit || held >= most {
			return items, true, nil
		}
		items = append(items, Item{Key: key, Entry: e})
		held += sizeInMemory(e, key)
	}
	return items, false, nil
}

// pageBytes ends a page of List and ListDue early: so many keys as fit a limit
// may have events of 256 KiB of data each, and as much in attributes.
const pageBytes = 1 << 20

// sizeInMemory is the size of an entry as it was read, without an event that was omitted.
func sizeInMemory(e *schedule.Entry, key string) int64 {
	n := e.Size(key)
	if e != nil && e.Event != nil {
		n -= e.Event.BodySize // 0 of one that was read
	}
	return n
}

// mostWith is the most of a get with events, or without.
func mostWith(events bool) int64 {
	if events {
		return math.MaxInt64
	}
	return 0
}

// item decodes the record that the scan is at, and its event if that is wanted; nil if it is
// corrupt.
func (db *records) item(it *scan, source, key string, events bool) (e *schedule.Entry, err error) {
	s := scratches.Get().(*scratch)
	defer s.release()
	e, err = db.readRecord(func(_ []byte, use func([]byte) error) (bool, error) {
		value, err := it.ValueAndErr()
		if err != nil {
			return false, err
		}
		return true, use(value)
	}, s, source, key)
	if err == nil && events && wantsEvent(e, key, math.MaxInt64) {
		if err = db.readEvent(it.event, s, source, key, e); isCorrupt(err) {
			e, err = db.get(it.r, source, key, math.MaxInt64)
		}
	}
	if isCorrupt(err) { // it is noted, and stops no other
		return nil, nil
	}
	return e, err
}

// Unfinished implements Store.
func (db *records) Unfinished() (found []SourceRow, err error) {
	table := appendTable(nil, tableUnfinished)
	it, err := db.scan(db.db, table, successor(table))
	if err != nil {
		return nil, err
	}
	defer it.done(&err)
	add := func(key, value []byte) error {
		row, err := parseUnfinished(key, value)
		if err != nil {
			db.skip(key, err)
			return nil // it is noted, and stops no other
		}
		found = append(found, row)
		return nil
	}
	for ok := it.First(); ok || it.gap != nil; ok = ok && it.Next() {
		if it.gap != nil { // at a start that is worth reading all records
			if err := db.derived(it.gap, add); err != nil {
				return found, err
			}
			if it.gap = nil; !ok {
				break
			}
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return found, fmt.Errorf("store: reading rows: %w", err)
		}
		if err := add(it.Key(), value); err != nil {
			return found, err
		}
	}
	return found, nil
}

// Sources implements Store. In each table it jumps from one source's first row to
// the next source's.
func (db *records) Sources() ([]string, error) {
	var sources []string
	for _, table := range [...]byte{tableRecord, tableDue, tableMark, tableWatch} { // a block of records that cannot be read hides none
		var err error
		if sources, err = db.sourcesOf(sources, table); err != nil {
			return nil, err
		}
	}
	slices.Sort(sources)
	return slices.Compact(sources), nil
}

func (db *records) sourcesOf(sources []string, letter byte) (_ []string, err error) {
	table := appendTable(nil, letter)
	it, err := db.scan(db.db, table, successor(table))
	if err != nil {
		return nil, err
	}
	defer it.done(&err)
	for ok := it.First(); ok; {
		source, _, err := parseSourced(it.Key())
		if err != nil {
			db.skip(it.Key(), err)
			ok = it.Next()
			continue
		}
		sources = append(sources, source)
		ok = it.SeekGE(successor(appendSource(nil, letter, source)))
	}
	return sources, nil
}
