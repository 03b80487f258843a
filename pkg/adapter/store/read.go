package store

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Get implements Store.
func (db *DB) Get(source, key string) (*schedule.Entry, error) {
	return db.get(db.db, source, key, decodeRecord)
}

// Outline implements Store.
func (db *DB) Outline(source, key string) (*schedule.Entry, error) {
	return db.get(db.db, source, key, decodeOutline)
}

// decoding is decodeRecord or decodeOutline.
type decoding func([]byte) (*schedule.Entry, error)

func (db *DB) get(r pebble.Reader, source, key string, decode decoding) (*schedule.Entry, error) {
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
	e, err := db.seek(it, s, source, key, decode)
	if e := it.Close(); err == nil && e != nil {
		err = db.lookupError(source, key, e)
	}
	if isCorrupt(err) {
		return db.getNewest(r, s, source, key, decode, err)
	}
	return e, err
}

// getNewest reads one level of the store after the other, newest first, and
// not beyond the newest record: below it a block may be unreadable that the
// iterator would open.
func (db *DB) getNewest(r pebble.Reader, s *scratch, source, key string, decode decoding, corrupt error) (*schedule.Entry, error) {
	s.key = appendRecordKey(s.key[:0], source, key)
	value, closer, err := r.Get(s.key)
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, corrupt
	}
	defer closer.Close()
	e, err := decode(value)
	if err != nil {
		return nil, db.undecodable(source, key, err)
	}
	return e, nil
}

// seek reads one record.
func (db *DB) seek(it *pebble.Iterator, s *scratch, source, key string, decode decoding) (*schedule.Entry, error) {
	s.key = appendRecordKey(s.key[:0], source, key)
	if !it.SeekPrefixGE(s.key) {
		return nil, db.lookupError(source, key, it.Error())
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return nil, db.lookupError(source, key, err)
	}
	e, err := decode(value)
	if err != nil {
		return nil, db.undecodable(source, key, err)
	}
	return e, nil
}

// GetAll implements Store.
func (db *DB) GetAll(source string, keys []string, entries []*schedule.Entry, most int64) error {
	return db.getAll(source, keys, entries, decodeRecord, most)
}

// Outlines implements Store.
func (db *DB) Outlines(source string, keys []string, entries []*schedule.Entry) error {
	return db.getAll(source, keys, entries, decodeOutline, math.MaxInt64)
}

func (db *DB) getAll(source string, keys []string, entries []*schedule.Entry, decode decoding, most int64) (err error) {
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
	for _, i := range order {
		if entries[i], err = db.seek(it, s, source, keys[i], decode); err != nil {
			return err
		}
		if most -= entries[i].Size(keys[i]); most < 0 {
			return ErrLarge
		}
	}
	return nil
}

// lookup makes an iterator ask the filter of the last level too, which a Get
// does not: most records are there, and most keys of a PUT are not.
var lookup = pebble.IterOptions{UseL6Filters: true}

func (db *DB) lookupError(source, key string, err error) error {
	switch {
	case err == nil:
		return nil
	case pebble.IsCorruptionError(err):
		return db.corruptRecord(source, key, err)
	}
	return fmt.Errorf("store: reading key %q of source %q: %w", key, source, err)
}

// Due implements Store.
func (db *DB) Due(dst []Row, source string, after Position, limit int) (_ []Row, more bool, err error) {
	prefix := appendSource(nil, tableDue, source)
	it, err := db.scan(db.db, appendAfter(nil, tableDue, source, after), successor(prefix))
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
		row, err := parseTimed(it.Key()[len(prefix):])
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
func (db *DB) List(source, prefix, after string, limit int) ([]Item, bool, error) {
	if prefix == "" {
		after = max(after, lastDeadLetter)
	}
	if schedule.IsDeadLetterKey(prefix) {
		return nil, false, nil
	}
	return db.list(source, prefix, after, limit)
}

// Letters implements Store.
func (db *DB) Letters(source, prefix, after string, limit int) ([]Item, bool, error) {
	if !schedule.IsDeadLetterKey(prefix) {
		return nil, false, nil
	}
	return db.list(source, prefix, after, limit)
}

// DeadLetters is List of dead letters.
func (db *DB) DeadLetters(source, after string, limit int) ([]Item, bool, error) {
	return db.list(source, deadLetterPrefix, after, limit)
}

const (
	deadLetterPrefix = "\x01"
	lastDeadLetter   = "\x02" // it is none, but all of them come before it
)

func (db *DB) list(source, prefix, after string, limit int) (items []Item, more bool, err error) {
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
			if items, more, err = db.named(items, source, it.gap, limit, pageBytes); more || err != nil {
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
		e, err := db.item(it, source, key)
		if err != nil {
			return items, false, err
		}
		items = append(items, Item{Key: key, Entry: e})
		held += e.Size(key)
	}
	return items, false, nil
}

// named appends the entries of the records in the span, up to limit items and about so
// many bytes.
// A block that cannot be read hides them; the due index has a row of each.
func (db *DB) named(items []Item, source string, s *span, limit int, most int64) (_ []Item, more bool, err error) {
	prefix := appendSource(nil, tableDue, source)
	it, err := db.scan(db.db, prefix, successor(prefix))
	if err != nil {
		return items, false, err
	}
	defer it.done(&err)
	var keys []string
	for ok := it.First(); ok; ok = it.Next() {
		row, err := parseTimed(it.Key()[len(prefix):])
		if err == nil && s.has(appendRecordKey(nil, source, row.Key)) {
			keys = append(keys, row.Key)
		}
	}
	slices.Sort(keys)
	held := int64(0)
	for _, key := range slices.Compact(keys) {
		e, err := db.Get(source, key)
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
		held += e.Size(key)
	}
	return items, false, nil
}

// pageBytes ends a page of List and ListDue early: so many keys as fit a limit
// may have events of 256 KiB of data each, and as much in attributes.
const pageBytes = 1 << 20

// item decodes the record that the scan is at, nil if it is corrupt.
func (db *DB) item(it *scan, source, key string) (*schedule.Entry, error) {
	value, err := it.ValueAndErr()
	if err == nil {
		e, err := decodeRecord(value)
		if err != nil {
			db.corruptAt(fmt.Sprintf("the record of key %q of source %q", key, source), err)
			return nil, nil // it is noted, and stops no other
		}
		return e, nil
	}
	if pebble.IsCorruptionError(err) {
		return nil, nil
	}
	return nil, fmt.Errorf("store: reading key %q of source %q: %w", key, source, err)
}

// Unfinished implements Store.
func (db *DB) Unfinished() (found []SourceRow, err error) {
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
func (db *DB) Sources() ([]string, error) {
	var sources []string
	for _, table := range [...]byte{tableRecord, tableMark, tableWatch} {
		var err error
		if sources, err = db.sourcesOf(sources, table); err != nil {
			return nil, err
		}
	}
	slices.Sort(sources)
	return slices.Compact(sources), nil
}

func (db *DB) sourcesOf(sources []string, letter byte) (_ []string, err error) {
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
