package store

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// The rows of the meta table that only a view has, beside metaApplied.
const (
	// metaHistory distinguishes groups that began with one store: it is made of the checksum of the back-up that a member
	// was restored from, and by the first owner of a group, at random. metaBefore is the history before, and
	// the number of its last entry in the group.
	metaHistory = "m/history"
	metaBefore  = "m/before"
	// metaSealed is the last thing that a group writes.
	metaSealed = "m/sealed"
)

// Form is how a store is used.
type Form string

// The forms of a store.
const (
	Single Form = "single" // of an adapter that runs alone
	Group  Form = "group"  // of a member of a group
)

// Restored gives the store in [NewDir], which is a copy of another, the form, "" for the form of that store, and adopts it. It
// hands out revisions, and so ids of events, that the other store cannot have handed out
// since; a group does that when it begins: see [DB.SetHistory]. What waits keeps its ids. A group that was
// sealed is not any more. checksum is the checksum of the back-up: a group may begin with several directories that were
// restored from one back-up, and not from two.
func Restored(o Options, to Form, checksum []byte) error {
	o.New, o.eitherForm = true, true
	db, err := Open(o)
	if err != nil {
		return err
	}
	if err := errors.Join(db.setForm(to, checksum), db.Close()); err != nil {
		return err
	}
	return Adopt(o)
}

func (db *DB) setForm(to Form, checksum []byte) error {
	rows := map[string][]byte{metaSealed: nil}
	switch {
	case to == Group && db.form == Single:
		// An empty view is at 0, and must not be taken for this one. Only views with the same data have the same history.
		rows[metaForm], rows[metaApplied], rows[metaHistory] = []byte(Group), appliedRow(1, 0), fmt.Appendf(nil, "%x", checksum)
	case to == Single || db.form == Single:
		rows[metaForm] = []byte(Single)
		rows[metaRevision] = strconv.AppendUint(nil, beyond(db.revisions.bound.Load(), time.Now()), 10)
		rows[metaApplied], rows[metaHistory], rows[metaBefore] = nil, nil, nil
	}
	b := db.db.NewBatch()
	defer b.Close()
	var err error
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
