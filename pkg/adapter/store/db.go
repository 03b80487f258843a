package store

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

var errReadOnly = errors.New("store: opened read-only")

// DB is the Store on Pebble.
type DB struct {
	*engine
	*records
	*counters
	*marks
	*volume
	*revisions
	keeper *housekeeper

	id      string
	dir     string // the data directory
	folder  string // in it, of the engine's files
	form    Form   // of the directory
	lock    *pebble.Lock
	over    *View      // of a store over a view
	copying sync.Mutex // while there is a checkpoint
}

var _ Store = (*DB)(nil)

// Open opens the data directory, or makes one.
func Open(o Options) (*DB, error) {
	db := newDB(&engine{
		readOnly: o.ReadOnly, replicated: o.replicated, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)), onFatal: o.Fatal, observe: o.Observe,
	})
	db.lazy.sync = db.sync
	db.absent.asked = make(chan struct{}, 1)
	if err := db.open(o); err != nil {
		return nil, fmt.Errorf("store: opening %q: %w", o.Dir, err)
	}
	return db, nil
}

func newDB(e *engine) *DB {
	e.gate.idle = make(chan struct{}, 1)
	r := &records{engine: e}
	db := &DB{
		engine: e, records: r, counters: &counters{records: r}, marks: &marks{e}, volume: &volume{engine: e},
		revisions: &revisions{engine: e}, keeper: &housekeeper{records: r},
	}
	db.keeper.init()
	return db
}

func (db *DB) open(o Options) (err error) {
	fs := o.fs()
	if o.ReadOnly {
		err = mustHoldStore(&o)
	} else if err = makeDir(fs, o.Dir); err == nil {
		err = refuseOther(fs, o.Dir)
	}
	if err != nil {
		return err
	}
	if !o.New { // who writes NewDir has the lock
		if db.lock, err = lockDirectory(fs, o.Dir); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, db.lock.Close())
			}
		}()
		if !o.ReadOnly {
			if err := endAdoption(fs, o.Dir); err != nil {
				return err
			}
		}
	}
	db.dir, db.folder = o.Dir, o.folder()
	if !o.ReadOnly {
		if err := makeDir(fs, db.folder); err != nil {
			return err
		}
	}
	u, _ := usage(fs, o.Dir)
	b := newBallast(&o, fs, u, db.log)
	db.space.init(&o, fs, u, b) // it makes space for what follows
	synced, err := openSynced(fs, db.folder)
	if err == nil && !o.lenient {
		err = synced.refuse()
	}
	if err == nil && !o.ReadOnly {
		err = synced.begin()
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, synced.close())
		}
	}()
	db.full = newFullFS(fs, db.folder, synced, b, db.look, func(err error) { _ = db.fail(fmt.Errorf("store: writing: %w", err)) })
	db.db, err = pebble.Open(db.folder, db.pebble(&o, db.full, u.TotalBytes))
	if err != nil {
		if !IsFull(err) && !errors.Is(err, os.ErrPermission) {
			err = fmt.Errorf("%w; if a file of it is damaged: %s", err, cure)
		}
		return err
	}
	db.full.opened.Store(true)
	start := func() error { return db.start(&o) }
	if o.replicated {
		start = db.startView
	}
	if err := start(); err != nil {
		db.keeper.end()
		return errors.Join(err, db.db.Close())
	}
	return nil
}

// start reads the meta table, or writes it into an empty store.
func (db *DB) start(o *Options) error {
	read := func() error { return db.readMeta(o) }
	if o.lenient {
		read = db.readLenient
	}
	if err := read(); err != nil {
		return err
	}
	if o.ReadOnly || o.eitherForm {
		return nil
	}
	return db.keeper.start()
}

// ID implements Store.
func (db *DB) ID() string { return db.id }

// Sealed reports that the store takes no changes: see [DB.Seal].
func (db *DB) Sealed() bool { return db.sealed.Load() }

// GiveUp ends all waiting for space: changes that wait, now or later, fail.
func (db *DB) GiveUp() { db.full.stop() }

// Close implements Store.
func (db *DB) Close() error {
	if db.gate.closed.Swap(true) {
		return ErrClosed
	}
	db.keeper.end()
	if db.over != nil {
		return db.closeView()
	}
	db.full.stop() // changes that wait for space fail
	db.lazy.stop()
	db.gate.wait()
	db.keeper.work.Wait()
	err := db.close()
	if p := db.fatal.Load(); p != nil {
		err = *p
	}
	err = errors.Join(err, db.full.synced.close())
	if db.lock != nil {
		err = errors.Join(err, db.lock.Close())
	}
	return err
}

// close turns a panic of Pebble into an error.
func (db *DB) close() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("store: closing: %v", p)
		}
	}()
	return db.db.Close()
}
