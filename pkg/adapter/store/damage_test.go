package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const damagedKeys = 150

// wholeStore is a store of one flushed table, over many blocks. With entries of
// all kinds every table of the format has some.
func wholeStore(t *testing.T) (fs *vfs.MemFS, keys []string) {
	t.Helper()
	fs = vfs.NewMem()
	db := open(t, Options{FS: fs})
	r := rand.New(rand.NewPCG(1, 1))
	for i := range damagedKeys {
		key := fmt.Sprintf("k%04d", i)
		keys = append(keys, key)
		e := goldenEntries()["full"]
		e.Revision = uint64(i + 1)
		e.DueAt, e.RetryAt = e.DueAt.Add(time.Duration(i)*time.Second), e.RetryAt.Add(time.Duration(i)*time.Second)
		data := make([]byte, 400)
		for j := range data {
			data[j] = byte(r.Uint32())
		}
		e.Event = &schedule.Event{Type: "t", Data: data}
		must(t, errorOf(db.Apply(true, Change{Source: "s", Key: key, New: e})))
	}
	must(t, db.db.Flush())
	must(t, db.Close())
	return fs, keys
}

// table is the largest table of the store and its size.
func table(t *testing.T, fs vfs.FS) (name string, size int64) {
	t.Helper()
	names, err := fs.List("data/store")
	must(t, err)
	for _, n := range names {
		if !strings.HasSuffix(n, ".sst") {
			continue
		}
		info, err := fs.Stat(fs.PathJoin("data/store", n))
		must(t, err)
		if info.Size() > size {
			name, size = fs.PathJoin("data/store", n), info.Size()
		}
	}
	return name, size
}

// damaged is a copy of the store with two bytes wrong.
func damaged(t *testing.T, fs vfs.FS, at int64) *vfs.MemFS {
	t.Helper()
	bad := copyOf(t, fs)
	name, _ := table(t, bad)
	write(t, bad, name, at, []byte{0xaa, 0x55})
	return bad
}

// Two wrong bytes anywhere in the data hide only entries whose own record they are in, and keep neither the store from
// starting nor a source from being delivered. What is hidden can be removed and replaced, and a repair makes all of it
// whole.
func TestDamage_StopsNothingElse(t *testing.T) {
	t.Parallel()
	fs, keys := wholeStore(t)
	_, size := table(t, fs)
	step, least := int64(6000), 5
	if testing.Short() {
		step, least = step*8, 2
	}
	var lost, refused, places int
	for at := int64(100); at < size*9/10; at += step { // the index of the table is at its end
		places++
		synctest.Test(t, func(t *testing.T) {
			l, ok := damagedAt(t, damaged(t, fs, at), at, keys)
			if lost += l; !ok {
				refused++
			}
		})
		if t.Failed() {
			return
		}
	}
	if lost == 0 || refused > 1 || places < least {
		t.Errorf("%d places: %d keys were lost, %d times it did not start", places, lost, refused)
	}
}

func damagedAt(t *testing.T, fs *vfs.MemFS, at int64, keys []string) (lost int, started bool) {
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("damage at %d: %s", at, fmt.Sprintf(format, args...))
	}
	if v, err := Verify(Options{Dir: "data", FS: fs}); err == nil && v.Clean() {
		fail("verify finds nothing")
	}
	var log bytes.Buffer
	db, err := Open(Options{Dir: "data", FS: fs, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		if !strings.Contains(err.Error(), "adapter repair") {
			fail("it does not start: %v", err)
		}
	} else {
		lost = readDamaged(t, db, keys, fail)
		if lines := strings.Count(log.String(), "data on the disk are corrupt"); int64(lines) != db.Corrupt() || lines == 0 {
			fail("%d lines of the log about %d corrupt places", lines, db.Corrupt())
		}
		if err := db.Close(); err != nil {
			fail("%v", err)
		}
		if t.Failed() {
			return lost, true
		}
	}
	if err != nil { // what cannot be read shows in the repair
		lost = unreadable(t, fs, keys)
	}
	repairDamaged(t, fs, keys, lost, err == nil, fail)
	return lost, err == nil
}

