package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// bySource are the tables with rows that start with their source, but for the
// counters. The first indexed of them are the records and their indexes.
var bySource = [...]byte{tableRecord, tableDue, tableRetry, tableUnfinished, tableEvent, tableMark, tableWatch}

const indexed = 4

// Purge implements Store. All tables that are ordered by source lose the
// source's rows at once, and a row of the purge table records that the expiry
// table, which is ordered by time, still has some rows, which the housekeeper removes.
func (db *DB) Purge(source string) error {
	if err := checkNames(source, "-"); err != nil {
		return err
	}
	if !db.gate.enter() {
		return ErrClosed
	}
	defer db.gate.leave()
	if err := db.usable(); err != nil {
		return err
	}
	c, err := db.counter(source)
	if err != nil {
		return err
	}
	b := db.db.NewBatch()
	for _, table := range bySource {
		prefix := appendSource(nil, table, source)
		if err := b.DeleteRange(prefix, successor(prefix), nil); err != nil {
			return fmt.Errorf("store: purging source %q: %w", source, err)
		}
	}
	err = b.Delete(appendCounterKey(nil, source), nil)
	if err == nil {
		err = b.Set(purgeKey(source), nil, nil)
	}
	if err != nil {
		return fmt.Errorf("store: purging source %q: %w", source, err)
	}
	// Together with the row: a pass that ends now must not take it away.
	db.keeper.mu.Lock()
	commit, err := db.commit(b, false)
	if err == nil {
		db.keeper.wanted[source] = false
	}
	db.keeper.mu.Unlock()
	if err != nil {
		return err
	}
	c.add(&sum{keys: -c.keys.Load(), dead: -c.dead.Load(), bytes: -c.bytes.Load(), high: -c.high.Load(), low: -c.low.Load()})
	db.counters.sources.Delete(source) // sources that come and go must not leave one each
	db.keeper.wake()
	return commit.Wait()
}

// housekeeper removes, in the background, the index rows that do not follow
// from a record any more: of the expiry table for sources that were purged, of
// all tables for sources of which an unreadable record was replaced or removed.
// One pass does for all sources, however many they are.
type housekeeper struct {
	*records
	// rows is held while records and index rows are held against each other, and
	// for reading by every Apply.
	rows sync.RWMutex

	mu     sync.Mutex
	wanted map[string]bool // source → whether all of its tables must be read

	poked chan struct{}
	stop  chan struct{}
	once  sync.Once
	work  sync.WaitGroup
}

func (k *housekeeper) init() {
	k.wanted, k.poked, k.stop = map[string]bool{}, make(chan struct{}, 1), make(chan struct{})
}

// want requests a pass over the source's rows.
func (k *housekeeper) want(source string, all bool) {
	k.mu.Lock()
	k.wanted[source] = k.wanted[source] || all
	k.mu.Unlock()
	k.wake()
}

func (k *housekeeper) wake() {
	select {
	case k.poked <- struct{}{}:
	default:
	}
}

// end stops the housekeeper where it is: the next start goes on with
// what was purged.
func (k *housekeeper) end() { k.once.Do(func() { close(k.stop) }) }

func (k *housekeeper) ending() bool {
	select {
	case <-k.stop:
		return true
	default:
		return false
	}
}

// pause waits, and reports that the housekeeper goes on.
func (k *housekeeper) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-k.stop:
		return false
	case <-t.C:
		return true
	}
}

// start starts the housekeeper, with the purges that the last process
// did not end.
func (db *housekeeper) start() error {
	sources, err := db.purging()
	if err != nil {
		return err
	}
	k := db
	for _, source := range sources {
		k.want(source, false)
	}
	db.absent.ask()
	k.work.Go(db.keepAbsent)
	k.work.Go(func() {
		for {
			select {
			case <-k.stop:
				return
			case <-k.poked:
			}
			if err := db.tidy(); err != nil && !k.ending() {
				db.logLimited(&db.trouble, slog.LevelError, "store: rows that are not needed any more cannot be removed; trying again", err.Error())
				if k.pause(tidyAgain) {
					k.wake()
				}
			}
		}
	})
	return nil
}

// tidyAgain is the pause after a pass that failed.
const tidyAgain = 10 * time.Second

// tidyRows bounds the rows of one step, between which changes go on.
const tidyRows = 1000

var errEnding = errors.New("store: ending")

