package store

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// retryEvery is the pause before something is written again for which the disk
// had no room.
const retryEvery = 100 * time.Millisecond

// fullFS makes a full disk a matter of waiting. A write that ends with ENOSPC
// has changed nothing beyond the bytes it says it wrote, so it can go on from
// there; Pebble would take the error of a write to its log for the end of the
// world. Only a failed fsync is that (fullFS does not touch those).
//
// Files of tables are another matter: a flush or a compaction is best given up,
// so that what it wrote is removed; Pebble starts it again, after a pause.
//
// In a bubble of fake time beware: a pause under one of Pebble's mutexes, with
// another goroutine waiting for that mutex, stops the clock.
type fullFS struct {
	vfs.FS
	waiting atomic.Int64 // writes that wait for room
	stopped chan struct{}
	once    sync.Once
}

func newFullFS(fs vfs.FS) *fullFS { return &fullFS{FS: fs, stopped: make(chan struct{})} }

// stop ends all waiting: what waits now fails.
func (f *fullFS) stop() { f.once.Do(func() { close(f.stopped) }) }

func (f *fullFS) pause() bool {
	t := time.NewTimer(retryEvery)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-f.stopped:
		return false
	}
}

// try repeats do while there is no room, or, for a table, once pauses.
func (f *fullFS) try(name string, do func() error) error {
	err := do()
	if err == nil || !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	if f.table(name) {
		f.pause()
		return err
	}
	f.waiting.Add(1)
	defer f.waiting.Add(-1)
	for errors.Is(err, syscall.ENOSPC) && f.pause() {
		err = do()
	}
	return err
}

func (f *fullFS) table(name string) bool {
	base := f.PathBase(name)
	return len(base) > 4 && base[len(base)-4:] == ".sst"
}

// Create implements vfs.FS.
func (f *fullFS) Create(name string, c vfs.DiskWriteCategory) (file vfs.File, err error) {
	err = f.try(name, func() error {
		file, err = f.FS.Create(name, c)
		return err
	})
	return f.wrap(name, file, err)
}

// ReuseForWrite implements vfs.FS.
func (f *fullFS) ReuseForWrite(oldName, newName string, c vfs.DiskWriteCategory) (file vfs.File, err error) {
	err = f.try(newName, func() error {
		file, err = f.FS.ReuseForWrite(oldName, newName, c)
		return err
	})
	return f.wrap(newName, file, err)
}

// OpenReadWrite implements vfs.FS.
func (f *fullFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.FS.OpenReadWrite(name, c, o...)
	return f.wrap(name, file, err)
}

// Rename implements vfs.FS.
func (f *fullFS) Rename(oldName, newName string) error {
	return f.try(newName, func() error { return f.FS.Rename(oldName, newName) })
}

// Link implements vfs.FS.
func (f *fullFS) Link(oldName, newName string) error {
	return f.try(newName, func() error { return f.FS.Link(oldName, newName) })
}

// Unwrap implements vfs.FS.
func (f *fullFS) Unwrap() vfs.FS { return f.FS }

func (f *fullFS) wrap(name string, file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &fullFile{File: file, fs: f, name: name}, nil
}

type fullFile struct {
	vfs.File
	fs   *fullFS
	name string
}

// Write implements io.Writer. It goes on where a write without room stopped.
func (f *fullFile) Write(p []byte) (int, error) {
	done := 0
	err := f.fs.try(f.name, func() error {
		n, err := f.File.Write(p[done:])
		done += n
		return err
	})
	return done, err
}

// WriteAt implements io.WriterAt.
func (f *fullFile) WriteAt(p []byte, at int64) (int, error) {
	done := 0
	err := f.fs.try(f.name, func() error {
		n, err := f.File.WriteAt(p[done:], at+int64(done))
		done += n
		return err
	})
	return done, err
}
