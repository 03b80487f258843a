package store

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// engine is Pebble, and what all parts of a store share: calls are admitted until it is closed, changes are committed to its
// log or to the log of a group, and what is corrupt is counted.
type engine struct {
	db       *pebble.DB
	full     *fullFS
	grouped  *grouped // nil: the store is of a single adapter
	log      *slog.Logger
	onFatal  func(error)
	observe  func(time.Duration)
	readOnly bool
	// replicated: it was opened as a view, or is over one.
	replicated bool

	fatal    atomic.Pointer[error]
	gate     gate
	lazy     lazySync
	places   places
	sealed   atomic.Bool // see [DB.Seal]
	damaged  atomic.Bool // a block of a file could not be read
	trouble  limited     // log lines about errors of the engine
	stalls   limited     // log lines about writes that wait for it
	stalled  atomic.Bool // writes wait for it
	flushing atomic.Bool // it flushes
}

// fail records that durability is unknown.
func (db *engine) fail(err error) error {
	if db.fatal.CompareAndSwap(nil, &err) {
		db.log.Error("store: durability is unknown, the process must end", "error", err)
		if db.onFatal != nil {
			go db.onFatal(err)
		}
	}
	return *db.fatal.Load()
}

// usable returns why nothing may be written any more.
func (db *engine) usable() error {
	if p := db.fatal.Load(); p != nil {
		return *p
	}
	switch {
	case db.gate.closed.Load():
		return ErrClosed
	case db.readOnly:
		return errReadOnly
	}
	return nil
}

// write sets one row.
func (db *engine) write(key, value []byte, lazy bool) error {
	b := db.db.NewBatch()
	if err := b.Set(key, value, nil); err != nil {
		return fmt.Errorf("store: writing %s: %w", key, err)
	}
	c, err := db.commit(b, lazy)
	if err != nil || lazy {
		return err
	}
	return c.Wait()
}

// meta is a row of the meta table, "" if it is not there.
func (db *engine) meta(key string) (string, error) {
	value, closer, err := db.db.Get([]byte(key))
	if errors.Is(err, pebble.ErrNotFound) {
		return "", nil
	}
	if pebble.IsCorruptionError(err) {
		return "", fmt.Errorf("reading %s, without which it cannot start (adapter repair writes a new one): %w", key, err)
	}
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", key, err)
	}
	defer closer.Close()
	return string(value), nil
}

func (db *engine) metaNumber(key string) (int64, error) {
	text, err := db.meta(key)
	if err != nil || text == "" {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", key, err)
	}
	return n, nil
}

// durably applies the batch and waits until it is on stable storage.
func (db *engine) durably(b *pebble.Batch) error {
	c, err := db.commit(b, false)
	if err != nil {
		return err
	}
	return c.Wait()
}

// commit applies the batch, which is the commit's from then on. Once it
// returns the batch is visible, and in the log behind all earlier ones.
func (db *engine) commit(b *pebble.Batch, lazy bool) (_ Commit, err error) {
	if db.grouped != nil {
		start := time.Now()
		if err := db.grouped.commit(b); err != nil {
			return nil, err
		}
		if db.observe != nil {
			db.observe(time.Since(start))
		}
		return &commit{db: db}, nil
	}
	if b.Empty() {
		b.Close()
		return &commit{db: db}, nil
	}
	if db.sealed.Load() {
		b.Close()
		return nil, ErrSealed
	}
	// Pebble panics, with locks held, where it sees no way on. fullFS keeps failed writes of the log from it.
	defer func() {
		if p := recover(); p != nil {
			err = db.fail(fmt.Errorf("store: writing: %v", p))
		}
	}()
	if lazy {
		err = db.db.Apply(b, pebble.NoSync)
	} else {
		err = db.db.ApplyNoSyncWait(b, pebble.Sync)
	}
	if err != nil {
		return nil, db.fail(fmt.Errorf("store: writing: %w", err))
	}
	if p := db.fatal.Load(); p != nil { // the engine called it fatal and went on
		return nil, *p
	}
	if lazy {
		b.Close()
		db.lazy.arm()
		return &commit{db: db}, nil
	}
	c := &commit{db: db, batch: b}
	if db.observe != nil {
		c.start = time.Now()
	}
	return c, nil
}

// commit is a Commit. Without a batch it was lazy, or had nothing to write.
type commit struct {
	db    *engine
	batch *pebble.Batch
	start time.Time
}

// Wait implements Commit.
func (c *commit) Wait() error {
	if c.db.grouped != nil {
		return nil // it is visible because it is on the disks of a majority, also once this one is closed
	}
	if !c.db.gate.enter() {
		return ErrClosed // whether the change made it to the disk is not known here
	}
	defer c.db.gate.leave()
	if c.batch == nil {
		return c.db.sync()
	}
	b := c.batch
	if err := b.SyncWait(); err != nil {
		return c.db.fail(fmt.Errorf("store: syncing: %w", err))
	}
	if p := c.db.fatal.Load(); p != nil {
		return *p
	}
	b.Close() // back into Pebble's pool
	if c.db.observe != nil {
		c.db.observe(time.Since(c.start))
	}
	return nil
}

// sync makes durable all that was applied before.
func (db *engine) sync() error {
	if err := db.usable(); err != nil {
		return err
	}
	b := db.db.NewBatch()
	if err := b.LogData(nil, nil); err != nil {
		return fmt.Errorf("store: syncing: %w", err)
	}
	c, err := db.commit(b, false)
	if err != nil {
		return err
	}
	return c.Wait()
}
