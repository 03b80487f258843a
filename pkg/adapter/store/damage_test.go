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
		if _, err := db.Apply(true, Change{Source: "s", Key: key, New: e}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.db.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return fs, keys
}

// table is the largest table of the store and its size.
func table(t *testing.T, fs vfs.FS) (name string, size int64) {
	t.Helper()
	names, err := fs.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if !strings.HasSuffix(n, ".sst") {
			continue
		}
		info, err := fs.Stat(fs.PathJoin("data", n))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > size {
			name, size = fs.PathJoin("data", n), info.Size()
		}
	}
	return name, size
}

// damaged is a copy of the store with two bytes wrong.
func damaged(t *testing.T, fs vfs.FS, at int64) *vfs.MemFS {
	t.Helper()
	bad := vfs.NewMem()
	if _, err := vfs.Clone(fs, bad, "data", "data"); err != nil {
		t.Fatal(err)
	}
	name, _ := table(t, bad)
	f, err := bad.OpenReadWrite(name, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{0xaa, 0x55}, at); err != nil {
		t.Fatal(err)
	}
	return bad
}

// Two wrong bytes anywhere in the data hide only entries whose own record
// they are in, and keep neither the store from starting nor a source from being
// delivered. What is hidden can be removed and replaced, and a repair makes all
// of it whole.
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
		l, ok := damagedAt(t, damaged(t, fs, at), at, keys)
		places++
		if !ok {
			refused++
		}
		if lost += l; t.Failed() {
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

// readDamaged reads everything and says how many entries cannot be read. One
// of them it replaces.
func readDamaged(t *testing.T, db *DB, keys []string, fail func(string, ...any)) (lost int) {
	t.Helper()
	var good, bad []string
	for _, key := range keys {
		switch e, err := db.Get("s", key); {
		case isCorrupt(err):
			bad = append(bad, key)
		case err != nil || e == nil:
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
			if rows, more, err = db.Due(nil, "s", after, limit); err != nil {
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
	_, backlogErr := db.Backlog("s", golden, 1000, nil)
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
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return lost
}

func repairDamaged(t *testing.T, fs *vfs.MemFS, keys []string, bad int, started bool, fail func(string, ...any)) {
	t.Helper()
	wantKeys, wantLost := damagedKeys-bad, bad
	if bad >= 2 && started { // one of the unreadable keys was removed, one replaced
		wantKeys, wantLost = wantKeys+1, bad-2
	}
	r, err := Repair(Options{Dir: "data", FS: fs})
	if err != nil || !r.Needed || r.Keys != int64(wantKeys) || r.Lost != int64(wantLost) || len(r.LostKeys) != wantLost || r.Aside != "damaged-1" {
		fail("repair: %+v %v, want %d keys and %d lost", r, err, wantKeys, wantLost)
		return
	}
	if v, err := Verify(Options{Dir: "data", FS: fs}); err != nil || !v.Clean() || v.Keys != int64(wantKeys) {
		fail("after the repair: %+v %v", v, err)
	}
	if again, err := Repair(Options{Dir: "data", FS: fs}); err != nil || again.Needed || again.Keys != r.Keys {
		fail("a second repair: %+v %v", again, err)
	}
	db := open(t, Options{FS: fs})
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

// A record that makes no sense is removed with its rows and its count, and
// replaced without being counted twice.
func TestRecord_UnreadableIsRemovedWithItsRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		db := open(t, Options{FS: fs})
		fill(t, db, "a", "b", "c")
		for _, key := range []string{"a", "b"} {
			if err := db.db.Set(appendRecordKey(nil, "s", key), []byte{99}, pebble.Sync); err != nil {
				t.Fatal(err)
			}
		}
		e := goldenEntries()["full"]
		e.Revision = 9
		for _, c := range []Change{{Source: "s", Key: "a", Corrupt: true}, {Source: "s", Key: "b", Corrupt: true, New: e}} {
			if _, err := db.Apply(false, c); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n, _, err := db.Count("s"); n != 2 || err != nil {
			t.Error(n, err)
		}
		if rows, _, err := db.Due(nil, "s", Position{}, 10); len(rows) != 2 || err != nil {
			t.Error(rows, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if r, err := Verify(Options{Dir: "data", FS: fs}); err != nil || !r.Clean() {
			t.Errorf("%+v %v", r, err)
		}
	})
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

// A counter that cannot be read is counted anew from the records, also where
// it is no number.
func TestCounter_UnreadableIsRecounted(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	db := open(t, Options{FS: fs})
	fill(t, db, "a", "b", schedule.DeadLetterKey(7))
	for range 2 {
		if err := db.db.Set(appendCounterKey(nil, "s"), []byte{0xff}, pebble.Sync); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		db = open(t, Options{FS: fs})
		if keys, dead, err := db.Count("s"); keys != 2 || dead != 1 || err != nil {
			t.Error(keys, dead, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := Verify(Options{Dir: "data", FS: fs}); err != nil || !r.Clean() {
		t.Errorf("%+v %v", r, err)
	}
}

// A repair that is cut off at any step of the exchange is ended by the next
// start.
func TestRepair_CutOffAnywhereIsEnded(t *testing.T) {
	t.Parallel()
	whole := vfs.NewMem()
	db := open(t, Options{FS: whole})
	fill(t, db, "a", "b")
	if err := db.db.Delete(appendCounterKey(nil, "s"), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	cut := 0
	for n := 0; ; n++ {
		fs := vfs.NewMem()
		if _, err := vfs.Clone(whole, fs, "data", "data"); err != nil {
			t.Fatal(err)
		}
		_, err := Repair(Options{Dir: "data", FS: &cutFS{FS: fs, left: n}})
		ended := err == nil
		if !ended && !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		if swapping(fs, "data") {
			cut++
			if _, err := Verify(Options{Dir: "data", FS: fs}); err == nil || !strings.Contains(err.Error(), "adapter repair") {
				t.Errorf("cut off at %d: verify: %v", n, err)
			}
		}
		db := open(t, Options{FS: fs})
		for _, key := range []string{"a", "b"} {
			if e, err := db.Get("s", key); err != nil || e == nil {
				t.Errorf("cut off at %d: %+v %v", n, e, err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if r, err := Repair(Options{Dir: "data", FS: fs}); err != nil || ended && r.Needed || r.Keys != 2 {
			t.Errorf("cut off at %d: %+v %v", n, r, err)
		}
		if ended {
			break
		}
	}
	if cut < 5 {
		t.Errorf("the exchange was cut off %d times", cut)
	}
}

var errCut = errors.New("cut off")

// cutFS fails all changes of names in the data directory after some.
type cutFS struct {
	vfs.FS
	left int
}

func (f *cutFS) Rename(from, to string) error {
	if strings.HasPrefix(from, "data/repair/") && strings.HasPrefix(to, "data/repair/") { // the engine's
		return f.FS.Rename(from, to)
	}
	if f.left--; f.left < 0 {
		return errCut
	}
	return f.FS.Rename(from, to)
}

// A directory that is no data directory is left as it is. A file LOCK was left in it, and then
// no back-up could be restored into an empty one.
func TestVerify_WrongDirectory(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]func(Options) error{
		"verify": func(o Options) error { _, err := Verify(o); return err },
		"repair": func(o Options) error { _, err := Repair(o); return err },
	} {
		fs := vfs.NewMem()
		if err := fs.MkdirAll("wrong", 0o700); err != nil {
			t.Fatal(err)
		}
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
	if _, err := Repair(Options{Dir: "data", FS: fs}); err == nil {
		t.Error("a store in use was repaired")
	}
	if err := db.db.Set([]byte(metaFormat), []byte("99"), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Repair(Options{Dir: "data", FS: fs}); err == nil || !strings.Contains(err.Error(), "version 99") {
		t.Error(err)
	}
	if _, err := Repair(Options{Dir: "absent", FS: fs}); err == nil {
		t.Error("a directory that is not there was repaired")
	}
}
