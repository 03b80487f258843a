package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// metaApplied is the number of the log's last entry that a view has, and the hash of all batches up to there, 8 bytes
// each, big-endian.
const metaApplied = "m/applied"

func appliedRow(seq, hash uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, seq), hash)
}

var hashTable = crc64.MakeTable(crc64.ECMA)

// chained is the hash of all batches up to this one.
func chained(hash, seq uint64, batch []byte) uint64 {
	return crc64.Update(crc64.Update(hash, hashTable, binary.BigEndian.AppendUint64(nil, seq)), hashTable, batch)
}

// ErrNotOwner is returned by a store over a view that may not change it any more, or whose
// reads may be old: nothing was changed.
var ErrNotOwner = errors.New("store: another adapter owns it now")

// ErrUnknown is returned where a change may have been made, or may still be: only the log has the answer.
var ErrUnknown = errors.New("store: whether the change was made is unknown")

// ErrTooLarge is returned for a change that is too large for the log: nothing was changed.
var ErrTooLarge = errors.New("store: the change is too large")

// Log takes the changes of a store over a view.
type Log interface {
	// Append returns once the batch is on the disks of a majority, and the view has it. Its
	// error is ErrNotOwner, ErrTooLarge, or ErrUnknown.
	Append(batch []byte) error
	// Valid reports that no other member can have changed the store.
	Valid() bool
	// MostDisks reports whether it is so of the disks of a majority of the members. It is so of the owner's.
	MostDisks(is func(Disk) bool) bool
	// Full reports that the log takes as much as it may: nothing may grow.
	Full() bool
}

// View is the state of a replicated store: the batches of a log, applied in order. It has
// no log of its own. What is not flushed is read from the replicated log again after a
// crash, because the number of the last batch is in the batch.
type View struct {
	base    *DB
	options Options
	mu      sync.Mutex
	applied atomic.Uint64
	hash    uint64 // of the batches up to applied; with mu
	sealed  atomic.Bool
}

// OpenView opens the view in the directory, or makes one. It refuses the store of a single adapter.
func OpenView(o Options) (*View, error) {
	o.replicated = true
	db, err := Open(o)
	if err != nil {
		return nil, err
	}
	v := &View{base: db, options: o}
	if err := v.look(); err != nil {
		return nil, errors.Join(fmt.Errorf("store: %w", err), db.Close())
	}
	at, closer, err := db.db.Get([]byte(metaApplied))
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		return v, nil
	case err != nil:
		return nil, errors.Join(fmt.Errorf("store: reading %s: %w", metaApplied, err), db.Close())
	case len(at) != 16:
		return nil, errors.Join(fmt.Errorf("store: %s is not of this format", metaApplied), closer.Close(), db.Close())
	}
	v.applied.Store(binary.BigEndian.Uint64(at))
	v.hash = binary.BigEndian.Uint64(at[8:])
	return v, closer.Close()
}

// startView checks that the directory is of a view, or empty.
func (db *DB) startView() error {
	version, err := db.meta(metaFormat)
	if err != nil || version == "" {
		return err
	}
	return db.takeFormat(version, false)
}

// History identifies the log whose entries the view has, "" of a new view. The log began behind the entry begun of the
// history before.
func (v *View) History() (history, before string, begun uint64, err error) {
	if history, err = v.base.history(); err != nil {
		return "", "", 0, err
	}
	text, err := v.base.meta(metaBefore)
	if err != nil || text == "" {
		return history, "", 0, err
	}
	if _, err = fmt.Sscan(text, &before, &begun); err != nil {
		err = fmt.Errorf("store: reading %s: %w", metaBefore, err)
	}
	return history, before, begun, err
}

func (db *DB) history() (string, error) {
	history, err := db.meta(metaHistory)
	if history == "" && err == nil {
		history, err = db.meta(metaID)
	}
	return history, err
}

// SetHistory begins the history of a group, unless that has begun. The group may begin with a
// back-up, so it hands out revisions that no other group can have handed out since.
func (db *DB) SetHistory(history string) error {
	if !db.gate.enter() {
		return ErrClosed
	}
	defer db.gate.leave()
	before, err := db.history()
	if err != nil || before == history {
		return err
	}
	b := db.db.NewBatch()
	err = b.Set([]byte(metaHistory), []byte(history), nil)
	err = errors.Join(err, b.Set([]byte(metaBefore), fmt.Appendf(nil, "%s %d", before, db.over.Applied()), nil))
	bound := db.revisions.bound.Load()
	if bound > 0 { // it began with something
		bound = beyond(bound, time.Now())
		err = errors.Join(err, b.Set([]byte(metaRevision), strconv.AppendUint(nil, bound, 10), nil))
	}
	if err != nil {
		return fmt.Errorf("store: writing %s: %w", metaHistory, err)
	}
	if err := db.grouped.commit(b); err != nil {
		return err
	}
	db.revisions.last.Store(bound)
	db.revisions.bound.Store(bound)
	return nil
}

// Sealed reports that the group has ended: the view has all that was ever acknowledged.
func (v *View) Sealed() bool { return v.sealed.Load() }