// readDamaged reads everything and says how many entries cannot be read. One of them it replaces.
func readDamaged(t *testing.T, db *DB, keys []string, fail func(string, ...any)) (lost int) {
	t.Helper()
	var good, bad []string
	for i, key := range keys {
		switch e, err := db.Get("s", key); {
		case isCorrupt(err):
			bad = append(bad, key)
		case err != nil || e == nil || e.Revision != uint64(i+1):
			fail("%s: %+v %v", key, e, err)
		default:
			good = append(good, key)
		}
	}
	if n, _, err := db.Count("s"); n != damagedKeys || err != nil {
		fail("%d are counted: %v", n, err)
	}
	for _, limit := range []int{7, 1000} {
		var due []string
		for after, more := (Position{}), true; more; {
			var rows []Row
			var err error
			if rows, more, err = db.Due(nil, "s", schedule.NormalPriority, after, limit); err != nil {
				fail("due: %v", err)
				return 0
			}
			for _, row := range rows {
				if due, after = append(due, row.Key), row.Position; len(due) > damagedKeys {
					fail("too much is due")
					return 0
				}
			}
		}
		if missing := slices.DeleteFunc(slices.Clone(good), func(k string) bool { return slices.Contains(due, k) }); len(missing) > 0 || !slices.IsSorted(due) {
			fail("%d are due, %v are missing", len(due), missing)
		}
		var listed []string
		for after, more := "", true; more; {
			var items []Item
			var err error
			if items, more, err = db.List("s", "", after, limit, true); err != nil {
				fail("list: %v", err)
				return 0
			}
			for _, item := range items {
				if listed, after = append(listed, item.Key), item.Key; (item.Entry == nil) != slices.Contains(bad, item.Key) {
					fail("%s is listed as %+v", item.Key, item.Entry)
				}
			}
		}
		if !slices.Equal(listed, keys) {
			fail("%d are listed", len(listed))
		}
	}
	if all, err := db.Unfinished(); err != nil || len(all) < len(good) {
		fail("%d are unfinished: %v", len(all), err)
	}
	if all, err := db.Sources(); err != nil || !slices.Equal(all, []string{"s"}) {
		fail("sources: %v %v", all, err)
	}
	_, _, expiredErr := db.Expired(golden.Add(24*time.Hour), SourceRow{}, 1000)
	_, _, dueErr := db.ListDue("s", "", Position{}, 1000, 1000)
	_, backlogErr := db.Backlog("s", golden, 0, 1000, nil)
	if err := errors.Join(expiredErr, dueErr, backlogErr); err != nil {
		fail("%v", err)
	}
	if len(bad) < 2 {
		return len(bad)
	}
	for i, e := range []*schedule.Entry{nil, goldenEntries()["full"]} {
		key := bad[i]
		c, err := db.Apply(false, Change{Source: "s", Key: key, New: e, Corrupt: true})
		if err == nil {
			err = c.Wait()
		}
		got, gotErr := db.Get("s", key)
		if err != nil || gotErr != nil || (got == nil) != (e == nil) {
			fail("%s is replaced: %v %+v %v", key, err, got, gotErr)
		}
	}
	synctest.Wait() // the rows of the removed key go in the background
	if n, _, err := db.Count("s"); n != damagedKeys-1 || err != nil {
		fail("%d are counted without the removed key: %v", n, err)
	}
	return len(bad)
}

// unreadable counts the keys that cannot be read in a store that does not start.
func unreadable(t *testing.T, fs vfs.FS, keys []string) (lost int) {
	t.Helper()
	db := open(t, Options{FS: fs, ReadOnly: true, lenient: true})
	for _, key := range keys {
		if _, err := db.Get("s", key); isCorrupt(err) {
			lost++
		}
	}
	must(t, db.Close())
	return lost
}

