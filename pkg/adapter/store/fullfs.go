package store

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// retryEvery is the pause before a write is repeated for which the disk had no space.
const retryEvery = 100 * time.Millisecond

// fullFS waits while the disk is full or a quota is used up. A write that ends with
// ENOSPC or EDQUOT has changed nothing beyond the bytes that it returns as written,
// so it can continue there.
//
// Any other error of the log or the manifest, and of an fsync of the directory, is fatal,
// and Pebble never sees it: it panics with locks held, which hangs every other call, or
// without the lock that it releases next, which ends the process before it can say why.
// fullFS freezes the disk in its place: it reports the error to lost, and from then on
// drops all writes but of tables, all renames and removals, and calls them done. What
// is on the disk is what a power cut at that moment leaves, and tables that nothing names.
//
// A failed fsync is fatal with every error: the system may have dropped the data that
// it could not write, and a second fsync would succeed. fullFS never repeats one. On
// file systems that allocate space only then (NFS, some overlays) a full disk ends
// the process. The fsync of a table is different: its log is still there, and the
// table is written again.
//
// Writes to tables are different too: a flush or a compaction is given up, so that
// its files are removed. Pebble starts it again, after a pause.
//
// The first thing to do without space is to release the ballast.
//
// The waiting ends with stop: a write of the log or the manifest that then has no space
// freezes the disk too.
//
// In a bubble of fake time beware: a pause under one of Pebble's mutexes, with
// another goroutine waiting for that mutex, stops the clock.
type fullFS struct {
	vfs.FS
	dir     string
	opened  atomic.Bool // Pebble is open: until then it reports each error itself
	ballast *ballast
	look    func()       // called before a table is made
	lost    func(error)  // called before the first write is dropped
	waiting atomic.Int64 // writes that wait for space
	gaveUp  atomic.Bool  // the last flush or compaction had no space
	stopped chan struct{}
	once    sync.Once
	frozen  atomic.Bool
	synced  *synced // what is on stable storage of logs and manifests
}

func newFullFS(fs vfs.FS, dir string, s *synced, b *ballast, look func(), lost func(error)) *fullFS {
	return &fullFS{FS: fs, dir: fs.PathJoin(dir), synced: s, ballast: b, look: look, lost: lost, stopped: make(chan struct{})}
}

// IsFull reports that the error is of a full disk or a used-up quota.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// stop ends all waiting: a write without space freezes the disk.
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

// giveUp ends a flush or a compaction without space, after the pause.
func (f *fullFS) giveUp() {
	f.gaveUp.Store(true)
	f.pause()
}

// try repeats do while there is no space, or, for a table, once pauses. On a frozen
// disk do is skipped, but not for a table: changes would wait for it, and nothing on
// the disk names it.
func (f *fullFS) try(name string, do func() error) error {
	if f.frozen.Load() && !f.table(name) {
		return nil
	}
	err := do()
	if IsFull(err) && f.ballast.release() {
		err = do()
	}
	if !IsFull(err) {
		return f.failed(name, err)
	}
	if f.table(name) {
		f.giveUp()
		return err
	}
	f.waiting.Add(1)
	defer f.waiting.Add(-1)
	for IsFull(err) {
		if !f.pause() {
			f.freeze(err)
			return nil
		}
		err = do()
	}
	return f.failed(name, err)
}

// failed returns the error of the file, or nil where Pebble must not see it.
func (f *fullFS) failed(name string, err error) error {
	if err == nil || !f.opened.Load() || !f.fatal(name) {
		return err
	}
	f.freeze(err)
	return nil
}

func (f *fullFS) freeze(err error) {
	f.lost(err)
	f.frozen.Store(true)
}

// fatal reports that durability depends on the file: a log, a manifest, or the directory.
// A checkpoint has files of these names too, in a directory of its own.
func (f *fullFS) fatal(name string) bool {
	return f.journal(name) || f.PathJoin(name) == f.dir
}

// journal reports that the file is a log or a manifest of the store.
func (f *fullFS) journal(name string) bool {
	base := f.PathBase(name)
	return (strings.HasSuffix(base, ".log") || strings.HasPrefix(base, manifestPrefix)) && f.PathDir(name) == f.dir
}

// manifestPrefix begins the names of the engine's lists of tables.
const manifestPrefix = "MANIFEST-"

func (f *fullFS) table(name string) bool {
	return strings.HasSuffix(f.PathBase(name), ".sst")
}

