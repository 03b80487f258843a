package store

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// retryEvery is the pause before something is written again for which the disk
// had no room.
const retryEvery = 100 * time.Millisecond

// fullFS makes a full disk, or a used-up quota, a matter of waiting. A write that
// ends with ENOSPC or EDQUOT has changed nothing beyond the bytes it says it
// wrote, so it can go on from there; Pebble would take the error of a write to
// its log for the end of the world.
//
// A failed fsync is that, whatever its error: the system may have dropped what it
// could not write, and a second fsync would say that all is well. fullFS never
// repeats one. On file systems that find room only then (NFS, some overlays) a
// full disk ends the process. The fsync of a table is another matter: its log is
// still there, and the table is written anew.
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

// IsFull says that the error is of a disk without room: it is full, or a quota
// is used up.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

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
	if !IsFull(err) {
		return err
	}
	if f.table(name) {
		f.pause()
		return err
	}
	f.waiting.Add(1)
	defer f.waiting.Add(-1)
	for IsFull(err) && f.pause() {
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

// Write implements io.Writer. It goes on where a write without room stopped. A
// flush or a compaction lets other goroutines go first, as in scheduler.MeasureCPU.
func (f *fullFile) Write(p []byte) (int, error) {
	if f.fs.table(f.name) {
		runtime.Gosched()
	}
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

// Sync implements vfs.File.
func (f *fullFile) Sync() error { return f.synced(f.File.Sync()) }

// SyncData implements vfs.File.
func (f *fullFile) SyncData() error { return f.synced(f.File.SyncData()) }

// synced pauses before a table is given up for which there was no room.
func (f *fullFile) synced(err error) error {
	if IsFull(err) && f.fs.table(f.name) {
		f.fs.pause()
	}
	return err
}