// look takes over whether the view is sealed.
func (v *View) look() error {
	sealed, err := v.base.meta(metaSealed)
	if sealed != "" {
		v.sealed.Store(true)
	}
	return err
}

// Applied is the number of the last entry of the log that the view has.
func (v *View) Applied() uint64 { return v.applied.Load() }

// Chain is Applied, with a hash over all batches up to there.
func (v *View) Chain() (applied, hash uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.applied.Load(), v.hash
}

// Apply puts the batch that ends with this entry of the log in force, with the entry's number.
func (v *View) Apply(seq uint64, batch []byte) (err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if at := v.applied.Load(); seq <= at {
		return fmt.Errorf("store: entry %d of the log cannot follow %d", seq, at)
	}
	if len(batch) < 8 {
		return fmt.Errorf("store: entry %d of the log is no batch", seq)
	}
	if !v.base.gate.enter() {
		return ErrClosed
	}
	defer v.base.gate.leave()
	if err := v.base.usable(); err != nil {
		return err
	}
	defer func() { // as in DB.commit
		if p := recover(); p != nil {
			err = v.base.fail(fmt.Errorf("store: writing: %v", p))
		}
	}()
	b := v.base.db.NewBatch()
	defer b.Close()
	if err := b.SetRepr(slices.Clone(batch)); err != nil { // the engine numbers it
		return fmt.Errorf("store: entry %d of the log: %w", seq, err)
	}
	hash := chained(v.hash, seq, batch)
	if err := b.Set([]byte(metaApplied), appliedRow(seq, hash), nil); err != nil {
		return fmt.Errorf("store: entry %d of the log: %w", seq, err)
	}
	if err := v.base.db.Apply(b, pebble.NoSync); err != nil {
		return v.base.fail(fmt.Errorf("store: writing: %w", err))
	}
	v.applied.Store(seq)
	v.hash = hash
	if len(batch) < maxSeal {
		return v.look()
	}
	return nil
}

// Flush returns once everything that was applied before is on disk.
func (v *View) Flush() error {
	if !v.base.gate.enter() {
		return ErrClosed
	}
	defer v.base.gate.leave()
	if err := v.base.db.Flush(); err != nil {
		return fmt.Errorf("store: flushing: %w", err)
	}
	return v.base.usable()
}

// Checkpoint is [DB.Checkpoint], and has everything that was applied before.
func (v *View) Checkpoint(use func(dir string) error) error {
	if err := v.Flush(); err != nil { // a checkpoint has what is flushed: there is no log
		return err
	}
	return v.base.Checkpoint(use)
}

// ErrOldCopy is returned for a copy that is not newer than the view.
var ErrOldCopy = errors.New("store: the copy of the view is not newer than the view")

// ReplaceView puts the view in [NewDir], which is whole and on stable storage, in the place of the
// closed view in o.Dir, and opens it. Cut off anywhere, it has changed nothing, or the next
// OpenView ends it.
func ReplaceView(o Options) (*View, error) {
	copied, err := appliedIn(Options{Dir: o.Dir, FS: o.FS, Log: o.Log, New: true})
	if err != nil {
		return nil, err
	}
	present, err := appliedIn(Options{Dir: o.Dir, FS: o.FS, Log: o.Log})
	if err != nil {
		return nil, err
	}
	if copied <= present {
		return nil, fmt.Errorf("%w: it is at %d, the view at %d", ErrOldCopy, copied, present)
	}
	if err := Adopt(o); err != nil {
		return nil, fmt.Errorf("store: replacing the view in %q: %w", o.Dir, err)
	}
	return OpenView(o)
}

// EmptyView puts an empty view in the place of the closed view in o.Dir, and opens it, so that a copy has space. Cut off
// anywhere, it has changed nothing, or the next OpenView ends it.
func EmptyView(o Options) (*View, error) {
	err := o.fs().RemoveAll(NewDir(o))
	if err == nil {
		var empty *View
		if empty, err = OpenView(Options{Dir: o.Dir, FS: o.FS, Log: o.Log, New: true}); err == nil {
			err = empty.Close()
		}
	}
	if err == nil {
		err = Adopt(o)
	}
	if err != nil {
		return nil, fmt.Errorf("store: emptying the view in %q: %w", o.Dir, err)
	}
	return OpenView(o)
}

// appliedIn returns the number of the last entry that the view in a directory has.
func appliedIn(o Options) (uint64, error) {
	o.ReadOnly = true
	v, err := OpenView(o)
	if err != nil {
		return 0, err
	}
	return v.Applied(), v.base.Close()
}

// Usage is [DB.Usage], Corrupt is [DB.Corrupt].
func (v *View) Usage() (free, reserve, used int64, known bool) { return v.base.Usage() }

// LowOnSpace is [DB.LowOnSpace].
func (v *View) LowOnSpace() bool { return v.base.LowOnSpace() }

// Disk is [DB.Disk].
func (v *View) Disk() Disk { return v.base.Disk() }

