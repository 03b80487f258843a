package store

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// flushedStore is a store of a few tables, whose manifest has an edit for each of them and for a compaction.
func flushedStore(t *testing.T) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewMem()
	db := open(t, Options{FS: fs})
	for i := range 6 {
		fill(t, db, fmt.Sprintf("k%d", i))
		must(t, db.db.Flush())
	}
	must(t, db.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false))
	fill(t, db, "last")
	must(t, db.db.Flush())
	must(t, db.Close())
	return fs
}

func namesOf(t *testing.T, fs vfs.FS, with string) []string {
	t.Helper()
	names, err := fs.List("data/store")
	must(t, err)
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.Contains(name, with) || name == "LOCK" })
	slices.Sort(names)
	return names
}

// A damaged place in the list of tables refuses the start, and no table is deleted.
func TestDamage_OfTheManifestRefusesTheStart(t *testing.T) {
	t.Parallel()
	fs := flushedStore(t)
	desc, err := pebble.Peek("data/store", fs)
	must(t, err)
	name := desc.ManifestFilename
	size := sizeOf(t, fs, name)
	if tables := namesOf(t, fs, ".sst"); len(tables) < 2 || size < 300 {
		t.Fatalf("the manifest has %d bytes, and there are %d tables", size, len(tables))
	}
	damages := map[string]func(vfs.FS, int64){
		"a flipped bit": func(fs vfs.FS, at int64) { write(t, fs, name, at, nil) },
		"zeros":         func(fs vfs.FS, at int64) { write(t, fs, name, at, make([]byte, size-at)) },
		"a cut":         func(fs vfs.FS, at int64) { cut(t, fs, name, at) },
	}
	for what, damage := range damages {
		for at := range size {
			if what == "zeros" && at == size-1 {
				continue // it may be a zero
			}
			bad := copyOf(t, fs)
			damage(bad, at)
			before := namesOf(t, bad, "")
			if db, err := Open(Options{Dir: "data", FS: bad}); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "MANIFEST-") {
				t.Fatalf("%s at %d of %d: %v %v", what, at, size, db, err)
			}
			if after := namesOf(t, bad, ""); !slices.Equal(before, after) {
				t.Fatalf("%s at %d: the files were %v, now %v", what, at, before, after)
			}
		}
		bad := copyOf(t, fs)
		damage(bad, size-3)
		if v, err := Verify(Options{Dir: "data", FS: bad}); err != nil || v.Clean() {
			t.Errorf("%s: verify: %+v %v", what, v, err)
		}
		if r, err := Repair(Options{Dir: "data", FS: bad}, "new"); err == nil || !strings.Contains(err.Error(), "restore a back-up") {
			t.Errorf("%s: repair: %+v %v", what, r, err)
		}
	}
}

// cut leaves only the first bytes of a file.
func cut(t *testing.T, fs vfs.FS, name string, size int64) {
	t.Helper()
	data, err := readFile(fs, name, size)
	must(t, err)
	f, err := fs.Create(name, "test")
	if err == nil {
		_, err = f.Write(data)
	}
	if err != nil || f.Close() != nil {
		t.Fatal(err)
	}
}

// A damaged place in what was acknowledged refuses the start, also in the last change and between large records.
func TestDamage_OfTheLogRefusesTheStart(t *testing.T) {
	t.Parallel()
	fs, name := unflushed(t, 20)
	name = "data/store/" + name
	size := sizeOf(t, fs, name)
	refuses := func(what string, at int64, damage func(vfs.FS)) {
		t.Helper()
		bad := copyOf(t, fs)
		damage(bad)
		if db, err := Open(Options{Dir: "data", FS: bad}); !errors.Is(err, ErrDamaged) {
			t.Fatalf("%s at %d of %d: %v %v", what, at, size, db, err)
		}
	}
	flip := func(at int64) {
		refuses("a flipped bit", at, func(fs vfs.FS) { write(t, fs, name, at, nil) })
	}
	for at := int64(0); at < size; at += size/97 + 1 {
		flip(at)
		refuses("a cut", at, func(fs vfs.FS) { cut(t, fs, name, at) })
	}
	for last := range int64(3) {
		flip(size - 1 - last)
	}
	refuses("no file", 0, func(fs vfs.FS) { must(t, fs.Remove(name)) })
}

// A store whose marker or list of tables is gone is not replaced by an empty store.
func TestManifest_Missing(t *testing.T) {
	t.Parallel()
	for _, gone := range []string{"marker.manifest", "MANIFEST-"} {
		for _, unknown := range []bool{false, true} {
			fs := flushedStore(t)
			for _, name := range namesOf(t, fs, gone) {
				must(t, fs.Remove("data/store/"+name))
			}
			if unknown {
				must(t, fs.Remove("data/store/"+syncedName))
			}
			before := namesOf(t, fs, "")
			if _, err := Open(Options{Dir: "data", FS: fs}); !errors.Is(err, ErrDamaged) {
				t.Error(err)
			}
			if after := namesOf(t, fs, ""); !slices.Equal(before, after) {
				t.Errorf("the files were %v, now %v", before, after)
			}
		}
	}
}

