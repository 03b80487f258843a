package store

import (
	"bytes"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// purgeBatch bounds the memory of a purge.
const purgeBatch = 10_000

// Purge implements Store. First all tables that are ordered by source lose the
// source's rows, and a row of the purge table says that the expiry table, which
// is ordered by time, still has some; a crash meanwhile is made good by Open.
func (db *DB) Purge(source string) error {
	if err := checkNames(source, "-"); err != nil {
		return err
	}
	if err := db.usable(); err != nil {
		return err
	}
	c, err := db.counter(source)
	if err != nil {
		return err
	}
	b := db.db.NewBatch()
	for _, table := range [...]byte{tableRecord, tableDue, tableRetry, tableUnfinished} {
		prefix := appendSource(nil, table, source)
		if err := b.DeleteRange(prefix, successor(prefix), nil); err != nil {
			return fmt.Errorf("store: purging source %q: %w", source, err)
		}
	}
	err = b.Delete(appendCounterKey(nil, source), nil)
	if err == nil {
		err = b.Delete(appendVolumeKey(nil, source), nil)
	}
	if err == nil {
		err = b.Set(purgeKey(source), nil, nil)
	}
	if err != nil {
		return fmt.Errorf("store: purging source %q: %w", source, err)
	}
	if err := db.durably(b); err != nil {
		return err
	}
	c.keys.Store(0)
	c.dead.Store(0)
	c.bytes.Store(0)
	return db.purgeExpiries(source)
}

// purgeExpiries removes the source's rows of the expiry table and ends the purge.
func (db *DB) purgeExpiries(source string) (err error) {
	table := appendTable(nil, tableExpiry)
	it, err := db.scan(db.db, table, successor(table))
	if err != nil {
		return err
	}
	defer it.done(&err)
	want := append([]byte(source), end)
	b := db.db.NewBatch()
	for ok := it.First(); ok; ok = it.Next() {
		if key := it.Key(); len(key) < 10 || !bytes.HasPrefix(key[10:], want) {
			continue
		}
		if err := b.Delete(it.Key(), nil); err != nil {
			return fmt.Errorf("store: purging source %q: %w", source, err)
		}
		if b.Count() >= purgeBatch {
			if _, err := db.commit(b, true); err != nil {
				return err
			}
			b = db.db.NewBatch()
		}
	}
	if err := it.Error(); err != nil {
		return fmt.Errorf("store: purging source %q: %w", source, err)
	}
	if err := b.Delete(purgeKey(source), nil); err != nil {
		return fmt.Errorf("store: purging source %q: %w", source, err)
	}
	return db.durably(b)
}

func (db *DB) durably(b *pebble.Batch) error {
	c, err := db.commit(b, false)
	if err != nil {
		return err
	}
	return c.Wait()
}

// resumePurges ends the purges that a crash cut off.
func (db *DB) resumePurges() error {
	sources, err := db.purging()
	for _, source := range sources {
		if err == nil {
			err = db.purgeExpiries(source)
		}
	}
	return err
}

// purging lists the sources whose purge has not ended.
func (db *DB) purging() (sources []string, err error) {
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
