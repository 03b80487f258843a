package store

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Repaired is what Repair did.
type Repaired struct {
	// Needed is false when nothing was wrong: then nothing was changed.
	Needed      bool   `json:"needed"`
	ID          string `json:"id"`
	Sources     int    `json:"sources"`
	Keys        int64  `json:"keys"`
	DeadLetters int64  `json:"deadLetters"`
	// Lost counts the entries that were there and cannot be read, LostKeys are the
	// first 100 of them. Gaps counts the places among the records that cannot be
	// read, and the tables and logs of which parts had to be left out: what of them
	// no index row names is not in Lost.
	Lost     int64    `json:"lost"`
	LostKeys []string `json:"lostKeys,omitempty"`
	Gaps     int64    `json:"gaps"`
	// Marks counts what is remembered of watched objects, as far as it can be read.
	Marks int64 `json:"marks,omitempty"`
	// Again reports that every watched object counts as changed, since entries or
	// parts of tables and logs were lost: its keys are scheduled once more.
	Again bool `json:"again,omitempty"`
	// NewID reports that the store's id could not be read: events that are repeated
	// after a crash have other ids than before.
	NewID bool `json:"newID,omitempty"`
	// Aside is the directory with the files from before, below the data directory.
	Aside string `json:"aside,omitempty"`
	// Problems are the first 100 that were found.
	Problems []string `json:"problems,omitempty"`
}

