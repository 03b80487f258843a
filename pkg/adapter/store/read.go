package store

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Get implements Store.
func (db *DB) Get(source, key string) (*schedule.Entry, error) {
	return db.get(db.db, source, key)
}

func (db *DB) get(r pebble.Reader, source, key string) (*schedule.Entry, error) {
	if db.closed.Load() {
		return nil, errClosed
	}
	s := scratches.Get().(*scratch)
	defer s.release()
	it, err := r.NewIter(&lookup)
	if err != nil {
		return nil, fmt.Errorf("store: reading key %q of source %q: %w", key, source, err)
	}
	e, err := db.seek(it, s, source, key)
	if e := it.Close(); err == nil && e != nil {
		return nil, db.lookupError(source, key, e)
	}
	return e, err
}

// seek reads one record.
func (db *DB) seek(it *pebble.Iterator, s *scratch, source, key string) (*schedule.Entry, error) {
	s.key = appendRecordKey(s.key[:0], source, key)
	if !it.SeekPrefixGE(s.key) {
		return nil, db.lookupError(source, key, it.Error())
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return nil, db.lookupError(source, key, err)
	}
	e, err := decodeRecord(value)
	if err != nil {
		return nil, db.corruptRecord(source, key, err)
	}
	return e, nil
}

// GetAll implements Store.
func (db *DB) GetAll(source string, keys []string, entries []*schedule.Entry) (err error) {
	if db.closed.Load() {
		return errClosed
	}
	s := scratches.Get().(*scratch)
	defer s.release()
	it, err := db.db.NewIter(&lookup)
	if err != nil {
		return fmt.Errorf("store: reading %d keys of source %q: %w", len(keys), source, err)
	}
	defer scan{it}.done(&err)
	order := make([]int, len(keys))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(keys[a], keys[b]) })
	for _, i := range order {
		if entries[i], err = db.seek(it, s, source, keys[i]); err != nil {
			return err
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

// scan is an iterator over [lower, upper) that joins its errors.
type scan struct{ *pebble.Iterator }

func (db *DB) scan(r pebble.Reader, lower, upper []byte) (scan, error) {
	if db.closed.Load() {
		return scan{}, errClosed
	}
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return scan{}, fmt.Errorf("store: reading rows: %w", err)
	}
	return scan{it}, nil
}

// done closes the iterator and adds what went wrong with it.
func (s scan) done(err *error) {
	if e := s.Close(); e != nil && *err == nil {
		*err = fmt.Errorf("store: reading rows: %w", e)
	}
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
	for ok := it.First(); ok; ok = it.Next() {
		if n >= limit {
			return dst, true, nil
		}
		row, err := parseTimed(it.Key()[len(prefix):])
		if err != nil {
			db.skip(err)
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
	held := 0
	for ok := it.First(); ok; ok = it.Next() {
		key := string(it.Key()[len(head):])
		if len(items) >= limit || held >= pageBytes {
			return items, true, nil
		}
		e, err := db.item(it, source, key)
		if err != nil {
			return items, false, err
		}
		if e != nil {
			items = append(items, Item{Key: key, Entry: e})
			held += dataBytes(e)
		}
	}
	return items, false, nil
}

// pageBytes ends a page of List and ListDue early: so many keys as fit a limit
// may have events of 256 KiB each.
const pageBytes = 1 << 20

func dataBytes(e *schedule.Entry) int {
	if e.Event == nil {
		return 0
	}
	return len(e.Event.Data)
}

// item decodes the record that the scan is at, nil if it is corrupt.
func (db *DB) item(it scan, source, key string) (*schedule.Entry, error) {
	value, err := it.ValueAndErr()
	if err != nil {
		return nil, fmt.Errorf("store: reading key %q of source %q: %w", key, source, err)
	}
	e, err := decodeRecord(value)
	if err != nil {
		db.skip(db.corruptRecord(source, key, err))
		return nil, nil
	}
	return e, nil
}

// Unfinished implements Store.
func (db *DB) Unfinished() (found []SourceRow, err error) {
	table := appendTable(nil, tableUnfinished)
	it, err := db.scan(db.db, table, successor(table))
	if err != nil {
		return nil, err
	}
	defer it.done(&err)
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return found, fmt.Errorf("store: reading rows: %w", err)
		}
		row, err := parseUnfinished(it.Key(), value)
		if err != nil {
			db.skip(err)
			continue
		}
		found = append(found, row)
	}
	return found, nil
}

// Sources implements Store. It jumps from one source's first record to the
// next source's.
func (db *DB) Sources() (sources []string, err error) {
	table := appendTable(nil, tableRecord)
	it, err := db.scan(db.db, table, successor(table))
	if err != nil {
		return nil, err
	}
	defer it.done(&err)
	for ok := it.First(); ok; {
		source, _, err := parseSourced(it.Key())
		if err != nil {
			db.skip(err)
			ok = it.Next()
			continue
		}
		sources = append(sources, source)
		ok = it.SeekGE(successor(appendSource(nil, tableRecord, source)))
	}
	return sources, nil
}