// tidy does one pass for all sources that need one.
func (db *housekeeper) tidy() error {
	k := db
	k.mu.Lock()
	sources := k.wanted
	k.wanted = map[string]bool{}
	k.mu.Unlock()
	if len(sources) == 0 {
		return nil
	}
	err := db.tidySources(sources)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		for source, all := range sources {
			k.wanted[source] = k.wanted[source] || all
		}
		return err
	}
	b := db.db.NewBatch()
	for source := range sources {
		if _, again := k.wanted[source]; again {
			continue // it was purged once more meanwhile
		}
		if err := b.Delete(purgeKey(source), nil); err != nil {
			return fmt.Errorf("store: ending a purge: %w", err)
		}
	}
	_, err = db.commit(b, true)
	return err
}

func (db *housekeeper) tidySources(sources map[string]bool) error {
	for source, all := range sources {
		if !all {
			continue
		}
		for _, table := range bySource[1:indexed] {
			if err := db.tidyTable(appendSource(nil, table, source), sources); err != nil {
				return err
			}
		}
	}
	return db.tidyTable(appendTable(nil, tableExpiry), sources)
}

// tidyTable removes the rows with the prefix that are of one of the sources
// and do not follow from its records, step by step.
func (db *housekeeper) tidyTable(prefix []byte, sources map[string]bool) error {
	for from := prefix; from != nil; {
		if db.ending() {
			return errEnding
		}
		var err error
		if from, err = db.tidyStep(from, successor(prefix), sources); err != nil {
			return err
		}
	}
	return nil
}

// tidyStep reads some rows and returns where to go on, nil at the end.
func (db *housekeeper) tidyStep(from, upper []byte, sources map[string]bool) (next []byte, err error) {
	// Only what of the index is read first may be removed: a row that comes in
	// behind the scan follows from its record.
	it, err := db.scan(db.db, from, upper)
	if err != nil {
		return nil, err
	}
	defer it.done(&err)
	var found [][]byte
	rowsRead := 0
	for ok := it.First(); ok; ok = it.Next() {
		if rowsRead++; rowsRead > tidyRows {
			next = bytes.Clone(it.Key())
			break
		}
		if source, _, err := rowOf(it.Key()); err != nil {
			db.skip(it.Key(), err)
		} else if _, is := sources[source]; is {
			found = append(found, bytes.Clone(it.Key()))
		}
	}
	if len(found) == 0 {
		return next, nil
	}
	db.rows.Lock()
	defer db.rows.Unlock()
	b := db.db.NewBatch()
	for _, row := range found {
		follows, err := db.follows(row)
		if err != nil {
			return nil, err
		}
		if follows {
			continue
		}
		if err := b.Delete(row, nil); err != nil {
			return nil, fmt.Errorf("store: removing a row: %w", err)
		}
	}
	_, err = db.commit(b, true)
	return next, err
}

// follows reports whether the row follows from its record; unknown if the record
// cannot be read.
func (db *housekeeper) follows(row []byte) (bool, error) {
	source, key, err := rowOf(row)
	if err != nil {
		return false, err
	}
	e, err := db.Outline(source, key, 0)
	if isCorrupt(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	var r rows
	r.derive(source, key, e)
	for i := range r.n {
		if bytes.Equal(r.key(i), row) {
			return true, nil
		}
	}
	return false, nil
}

// rowOf is the source and key that an index row is of.
func rowOf(row []byte) (source, key string, err error) {
	switch row[0] {
	case tableExpiry:
		r, err := parseExpiry(row)
		return r.Source, r.Key, err
	case tableDue, tableRetry:
		s, rest, ok := bytes.Cut(row[2:], []byte{end})
		if !ok {
			return "", "", errRow
		}
		parse := parseTimed
		if row[0] == tableDue {
			parse = parseDueKey
		}
		r, err := parse(rest)
		return string(s), r.Key, err
	}
	return parseSourced(row)
}

// purging lists the sources whose purge has not ended.
func (db *engine) purging() (sources []string, err error) {
	table := appendTable(nil, tablePurge)
	it, err := db.scan(db.db, table, successor(table))
	if err != nil {
		return nil, err
	}
	defer it.done(&err)
	for ok := it.First(); ok; ok = it.Next() {
		sources = append(sources, string(it.Key()[len(table):]))
	}
	return sources, nil
}