// Repair repairs a data directory that no process has open. It writes all readable
// records into a new store, whose index rows and counters follow from them as always,
// and replaces the old store by it. It keeps the old files in a directory aside. It
// needs disk space for the copy. A directory that Verify finds clean stays as it is. A
// repair that is cut off has changed nothing, or is ended by the next Open or Repair.
func Repair(o Options) (r Repaired, err error) {
	fs := o.fs()
	lock, err := lockPresent(fs, o.Dir)
	if err != nil {
		return r, fmt.Errorf("store: repairing %q: %w", o.Dir, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := endSwap(fs, o.Dir); err != nil {
		return r, fmt.Errorf("store: repairing %q: %w", o.Dir, err)
	}
	o.lock = lock
	d, err := openDamaged(o)
	if err != nil {
		return r, fmt.Errorf("store: repairing %q: %w", o.Dir, err)
	}
	old := d.db
	switch {
	case old.view:
		err = errors.New("store: it is a member's view of a replicated store, which is repaired by a copy of another member's: see docs/replication.md")
	case d.manifest != "":
		err = fmt.Errorf("store: repairing %q: %s", o.Dir, d.manifest)
	}
	if err != nil {
		return r, errors.Join(err, old.Close())
	}
	found, err := old.verify()
	for _, problem := range d.problems {
		found.problem("%s", problem)
	}
	if err != nil || found.Clean() {
		r.ID, r.Sources, r.Keys, r.DeadLetters = old.id, found.Sources, found.Keys, found.DeadLetters
		return r, errors.Join(err, old.Close())
	}
	r.Needed, r.Problems, r.Gaps = true, found.Problems, d.gaps
	made := fs.PathJoin(o.Dir, repairDir)
	if err = fs.RemoveAll(made); err == nil {
		err = old.copyTo(Options{Dir: made, FS: o.FS, Log: o.Log, Reserve: -1}, &r)
	}
	if err = errors.Join(err, old.Close()); err != nil {
		return r, fmt.Errorf("store: repairing %q: %w", o.Dir, err)
	}
	if r.Aside, err = swap(fs, o.Dir, freeName(fs, o.Dir)); err != nil {
		return r, fmt.Errorf("store: repairing %q: %w", o.Dir, err)
	}
	return r, nil
}

// remains is what can be read of a directory.
type remains struct {
	db       *DB
	problems []string // all that is wrong with files
	gaps     int64    // problems that may have hidden rows
	manifest string   // what is wrong with the manifest
}

// openDamaged opens what can be read of a directory, to read it. Tables that cannot be
// opened are reported once, rather than for every row that they hide.
func openDamaged(o Options) (*remains, error) {
	fs := newSalvage(o.fs())
	wrong, err := damagedFiles(fs.FS, o.Dir)
	if err != nil {
		return nil, err
	}
	replaced, err := fs.tables(o.Dir)
	if err != nil {
		return nil, err
	}
	d := &remains{}
	if d.problems, err = fs.logs(o.Dir, wrong, false); err != nil {
		return nil, err
	}
	o.FS, o.ReadOnly, o.lenient, o.partial = fs, true, true, len(replaced) > 0
	var refused string
	if d.db, err = Open(o); err != nil {
		if d.problems, err = fs.logs(o.Dir, wrong, true); err != nil {
			return nil, err
		}
		d.db, err = Open(o)
	}
	if err != nil {
		refused, fs.options = "the engine refused its file of options: "+firstLine(err.Error()), true
		var e error
		if d.db, e = Open(o); e != nil {
			return nil, err
		}
	}
	lost, err := d.db.lost(replaced)
	if err != nil {
		return nil, errors.Join(err, d.db.Close())
	}
	d.problems = append(lost, d.problems...)
	d.gaps = int64(len(d.problems))
	if refused != "" {
		d.problems = append(d.problems, refused)
	}
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		if strings.HasPrefix(name, manifestPrefix) {
			d.manifest = wrong[name] + ", so which tables hold the newest rows is not known: restore a back-up"
			d.problems = append(d.problems, d.manifest)
		}
	}
	return d, nil
}

// lockPresent locks a directory that holds something: the lock leaves a file.
func lockPresent(fs vfs.FS, dir string) (*pebble.Lock, error) {
	if _, err := fs.Stat(dir); err != nil {
		return nil, err
	}
	if holdsNothing(fs, dir) {
		return nil, ErrNothing
	}
	return lockDirectory(fs, dir)
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
	partial   bool // tables or logs had to be left out
}

func (db *DB) copyTo(o Options, r *Repaired) error {
	made, err := Open(o)
	if err != nil {
		return err
	}
	c := &copier{Repaired: r, old: db, made: made, sources: map[string]bool{}, lost: map[[2]string]bool{}, partial: r.Gaps > 0}
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
		case c.partial: // it was in a table or log that had to be left out
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
	n.count(change.Key, 1)
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
	commit, err := c.made.commit(b, false)
	if err != nil {
		return err
	}
	if err := commit.Wait(); err != nil || old.clock.at.IsZero() {
		return err
	}
	return c.made.SetClock(old.clock.at)
}

// readLenient is readMeta as far as it can be read. What is of another version, or not there
// though the store is not partial, is an error all the same.
func (db *DB) readLenient(partial bool) error {
	format, err := db.meta(metaFormat)
	if err == nil {
		if format == "" && !partial {
			return db.readMeta(true)
		}
		if format == "" { // it is in a table that cannot be opened
			format = strconv.Itoa(formatSingle)
			if hasLog(db.space.fs, db.dir) {
				format = strconv.Itoa(formatReplicated)
			}
		}
		if err := db.takeFormat(format); err != nil {
			return err
		}
	}
	for _, read := range [...]func() error{
		func() error { return err },
		func() (err error) { db.id, err = db.meta(metaID); return err },
		func() error {
			bound, err := db.metaNumber(metaRevision)
			db.revisions.bound.Store(uint64(max(bound, 0)))
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

// The names below the data directory of a repair. The new store takes the place
// of the old one file by file. Until swapOut is there nothing has changed; from
// then on the exchange goes only forward, and the name of the mark says how far
// it is: files go out, files come in.
const (
	repairDir   = "repair"
	swapOut     = "REPAIR-OUT"
	swapIn      = "REPAIR-IN"
	damagedName = "damaged-%d"
)

// freeName returns a name for the files from before that is not in use.
func freeName(fs vfs.FS, dir string) string {
	for n := 1; ; n++ {
		aside := fmt.Sprintf(damagedName, n)
		if _, err := fs.Stat(fs.PathJoin(dir, aside)); err != nil {
			return aside
		}
	}
}

// swap puts the store in repairDir in the place of the store in dir, and moves the old files
// to the directory aside, whose name it returns.
func swap(fs vfs.FS, dir, aside string) (string, error) {
	if err := fs.MkdirAll(fs.PathJoin(dir, aside), 0o700); err != nil {
		return "", err
	}
	begun := fs.PathJoin(dir, repairDir, swapOut) // whole before it is seen
	f, err := fs.Create(begun, vfs.WriteCategoryUnspecified)
	if err != nil {
		return "", err
	}
	_, err = io.WriteString(f, aside)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close(), syncDir(fs, fs.PathJoin(dir, repairDir))); err != nil {
		return "", err
	}
	if err := fs.Rename(begun, fs.PathJoin(dir, swapOut)); err != nil {
		return "", err
	}
	if err := syncDir(fs, dir); err != nil {
		return "", err
	}
	return aside, endSwap(fs, dir)
}

// swapping reports that an exchange has begun and not ended.
func swapping(fs vfs.FS, dir string) bool {
	_, out := fs.Stat(fs.PathJoin(dir, swapOut))
	_, in := fs.Stat(fs.PathJoin(dir, swapIn))
	return out == nil || in == nil
}

// endSwap ends an exchange that has begun. It may be cut off anywhere.
func endSwap(fs vfs.FS, dir string) error {
	out, in, made := fs.PathJoin(dir, swapOut), fs.PathJoin(dir, swapIn), fs.PathJoin(dir, repairDir)
	if _, err := fs.Stat(out); err == nil {
		f, err := fs.Open(out)
		if err != nil {
			return err
		}
		name, err := io.ReadAll(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		if err := moveFiles(fs, dir, fs.PathJoin(dir, string(name)), swapOut); err != nil {
			return err
		}
		if err := fs.Rename(out, in); err != nil {
			return err
		}
		if err := syncDir(fs, dir); err != nil {
			return err
		}
	}
	if _, err := fs.Stat(in); err != nil {
		return nil //nolint:nilerr // there is no mark, so nothing is to do
	}
	if _, err := fs.Stat(made); err == nil {
		if err := moveFiles(fs, made, dir, swapOut); err != nil { // a power loss may have left both names of the mark
			return err
		}
		if err := fs.RemoveAll(made); err != nil {
			return err
		}
	}
	if err := fs.Remove(in); err != nil {
		return err
	}
	return syncDir(fs, dir)
}

// moveFiles moves all files, no directories, but for locks, the ballast and the given ones.
func moveFiles(fs vfs.FS, from, to string, but ...string) error {
	names, err := fs.List(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == "LOCK" || name == ballastName || slices.Contains(but, name) {
			continue
		}
		info, err := fs.Stat(fs.PathJoin(from, name))
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() { // a directory, or the socket of back-ups
			continue
		}
		if err := fs.Rename(fs.PathJoin(from, name), fs.PathJoin(to, name)); err != nil {
			return err
		}
	}
	return errors.Join(syncDir(fs, to), syncDir(fs, from))
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
