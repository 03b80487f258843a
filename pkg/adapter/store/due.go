package store

import (
	"math"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// dueOrder walks a source's keys by original due time. It reads the rows of
// the due table that are not of a retry, for each priority, and the rows of the retry
// table; all are in the order of (time, key), so that it merges them.
type dueOrder struct {
	db       *engine
	scans    [schedule.Bands + 1]*dueScan
	rowsRead int // rows read so far
}

// dueScan reads one of the orders that are merged.
type dueScan struct {
	*scan
	prefix  int // bytes before the band, or of a retry before the instant
	retries bool
	row     Row
	ok      bool
}

func (db *records) newDueOrder(r pebble.Reader, source string, after Position) (*dueOrder, error) {
	o := &dueOrder{db: db.engine}
	for i := range o.scans {
		s, lower := &dueScan{retries: i == schedule.Bands}, []byte(nil)
		if s.retries {
			lower = appendSource(nil, tableRetry, source)
			s.prefix = len(lower)
		} else {
			lower = appendDue(nil, source, schedule.Priorities[i])
			s.prefix = len(lower) - 1
		}
		upper := successor(lower)
		var err error
		if s.scan, err = db.scan(r, appendAfter(lower, after), upper); err != nil {
			o.done(&err)
			return nil, err
		}
		o.scans[i] = s
		o.step(s, s.First())
	}
	return o, nil
}

func (o *dueOrder) done(err *error) {
	for _, s := range o.scans {
		if s != nil {
			s.done(err)
		}
	}
}

// step goes to the next row of a scan that counts.
func (o *dueOrder) step(s *dueScan, ok bool) {
	for ; ok; ok = s.Next() {
		o.rowsRead++
		value, err := s.ValueAndErr()
		if err != nil || !s.retries && len(value) > 0 && value[0] == retryMark {
			continue // a value that cannot be read ends the scan with an error
		}
		parse := parseDue
		if s.retries {
			parse = parseRetry
		}
		if s.row, err = parse(s.Key()[s.prefix:], value); err == nil {
			break
		}
		o.db.skip(s.Key(), err)
	}
	s.ok = ok
}

// first is the scan with the first row that is left; nil: none is.
func (o *dueOrder) first() (first *dueScan) {
	for _, s := range o.scans {
		if s.ok && (first == nil || s.row.Before(first.row.Position)) {
			first = s
		}
	}
	return first
}

// next returns the first row that is left, and whether its key is between two
// attempts.
func (o *dueOrder) next() (row Row, retrying, ok bool) {
	s := o.first()
	if s == nil {
		return Row{}, false, false
	}
	row = s.row
	o.step(s, s.Next())
	return row, s.retries, true
}

// ListDue implements Store.
func (db *records) ListDue(source, prefix string, after Position, limit, scan int) (items []Item, next Position, err error) {
	if !db.gate.enter() {
		return nil, next, ErrClosed
	}
	defer db.gate.leave()
	snap := db.db.NewSnapshot() // rows and records of one moment
	defer snap.Close()
	o, err := db.newDueOrder(snap, source, after)
	if err != nil {
		return nil, next, err
	}
	defer o.done(&err)
	last, held := after, int64(0)
	for {
		row, _, ok := o.next()
		if !ok {
			return items, Position{}, nil
		}
		if strings.HasPrefix(row.Key, prefix) && !schedule.IsDeadLetterKey(row.Key) {
			if len(items) >= limit || held >= pageBytes {
				return items, last, nil
			}
			e, err := db.get(snap, source, row.Key, math.MaxInt64)
			switch {
			case isCorrupt(err): // it is noted
			case err != nil:
				return items, last, err
			case e != nil && e.Revision == row.Revision:
				items = append(items, Item{Key: row.Key, Entry: e})
				held += e.Size(row.Key)
			}
		}
		last = row.Position
		if o.rowsRead >= scan && o.first() != nil {
			return items, last, nil
		}
	}
}

// Backlog implements Store.
func (db *records) Backlog(source string, now time.Time, slack time.Duration, limit int, skip func(key string, revision uint64) bool) (b Backlog, err error) {
	o, err := db.newDueOrder(db.db, source, Position{})
	if err != nil {
		return b, err
	}
	defer o.done(&err)
	// Rows that do not count cost time too; four in five is plenty.
	most := math.MaxInt
	if limit < (most-1000)/5 {
		most = 5*limit + 1000
	}
	for {
		if o.rowsRead > most {
			b.Partial = true
			return b, nil
		}
		row, retrying, ok := o.next()
		if !ok {
			return b, nil
		}
		if schedule.IsDeadLetterKey(row.Key) || skip != nil && skip(row.Key, row.Revision) {
			continue
		}
		if row.At.After(now) {
			b.NextAt = row.At
			return b, nil
		}
		if b.Due == limit {
			b.Partial = true
			return b, nil
		}
		if b.Due++; b.Due == 1 {
			b.OldestAt = row.At
		}
		band := &b.Bands[row.Priority.Band()]
		band.Due++
		if retrying {
			b.Retrying++
			continue
		}
		waits := row.Slack
		if waits == schedule.SourcesSlack {
			waits = slack
		}
		at := row.At.Add(waits)
		if at.After(now) {
			continue
		}
		for _, oldest := range [...]*time.Time{&b.OldestUntriedAt, &band.OldestUntriedAt} {
			if oldest.IsZero() || at.Before(*oldest) {
				*oldest = at
			}
		}
	}
}

// Expired implements Store.
func (db *records) Expired(now time.Time, after SourceRow, limit int) (found []SourceRow, next time.Time, err error) {
	table := appendTable(nil, tableExpiry)
	lower := table
	if after.Source != "" {
		lower = append(appendExpiryKey(nil, after.Source, after.At, after.Key, after.Revision), end)
	}
	it, err := db.scan(db.db, lower, successor(table))
	if err != nil {
		return nil, next, err
	}
	defer it.done(&err)
	for ok := it.First(); ok && len(found) < limit; ok = it.Next() {
		row, err := parseExpiry(it.Key())
		if err != nil {
			db.skip(it.Key(), err)
			continue
		}
		if row.At.After(now) {
			return found, row.At, nil
		}
		found = append(found, row)
	}
	return found, next, nil
}
