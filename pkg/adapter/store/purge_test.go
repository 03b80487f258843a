package store

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Sources that are purged and come back at once start empty; their old rows go in the background, also over a crash.
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
			must(t, errorOf(db.Apply(true, Change{Source: source, Key: key, New: e})))
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
			must(t, db.Purge(fmt.Sprint(s)))
			put(fmt.Sprint(s), "new")
		}
		must(t, db.sync())
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
		must(t, db.Close())
		clean(t, Options{FS: fs})
		clean(t, Options{FS: image}) // as a crash leaves it
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
	must(t, db.Close())
	db = open(t, Options{FS: image})
	if r, err := db.NextRevision(); err != nil || r <= last {
		t.Errorf("%d after %d: %v", r, last, err)
	}
}

// A purge takes a source's bytes with it, and nothing is left in memory: sources that come and go all day would fill it.
func TestPurge_LeavesNothing(t *testing.T) {
	t.Parallel()
	db := open(t, Options{FS: vfs.NewMem()})
	must(t, errorOf(db.Apply(false, Change{Source: "s", Key: "a", New: sized(10)}, Change{Source: "s2", Key: "a", New: sized(10)})))
	must(t, errorOf(db.Bytes("s")))
	must(t, db.Purge("s"))
	if _, ok := db.counters.sources.Load("s"); ok {
		t.Error("its counter is still in memory")
	}
	if n, err := db.Bytes("s"); n != 0 || err != nil {
		t.Errorf("%d bytes are left (%v)", n, err)
	}
	if n, _, err := db.Count("s"); n != 0 || err != nil {
		t.Error(n, err)
	}
	if _, _, err := db.db.Get(appendCounterKey(nil, "s")); err != pebble.ErrNotFound { //nolint:errorlint // Pebble's own
		t.Errorf("its row: %v", err)
	}
	if n, err := db.Bytes("s2"); n != sized(10).Size("a") || err != nil {
		t.Errorf("the other source has %d bytes (%v)", n, err)
	}
}
