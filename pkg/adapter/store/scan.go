package store

import (
	"bytes"
	"fmt"
	"math/big"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// scan is an iterator over [lower, upper) that goes on behind blocks that
// cannot be read, and joins its other errors.
type scan struct {
	*pebble.Iterator
	db           *DB
	r            pebble.Reader
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

func (db *DB) scan(r pebble.Reader, lower, upper []byte) (*scan, error) {
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

// done closes the iterator and adds what went wrong with it.
func (s *scan) done(err *error) {
	defer s.db.gate.leave()
	if e := s.Close(); e != nil && *err == nil {
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
	to, ok := s.behind(from)
	s.gap = &span{from, to}
	return ok
}

// probeBytes is how much of a row's key, behind what all rows in reach have in
// common, is looked at to find the end of an unreadable block.
const probeBytes = 64

// behind finds out by trying from which key on rows can be read again, and goes
// there. The engine does not tell where a block ends: steps that double, then
// halves, over the keys as numbers.
func (s *scan) behind(from []byte) (to []byte, ok bool) {
	common := 0
	for common < min(len(from), len(s.upper)) && from[common] == s.upper[common] {
		common++
	}
	number := func(key []byte) *big.Int {
		b := make([]byte, probeBytes)
		copy(b, key[common:])
		return new(big.Int).SetBytes(b)
	}
	key := func(n *big.Int) []byte {
		return n.FillBytes(make([]byte, common+probeBytes))
	}
	low, end, step := number(from), number(s.upper), big.NewInt(1)
	try := func(n *big.Int) bool {
		if n.Cmp(end) >= 0 {
			return true
		}
		at := key(n)
		copy(at, from[:common])
		_ = s.Close() // it has failed
		if err := s.open(); err != nil {
			return false
		}
		to = at
		ok = s.Iterator.SeekGE(at)
		return ok || !pebble.IsCorruptionError(s.Error())
	}
	high := new(big.Int).Add(low, step)
	for !try(high) {
		low.Set(high)
		step.Lsh(step, 1)
		high = new(big.Int).Add(low, step)
	}
	for {
		middle := new(big.Int).Add(low, high)
		if middle.Rsh(middle, 1); middle.Cmp(low) == 0 {
			break
		}
		if try(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	if high.Cmp(end) >= 0 {
		_ = s.Close()
		if err := s.open(); err != nil {
			return s.upper, false
		}
		return s.upper, false
	}
	try(high)
	return to, ok
}

// derived calls each for the index rows in the span that follow from the
// records: what a block that cannot be read hides. It reads all records of the
// span's source, or of all sources when the span has no single one.
func (db *DB) derived(s *span, each func(row, value []byte) error) (err error) {
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
		e, err := db.item(it, source, key)
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
func (db *DB) hidden(s *span, limit int) ([]Row, error) {
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
	err := db.derived(s, func(key, _ []byte) error {
		source, rest, ok := bytes.Cut(key[2:], []byte{end})
		if !ok || len(source) == 0 {
			return nil
		}
		row, err := parseTimed(rest)
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
