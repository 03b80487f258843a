package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ballastName is a file that takes up space and holds nothing.
const ballastName = "BALLAST"

// maxBallast is what some memtables and the tables of a compaction take.
const maxBallast = 64 << 20

// ballast is disk space for a disk that is full: flushes, compactions and removals need space
// before they free any. It is a file of the data directory, a 16th of a small file system. It
// is removed when the disk is nearly full, and made again once there is space. Nothing else
// may use its space: what is free counts without it.
type ballast struct {
	fs   vfs.FS
	path string
	size int64 // 0: there is none
	log  *slog.Logger

	mu     sync.Mutex
	failed bool // the last removal
}

func newBallast(o *Options, fs vfs.FS, u vfs.DiskUsage, log *slog.Logger) *ballast {
	b := &ballast{fs: fs, path: fs.PathJoin(o.Dir, ballastName), log: log}
	if !o.ReadOnly && !o.New && o.Reserve >= 0 {
		b.size = int64(min(u.TotalBytes/16, maxBallast))
	}
	return b
}

// holds reports that the file is there, and takes up its space. A user may remove it, and a start that was cut off, or a
// copy of the directory, leaves a file that takes up nothing.
func (b *ballast) holds() bool {
	info, err := b.fs.Stat(b.path)
	if err != nil {
		return false
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	return !ok || s.Blocks*512 >= b.size // Linux counts in 512 bytes
}

// balance removes the ballast, or makes it, and returns what is free for others.
func (b *ballast) balance(free, reserve int64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.size == 0 {
		return free
	}
	holds := b.holds()
	switch {
	case holds && free < reserve/8:
		b.remove()
		return free
	case !holds && free-b.size >= reserve/2:
		holds = b.make()
	}
	if holds {
		return free
	}
	return free - b.size
}

// release removes the ballast, and reports whether there was one.
func (b *ballast) release() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.size > 0 && b.remove()
}

func (b *ballast) remove() bool {
	err := b.fs.Remove(b.path)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	if err != nil {
		if !b.failed { // it is tried with each write
			b.log.Error("store: the ballast cannot be removed", "file", b.path, "error", err)
		}
		b.failed = true
		return false
	}
	b.failed = false
	b.log.Warn("store: the disk is nearly full: the ballast was removed, for compactions and removals", "bytes", b.size)
	return true
}

// make allocates the file. Where the file system cannot allocate space, there is no ballast.
func (b *ballast) make() bool {
	f, err := b.fs.Create(b.path, vfs.WriteCategoryUnspecified)
	if err == nil {
		err = errors.Join(f.Preallocate(0, b.size), f.Close())
	}
	if err == nil && !b.holds() {
		err = errors.New("the file system does not take up the space of the file")
	}
	if err == nil {
		return true
	}
	b.log.Info("store: there is no ballast", "error", err)
	b.size = 0
	if err := b.fs.Remove(b.path); err != nil {
		b.log.Error("store: the ballast cannot be removed", "error", fmt.Errorf("%s: %w", b.path, err))
	}
	return false
}
