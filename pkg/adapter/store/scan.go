package store

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// scan is an iterator over [lower, upper) that goes on behind blocks that
// cannot be read, and joins its other errors.
type scan struct {
	*pebble.Iterator
	db           *engine
	r            pebble.Reader
	events       *pebble.Iterator // over the events of the records, once one was asked for
	lower, upper []byte
	last         []byte // the row before; nothing up to it is read again
	// gap is what was passed over on the way to the row the scan is at, or, after
	// the last row, to the end; nil when nothing was.
	gap *span
}

// span is the rows in [from, to).
type span struct{ from, to []byte }

func (s *span) has(row []byte) bool {
	return bytes.Compare(row, s.from) >= 0 && bytes.Compare(row, s.to) < 0
}

func (db *engine) scan(r pebble.Reader, lower, upper []byte) (*scan, error) {
	if !db.gate.enter() {
		return nil, ErrClosed
	}
	s := &scan{db: db, r: r, lower: lower, upper: upper}
	if err := s.open(); err != nil {
		db.gate.leave()
		return nil, err
	}
	return s, nil
}

func (s *scan) open() (err error) {
	s.Iterator, err = s.r.NewIter(&pebble.IterOptions{LowerBound: s.lower, UpperBound: s.upper})
	if err != nil {
		return fmt.Errorf("store: reading rows: %w", err)
	}
	return nil
}

// end closes the iterators.
func (s *scan) end() error {
	if s.events != nil {
		_ = s.events.Close() // its errors were returned with the event
		s.events = nil
	}
	return s.Close()
}

// event finds the row of an event as it was when the scan's iterator was made. Rows that are
// asked for in their order are found quickly.
func (s *scan) event(row []byte, use func([]byte) error) (bool, error) {
	if s.events == nil {
		table := appendTable(nil, tableEvent)
		var err error
		if s.events, err = s.Iterator.Clone(pebble.CloneOptions{IterOptions: &pebble.IterOptions{LowerBound: table, UpperBound: successor(table)}}); err != nil {
			return false, err
		}
	}
	found, err := seek(s.events, row, use)
	if err != nil { // it is not used again
		_ = s.events.Close()
		s.events = nil
	}
	return found, err
}

// done closes the iterator and adds what went wrong with it.
func (s *scan) done(err *error) {
	defer s.db.gate.leave()
	if e := s.end(); e != nil && *err == nil {
		*err = fmt.Errorf("store: reading rows: %w", e)
	}
}

func (s *scan) valueLen() int {
	value, err := s.ValueAndErr()
	if err != nil {
		return 0
	}
	return len(value)
}

// First goes to the first row.
func (s *scan) First() bool {
	s.gap = nil
	return s.settle(s.Iterator.First(), s.lower)
}

// Next goes to the next row.
func (s *scan) Next() bool {
	s.gap = nil
	s.last = append(append(s.last[:0], s.Key()...), 0) // nothing sorts between a row and this
	return s.settle(s.Iterator.Next(), s.last)
}

// SeekGE goes to the first row from key on.
func (s *scan) SeekGE(key []byte) bool {
	s.gap = nil
	return s.settle(s.Iterator.SeekGE(key), key)
}

// settle goes on behind an unreadable block that was met from key on.
func (s *scan) settle(ok bool, key []byte) bool {
	if ok || !pebble.IsCorruptionError(s.Error()) {
		return ok
	}
	from := bytes.Clone(key)
	to := s.db.places.known(from)
	if to != nil && bytes.Compare(to, s.upper) >= 0 {
		to = s.nowhere()
	} else if to == nil || !s.try(to) {
		to = s.behind(from)
		s.db.places.learn(span{from, to})
	}
	s.gap = &span{from, to}
	return s.Valid()
}

// try goes to the first row from key on and says whether that can be read. An
// iterator that has failed is not used again.
func (s *scan) try(key []byte) bool {
	_ = s.end()
	if err := s.open(); err != nil {
		return true // a reason to end; the iterator before reports that it is closed
	}
	return s.Iterator.SeekGE(key) || !pebble.IsCorruptionError(s.Error())
}

// behind finds from which key on rows can be read again, and goes there.
func (s *scan) behind(from []byte) []byte {
	for _, key := range s.borders(from) {
		if s.try(key) {
			return key
		}
	}
	return s.nowhere()
}

// nowhere leaves the scan at its end.
func (s *scan) nowhere() []byte {
	_ = s.end()
	_ = s.open() // it stays where it is: nowhere
	return s.upper
}

// borders returns the keys behind from at which a table of the engine begins, or has just ended, in order. Where a
// block ends is not known, so all of its table behind it is passed over.
func (s *scan) borders(from []byte) (keys [][]byte) {
	levels, err := s.db.db.SSTables()
	if err != nil {
		return nil
	}
	for _, tables := range levels {
		for i := range tables {
			for _, key := range [...][]byte{tables[i].Smallest.UserKey, append(bytes.Clone(tables[i].Largest.UserKey), 0)} {
				if bytes.Compare(key, from) > 0 && bytes.Compare(key, s.upper) < 0 {
					keys = append(keys, key)
				}
			}
		}
	}
	slices.SortFunc(keys, bytes.Compare)
	return slices.CompactFunc(keys, bytes.Equal)
}

// derived calls each for the index rows in the span that follow from the
// records: what a block that cannot be read hides. It reads all records of the
// span's source, or of all sources when the span has no single one.
func (db *records) derived(s *span, each func(row, value []byte) error) (err error) {
	lower := appendTable(nil, tableRecord)
	if table := s.from[0]; table == tableDue || table == tableRetry || table == tableUnfinished {
		source, _, ok := bytes.Cut(s.from[2:], []byte{end})
		if prefix := appendSource(nil, table, string(source)); ok && bytes.Compare(s.to, successor(prefix)) <= 0 {
			lower = appendSource(nil, tableRecord, string(source))
		}
	}
	it, err := db.scan(db.db, lower, successor(lower))
	if err != nil {
		return err
	}
	defer it.done(&err)
	var r rows
	for ok := it.First(); ok; ok = it.Next() {
		source, key, err := parseSourced(it.Key())
		if err != nil {
			db.skip(it.Key(), err)
			continue
		}
		e, err := db.item(it, source, key, false)
		if err != nil {
			return err
		}
		r.derive(source, key, e)
		for i := range r.n {
			if s.has(r.key(i)) {
				if err := each(r.key(i), r.value(i)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// hidden returns the first rows of the due index in the span, up to limit, as
// the records say.
func (db *records) hidden(s *span, limit int) ([]Row, error) {
	var found []Row
	first := func() {
		slices.SortFunc(found, func(a, b Row) int {
			switch {
			case a.Before(b.Position):
				return -1
			case b.Before(a.Position):
				return 1
			}
			return 0
		})
		found = found[:min(len(found), limit)]
	}
	err := db.derived(s, func(key, value []byte) error {
		source, rest, ok := bytes.Cut(key[2:], []byte{end})
		if !ok || len(source) == 0 {
			return nil
		}
		row, err := parseDue(rest, value)
		if err != nil {
			return err
		}
		if found = append(found, row); len(found) > 2*limit+1000 {
			first()
		}
		return nil
	})
	first()
	return found, err
}
