package store_test

import (
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store/storetest"
)

// syncFS calls hook before every fsync, and before whatever follows one.
func syncFS(fs vfs.FS, hook func(name string)) vfs.FS {
	var synced atomic.Pointer[string]
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if name := synced.Swap(nil); name != nil {
			hook(*name)
		}
		if isSync(op) {
			hook(op.Path)
			synced.Store(&op.Path)
		}
		return nil
	}))
}

// image is what the disk may hold after a power loss at one moment.
type image struct {
	fs           *vfs.MemFS
	acknowledged int // states that were by then
	at           string
}

// A power loss at any fsync loses nothing acknowledged.
func TestPowerLoss_LosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := storetest.Seed(t)
		mem := vfs.NewCrashableMem()
		// A small disk makes small memtables: flushes and compactions take part.
		mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 30, TotalBytes: 1 << 20})

		var acknowledged atomic.Int64
		var mu sync.Mutex
		var images []image
		fsyncs, tables, every := 0, 0, 3
		if testing.Short() {
			every = 20
		}
		taken := rand.New(rand.NewPCG(r.Uint64(), 0))
		hook := func(name string) {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasSuffix(name, ".sst") { // a few among many: each is taken
				tables++
			} else if fsyncs++; fsyncs%every > 0 || len(images) >= 1500 && taken.IntN(20) > 0 {
				return
			}
			a := int(acknowledged.Load()) // first: it may grow meanwhile
			percent := []int{0, 0, 50, 100}[taken.IntN(4)]
			images = append(images, image{mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: taken}), a, name})
		}
		db := mustOpen(t, syncFS(mem, hook), "data")
		h := storetest.NewHistory(r, time.Now().UTC(), func() uint64 {
			n, err := db.NextRevision()
			must(t, err)
			return n
		})
		h.MaxData = 8 << 10
		states := []storetest.State{h.State()}
		flushed := func() bool {
			mu.Lock()
			defer mu.Unlock()
			return tables > 0
		}
		for step := 0; step < 400 || !flushed() && step < 4000; step++ {
			switch what := r.IntN(40); {
			case what == 0:
				source := h.Purge()
				states = append(states, h.State())
				must(t, db.Purge(source))
				acknowledged.Store(int64(len(states) - 1))
			case what == 1 || what == 2: // lazy
				change := h.Watch()
				states = append(states, h.State())
				must(t, change(db))
			default:
				lazy := what < 20
				marks, changes := h.Marks(), h.Changes()
				states = append(states, h.State())
				c, err := db.ApplyMarked(lazy, marks, changes...)
				must(t, err)
				if lazy {
					continue
				}
				must(t, c.Wait())
				acknowledged.Store(int64(len(states) - 1))
			}
		}
		must(t, db.Close())
		t.Logf("%d images, %d of them at a table", len(images), tables)
		for i, image := range images {
			checkImage(t, i, image, states)
		}
		if tables == 0 || len(images) < 200/every {
			t.Fatalf("only %d images, %d of them at a table: the history is too short", len(images), tables)
		}
	})
}

func checkImage(t *testing.T, i int, image image, states []storetest.State) {
	t.Helper()
	db, err := store.Open(store.Options{Dir: "data", FS: image.fs})
	if err != nil {
		t.Fatalf("image %d, at fsync of %s: %v", i, image.at, err)
	}
	found, err := storetest.Find(db)
	if err != nil {
		t.Fatalf("image %d, at fsync of %s: %v", i, image.at, err)
	}
	must(t, db.Close())
	at := -1
	for i := image.acknowledged; i < len(states); i++ {
		if cmp.Equal(states[i], found, cmpopts.EquateEmpty()) {
			at = i
			break
		}
	}
	if at < 0 {
		t.Fatalf("image %d, at fsync of %s: not a state from %d on (-acknowledged +found):\n%s",
			i, image.at, image.acknowledged, cmp.Diff(states[image.acknowledged], found, cmpopts.EquateEmpty()))
	}
	mustVerify(t, image.fs, "data")
}

// After a power loss while the store is made, the directory opens: no marker is before its manifest.
func TestOpen_PowerLossWhileMade(t *testing.T) {
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
		must(t, mustOpen(t, syncFS(mem, hook), "data").Close())
	}
	for i, image := range images {
		db, err := store.Open(store.Options{Dir: "data", FS: image.fs})
		if err != nil {
			t.Fatalf("image %d, at fsync of %s: %v", i, image.at, err)
		}
		must(t, db.Close())
	}
}