func repairDamaged(t *testing.T, fs *vfs.MemFS, keys []string, bad int, started bool, fail func(string, ...any)) {
	t.Helper()
	wantKeys, wantLost := damagedKeys-bad, bad
	if bad >= 2 && started { // one of the unreadable keys was removed, one replaced
		wantKeys, wantLost = wantKeys+1, bad-2
	}
	r, err := Repair(Options{Dir: "data", FS: fs}, "new")
	if err != nil || r.Keys != int64(wantKeys) || r.Lost != int64(wantLost) || len(r.LostKeys) != wantLost {
		fail("repair: %+v %v, want %d keys and %d lost", r, err, wantKeys, wantLost)
		return
	}
	if v, err := Verify(Options{Dir: "new", FS: fs}); err != nil || !v.Clean() || v.Keys != int64(wantKeys) {
		fail("after the repair: %+v %v", v, err)
	}
	db := open(t, Options{Dir: "new", FS: fs})
	defer db.Close()
	if n, err := db.NextRevision(); err != nil || n <= damagedKeys {
		fail("revision %d is handed out again: %v", n, err)
	}
	for _, key := range keys {
		if _, err := db.Get("s", key); err != nil {
			fail("after the repair: %v", err)
		}
	}
}

// Each corrupt place is told once, and the places that are told are bounded.
func TestCorruption_LoggedOnceAPlace(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	db := open(t, Options{FS: vfs.NewMem(), Log: slog.New(slog.NewTextHandler(&log, nil))})
	for range 2 {
		for i := range maxPlaces + 10 {
			db.corruptAt(fmt.Sprint(i), errRow)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != maxPlaces || db.Corrupt() != maxPlaces {
		t.Errorf("%d lines, %d counted", n, db.Corrupt())
	}
}

// A counter that cannot be read, or is no number, is counted again from the records.
func TestCounter_UnreadableIsRecounted(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	db := open(t, Options{FS: fs})
	fill(t, db, "a", "b", schedule.DeadLetterKey(7))
	for range 2 {
		must(t, db.db.Set(appendCounterKey(nil, "s"), []byte{0xff}, pebble.Sync))
		must(t, db.Close())
		db = open(t, Options{FS: fs})
		if keys, dead, err := db.Count("s"); keys != 2 || dead != 1 || err != nil {
			t.Error(keys, dead, err)
		}
	}
	must(t, db.Close())
	clean(t, Options{FS: fs})
}

// A log that lacks what was on stable storage refuses the start. A repair copies what the tables and the rest of the
// log have, and the old directory stays as it was.
func TestDamage_RepairOfALogCopiesTheRest(t *testing.T) {
	t.Parallel()
	const n = 40
	whole, name := unflushed(t, n)
	size := sizeOf(t, whole, "data/store/"+name)
	for _, percent := range []int64{1, 20, 60, 97} {
		fs := copyOf(t, whole)
		cut(t, fs, "data/store/"+name, size*percent/100)
		before := namesOf(t, fs, "")
		r, err := Repair(Options{Dir: "data", FS: fs}, "new")
		if least := (n/2 - 1) * (percent + 30) / 100; err != nil || r.Gaps != 1 || r.Keys < least || r.Keys >= n {
			t.Errorf("damage at %d%%: %+v %v", percent, r, err)
		}
		if after := namesOf(t, fs, ""); !slices.Equal(before, after) {
			t.Errorf("the files were %v, now %v", before, after)
		}
		db := open(t, Options{Dir: "new", FS: fs})
		must(t, db.Close())
		if v := clean(t, Options{Dir: "new", FS: fs}); v.Keys != r.Keys {
			t.Errorf("damage at %d%%: after the repair: %+v", percent, v)
		}
	}
}

// A log whose first block is damaged has no row about the store any more. The store is damaged all the same: verify and
// repair took it for an empty directory.
func TestVerify_DamagedFirstBlockIsNotNothing(t *testing.T) {
	t.Parallel()
	fs, name := unflushed(t, 2)
	write(t, fs, "data/store/"+name, 60, nil)
	if v, err := Verify(Options{Dir: "data", FS: fs}); err != nil || v.Clean() || !strings.Contains(strings.Join(v.Problems, "\n"), name) {
		t.Errorf("verify: %+v %v", v, err)
	}
	if r, err := Repair(Options{Dir: "data", FS: fs}, "new"); err != nil || r.Gaps != 1 || !r.NewID {
		t.Errorf("repair: %+v %v", r, err)
	}
}

// What is repaired of a sealed store is sealed: its keys may have moved. It took changes again, and delivered.
func TestRepair_SealedStaysSealed(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	db := open(t, Options{FS: fs})
	fill(t, db, "a")
	must(t, errors.Join(db.Seal(), db.Close()))
	if r, err := Repair(Options{Dir: "data", FS: fs}, "new"); err != nil || r.Keys != 1 {
		t.Errorf("%+v %v", r, err)
	}
	if db = open(t, Options{Dir: "new", FS: fs}); !db.Sealed() {
		t.Error("the seal is gone")
	}
}

// The new directory of a repair that was cut off is no store: only another repair may use it.
func TestRepair_CutOffIsNoStore(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	db := open(t, Options{FS: fs})
	fill(t, db, "a")
	must(t, db.Close())
	if lock, err := Claim(Options{Dir: "new", FS: fs}); err != nil || lock.Close() != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: "new", FS: fs}); !errors.Is(err, errCutOff) {
		t.Error(err)
	}
	if r, err := Repair(Options{Dir: "data", FS: fs}, "new"); err != nil || r.Keys != 1 {
		t.Errorf("%+v %v", r, err)
	}
	if r, err := Repair(Options{Dir: "data", FS: fs}, "new"); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("into a directory with a store: %+v %v", r, err)
	}
}

