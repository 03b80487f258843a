package store

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Repaired is what Repair did.
type Repaired struct {
	ID          string `json:"id"`
	Sources     int    `json:"sources"`
	Keys        int64  `json:"keys"`
	DeadLetters int64  `json:"deadLetters"`
	// Lost counts the entries that were there and cannot be read, LostKeys are the
	// first 100 of them. Gaps counts the places among the records that cannot be
	// read, and the files that lack what was on stable storage: what of them
	// no index row names is not in Lost.
	Lost     int64    `json:"lost"`
	LostKeys []string `json:"lostKeys,omitempty"`
	Gaps     int64    `json:"gaps"`
	// Marks counts what is remembered of watched objects, as far as it can be read.
	Marks int64 `json:"marks,omitempty"`
	// Again reports that every watched object counts as changed, because entries were lost, or may be:
	// its keys are scheduled once more.
	Again bool `json:"again,omitempty"`
	// NewID reports that the store's id could not be read: events that are repeated
	// after a crash have other ids than before.
	NewID bool `json:"newID,omitempty"`
}

// Repair copies all that can be read of a data directory, which no process has open, into the empty directory to. Index
// rows and counters follow from the records as always. It changes nothing in the old directory. After an error nothing is
// left in the new one but its lock, and after a crash a start with it is refused.
func Repair(o Options, to string) (r Repaired, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("store: repairing %q: %w", o.Dir, err)
		}
	}()
	old, damaged, err := openDamaged(o)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, old.Close()) }()
	if old.form == Group {
		return r, errors.New("it is of a member of a group, which takes a copy of another member's view by itself; if no other member is left, restore a back-up")
	}
	made := Options{Dir: to, FS: o.FS, Log: o.Log, New: true}
	lock, err := Claim(made)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	for _, name := range slices.Sorted(maps.Keys(damaged)) {
		if strings.HasPrefix(name, manifestPrefix) {
			return r, fmt.Errorf("%s, so which tables hold the newest rows is not known: restore a back-up", damaged[name])
		}
	}
	r.Gaps = int64(len(damaged))
	if err = old.copyTo(made, &r); err == nil {
		err = Adopt(made)
	}
	if err != nil {
		err = errors.Join(err, made.fs().RemoveAll(NewDir(made)))
	}
	return r, err
}

// openDamaged opens a directory to read what can be read, and returns what is wrong with its logs and its
// manifest, by their names.
func openDamaged(o Options) (db *DB, damaged map[string]string, err error) {
	o.ReadOnly, o.lenient = true, true
	if db, err = Open(o); err != nil {
		return nil, nil, err
	}
	if damaged, err = db.full.synced.check(); err != nil {
		return nil, nil, errors.Join(err, db.Close())
	}
	return db, damaged, nil
}

const (
	repairBatch = 1000    // changes at a time
	repairBytes = 1 << 20 // and about how much data
)

// copier copies records into a new store.
type copier struct {
	*Repaired
	old, made *DB
	changes   []Change
	bytes     int
	sources   map[string]bool
	lost      map[[2]string]bool
	newest    uint64
}

func (db *DB) copyTo(o Options, r *Repaired) error {
	made, err := Open(o)
	if err != nil {
		return err
	}
	c := &copier{Repaired: r, old: db, made: made, sources: map[string]bool{}, lost: map[[2]string]bool{}}
	err = c.records()
	if err == nil {
		err = c.overwritten()
	}
	if err == nil {
		err = c.watched()
	}
	if err == nil {
		err = c.meta()
	}
	r.Sources, r.Lost = len(c.sources), int64(len(c.lost))
	return errors.Join(err, made.Close())
}

// records copies what a walk over the records finds.
func (c *copier) records() (err error) {
	table := appendTable(nil, tableRecord)
	it, err := c.old.scan(c.old.db, table, successor(table))
	if err != nil {
		return err
	}
	defer it.done(&err)
	for ok := it.First(); ok || it.gap != nil; ok = ok && it.Next() {
		if it.gap != nil {
			if c.Gaps++; !ok {
				break
			}
		}
		source, key, err := parseSourced(it.Key())
		if err == nil {
			err = checkNames(source, key)
		}
		if err != nil {
			continue // no record: it is in the problems
		}
		e, err := c.old.item(it, source, key, true)
		if err != nil {
			return err
		}
		if e == nil {
			c.recordLoss(source, key)
			continue
		}
		if err := c.put(Change{Source: source, Key: key, New: e}); err != nil {
			return err
		}
	}
	return c.flush()
}

// overwritten copies what the walk had to pass over and can be read one by one:
// keys that index rows name, and that were changed since their block was lost.
func (c *copier) overwritten() (err error) {
	if c.Gaps == 0 {
		return nil
	}
	table := appendTable(nil, tableDue)
	it, err := c.old.scan(c.old.db, table, successor(table))
	if err != nil {
		return err
	}
	defer it.done(&err)
	for ok := it.First(); ok; ok = it.Next() {
		source, key, err := rowOf(it.Key())
		if err != nil || c.lost[[2]string{source, key}] {
			continue
		}
		if there, err := c.made.Get(source, key); err != nil || there != nil {
			if err != nil {
				return err
			}
			continue
		}
		e, err := c.old.Get(source, key)
		switch {
		case isCorrupt(err):
			c.recordLoss(source, key)
		case err != nil:
			return err
		case e != nil:
			if err := errors.Join(c.put(Change{Source: source, Key: key, New: e}), c.flush()); err != nil { // another row may name it
				return err
			}
		default: // it was in what a log lacks
			c.recordLoss(source, key)
		}
	}
	return c.flush()
}

