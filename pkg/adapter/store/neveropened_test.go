package store_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store/storetest"
)

// After a power loss while the store is made, the directory opens.
func TestNeverOpened_OpensAfterPowerLoss(t *testing.T) {
	t.Parallel()
	r := storetest.Seed(t)
	var images []image
	stores := 40
	if testing.Short() {
		stores = 10
	}
	for range stores {
		mem := vfs.NewCrashableMem()
		var mu sync.Mutex
		taken := rand.New(rand.NewPCG(r.Uint64(), 0))
		hook := func(name string) {
			mu.Lock()
			defer mu.Unlock()
			images = append(images, image{mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: taken}), 0, name})
		}
		if err := mustOpen(t, syncFS{mem, hook}, "data").Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i, image := range images {
		db, err := store.Open(store.Options{Dir: "data", FS: image.fs})
		if err != nil {
			t.Fatalf("image %d, at fsync of %s: %v", i, image.at, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What was acknowledged must not be taken for a store that was never made.
func TestNeverOpened_LostManifestIsRefused(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	db := mustOpen(t, mem, "data")
	c, err := db.Apply(false, store.Change{Source: "s", Key: "k", New: &schedule.Entry{Revision: 1, DueAt: time.Unix(1, 0)}})
	if err = errors.Join(err, c.Wait(), db.Close()); err != nil {
		t.Fatal(err)
	}
	names, err := mem.List("data")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if len(name) > 9 && name[:9] == "MANIFEST-" {
			if err := mem.Remove(mem.PathJoin("data", name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := store.Open(store.Options{Dir: "data", FS: mem}); err == nil {
		t.Error("a store with data and no manifest was opened")
	}
	if after, err := mem.List("data"); err != nil || len(after) < len(names)-1 {
		t.Errorf("files were removed: %v, before %v, %v", after, names, err)
	}
}
