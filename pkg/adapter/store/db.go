package store

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// ErrInUse is that of a directory which another process has open.
var ErrInUse = errors.New("it is in use by another process")

var (
	errClosed   = errors.New("store: closed")
	errReadOnly = errors.New("store: opened read-only")
)

// DB is the Store on Pebble. No call may overlap Close.
type DB struct {
	db       *pebble.DB
	readOnly bool
	log      *slog.Logger
	onFatal  func(error)
	observe  func(time.Duration)

	id        string
	fatal     atomic.Pointer[error]
	closed    atomic.Bool
	corrupt   atomic.Int64
	revisions revisions
	counters  counters
	lazy      lazySync
	room      room
	lock      *pebble.Lock
	full      *fullFS

	clock struct {
		sync.Mutex
		at time.Time
	}
}

var _ Store = (*DB)(nil)

// Open opens the data directory, or makes one.
func Open(o Options) (*DB, error) {
	db := &DB{readOnly: o.ReadOnly, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), onFatal: o.Fatal, observe: o.Observe}
	db.lazy.sync = db.sync
	if err := db.open(o); err != nil {
		return nil, fmt.Errorf("store: opening %q: %w", o.Dir, err)
	}
	return db, nil
}

func (db *DB) open(o Options) (err error) {
	fs := o.fs()
	if !o.ReadOnly {
		if err := fs.MkdirAll(o.Dir, 0o700); err != nil {
			return err
		}
	} else if _, err := fs.Stat(o.Dir); err != nil {
		return err
	}
	lock, err := pebble.LockDirectory(o.Dir, fs)
	if errors.Is(err, syscall.EAGAIN) {
		return ErrInUse
	}
	if err != nil {
		return fmt.Errorf("it is in use by another process, or cannot be locked: %w", err)
	}
	u, _ := usage(fs, o.Dir)
	db.room.init(&o, fs, u)
	db.lock, db.full = lock, newFullFS(fs)
	po := db.pebble(&o, db.full, u.TotalBytes)
	po.Lock = lock
	db.db, err = pebble.Open(o.Dir, po)
	if err != nil && !o.ReadOnly && unborn(fs, o.Dir) {
		db.log.Warn("the power was lost while the store was being made: it is made again", "dir", o.Dir, "error", err)
		if err = clearUnborn(fs, o.Dir); err == nil {
			db.db, err = pebble.Open(o.Dir, po)
		}
	}
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	if err := db.start(o.ReadOnly); err != nil {
		return errors.Join(err, db.db.Close(), lock.Close())
	}
	return nil
}

// start reads what the store knows of itself, or writes it into an empty one.
func (db *DB) start(readOnly bool) error {
	if err := db.readMeta(readOnly); err != nil {
		return err
	}
	if readOnly {
		return nil
	}
	if err := db.distrustVolumes(); err != nil {
		return err
	}
	return db.resumePurges()
}

// ID implements Store.
func (db *DB) ID() string { return db.id }

// fail notes that durability is unknown.
func (db *DB) fail(err error) error {
	if db.fatal.CompareAndSwap(nil, &err) {
		db.log.Error("store: durability is unknown, the process must end", "error", err)
		if db.onFatal != nil {
			go db.onFatal(err)
		}
	}
	return *db.fatal.Load()
}

// usable says why nothing may be written any more.
func (db *DB) usable() error {
	if p := db.fatal.Load(); p != nil {
		return *p
	}
	switch {
	case db.closed.Load():
		return errClosed
	case db.readOnly:
		return errReadOnly
	}
	return nil
}

// Close implements Store.
func (db *DB) Close() error {
	if db.closed.Swap(true) {
		return errClosed
	}
	db.lazy.stop()
	db.full.stop()
	err := db.close()
	if p := db.fatal.Load(); p != nil {
		err = *p
	}
	return errors.Join(err, db.lock.Close())
}

// close turns what Pebble panics with after a failed write into an error.
func (db *DB) close() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("store: closing: %v", p)
		}
	}()
	return db.db.Close()
}
