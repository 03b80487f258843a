package store

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The rows of the meta table that only a view has, beside metaApplied.
const (
	// metaHistory distinguishes groups that began with one store: it is made when a view was made of a single adapter's
	// store, of the checksum of the back-up if there is one, and by the first owner of a group, at random. metaBefore is the history before, and
	// the number of its last entry in the group.
	metaHistory = "m/history"
	metaBefore  = "m/before"
	// metaSealed is the last thing that a group writes.
	metaSealed = "m/sealed"
)

// LogDir is the folder in the directory of a member that has its part of the replicated log.
const LogDir = "log"

var (
	// ErrNothing is returned where there is nothing to migrate, verify or repair.
	ErrNothing = errors.New("it holds nothing")
	// ErrNotSealed is returned for the directory of a member that may lack what its group has
	// acknowledged.
	ErrNotSealed = errors.New("its group was not sealed, or the seal has not reached this member: what the group has acknowledged may be missing here. " +
		"Start the group, run adapter-replicated seal --data-dir DIR on the machine of this directory, and stop the group. " +
		"If the other disks are lost: adapter-replicated backup of this directory, and restore --to single")
)

// ToGroup makes a view of the store of a single adapter, in its place: a group begins with
// it. It returns false for a view, which it leaves alone. It is one batch: cut off anywhere,
// the directory is one or the other.
func ToGroup(o Options) (changed bool, err error) {
	err = migrate(&o, func(db *DB) error {
		if db.view {
			return nil
		}
		// Of a group to which the directory belonged before: its log is of another history.
		if err := removeLog(&o); err != nil {
			return err
		}
		changed = true
		var random [8]byte
		rand.Read(random[:]) // it never fails
		return db.setFormat(formatReplicated, firstView(random[:]))
	})
	return changed, err
}

// ToSingle makes the store of a single adapter of a view, in its place. It returns false
// for such a store, which it leaves alone. A view that belongs to a group must have its seal,
// so that it has everything. It is one batch.
func ToSingle(o Options) (changed bool, err error) {
	err = migrate(&o, func(db *DB) error {
		if !db.view {
			return removeLog(&o) // that a process that was killed has left
		}
		sealed, err := db.meta(metaSealed)
		if err != nil {
			return err
		}
		if db.id, err = db.meta(metaID); err != nil {
			return err
		}
		if db.id == "" || sealed == "" && hasLog(o.fs(), o.Dir) {
			return ErrNotSealed
		}
		bound, err := db.metaNumber(metaRevision)
		if err != nil {
			return err
		}
		changed = true
		if err := db.setFormat(formatSingle, map[string][]byte{metaRevision: strconv.AppendUint(nil, beyond(uint64(bound), time.Now()), 10), metaApplied: nil, metaHistory: nil, metaBefore: nil, metaSealed: nil}); err != nil {
			return err
		}
		return removeLog(&o)
	})
	return changed, err
}

// Form is how a store is used.
type Form string

// The forms of a store.
const (
	Single Form = "single" // of an adapter that runs alone
	Group  Form = "group"  // of a member of a group
)

// Restored gives a restored directory the form, "" for the form of the back-up. The directory
// hands out revisions, and so ids of events, that the store of the back-up cannot have handed out
// since; a group does that when it begins: see [DB.SetHistory]. What waits keeps its ids. A group that was
// sealed is not any more. checksum is the checksum of the back-up: a group may begin with several directories that were
// restored from one back-up, and not from two. Dir may have the mark [RestoringName].
func Restored(o Options, to Form, checksum []byte) error {
	o.restoring = true
	return migrate(&o, func(db *DB) error {
		bound, err := db.metaNumber(metaRevision)
		if err != nil {
			return err
		}
		switch {
		case db.view && to != Single:
			return db.setFormat(formatReplicated, map[string][]byte{metaSealed: nil})
		case to == Group:
			return db.setFormat(formatReplicated, firstView(checksum))
		}
		return db.setFormat(formatSingle, map[string][]byte{
			metaRevision: strconv.AppendUint(nil, beyond(uint64(bound), time.Now()), 10),
			metaApplied:  nil, metaHistory: nil, metaBefore: nil, metaSealed: nil,
		})
	})
}

// firstView has the rows of a view with which a group begins. Only views with the same data have the same origin.
func firstView(origin []byte) map[string][]byte {
	return map[string][]byte{
		// An empty view is at 0, and must not be taken for this one.
		metaApplied: appliedRow(1, 0),
		metaHistory: fmt.Appendf(nil, "%x", origin),
	}
}

// migrate lets change a directory that no process has open.
func migrate(o *Options, change func(*DB) error) error {
	fs := o.fs()
	desc, err := pebble.Peek(o.Dir, fs)
	if errors.Is(err, os.ErrNotExist) || err == nil && !desc.Exists && !swapping(fs, o.Dir) {
		err = ErrNothing
	}
	if err != nil {
		return fmt.Errorf("store: migrating %q: %w", o.Dir, err)
	}
	o.start = func(db *DB) error {
		format, err := db.meta(metaFormat)
		if err != nil {
			return err
		}
		if format != "" {
			err = db.takeFormat(format)
		} else if db.view = hasLog(fs, o.Dir); !db.view { // else what it has is in the log
			err = ErrNothing
		}
		if err != nil {
			return err
		}
		return change(db)
	}
	db, err := Open(*o)
	if err != nil {
		return err
	}
	return db.Close()
}

// setFormat changes the format, and sets or removes rows of the meta table with it.
func (db *DB) setFormat(format int, rows map[string][]byte) error {
	b := db.db.NewBatch()
	defer b.Close()
	err := b.Set([]byte(metaFormat), strconv.AppendInt(nil, int64(format), 10), nil)
	for row, value := range rows {
		if value == nil {
			err = errors.Join(err, b.Delete([]byte(row), nil))
		} else {
			err = errors.Join(err, b.Set([]byte(row), value, nil))
		}
	}
	if err == nil {
		err = db.db.Apply(b, pebble.Sync)
	}
	if err == nil { // a view has no log
		err = db.db.Flush()
	}
	if err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	return db.usable() // the engine may have called it fatal, and gone on
}

// hasLog reports that the directory is of a member that has a part of the replicated log, or had one: a member that joins
// anew has removed it, and the others know more.
func hasLog(fs vfs.FS, dir string) bool {
	for _, name := range []string{"member", "joining", "identity"} {
		if _, err := fs.Stat(fs.PathJoin(dir, LogDir, name)); err == nil {
			return true
		}
	}
	return false
}

func removeLog(o *Options) error {
	fs := o.fs()
	if err := fs.RemoveAll(fs.PathJoin(o.Dir, LogDir)); err != nil {
		return err
	}
	return syncDir(fs, o.Dir)
}
