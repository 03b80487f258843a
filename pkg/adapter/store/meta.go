package store

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// format is the version of the layout that this program reads and writes. It goes up with any change
// that another program would misread.
const format = 3

// The rows of the meta table; their values are text, for people.
const (
	metaFormat   = "m/format"   // decimal
	metaForm     = "m/form"     // a [Form]
	metaID       = "m/id"       // base 36
	metaRevision = "m/revision" // decimal: no revision above it was ever returned
	metaClock    = "m/clock"    // decimal Unix nanoseconds
)

// revisionBlock is how many revisions one fsync reserves. A start wastes at most that many.
const revisionBlock = 1 << 16

// beyond returns a bound of revisions that no store has reached which goes back to the store with
// this bound: that may have been used further since it was copied, and restored before. So the
// bound is the time, in units of 1,024 ns. It is far beyond what a store counts up from 0, and no
// store overtakes it: that takes 15 starts a second, or a million changes. Where the clock is
// behind, the bound is random. It is a whole number in JSON until the year 2262.
func beyond(bound uint64, now time.Time) uint64 {
	if by := uint64(max(now.UnixNano(), 0)) >> 10; by >= max(bound, leap) {
		return by
	}
	var random [8]byte
	rand.Read(random[:]) // it never fails
	return bound + leap + binary.BigEndian.Uint64(random[:])%(16*leap)
}

// leap is more than a store can have handed out since it was copied.
const leap = 1 << 40

// revisions hands out revisions below a bound that is on stable storage.
type revisions struct {
	*engine
	last  atomic.Uint64 // the newest that was taken
	bound atomic.Uint64 // the newest that may be taken
	mu    sync.Mutex    // while the bound is moved

	clock struct {
		sync.Mutex
		at time.Time
	}
}

// NextRevision implements Store.
func (db *revisions) NextRevision() (uint64, error) {
	if !db.gate.enter() {
		return 0, ErrClosed
	}
	defer db.gate.leave()
	if err := db.usable(); err != nil {
		return 0, err
	}
	r := db.last.Add(1)
	for r > db.bound.Load() {
		if err := db.reserveRevisions(r); err != nil {
			return 0, err
		}
	}
	return r, nil
}

// reserveRevisions moves the bound to r or beyond.
func (db *revisions) reserveRevisions(r uint64) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	bound := db.bound.Load()
	if r <= bound {
		return nil
	}
	bound = r - 1 + revisionBlock
	if err := db.write([]byte(metaRevision), strconv.AppendUint(nil, bound, 10), false); err != nil {
		return err
	}
	db.bound.Store(bound)
	return nil
}

// Clock implements Store.
func (db *revisions) Clock() (time.Time, error) {
	db.clock.Lock()
	defer db.clock.Unlock()
	return db.clock.at, nil
}

// SetClock implements Store.
func (db *revisions) SetClock(t time.Time) error {
	if !db.gate.enter() {
		return ErrClosed
	}
	defer db.gate.leave()
	db.clock.Lock()
	defer db.clock.Unlock()
	if t.Equal(db.clock.at) {
		return nil
	}
	at := nanos(t)
	if err := db.write([]byte(metaClock), strconv.AppendInt(nil, at, 10), true); err != nil {
		return err
	}
	db.clock.at = time.Unix(0, at).UTC()
	return nil
}

// readMeta takes over what the meta table holds, and fills it if the store is
// new. It refuses an unknown format.
func (db *DB) readMeta(o *Options) error {
	version, err := db.meta(metaFormat)
	if err != nil {
		return err
	}
	if version == "" {
		return db.create(o.ReadOnly || o.eitherForm)
	}
	if err := db.takeFormat(version, o.eitherForm); err != nil {
		return err
	}
	if db.id, err = db.meta(metaID); err != nil {
		return err
	}
	bound, err := db.metaNumber(metaRevision)
	if err != nil {
		return err
	}
	if db.id == "" || bound < 0 {
		return errors.New("it has no id, or no bound of revisions")
	}
	db.revisions.last.Store(uint64(bound))
	db.revisions.bound.Store(uint64(bound))
	sealed, err := db.meta(metaSealed)
	if err != nil {
		return err
	}
	db.sealed.Store(sealed != "" && !o.eitherForm)
	clock, err := db.metaNumber(metaClock)
	if err != nil {
		return err
	}
	if clock != 0 {
		db.clock.at = time.Unix(0, clock).UTC()
	}
	return nil
}

// takeFormat refuses a layout of another version, and the form that does not fit the program.
func (db *DB) takeFormat(version string, eitherForm bool) error {
	if version != strconv.Itoa(format) {
		return fmt.Errorf("its format is version %s, this program reads version %d", version, format)
	}
	form, err := db.meta(metaForm)
	if err != nil {
		return err
	}
	db.form = Form(form)
	switch {
	case eitherForm:
	case db.form == Group && !db.replicated && !db.readOnly:
		return errMembers
	case db.form == Single && db.replicated:
		return errSingle
	}
	return nil
}

var (
	errMembers = errors.New("it is of a member of a group: start adapter-replicated with --replicated, or restore a back-up with --to single")
	errSingle  = errors.New("it is of a single adapter: make a back-up of it, and restore that with --to group into an empty directory")
)

func (db *DB) create(readOnly bool) error {
	it, err := db.db.NewIter(nil)
	if err != nil {
		return err
	}
	empty := !it.First()
	if err := it.Close(); err != nil {
		return err
	}
	if !empty {
		return errors.New("it holds a database that is not of this program")
	}
	if readOnly {
		return ErrNothing
	}
	var random [8]byte
	rand.Read(random[:]) // it never fails
	db.id = strconv.FormatUint(binary.BigEndian.Uint64(random[:]), 36)
	b := db.db.NewBatch()
	if db.form = Single; db.grouped != nil {
		db.form = Group
	} else {
		defer b.Close()
		if hasLog(db.space.fs, db.dir) { // all that this member has is in the log
			return errMembers
		}
	}
	for _, row := range [...][2]string{
		{metaFormat, strconv.Itoa(format)}, {metaForm, string(db.form)}, {metaID, db.id}, {metaRevision, "0"},
	} {
		if err := b.Set([]byte(row[0]), []byte(row[1]), nil); err != nil {
			return err
		}
	}
	if db.grouped != nil {
		return db.durably(b)
	}
	if err := db.db.Apply(b, pebble.Sync); err != nil {
		return err
	}
	if err := db.usable(); err != nil { // the engine called it fatal and went on
		return err
	}
	return nil
}
