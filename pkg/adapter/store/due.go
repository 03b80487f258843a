package store

import (
	"math"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// dueOrder walks a source's keys by original due time. It reads the rows of
// the due table that are not of a retry, and the rows of the retry table; both
// are in the order of (time, key), so that it merges the two.
type dueOrder struct {
	due, retry       *scan
	dueAt, retryAt   Row
	dueOK, retryOK   bool
	duePre, retryPre int // bytes before the instant
	rowsRead         int // rows read so far
	db               *engine
}

func (db *records) newDueOrder(r pebble.Reader, source string, after Position) (*dueOrder, error) {
	o := &dueOrder{db: db.engine}
	for _, t := range [...]struct {
		table byte
		it    **scan
		pre   *int
	}{{tableDue, &o.due, &o.duePre}, {tableRetry, &o.retry, &o.retryPre}} {
		prefix := appendSource(nil, t.table, source)
		it, err := db.scan(r, appendAfter(nil, t.table, source, after), successor(prefix))
		if err != nil {
			if o.due != nil {
				o.due.done(&err)
			}
			return nil, err
		}
		*t.it, *t.pre = it, len(prefix)
	}
	o.stepDue(o.due.First())
	o.stepRetry(o.retry.First())
	return o, nil
}

func (o *dueOrder) done(err *error) {
	o.due.done(err)
	o.retry.done(err)
}

// stepDue goes to the next row that is not of a retry.
func (o *dueOrder) stepDue(ok bool) {
	for ; ok; ok = o.due.Next() {
		o.rowsRead++
		value, err := o.due.ValueAndErr()
		if err != nil || len(value) > 0 && value[0] == retryMark {
			continue // a value that cannot be read ends the scan with an error
		}
		row, err := parseDue(o.due.Key()[o.duePre:], value)
		if err == nil {
			o.dueAt, o.dueOK = row, true
			return
		}
		o.db.skip(o.due.Key(), err)
	}
	o.dueOK = false
}

func (o *dueOrder) stepRetry(ok bool) {
	for ; ok; ok = o.retry.Next() {
		o.rowsRead++
		row, err := parseTimed(o.retry.Key()[o.retryPre:])
		if err == nil {
			o.retryAt, o.retryOK = row, true
			return
		}
		o.db.skip(o.retry.Key(), err)
	}
	o.retryOK = false
}

// next returns the first row that is left, and whether its key is between two
// attempts.
func (o *dueOrder) next() (row Row, retrying, ok bool) {
	switch {
	case o.retryOK && (!o.dueOK || o.retryAt.Before(o.dueAt.Position)):
		row = o.retryAt
		o.stepRetry(o.retry.Next())
		return row, true, true
	case o.dueOK:
		row = o.dueAt
		o.stepDue(o.due.Next())
		return row, false, true
	}
	return Row{}, false, false
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
		if o.rowsRead >= scan && (o.dueOK || o.retryOK) {
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
		if retrying {
			b.Retrying++
			continue
		}
		waits := row.Slack
		if waits == schedule.SourcesSlack {
			waits = slack
		}
		if at := row.At.Add(waits); !at.After(now) && (b.OldestUntriedAt.IsZero() || at.Before(b.OldestUntriedAt)) {
			b.OldestUntriedAt = at
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