// A start that the engine refuses says what to do.
func TestOpen_DamagedFileNamesTheCure(t *testing.T) {
	t.Parallel()
	for _, what := range []string{".sst", "OPTIONS-"} {
		fs := flushedStore(t)
		for _, name := range namesOf(t, fs, what) {
			cut(t, fs, "data/store/"+name, sizeOf(t, fs, "data/store/"+name)/2)
		}
		if _, err := Open(Options{Dir: "data", FS: fs}); err == nil || !strings.Contains(err.Error(), "restore a back-up") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// After a power loss while the list of what is synced is written, nothing is checked, and the store opens.
func TestDamage_OfTheSyncedListIsNotChecked(t *testing.T) {
	t.Parallel()
	fs := flushedStore(t)
	data, err := readFile(fs, "data/store/"+syncedName, 1<<20)
	if err != nil || len(data) != syncedBytes || len(parseSynced(data)) == 0 {
		t.Fatalf("%q %v", data, err)
	}
	for at := range data {
		bad := copyOf(t, fs)
		write(t, bad, "data/store/"+syncedName, int64(at), nil)
		db, err := Open(Options{Dir: "data", FS: bad})
		if err != nil {
			t.Fatalf("byte %d: %v", at, err)
		}
		if e, err := db.Get("s", "last"); e == nil || err != nil {
			t.Fatal(e, err)
		}
		must(t, db.Close())
	}
}

// The list keeps the newest files, in one sector.
func TestSynced_FitsASector(t *testing.T) {
	t.Parallel()
	var files []*syncedFile
	for i := range 100 {
		files = append(files, &syncedFile{name: fmt.Sprintf("%06d.log", i), size: 1 << 40, sum: 0xffffffff, named: true})
	}
	got := parseSynced(appendSynced(nil, files))
	if len(got) < 10 || *got[len(got)-1] != (syncedFile{name: "000099.log", size: 1 << 40, written: 1 << 40, sum: 0xffffffff, crc: 0xffffffff, named: true}) {
		t.Errorf("%d files: %+v", len(got), got)
	}
	names := map[string]bool{}
	for _, f := range got {
		names[f.name] = true
	}
	if sorted := slices.Sorted(maps.Keys(names)); len(sorted) != len(got) || sorted[0] != fmt.Sprintf("%06d.log", 100-len(got)) {
		t.Error(sorted)
	}
}

// A crash at any step of the engine, also while it opens what a crash left, leaves nothing that counts as damaged, and
// all that was acknowledged. -count 1000 tries other histories.
func TestSynced_NoCrashIsDamage(t *testing.T) {
	t.Parallel()
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	images := 40
	if testing.Short() {
		images = 8
	}
	crashes(t, r, vfs.NewCrashableMem(), map[string]bool{}, 2, images)
}

// renaming is a MemFS that does not hang beside a CrashClone: its ReuseForWrite and its Link take a lock twice.
type renaming struct{ *vfs.MemFS }

func (f renaming) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.Rename(from, to); err != nil {
		return nil, err
	}
	return f.OpenReadWrite(to, c)
}

// crashes opens the store, changes it, and opens some of what crashes leave meanwhile.
func crashes(t *testing.T, r *rand.Rand, disk *vfs.MemFS, want map[string]bool, depth, most int) {
	t.Helper()
	disk.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 20}) // small memtables
	type left struct {
		fs   *vfs.MemFS
		want map[string]bool
	}
	var mu sync.Mutex
	var images []left
	seen, every := 0, 1+r.IntN(40)
	acknowledged := maps.Clone(want)
	own := rand.New(rand.NewPCG(r.Uint64(), 0))
	watched := errorfs.Wrap(renaming{disk}, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsRead {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if seen++; seen%every == 0 && len(images) < most {
			percent := []int{0, 30, 70, 100}[own.IntN(4)]
			images = append(images, left{disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: own}), maps.Clone(acknowledged)})
		}
		return nil
	}))
	db, err := Open(Options{Dir: "data", FS: watched})
	must(t, err)
	for key := range want {
		if e, err := db.Get("s", key); e == nil || err != nil {
			t.Fatalf("%s: %v %v", key, e, err)
		}
	}
	for range 20 {
		key := fmt.Sprint(r.Uint64())
		e := goldenEntries()["full"]
		e.Event = &schedule.Event{Type: "t", Data: make([]byte, r.IntN(200_000))}
		c, err := db.Apply(r.IntN(3) == 0, Change{Source: "s", Key: key, New: e})
		if err == nil && r.IntN(4) > 0 {
			if err = c.Wait(); err == nil {
				mu.Lock()
				acknowledged[key] = true
				mu.Unlock()
			}
		}
		if err == nil && r.IntN(4) == 0 {
			err = db.db.Flush()
		}
		must(t, err)
	}
	must(t, db.Close())
	if depth == 0 {
		return
	}
	for _, image := range images {
		if depth == 2 || r.IntN(10) == 0 {
			crashes(t, r, image.fs, image.want, depth-1, most)
		}
	}
}

// A disk that is full for a moment leaves no line of a log that is used again in the file synced.
func TestSynced_FullDiskLeavesNoStaleLine(t *testing.T) {
	t.Parallel()
	var full atomic.Bool // a flush reads it too
	mem := vfs.NewMem()
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Path == syncedName && (op.Kind == errorfs.OpFileWriteAt || op.Kind == errorfs.OpRemove) {
			return syscall.ENOSPC
		}
		return nil
	}))
	s, err := openSynced(fs, "")
	must(t, err)
	must(t, errorOf(mem.Create(syncedName, vfs.WriteCategoryUnspecified)))
	must(t, s.begin())
	const name = "000001.log"
	log := s.created(name)
	s.writing(log, []byte("synced"))()
	s.syncing(log)()
	s.naming()()
	full.Store(true)
	for range 2 {
		if err := s.forget(name); !IsFull(err) {
			t.Fatalf("the line is forgotten on a full disk: %v", err)
		}
	}
	full.Store(false)
	must(t, s.forget(name))
	if data, err := readFile(mem, syncedName, syncedBytes); err == nil {
		t.Errorf("the file has %q", data)
	}
	must(t, s.close())
}