// HasAmpleSpace is [DB.HasAmpleSpace].
func (v *View) HasAmpleSpace() bool { return v.base.HasAmpleSpace() }

// Corrupt counts the corrupt places that were met, but for places that only an owner met.
func (v *View) Corrupt() int64 { return v.base.Corrupt() }

// Damaged reports that a block of a file could not be read. Another member's view may be whole.
func (v *View) Damaged() bool { return v.base.damaged.Load() }

// Close makes everything durable and releases the directory. Stores over the view must be
// closed before.
func (v *View) Close() error {
	return errors.Join(v.Flush(), v.base.Close())
}

// Own returns a store whose changes go through the log. It reads the view, which the log
// changes. What it keeps in memory, counters and revisions, is valid while no other
// member changes the store: the caller closes it when another one may.
//
// A view that is sealed has no owner: it returns ErrSealed.
func (v *View) Own(log Log) (*DB, error) {
	if v.Sealed() {
		return nil, ErrSealed
	}
	base := v.base
	db := newDB(&engine{
		db: base.db, full: base.full, log: base.log, onFatal: base.onFatal, observe: base.observe, replicated: true,
		grouped: &grouped{log: log, waiting: make(chan *submission), stop: make(chan struct{})},
	})
	db.dir, db.folder, db.form, db.over = base.dir, base.folder, Group, v
	u, _ := usage(v.options.fs(), v.options.Dir)
	db.space.init(&v.options, v.options.fs(), u, base.space.ballast)
	db.lazy.sync = func() error { return nil } // nothing is lazy: the log has it
	// absent.asked stays nil, so there is no filter of absent keys: other members add keys too.
	db.grouped.work.Go(db.grouped.run)
	if err := db.start(&v.options); err != nil {
		return nil, errors.Join(fmt.Errorf("store: %w", err), db.Close())
	}
	return db, nil
}

// ErrSealed is returned by a store that was sealed: nothing is changed any more.
var ErrSealed = errors.New("store: it was sealed: make a back-up of this directory, and restore it into an empty one, with --to single or --to group")

// maxSeal is more bytes than the batch of a seal has.
const maxSeal = 64

// Seal ends the store: what was changed before is all that it ever has. Of a group it writes the last batch that its log
// gets. A store of a single adapter refuses changes from then on with [ErrSealed], also when it is opened again.
func (db *DB) Seal() error {
	if !db.gate.enter() {
		return ErrClosed
	}
	defer db.gate.leave()
	b := db.db.NewBatch()
	if err := b.Set([]byte(metaSealed), []byte("1"), nil); err != nil {
		return errors.Join(fmt.Errorf("store: sealing: %w", err), b.Close())
	}
	if db.grouped != nil {
		defer b.Close()
		return db.grouped.submit(&submission{b, make(chan error, 1), true})
	}
	db.keeper.rows.Lock() // no Apply is under way
	defer db.keeper.rows.Unlock()
	if err := db.durably(b); err != nil {
		return err
	}
	db.sealed.Store(true)
	return nil
}

// closeView is Close of a store over a view.
func (db *DB) closeView() error {
	db.gate.wait()
	db.keeper.work.Wait()
	close(db.grouped.stop)
	db.grouped.work.Wait()
	return nil
}

// maxGroup is the bytes up to which batches are merged. A larger one stays alone.
const maxGroup = 512 << 10

// grouped merges the batches that wait while an append is under way: the log takes many
// callers' changes as one entry.
type grouped struct {
	log     Log
	waiting chan *submission
	stop    chan struct{}
	work    sync.WaitGroup
}

type submission struct {
	batch *pebble.Batch
	done  chan error
	seal  bool // it is an entry of its own, and the last one
}

// commit returns once the batch is committed, and visible.
func (g *grouped) commit(b *pebble.Batch) error {
	defer b.Close()
	if b.Empty() {
		if !g.log.Valid() {
			return ErrNotOwner
		}
		return nil // all that is visible is committed
	}
	return g.submit(&submission{b, make(chan error, 1), false})
}

func (g *grouped) submit(s *submission) error {
	select {
	case g.waiting <- s:
		return <-s.done
	case <-g.stop:
		return ErrClosed
	}
}

func (g *grouped) run() {
	var next *submission
	for sealed := false; ; {
		first := next
		if next = nil; first == nil {
			select {
			case first = <-g.waiting:
			case <-g.stop:
				return
			}
		}
		if sealed {
			first.done <- ErrNotOwner
			continue
		}
		all, merged := []*submission{first}, first.batch
		var err error
	gather:
		for err == nil && !first.seal && merged.Len() < maxGroup {
			select {
			case s := <-g.waiting:
				if s.seal || merged.Len()+s.batch.Len() > maxGroup {
					next = s
					break gather
				}
				all = append(all, s)
				err = merged.Apply(s.batch, nil)
			default:
				break gather
			}
		}
		if err == nil {
			err = g.log.Append(merged.Repr())
		}
		sealed = first.seal && err == nil
		for _, s := range all {
			s.done <- err
		}
	}
}