// Create implements vfs.FS.
func (f *fullFS) Create(name string, c vfs.DiskWriteCategory) (file vfs.File, err error) {
	if f.table(name) {
		f.look()
	}
	err = f.try(name, func() (err error) {
		if strings.HasPrefix(f.PathBase(name), "marker.") && f.PathDir(name) == f.dir {
			// The manifest that it names must be there before it.
			if err = f.syncNames(); err != nil {
				return err
			}
		}
		if err = f.forget(name); err == nil {
			file, err = f.FS.Create(name, c)
		}
		return err
	})
	return f.journaled(name, file, err)
}

func (f *fullFS) syncNames() error {
	d, err := f.FS.OpenDir(f.dir)
	if err != nil {
		return err
	}
	done := f.synced.naming()
	err = d.Sync()
	if err == nil {
		done()
	}
	return errors.Join(err, d.Close())
}

// ReuseForWrite implements vfs.FS.
func (f *fullFS) ReuseForWrite(oldName, newName string, c vfs.DiskWriteCategory) (file vfs.File, err error) {
	err = f.try(newName, func() (err error) {
		if err = f.forget(oldName); err == nil {
			file, err = f.FS.ReuseForWrite(oldName, newName, c)
		}
		return err
	})
	return f.journaled(newName, file, err)
}

// forget must be called before a file is removed, or gets another name.
func (f *fullFS) forget(name string) error {
	if f.journal(name) {
		return f.synced.forget(name)
	}
	return nil
}

// OpenDir implements vfs.FS.
func (f *fullFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	return f.wrap(name, file, err)
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

// Remove implements vfs.FS.
func (f *fullFS) Remove(name string) error {
	if f.frozen.Load() {
		return nil
	}
	if err := f.forget(name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

// RemoveAll implements vfs.FS.
func (f *fullFS) RemoveAll(name string) error {
	if f.frozen.Load() {
		return nil
	}
	return f.FS.RemoveAll(name)
}

// Unwrap implements vfs.FS.
func (f *fullFS) Unwrap() vfs.FS { return f.FS }

// journaled is wrap of a file that is written from its beginning.
func (f *fullFS) journaled(name string, file vfs.File, err error) (vfs.File, error) {
	file, err = f.wrap(name, file, err)
	if full, ok := file.(*fullFile); ok && f.journal(name) && !f.frozen.Load() {
		full.synced = f.synced.created(name)
	}
	return file, err
}

func (f *fullFS) wrap(name string, file vfs.File, err error) (vfs.File, error) {
	if err == nil && file == nil { // the disk is frozen: a file that exists in memory only
		file, err = vfs.NewMem().Create(f.PathBase(name), vfs.WriteCategoryUnspecified)
	}
	if err != nil {
		return nil, err
	}
	return &fullFile{File: file, fs: f, name: name}, nil
}

type fullFile struct {
	vfs.File
	fs     *fullFS
	name   string
	synced *syncedFile // of a log or a manifest
}

// Write implements io.Writer. A flush or a compaction lets other goroutines go first, as
// in scheduler.MeasureCPU.
func (f *fullFile) Write(p []byte) (int, error) {
	if f.fs.table(f.name) {
		runtime.Gosched()
	}
	written := func() {}
	if f.synced != nil {
		written = f.fs.synced.writing(f.synced, p)
	}
	n, err := f.write(p, func(done int) (int, error) { return f.File.Write(p[done:]) })
	if err == nil {
		written()
	}
	return n, err
}

// WriteAt implements io.WriterAt.
func (f *fullFile) WriteAt(p []byte, at int64) (int, error) {
	return f.write(p, func(done int) (int, error) { return f.File.WriteAt(p[done:], at+int64(done)) })
}

// write continues where a write without space stopped. On a frozen disk all of p counts
// as written.
func (f *fullFile) write(p []byte, from func(done int) (int, error)) (int, error) {
	done := 0
	err := f.fs.try(f.name, func() error {
		n, err := from(done)
		done += n
		return err
	})
	if err == nil {
		done = len(p)
	}
	return done, err
}

// Sync implements vfs.File.
func (f *fullFile) Sync() error { return f.sync(f.File.Sync) }

// SyncData implements vfs.File.
func (f *fullFile) SyncData() error { return f.sync(f.File.SyncData) }

// sync pauses before a table is given up for which there was no space.
func (f *fullFile) sync(do func() error) error {
	if f.fs.frozen.Load() {
		return nil
	}
	done := func() {}
	switch {
	case f.synced != nil:
		done = f.fs.synced.syncing(f.synced)
	case f.fs.PathJoin(f.name) == f.fs.dir:
		done = f.fs.synced.naming()
	}
	err := do()
	if err == nil && !f.fs.frozen.Load() {
		done()
	}
	if IsFull(err) && f.fs.table(f.name) {
		f.fs.giveUp()
	}
	return f.fs.failed(f.name, err)
}
