package store

import (
	"log/slog"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// spaceEvery is how long an answer about free space is valid. It is short because
// another process may fill the disk at its full speed, and a change that was
// accepted too late waits for space. Asking costs some microseconds.
const spaceEvery = 10 * time.Millisecond

// The bounds of the space that the second rule gives out. Replaced events are garbage until compactions reach them: a
// namespace that filled a disk of 256 MB with events of 128 KiB, and replaced them, took 50 MB more.
const (
	minScarce = 64 << 20 // at most a quarter of the disk
	maxScarce = 1 << 30
)

// smallShare is the share of the reserve up to which a namespace is small.
const smallShare = 64

// space watches the free disk space, without the [ballast]. These rules give it out:
//
//   - While at least reserve+scarce is free, every namespace may grow.
//   - Below that (scarce is an eighth of the disk, at least minScarce, at most maxScarce) a namespace
//     may grow while it holds, with the growth, at most the bytes that are free
//     beyond the reserve. So a namespace that has filled the disk stops, and leaves
//     scarce to the others: a new namespace may hold up to half of it, the next one
//     up to a third, and a part is always left.
//   - The reserve is for outcomes, removals and compactions, which must go on. Its
//     first half also takes replacements that do not grow. Its third quarter takes
//     replacements of a namespace that holds at most the bytes of it that are free: many
//     replacements make garbage until a compaction, and one namespace must not stop the others.
//   - In its last quarter no delivery starts, since its outcome might not fit.
//   - A namespace that holds, with the growth, at most a smallShare-th of the reserve may
//     grow in the first half too. A compaction writes its tables before it removes the old
//     ones, so for some milliseconds it may take all that the second rule leaves to others,
//     and a replacement of a namespace that has filled the disk went on where a newcomer was
//     refused. Some 32 small namespaces can fill the first half for good; then they and all
//     replacements are refused, and the second half is still for outcomes and removals. A
//     namespace counts with all its sources, and tenants do not make namespaces.
//
// In a group a change needs a majority of disks, which the rules allow by [Log.MostDisks]. What the group's log may
// still take of a disk is not free.
type space struct {
	fs              vfs.FS
	dir             string
	reserve, scarce int64
	total           int64
	known           bool // the file system reports its usage
	ballast         *ballast
	logUse          func() (now, most int64)

	checkedAt atomic.Int64 // Unix nanoseconds
	free      atomic.Int64
}

func (r *space) init(o *Options, fs vfs.FS, u vfs.DiskUsage, b *ballast) {
	r.fs, r.dir, r.known, r.ballast, r.logUse = fs, o.Dir, u.TotalBytes > 0, b, o.LogUse
	r.reserve, r.scarce, r.total = o.reserve(u.TotalBytes), int64(max(min(u.TotalBytes/8, maxScarce), min(u.TotalBytes/4, minScarce))), int64(u.TotalBytes)
	r.take(u)
}

// take takes over how much is free.
func (r *space) take(u vfs.DiskUsage) {
	free := r.ballast.balance(int64(u.AvailBytes), r.reserve)
	if r.logUse != nil {
		now, most := r.logUse()
		free -= max(0, min(most, r.total/4)-now)
	}
	r.free.Store(free)
}

// volume is the file system that a store is on.
type volume struct {
	*engine
	space
	reclaim reclaim
}

// Disk is the disk of a member of a group, as the rules of space see it.
type Disk struct{ Free, Reserve, Scarce int64 }

// Disk is where the store is. Nothing is free of it while changes wait for space.
func (db *volume) Disk() Disk {
	if db.Waiting() {
		return Disk{-1, db.space.reserve, db.space.scarce}
	}
	return db.space.disk()
}

func (r *space) disk() Disk {
	if !r.known {
		return Disk{Free: math.MaxInt64}
	}
	return Disk{r.freeNow(), r.reserve, r.scarce}
}

// Space implements Store.
func (db *volume) Space(growth, held int64) error {
	if growth > 0 && db.grouped != nil && db.grouped.log.Full() || !db.mostDisks(func(d Disk) bool { return d.allows(growth, held) }) {
		return ErrFull
	}
	return nil
}

// SpaceForOutcomes implements Store.
func (db *volume) SpaceForOutcomes() bool {
	db.look()
	return db.mostDisks(func(d Disk) bool { return d.Free >= d.Reserve/4 })
}

// mostDisks reports whether it is so of this disk, and in a group of a majority.
func (db *volume) mostDisks(is func(Disk) bool) bool {
	return is(db.Disk()) && (db.grouped == nil || db.grouped.log.MostDisks(is))
}

// Waiting implements Store. A change waits for a write to the log, or for a flush that
// was given up.
func (db *volume) Waiting() bool {
	return db.full.waiting.Load() > 0 || db.stalled.Load() && db.full.gaveUp.Load()
}

// LowOnSpace reports that growth is refused, or will be soon: to all namespaces, or to large ones.
func (db *volume) LowOnSpace() bool {
	return !db.Disk().leaves(db.space.scarce / 4)
}

// HasAmpleSpace reports that no growth is refused for a good while. Between LowOnSpace and
// HasAmpleSpace there is a gap, so that little growth does not lead from one to the other.
func (db *volume) HasAmpleSpace() bool {
	return db.Disk().leaves(db.space.scarce)
}

// leaves reports that so much could be written before the first namespace may not grow.
func (d Disk) leaves(more int64) bool { return d.Free-more >= d.Reserve+d.Scarce }

// freeNow is the free space, as it was less than spaceEvery ago.
func (r *space) freeNow() int64 {
	now := time.Now().UnixNano()
	if last := r.checkedAt.Load(); now-last >= int64(spaceEvery) || now < last {
		if r.checkedAt.CompareAndSwap(last, now) {
			if u, ok := usage(r.fs, r.dir); ok {
				r.take(u)
			}
		}
	}
	return r.free.Load()
}

// isLow reports that growth is refused, as it was at the last look.
func (r *space) isLow() bool { return r.known && r.free.Load() < r.reserve }

// Usage returns the bytes that are free on the disk without the ballast and what the group's log may take, the bytes of them that are kept
// back, and what the store has on it. Where the file system reports nothing, known is
// false.
func (db *volume) Usage() (free, reserve, used int64, known bool) {
	if known = db.space.known; known {
		free = max(db.space.freeNow(), 0)
	}
	if db.gate.enter() {
		used = int64(db.db.Metrics().DiskSpaceUsage())
		db.gate.leave()
	}
	return free, db.space.reserve, used, known
}

func (d Disk) allows(growth, held int64) bool {
	switch {
	case growth <= 0:
		return d.Free >= d.Reserve/2 || d.Free >= d.Reserve/4 && held <= d.Free-d.Reserve/4
	case held <= d.Reserve/smallShare:
		return d.Free >= d.Reserve/2
	case d.leaves(0):
		return true
	}
	return d.Free >= d.Reserve && held <= d.Free-d.Reserve
}

// What was removed is on the disk until a compaction: it frees space only once the memtable that
// removes it is flushed, and four tables lie over one another. On a full disk nothing may come
// to fill a memtable. So after garbageBytes were removed, there are compactingFlushes.
const (
	garbageBytes      = 1 << 20
	compactingFlushes = 5
	flushEvery        = 2 * time.Second
)

// reclaim is how far the store is with giving space back.
type reclaim struct {
	garbage atomic.Int64 // bytes of entries that were removed or replaced
	left    atomic.Int64 // flushes
	at      atomic.Int64 // when the last one was, Unix nanoseconds
}

// look asks how much is free. While space is scarce it has the engine give back what was removed.
func (db *volume) look() {
	r := &db.reclaim
	if db.space.disk().leaves(0) || !db.full.opened.Load() || r.left.Load() == 0 && r.garbage.Load() < garbageBytes {
		return
	}
	now := time.Now().UnixNano()
	if last := r.at.Load(); now-last < int64(flushEvery) || !r.at.CompareAndSwap(last, now) {
		return
	}
	if r.left.Load() == 0 {
		r.garbage.Store(0)
		r.left.Store(compactingFlushes)
	}
	r.left.Add(-1)
	go db.flushSome()
}

// flushSome flushes at least one row.
func (db *volume) flushSome() {
	if !db.gate.enter() {
		return
	}
	defer db.gate.leave()
	if db.usable() != nil || db.db.Metrics().MemTable.Count > 1 { // a flush is under way
		return
	}
	// The view of a group must not change but by its log; the log changes it anyway.
	if db.grouped == nil && !db.replicated {
		_ = db.write([]byte(metaFormat), strconv.AppendInt(nil, format, 10), true) // the flush fails too
	}
	if _, err := db.db.AsyncFlush(); err != nil {
		db.logLimited(&db.trouble, slog.LevelWarn, "store: flushing", err.Error())
	}
}
