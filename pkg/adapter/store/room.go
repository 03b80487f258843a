package store

import (
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// roomEvery is how long an answer about free space is good for. Somebody else
// may fill the disk at its full speed, and a change that was let in too late
// waits until there is room: asking costs some microseconds.
const roomEvery = 10 * time.Millisecond

// room watches the free space.
type room struct {
	fs      vfs.FS
	dir     string
	reserve int64
	known   bool // the file system tells its usage

	checkedAt atomic.Int64 // Unix nanoseconds
	short     atomic.Bool
}

func (r *room) init(o *Options, fs vfs.FS, u vfs.DiskUsage) {
	r.fs, r.dir, r.known = fs, o.Dir, u.TotalBytes > 0
	r.reserve = o.reserve(u.TotalBytes)
}

// Room implements Store.
func (db *DB) Room() error {
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
			u, ok := usage(r.fs, r.dir)
			r.short.Store(ok && u.AvailBytes < uint64(r.reserve))
		}
	}
	if r.short.Load() {
		return ErrFull
	}
	return nil
}
