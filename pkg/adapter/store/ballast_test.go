package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

const ballastFile = "data/BALLAST"

// limited is a file system of a size, of which other programs take a part.
type limited struct {
	vfs.FS
	mem    *vfs.MemFS
	size   int64
	others atomic.Int64
}

func newLimited(size int64) *limited {
	l := &limited{mem: vfs.NewMem(), size: size}
	l.FS = errorfs.Wrap(l.mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if isWrite(op) && l.free() <= 0 {
			return syscall.ENOSPC
		}
		return nil
	}))
	return l
}

func (l *limited) free() int64 {
	left := l.size - l.others.Load()
	if l.hasBallast() { // allocated space is not in the size of a file
		left -= l.size / 16
	}
	names, _ := l.mem.List("data/store") // without a directory nothing is taken
	for _, name := range names {
		if info, err := l.mem.Stat(l.mem.PathJoin("data/store", name)); err == nil { // else it was removed meanwhile
			left -= info.Size()
		}
	}
	return left
}

func (l *limited) hasBallast() bool {
	_, err := l.mem.Stat(ballastFile)
	return err == nil
}

func (l *limited) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: uint64(max(l.free(), 0)), TotalBytes: uint64(l.size)}, nil
}

// A full disk whose sink failed was full for good: outcomes went on, no delete came through, and no start ended.
func TestFullDisk_FailingSinkDoesNotWedge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 24 << 20
		disk := newLimited(size)
		db := mustOpen(t, disk, "data")
		if !disk.hasBallast() {
			t.Fatal("there is no ballast")
		}
		random := rand.NewChaCha8([32]byte{})
		stored := map[string]*schedule.Entry{}
		held := int64(0)
		full := func() bool { return errors.Is(db.Space(30<<10, held), store.ErrFull) }
		for i := 0; !full(); i++ {
			e := entry(uint64(i+1), 30<<10)
			_, _ = random.Read(e.Event.Data)
			key := fmt.Sprint(i)
			apply(t, db, store.Change{Source: "s", Key: key, New: e})
			stored[key], held = e, held+e.Size(key)
			time.Sleep(20 * time.Millisecond) // fake: free space is asked for
		}
		outcomes := 0
		fail := func() {
			for key, e := range stored {
				if !db.SpaceForOutcomes() {
					return
				}
				failed := *e
				failed.Tries++
				apply(t, db, store.Change{Source: "s", Key: key, Old: e, New: &failed})
				stored[key] = &failed
				outcomes++
				time.Sleep(20 * time.Millisecond) // fake
			}
		}
		for range 20 {
			fail()
			time.Sleep(time.Second) // fake
		}
		if outcomes < 15*len(stored) {
			t.Errorf("%d outcomes of %d keys; %d bytes are free", outcomes, len(stored), disk.free())
		}

		disk.others.Store(disk.free()) // nothing is left
		time.Sleep(time.Second)        // fake
		if db.SpaceForOutcomes() {
			t.Error("deliveries start although nothing is free")
		}
		if disk.hasBallast() {
			t.Error("the ballast is there although nothing is free")
		}
		must(t, db.Close())
		db = mustOpen(t, disk, "data")
		for key, e := range stored {
			apply(t, db, store.Change{Source: "s", Key: key, Old: e})
			db.SpaceForOutcomes() // the queue asks each second
			time.Sleep(20 * time.Millisecond)
		}
		for range 60 {
			db.SpaceForOutcomes()
			time.Sleep(time.Second) // fake
		}
		if !db.SpaceForOutcomes() || db.Space(30<<10, 30<<10) != nil || !disk.hasBallast() {
			t.Errorf("all was removed, and %d bytes are free; ballast: %v", disk.free(), disk.hasBallast())
		}
		must(t, db.Close())
		mustVerify(t, disk.mem, "data")
	})
}

func apply(t *testing.T, db *store.DB, c store.Change) {
	t.Helper()
	commit, err := db.Apply(false, c)
	if err == nil {
		err = commit.Wait()
	}
	must(t, err)
}
