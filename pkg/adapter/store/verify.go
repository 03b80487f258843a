package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// maxProblems bounds the list of a report.
const maxProblems = 100

// Report is what Verify found.
type Report struct {
	ID          string `json:"id"`
	Format      int    `json:"format"`
	Form        Form   `json:"form"`
	Sources     int    `json:"sources"`
	Keys        int64  `json:"keys"`
	DeadLetters int64  `json:"deadLetters"`
	// Rows counts the index rows: due times, retries, expiries, unfinished deliveries.
	Rows int64 `json:"rows"`
	// Marks counts what is remembered of watched objects.
	Marks int64 `json:"marks,omitempty"`
	// Purging are sources whose purge was cut off; the next start ends it.
	Purging []string `json:"purging,omitempty"`
	// Problems are the first 100 of ProblemCount.
	Problems     []string `json:"problems"`
	ProblemCount int64    `json:"problemCount"`
}

// Clean reports that nothing is wrong.
func (r *Report) Clean() bool { return r.ProblemCount == 0 }

func (r *Report) problem(format string, args ...any) {
	if r.ProblemCount++; len(r.Problems) < maxProblems {
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
}

// Verify reads everything in a data directory that no process has open and
// holds it against each other: every record has the index rows that follow from
// it, every index row has its record, and every counter counts. It changes
// nothing. Its error means that it could not read; what is wrong is in the report.
func Verify(o Options) (r Report, err error) {
	db, damaged, err := openDamaged(o)
	if err != nil {
		return r, fmt.Errorf("store: verifying %q: %w", o.Dir, err)
	}
	r, err = db.verify()
	for _, problem := range slices.Sorted(maps.Values(damaged)) {
		r.problem("%s", problem)
	}
	return r, errors.Join(err, db.Close())
}

type verifier struct {
	*Report
	db      *DB
	purging map[string]bool
	counted map[string]sum
	rows    rows
}

func (db *DB) verify() (Report, error) {
	r := Report{ID: db.id, Format: format, Form: db.form, Problems: []string{}}
	v := &verifier{Report: &r, db: db, purging: map[string]bool{}, counted: map[string]sum{}}
	revision, err := db.meta(metaRevision)
	if db.id == "" || err == nil && revision == "" {
		r.problem("its id, or its bound of revisions, is missing")
	}
	if r.Purging, err = db.purging(); err != nil {
		return r, err
	}
	for _, source := range r.Purging {
		v.purging[source] = true
	}
	for _, check := range [...]struct {
		table byte
		row   func(key, value []byte) error
	}{
		{tableRecord, v.record}, {tableEvent, v.event}, {tableDue, v.timed}, {tableRetry, v.timed},
		{tableExpiry, v.expiry},
		{tableUnfinished, v.unfinished}, {tableCounter, v.counter},
		{tablePurge, v.other}, {tableMark, v.mark}, {tableWatch, v.watch}, {tableMeta, v.other},
	} {
		if err := v.each(check.table, check.row); err != nil {
			r.problem("table %c/ cannot be read to its end: %v", check.table, err)
		}
	}
	for source, s := range v.counted {
		if s != (sum{}) {
			r.problem("source %q has %d keys and %d dead letters, but no counter", source, s.keys, s.dead)
		}
	}
	return r, v.unknownRows()
}

// other is a row that is only read.
func (v *verifier) other(_, _ []byte) error { return nil }

// each calls row for all rows of a table that can be read.
func (v *verifier) each(table byte, row func(key, value []byte) error) (err error) {
	prefix := appendTable(nil, table)
	it, err := v.db.scan(v.db.db, prefix, successor(prefix))
	if err != nil {
		return err
	}
	defer it.done(&err)
	for ok := it.First(); ok || it.gap != nil; ok = ok && it.Next() {
		if it.gap != nil {
			v.problem("table %c/ cannot be read from %q to %q", table, it.gap.from, it.gap.to)
			if !ok {
				break
			}
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := row(it.Key(), value); err != nil {
			return err
		}
	}
	return nil
}

// record checks a record and the rows that follow from it.
func (v *verifier) record(k, value []byte) error {
	source, key, err := parseSourced(k)
	if err == nil {
		err = checkNames(source, key)
	}
	if err != nil {
		v.problem("record %q: %v", k, err)
		return nil
	}
	s, seen := v.counted[source]
	if !seen {
		v.Sources++
	}
	if schedule.IsDeadLetterKey(key) {
		v.DeadLetters++
	} else {
		v.Keys++
	}
	e, err := decodeRecord(value)
	s.count(key, e, 1)
	v.counted[source] = s
	if err != nil {
		s.unsized++
		v.counted[source] = s
		v.problem("%v", v.db.corruptRecord(source, key, err))
		return nil
	}
	s.bytes += e.Size(key)
	v.counted[source] = s
	if apart(e) != nil {
		if _, err := v.db.Get(source, key); isCorrupt(err) {
			v.problem("%v", err)
		} else if err != nil {
			return err
		}
	}
	v.rows.derive(source, key, e)
	for i := range v.rows.n {
		got, closer, err := v.db.db.Get(v.rows.key(i))
		switch {
		case err != nil:
			v.problem("key %q of source %q: its row %q cannot be read: %v", key, source, v.rows.key(i), err)
			continue
		case !bytes.Equal(got, v.rows.value(i)):
			v.problem("key %q of source %q: its row %q is %x, not %x", key, source, v.rows.key(i), got, v.rows.value(i))
		}
		if err := closer.Close(); err != nil {
			return err
		}
	}
	return nil
}

// indexed checks that an index row follows from its record.
func (v *verifier) indexed(row, value []byte, source, key string) error {
	v.Rows++
	e, err := v.db.Outline(source, key, 0)
	if isCorrupt(err) {
		return nil // the record itself is a problem already
	}
	if err != nil {
		return err
	}
	v.rows.derive(source, key, e)
	for i := range v.rows.n {
		if bytes.Equal(v.rows.key(i), row) && bytes.Equal(v.rows.value(i), value) {
			return nil
		}
	}
	v.problem("row %q (%x) does not follow from the record of key %q of source %q", row, value, key, source)
	return nil
}

// event checks that the row of an event is of a record that has one.
func (v *verifier) event(k, _ []byte) error {
	source, key, err := parseSourced(k)
	if err != nil {
		v.problem("event %q: %v", k, err)
		return nil
	}
	e, err := v.db.Outline(source, key, 0)
	if isCorrupt(err) {
		return nil // the record itself is a problem already
	}
	if err == nil && apart(e) == nil {
		v.problem("the record of key %q of source %q has no event of its own row, but there is one", key, source)
	}
	return err
}

func (v *verifier) timed(k, value []byte) error {
	source, key, err := rowOf(k)
	if err != nil {
		v.problem("row %q: %v", k, err)
		return nil
	}
	return v.indexed(k, value, source, key)
}

func (v *verifier) expiry(k, value []byte) error {
	row, err := parseExpiry(k)
	if err != nil {
		v.problem("row %q: %v", k, err)
		return nil
	}
	if v.purging[row.Source] {
		return nil
	}
	return v.indexed(k, value, row.Source, row.Key)
}

func (v *verifier) unfinished(k, value []byte) error {
	row, err := parseUnfinished(k, value)
	if err != nil {
		v.problem("row %q: %v", k, err)
		return nil
	}
	return v.indexed(k, value, row.Source, row.Key)
}

// counter checks a counter and ticks its source off.
func (v *verifier) counter(k, value []byte) error {
	source := string(k[2:])
	var stored sum
	if err := stored.add(value); err != nil {
		v.problem("counter of source %q: %v", source, err)
	}
	counted := v.counted[source]
	if stored.unsized != 0 || counted.unsized != 0 { // the next start counts, or an entry cannot be read
		stored.bytes, stored.unsized, stored.high, stored.low = counted.bytes, counted.unsized, counted.high, counted.low
	}
	if stored != counted {
		v.problem("source %q has %d keys and %d dead letters of %d bytes, its counter says %d and %d of %d",
			source, counted.keys, counted.dead, counted.bytes, stored.keys, stored.dead, stored.bytes)
	}
	v.counted[source] = sum{}
	return nil
}

// mark checks the mark of a watched object.
func (v *verifier) mark(k, value []byte) error {
	source, _, object, err := parseWatched(k)
	if err == nil && object == "" {
		err = errRow
	}
	if err == nil {
		_, err = decodeMark(object, value)
	}
	if err != nil {
		v.problem("mark %q: %v", k, err)
		return nil
	}
	v.Marks++
	v.watched(source)
	return nil
}

// watch checks the state of a watch.
func (v *verifier) watch(k, value []byte) error {
	source, watch, object, err := parseWatched(k)
	if err == nil && object != "" {
		err = errRow
	}
	if err == nil {
		_, err = decodeState(watch, value)
	}
	if err != nil {
		v.problem("state of a watch %q: %v", k, err)
		return nil
	}
	v.watched(source)
	return nil
}

// watched counts a source that may have no entry.
func (v *verifier) watched(source string) {
	if _, seen := v.counted[source]; !seen {
		v.Sources++
		v.counted[source] = sum{}
	}
}

// unknownRows finds rows outside of all tables.
func (v *verifier) unknownRows() (err error) {
	it, err := v.db.scan(v.db.db, []byte{0}, []byte{0xff})
	if err != nil {
		return err
	}
	defer it.done(&err)
	for ok := it.First(); ok; {
		key := it.Key()
		if len(key) < 2 || key[1] != '/' || !bytes.ContainsRune(allTables, rune(key[0])) {
			v.problem("row %q is of no table", key)
			ok = it.Next()
			continue
		}
		ok = it.SeekGE(successor(key[:2]))
	}
	return nil
}

var allTables = []byte{
	tableRecord, tableEvent, tableDue, tableRetry, tableExpiry, tableUnfinished, tableCounter, tablePurge, tableMark, tableWatch, tableMeta,
}
