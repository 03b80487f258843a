package store

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// tornIndex is a store with a table that cannot be opened. What the store knows
// of itself and the last two keys are not in that.
func tornIndex(t *testing.T, fromEnd int64) (fs *vfs.MemFS, keys []string) {
	t.Helper()
	fs, keys = wholeStore(t)
	db := open(t, Options{FS: fs})
	for i, key := range []string{"n1", "n2"} {
		e := goldenEntries()["full"]
		e.Revision = uint64(damagedKeys + 1 + i)
		if _, err := db.Apply(true, Change{Source: "s", Key: key, New: e}); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	for _, row := range []string{metaFormat, metaID, metaRevision} {
		value, err := db.meta(row)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.db.Set([]byte(row), []byte(value), pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.SetClock(golden); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil { // these are in the log
		t.Fatal(err)
	}
	name, size := table(t, fs)
	write(t, fs, name, size-fromEnd, nil)
	return fs, keys
}

// write writes bytes into a file, or flips one bit.
func write(t *testing.T, fs vfs.FS, name string, at int64, data []byte) {
	t.Helper()
	f, err := fs.OpenReadWrite(name, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if data == nil {
		data = make([]byte, 1)
		if _, err := f.ReadAt(data, at); err != nil {
			t.Fatal(err)
		}
		data[0] ^= 8
	}
	if _, err := f.WriteAt(data, at); err != nil {
		t.Fatal(err)
	}
}

// fromEnds are places in a table's properties and index.
var fromEnds = []int64{200, 400, 700}

// A table that cannot be opened ends no scan, neither of a start, of a check
// nor of a repair, which takes what other tables hold and tells the rest.
func TestDamage_OfAnIndexEndsEveryScan(t *testing.T) {
	t.Parallel()
	for _, at := range fromEnds {
		fs, keys := tornIndex(t, at)
		func() {
			db := open(t, Options{FS: fs})
			defer db.Close()
			for _, scan := range []func() error{
				func() error { _, _, err := db.List("s", "", "", 1000, true); return err },
				func() error { _, _, err := db.Due(nil, "s", Position{}, 1000); return err },
				func() error { _, err := db.Unfinished(); return err },
				func() error { _, err := db.Sources(); return err },
				func() error { _, err := db.verify(); return err },
			} {
				if err := scan(); err != nil {
					t.Errorf("damage at -%d: %v", at, err)
				}
			}
		}()
		if v, err := Verify(Options{Dir: "data", FS: fs}); err != nil || v.Clean() {
			t.Errorf("damage at -%d: %+v %v", at, v, err)
		}
		r, err := Repair(Options{Dir: "data", FS: fs})
		if err != nil || !r.Needed || r.Gaps == 0 {
			t.Fatalf("damage at -%d: %+v %v", at, r, err)
		}
		db := open(t, Options{FS: fs})
		for _, key := range keys[damagedKeys:] {
			if e, err := db.Get("s", key); err != nil || e == nil {
				t.Errorf("damage at -%d: %s of another table: %+v %v", at, key, e, err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if v, err := Verify(Options{Dir: "data", FS: fs}); err != nil || !v.Clean() {
			t.Errorf("damage at -%d: after the repair: %+v %v", at, v, err)
		}
	}
}

// unflushed is a store whose entries are in the log only, as after kill -9.
func unflushed(t *testing.T, n int) (fs *vfs.MemFS, log string) {
	t.Helper()
	disk := vfs.NewCrashableMem()
	// The first log of a directory does not say how much of it is on stable storage.
	if err := open(t, Options{FS: disk}).Close(); err != nil {
		t.Fatal(err)
	}
	db := open(t, Options{FS: disk})
	for i := range n {
		e := goldenEntries()["full"]
		e.Revision = uint64(i + 1)
		c, err := db.Apply(false, Change{Source: "s", Key: fmt.Sprintf("k%04d", i), New: e})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	fs = disk.CrashClone(vfs.CrashCloneCfg{})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := logNames(fs, "data")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	return fs, names[len(names)-1]
}

// A log that cannot be read in the middle is repaired up to there, and what is
// cut off is told; the start before says so when it does not refuse.
func TestRepair_KeepsTheLogUpToTheDamage(t *testing.T) {
	t.Parallel()
	const n = 300
	for _, percent := range []int64{20, 60, 97} {
		fs, name := unflushed(t, n)
		data, good, end, err := readLog(fs, "data", name)
		if err != nil || end == logDamaged || good < 2*logBlock {
			t.Fatalf("%d bytes of the log are whole, it ends as %d: %v", good, end, err)
		}
		at := good * percent / 100
		write(t, fs, "data/"+name, at, []byte{data[at] ^ 4})
		var log bytes.Buffer
		again := vfs.NewMem()
		if _, err := vfs.Clone(fs, again, "data", "data"); err != nil {
			t.Fatal(err)
		}
		if db, err := Open(Options{Dir: "data", FS: again, Log: slog.New(slog.NewTextHandler(&log, nil))}); err == nil {
			if db.Corrupt() != 1 || strings.Count(log.String(), name) != 1 {
				t.Errorf("damage at %d%%: it starts without a word: %s", percent, log.String())
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}
		r, err := Repair(Options{Dir: "data", FS: fs})
		if err != nil || !r.Needed || r.Gaps != 1 || r.Keys < n*(percent-15)/100 || r.Keys >= n || !strings.Contains(r.Problems[len(r.Problems)-1], name) {
			t.Errorf("damage at %d%%: %+v %v", percent, r, err)
		}
		if names, err := fs.List("data/damaged-1"); err != nil || !slices.Contains(names, name) {
			t.Errorf("the log is not kept: %v %v", names, err)
		}
		if v, err := Verify(Options{Dir: "data", FS: fs}); err != nil || !v.Clean() || v.Keys != r.Keys {
			t.Errorf("damage at %d%%: after the repair: %+v %v", percent, v, err)
		}
	}
}

// A log that a crash has cut off anywhere is no damage.
func TestRecovery_OfATornLogReportsNoDamage(t *testing.T) {
	t.Parallel()
	fs, name := unflushed(t, 20)
	data, good, _, err := readLog(fs, "data", name)
	if err != nil {
		t.Fatal(err)
	}
	for cut := good - 1500; cut < good; cut += 7 {
		f, err := fs.Create("data/"+name, "test")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(append(slices.Clone(data[:cut]), make([]byte, cut%2*40000)...)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if _, _, end, err := readLog(fs, "data", name); err != nil || end == logDamaged {
			t.Errorf("cut off at %d: %d %v", cut, end, err)
		}
	}
	if r, err := Repair(Options{Dir: "data", FS: fs}); err != nil || r.Needed {
		t.Errorf("%+v %v", r, err)
	}
}

// A file of options that the engine refuses loses nothing in a repair.
func TestRepair_GoesOnWithoutTheOptionsFile(t *testing.T) {
	t.Parallel()
	fs, _ := wholeStore(t)
	names, err := fs.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, "OPTIONS-") {
			write(t, fs, "data/"+name, 0, bytes.Repeat([]byte{0xff}, 200))
		}
	}
	if _, err := Open(Options{Dir: "data", FS: fs}); err == nil {
		t.Fatal("it starts")
	}
	if r, err := Repair(Options{Dir: "data", FS: fs}); err != nil || !r.Needed || r.Keys != damagedKeys || r.Lost != 0 || r.Gaps != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	if v, err := Verify(Options{Dir: "data", FS: fs}); err != nil || !v.Clean() {
		t.Errorf("%+v %v", v, err)
	}
}

// A kill leaves the table half written that a flush or a compaction was making.
// The store never counted on it: nothing is lost.
func TestVerify_TableOfACrashIsNoDamage(t *testing.T) {
	t.Parallel()
	fs, _ := wholeStore(t)
	half, err := fs.Create("data/999999.sst", vfs.WriteCategoryUnspecified)
	if err == nil {
		_, err = half.Write([]byte("half a table"))
	}
	if err != nil || half.Close() != nil {
		t.Fatal(err)
	}
	if v, err := Verify(Options{Dir: "data", FS: fs}); err != nil || !v.Clean() {
		t.Errorf("%+v %v", v, err)
	}
	if r, err := Repair(Options{Dir: "data", FS: fs}); err != nil || r.Needed {
		t.Errorf("%+v %v", r, err)
	}
}