// watched copies the marks and the states of watches. Where entries were lost, a mark
// may say that a change was scheduled that is not there any more: then no fingerprint
// is right, and each watch begins with a list.
func (c *copier) watched() error {
	lost := len(c.lost) > 0 || c.Gaps > 0
	var marks []MarkChange
	held := 0
	flush := func() error {
		_, err := c.made.ApplyMarked(true, marks)
		marks, held = marks[:0], 0
		return err
	}
	table := appendTable(nil, tableMark)
	err := c.old.eachMark(table, successor(table), func(it *scan) (bool, error) {
		source, watch, object, err := parseWatched(it.Key())
		if err != nil || object == "" {
			return true, nil //nolint:nilerr // no mark: it is in the problems
		}
		m, err := c.old.markAt(it, object)
		if err != nil || m == nil {
			return err == nil, err
		}
		if lost {
			m.Hash, c.Again = ^m.Hash, true
		}
		c.Marks++
		c.sources[source] = true
		marks = append(marks, MarkChange{Source: source, Watch: watch, Mark: *m})
		if held += int(m.Size()); held < repairBytes && len(marks) < repairBatch {
			return true, nil
		}
		return true, flush()
	})
	if err == nil && len(marks) > 0 {
		err = flush()
	}
	if err != nil {
		return err
	}
	table = appendTable(nil, tableWatch)
	return c.old.eachMark(table, successor(table), func(it *scan) (bool, error) {
		state, err := c.old.stateAt(it)
		if err != nil || state == nil {
			return err == nil, err
		}
		source, _, _, err := parseWatched(it.Key())
		if err != nil {
			return false, err
		}
		if _, counted := state.MarkCount(); counted {
			return true, nil // marks may be lost: they are counted anew
		}
		if lost {
			state.Version = ""
		}
		c.sources[source] = true
		return true, c.made.SetWatchState(source, *state)
	})
}

func (c *copier) recordLoss(source, key string) {
	c.lost[[2]string{source, key}] = true
	if len(c.LostKeys) < maxProblems {
		c.LostKeys = append(c.LostKeys, source+" "+key)
	}
}

func (c *copier) put(change Change) error {
	c.sources[change.Source] = true
	c.newest = max(c.newest, change.New.Revision)
	var n sum
	n.count(change.Key, change.New, 1)
	c.Keys, c.DeadLetters = c.Keys+n.keys, c.DeadLetters+n.dead
	c.changes = append(c.changes, change)
	if c.bytes += int(change.New.Size(change.Key)); c.bytes < repairBytes && len(c.changes) < repairBatch {
		return nil
	}
	return c.flush()
}

func (c *copier) flush() error {
	_, err := c.made.Apply(true, c.changes...)
	c.changes, c.bytes = c.changes[:0], 0
	return err
}

// meta takes over what the store records of itself, as far as it can be read.
func (c *copier) meta() error {
	old := c.old
	// What was lost may have raised the bound.
	bound := beyond(max(old.revisions.bound.Load(), c.newest), time.Now())
	c.ID, c.NewID = old.id, old.id == ""
	if c.NewID {
		c.ID = c.made.id
	}
	b := c.made.db.NewBatch()
	for _, row := range [...][2]string{{metaID, c.ID}, {metaRevision, strconv.FormatUint(bound, 10)}} {
		if err := b.Set([]byte(row[0]), []byte(row[1]), nil); err != nil {
			return fmt.Errorf("store: writing %s: %w", row[0], err)
		}
	}
	if old.Sealed() {
		if err := b.Set([]byte(metaSealed), []byte("1"), nil); err != nil {
			return fmt.Errorf("store: writing %s: %w", metaSealed, err)
		}
	}
	commit, err := c.made.commit(b, false)
	if err != nil {
		return err
	}
	if err := commit.Wait(); err != nil || old.clock.at.IsZero() {
		return err
	}
	return c.made.SetClock(old.clock.at)
}

// readLenient is readMeta as far as it can be read. Another version is an error all the same.
func (db *DB) readLenient() error {
	version, err := db.meta(metaFormat)
	if err == nil && version == "" { // the row may be in what a log lacks
		err = cmp.Or(db.full.synced.refuse(), ErrNothing)
	}
	switch {
	case err == nil:
		if err := db.takeFormat(version, true); err != nil && !pebble.IsCorruptionError(err) {
			return err
		}
	case !pebble.IsCorruptionError(err) && !errors.Is(err, ErrDamaged):
		return err
	case hasLog(db.space.fs, db.dir):
		db.form = Group
	}
	for _, read := range [...]func() error{
		func() (err error) { db.id, err = db.meta(metaID); return err },
		func() error {
			bound, err := db.metaNumber(metaRevision)
			db.revisions.bound.Store(uint64(max(bound, 0)))
			return err
		},
		func() error {
			sealed, err := db.meta(metaSealed)
			db.sealed.Store(sealed != "")
			return err
		},
		func() error {
			clock, err := db.metaNumber(metaClock)
			if err == nil && clock != 0 {
				db.clock.at = time.Unix(0, clock).UTC()
			}
			return err
		},
	} {
		if err := read(); err != nil && !pebble.IsCorruptionError(err) {
			return err
		}
	}
	return nil
}
