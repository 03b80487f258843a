package store

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Sources that are purged and come back at once start empty and keep what they
// get; the old rows of all of them go in the background, also over a crash.
func TestPurge_ManyComeBackAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewCrashableMem()
		db := open(t, Options{FS: fs})
		const sources, keys = 40, 60 // more rows than one step looks at
		put := func(source, key string) {
			e := goldenEntries()["full"]
			var err error
			if e.Revision, err = db.NextRevision(); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Apply(true, Change{Source: source, Key: key, New: e}); err != nil {
				t.Fatal(err)
			}
		}
		for s := range sources {
			for k := range keys {
				put(fmt.Sprint(s), fmt.Sprint(k))
			}
		}
		if sources*keys <= 2*tidyRows {
			t.Fatal("one step does it all")
		}
		for s := range sources / 2 {
			if err := db.Purge(fmt.Sprint(s)); err != nil {
				t.Fatal(err)
			}
			put(fmt.Sprint(s), "new")
		}
		if err := db.sync(); err != nil {
			t.Fatal(err)
		}
		image := fs.CrashClone(vfs.CrashCloneCfg{})
		synctest.Wait()
		check := func(db *DB) {
			t.Helper()
			rows, _, err := db.Expired(golden.Add(24*time.Hour), SourceRow{}, 100_000)
			if want := sources/2*keys + sources/2; len(rows) != want || err != nil {
				t.Errorf("%d rows, want %d: %v", len(rows), want, err)
			}
			if purging, err := db.purging(); len(purging) > 0 || err != nil {
				t.Error(purging, err)
			}
			if n, _, err := db.Count("0"); n != 1 || err != nil {
				t.Error(n, err)
			}
		}
		check(db)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if r, err := Verify(Options{Dir: "data", FS: fs}); err != nil || !r.Clean() {
			t.Errorf("%+v %v", r, err)
		}
		if r, err := Verify(Options{Dir: "data", FS: image}); err != nil || !r.Clean() {
			t.Errorf("after a crash: %+v %v", r, err)
		}
		db = open(t, Options{FS: image})
		synctest.Wait()
		check(db)
	})
}

// Revisions grow over the end of a reserved block, and over a crash behind it.
func TestRevision_GrowsOverTheBlock(t *testing.T) {
	t.Parallel()
	fs := vfs.NewCrashableMem()
	db := open(t, Options{FS: fs})
	last := uint64(0)
	for i := range revisionBlock + 5 {
		r, err := db.NextRevision()
		if err != nil || r <= last {
			t.Fatalf("%d: %d after %d: %v", i, r, last, err)
		}
		last = r
	}
	image := fs.CrashClone(vfs.CrashCloneCfg{})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open(t, Options{FS: image})
	if r, err := db.NextRevision(); err != nil || r <= last {
		t.Errorf("%d after %d: %v", r, last, err)
	}
}

// What the encoder writes the decoder reads, whatever the offset.
func TestRecord_AnyOffsetComesBack(t *testing.T) {
	t.Parallel()
	for _, offset := range []int{86_400, 86_401, 24*3600 + 30*60, -100 * 3600, 1 << 30} {
		e := goldenEntries()["full"]
		e.Event.Time = time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("", offset))
		got, err := decoded(encoded(t, e))
		if err != nil {
			t.Fatalf("offset %d: %v", offset, err)
		}
		if _, o := got.Event.Time.Zone(); o != offset || !got.Event.Time.Equal(e.Event.Time) {
			t.Errorf("offset %d came back as %s", offset, got.Event.Time)
		}
	}
}

// A source that was purged leaves nothing in memory: sources that come and go all day would
// fill it.
func TestPurge_LeavesNothingInMemory(t *testing.T) {
	t.Parallel()
	db := open(t, Options{FS: vfs.NewMem()})
	for s := range 10 {
		source := fmt.Sprint(s)
		e := goldenEntries()["full"]
		var err error
		if e.Revision, err = db.NextRevision(); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Apply(true, Change{Source: source, Key: "a", New: e}); err != nil {
			t.Fatal(err)
		}
		if err := db.Purge(source); err != nil {
			t.Fatal(err)
		}
	}
	db.counters.sources.Range(func(source, _ any) bool {
		t.Errorf("the counter of source %s is still there", source)
		return true
	})
	if n, _, err := db.Count("0"); n != 0 || err != nil {
		t.Error(n, err)
	}
}
