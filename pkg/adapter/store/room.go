package store

import (
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// roomEvery is how long an answer about free space is good for. Another process
// may fill the disk at its full speed, and a change that was let in too late
// waits until there is room: asking costs some microseconds.
const roomEvery = 10 * time.Millisecond

// maxScarce bounds what of the disk is given out by the second rule.
const maxScarce = 1 << 30

// room watches the free space. It is given out by three rules:
//
//   - While at least reserve+scarce is free, everybody may grow.
//   - Below that (scarce is an eighth of the disk, at most maxScarce) a namespace may grow as long as it holds, with the growth, no
//     more than is free beyond the reserve. So a namespace that has filled the
//     disk stops, and leaves scarce to the others: a newcomer may hold up to half
//     of that, the next one up to a third, and a part is always left.
//   - The reserve is for what must go on: outcomes, removals, compactions. Its
//     first half is also for replacements that do not grow; the second half they
//     leave alone, since a flood of them makes garbage until it is compacted.
type room struct {
	fs              vfs.FS
	dir             string
	reserve, scarce int64
	known           bool // the file system tells its usage

	checkedAt atomic.Int64 // Unix nanoseconds
	free      atomic.Int64
}

func (r *room) init(o *Options, fs vfs.FS, u vfs.DiskUsage) {
	r.fs, r.dir, r.known = fs, o.Dir, u.TotalBytes > 0
	r.reserve, r.scarce = o.reserve(u.TotalBytes), int64(min(u.TotalBytes/8, maxScarce))
	r.free.Store(int64(u.AvailBytes))
}

// Room implements Store.
func (db *DB) Room(growth, held int64) error {
	r := &db.room
	if db.full.waiting.Load() > 0 {
		return ErrFull
	}
	if !r.known {
		return nil
	}
	now := time.Now().UnixNano()
	if last := r.checkedAt.Load(); now-last >= int64(roomEvery) || now < last {
		if r.checkedAt.CompareAndSwap(last, now) {
			if u, ok := usage(r.fs, r.dir); ok {
				r.free.Store(int64(u.AvailBytes))
			}
		}
	}
	if !r.allows(r.free.Load(), growth, held) {
		return ErrFull
	}
	return nil
}

func (r *room) allows(free, growth, held int64) bool {
	switch {
	case growth <= 0:
		return free >= r.reserve/2
	case free >= r.reserve+r.scarce:
		return true
	}
	return free >= r.reserve && held <= free-r.reserve
}
