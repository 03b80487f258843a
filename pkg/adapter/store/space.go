package store

import (
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// spaceEvery is how long an answer about free space is valid. It is short because
// another process may fill the disk at its full speed, and a change that was
// accepted too late waits for space. Asking costs some microseconds.
const spaceEvery = 10 * time.Millisecond

// maxScarce bounds the space that the second rule gives out.
const maxScarce = 1 << 30

// smallShare is the share of the reserve up to which a namespace is small.
const smallShare = 64

// space watches the free disk space. Four rules give it out:
//
//   - While at least reserve+scarce is free, every namespace may grow.
//   - Below that (scarce is an eighth of the disk, at most maxScarce) a namespace
//     may grow while it holds, with the growth, at most the bytes that are free
//     beyond the reserve. So a namespace that has filled the disk stops, and leaves
//     scarce to the others: a new namespace may hold up to half of it, the next one
//     up to a third, and a part is always left.
//   - The reserve is for outcomes, removals and compactions, which must go on. Its
//     first half also takes replacements that do not grow. Its second half does not,
//     because many replacements make garbage until a compaction.
//   - A namespace that holds, with the growth, at most a smallShare-th of the reserve may
//     grow in the first half too. A compaction writes its tables before it removes the old
//     ones, so for some milliseconds it may take all that the second rule leaves to others,
//     and a replacement of a namespace that has filled the disk went on where a newcomer was
//     refused. Some 32 small namespaces can fill the first half for good; then they and all
//     replacements are refused, and the second half is still for outcomes and removals. A
//     namespace counts with all its sources, and tenants do not make namespaces.
type space struct {
	fs              vfs.FS
	dir             string
	reserve, scarce int64
	known           bool // the file system reports its usage

	checkedAt atomic.Int64 // Unix nanoseconds
	free      atomic.Int64
}

func (r *space) init(o *Options, fs vfs.FS, u vfs.DiskUsage) {
	r.fs, r.dir, r.known = fs, o.Dir, u.TotalBytes > 0
	r.reserve, r.scarce = o.reserve(u.TotalBytes), int64(min(u.TotalBytes/8, maxScarce))
	r.free.Store(int64(u.AvailBytes))
}

// Space implements Store.
func (db *DB) Space(growth, held int64) error {
	r := &db.space
	if db.Waiting() {
		return ErrFull
	}
	if r.known && !r.allows(r.freeNow(), growth, held) {
		return ErrFull
	}
	return nil
}

// Waiting implements Store. A change waits for a write to the log, or for a flush that
// was given up.
func (db *DB) Waiting() bool {
	return db.full.waiting.Load() > 0 || db.stalled.Load() && db.full.gaveUp.Load()
}

// LowOnSpace reports that growth is refused, or will be soon: to all namespaces, or to large ones.
func (db *DB) LowOnSpace() bool {
	return !db.space.leaves(db.space.scarce/4) || db.Waiting()
}

// HasAmpleSpace reports that no growth is refused for a good while. Between LowOnSpace and
// HasAmpleSpace there is a gap, so that little growth does not lead from one to the other.
func (db *DB) HasAmpleSpace() bool {
	return db.space.leaves(db.space.scarce) && !db.Waiting()
}

// leaves reports that so much could be written before the first namespace may not grow.
func (r *space) leaves(more int64) bool {
	return !r.known || r.freeNow()-more >= r.reserve+r.scarce
}

// freeNow is the free space, as it was less than spaceEvery ago.
func (r *space) freeNow() int64 {
	now := time.Now().UnixNano()
	if last := r.checkedAt.Load(); now-last >= int64(spaceEvery) || now < last {
		if r.checkedAt.CompareAndSwap(last, now) {
			if u, ok := usage(r.fs, r.dir); ok {
				r.free.Store(int64(u.AvailBytes))
			}
		}
	}
	return r.free.Load()
}

// Usage returns the bytes that are free on the disk, the bytes of them that are kept
// back, and what the store has on it. Where the file system reports nothing, known is
// false.
func (db *DB) Usage() (free, reserve, used int64, known bool) {
	if u, ok := usage(db.space.fs, db.space.dir); ok {
		free, known = int64(u.AvailBytes), true
	}
	if db.gate.enter() {
		used = int64(db.db.Metrics().DiskSpaceUsage())
		db.gate.leave()
	}
	return free, db.space.reserve, used, known
}

func (r *space) allows(free, growth, held int64) bool {
	switch {
	case growth <= 0, held <= r.reserve/smallShare:
		return free >= r.reserve/2
	case free >= r.reserve+r.scarce:
		return true
	}
	return free >= r.reserve && held <= free-r.reserve
}
