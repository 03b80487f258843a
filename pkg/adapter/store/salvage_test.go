package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
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
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	fs = disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := openSynced(fs, "data")
	if err != nil || len(s.files) == 0 {
		t.Fatal(s, err)
	}
	return fs, s.files[len(s.files)-1].name
}

// copyOf is a copy of a data directory, to damage it.
func copyOf(t *testing.T, fs vfs.FS) *vfs.MemFS {
	t.Helper()
	bad := vfs.NewMem()
	if _, err := vfs.Clone(fs, bad, "data", "data"); err != nil {
		t.Fatal(err)
	}
	return bad
}

func sizeOf(t *testing.T, fs vfs.FS, name string) int64 {
	t.Helper()
	info, err := fs.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// A log that cannot be read somewhere is repaired up to there, and what is cut off is told.
func TestRepair_KeepsTheLogUpToTheDamage(t *testing.T) {
	t.Parallel()
	const n = 40
	whole, name := unflushed(t, n)
	size := sizeOf(t, whole, "data/"+name)
	for _, percent := range []int64{1, 20, 60, 97} {
		fs := copyOf(t, whole)
		write(t, fs, "data/"+name, size*percent/100, nil)
		r, err := Repair(Options{Dir: "data", FS: fs})
		if least := (n/2 - 1) * (percent + 30) / 100; err != nil || !r.Needed || r.Gaps != 1 || percent > 1 && r.Keys < least || r.Keys >= n || !strings.Contains(r.Problems[len(r.Problems)-1], name) {
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

// What a crash leaves behind the part of a log that was on stable storage is no damage.
func TestRepair_TornLogIsNoDamage(t *testing.T) {
	t.Parallel()
	whole, name := unflushed(t, 20)
	size := sizeOf(t, whole, "data/"+name)
	for _, torn := range [][]byte{{1}, bytes.Repeat([]byte{7}, 40_000), make([]byte, 40_000)} {
		fs := copyOf(t, whole)
		write(t, fs, "data/"+name, size, torn)
		if r, err := Repair(Options{Dir: "data", FS: fs}); err != nil || r.Needed || r.Keys != 20 {
			t.Errorf("%d bytes more: %+v %v", len(torn), r, err)
		}
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

// A table that is cut short takes what the store records of itself with it. A repair keeps the
// rest. It said that the directory was not of this program.
func TestRepair_WithoutTheTableOfItsMeta(t *testing.T) {
	t.Parallel()
	fs, _ := wholeStore(t)
	db := open(t, Options{FS: fs})
	fill(t, db, "in the log")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	name, size := table(t, fs)
	cut(t, fs, name, size-300)
	if v, err := Verify(Options{Dir: "data", FS: fs}); err != nil || v.Clean() {
		t.Errorf("%+v %v", v, err)
	}
	if r, err := Repair(Options{Dir: "data", FS: fs}); err != nil || !r.NewID || r.Keys != 1 || r.Gaps == 0 {
		t.Fatalf("%+v %v", r, err)
	}
	if v, err := Verify(Options{Dir: "data", FS: fs}); err != nil || !v.Clean() || v.Keys != 1 {
		t.Errorf("%+v %v", v, err)
	}
}