// A directory that is no data directory is left as it is.
func TestVerify_WrongDirectory(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]func(Options) error{
		"verify": func(o Options) error { _, err := Verify(o); return err },
		"repair": func(o Options) error { _, err := Repair(o, "new"); return err },
	} {
		fs := vfs.NewMem()
		must(t, fs.MkdirAll("wrong", 0o700))
		if err := command(Options{Dir: "wrong", FS: fs}); !errors.Is(err, ErrNothing) {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := fs.List("wrong"); err != nil || len(left) > 0 {
			t.Errorf("%s left %v, %v", name, left, err)
		}
	}
}

// A directory in use is refused, and so is one of another format.
func TestRepair_RefusesWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	db := open(t, Options{FS: fs})
	if _, err := Repair(Options{Dir: "data", FS: fs}, "new"); err == nil {
		t.Error("a store in use was repaired")
	}
	must(t, db.db.Set([]byte(metaFormat), []byte("99"), pebble.Sync))
	must(t, db.Close())
	if _, err := Repair(Options{Dir: "data", FS: fs}, "new"); err == nil || !strings.Contains(err.Error(), "version 99") {
		t.Error(err)
	}
	if _, err := Repair(Options{Dir: "absent", FS: fs}, "new"); err == nil {
		t.Error("a directory that is not there was repaired")
	}
}

// write writes bytes into a file, or flips one bit.
func write(t *testing.T, fs vfs.FS, name string, at int64, data []byte) {
	t.Helper()
	f, err := fs.OpenReadWrite(name, "test")
	must(t, err)
	defer f.Close()
	if data == nil {
		data = make([]byte, 1)
		must(t, errorOf(f.ReadAt(data, at)))
		data[0] ^= 8
	}
	must(t, errorOf(f.WriteAt(data, at)))
}

// unflushed is a store whose entries are in the log only, as after kill -9: the last records
// are larger than a block of the log.
func unflushed(t *testing.T, n int) (fs *vfs.MemFS, log string) {
	t.Helper()
	disk := vfs.NewCrashableMem()
	db := open(t, Options{FS: disk})
	for i := range n {
		e := goldenEntries()["full"]
		e.Revision = uint64(i + 1)
		e.Event = &schedule.Event{Type: "t", Data: bytes.Repeat([]byte{byte(i)}, 200+i/(n/2)*100_000)}
		c, err := db.Apply(false, Change{Source: "s", Key: fmt.Sprintf("k%04d", i), New: e})
		must(t, err)
		must(t, c.Wait())
	}
	fs = disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	must(t, db.Close())
	s, err := openSynced(fs, "data/store")
	if err != nil || len(s.files) == 0 {
		t.Fatal(s, err)
	}
	return fs, s.files[len(s.files)-1].name
}

// copyOf is a copy of a data directory, to damage it.
func copyOf(t *testing.T, fs vfs.FS) *vfs.MemFS {
	t.Helper()
	bad := vfs.NewMem()
	must(t, errorOf(vfs.Clone(fs, bad, "data", "data")))
	return bad
}

func sizeOf(t *testing.T, fs vfs.FS, name string) int64 {
	t.Helper()
	info, err := fs.Stat(name)
	must(t, err)
	return info.Size()
}
