package sim

import (
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// disk is a memory file system. Pebble's copies a whole file at each sync; of
// an open log only the length is noted instead, and made good when the power is
// lost.
type disk struct {
	*vfs.MemFS

	mu   sync.Mutex
	logs map[string]*logFile // open, by name
}

func newDisk(fs *vfs.MemFS) *disk { return &disk{MemFS: fs, logs: map[string]*logFile{}} }

// crash is what is on the disk after a power loss now: what was synced and
// about the given share of the rest.
func (d *disk) crash(percent int, r *rand.Rand) (*disk, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	clone := d.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: r})
	for name, f := range d.logs {
		if _, err := clone.Stat(name); err != nil {
			continue // its name was not synced
		}
		if err := f.survive(clone, percent, r); err != nil {
			return nil, err
		}
	}
	dir, err := clone.OpenDir("data")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return newDisk(clone), dir.Sync()
}

// Create implements vfs.FS.
func (d *disk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.MemFS.Create(name, category)
	return d.log(name, f), err
}

// ReuseForWrite implements vfs.FS.
func (d *disk) ReuseForWrite(old, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.MemFS.ReuseForWrite(old, name, category)
	return d.log(name, f), err
}

func (d *disk) log(name string, f vfs.File) vfs.File {
	if f == nil || !strings.HasSuffix(name, ".log") {
		return f
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	l := &logFile{File: f, d: d, name: name}
	d.logs[name] = l
	return l
}

// logFile is an open log: bytes up to written are new, up to synced durable.
type logFile struct {
	vfs.File
	d               *disk
	name            string
	written, synced int
}

// survive writes what is left of the log into the clone.
func (f *logFile) survive(clone *vfs.MemFS, percent int, r *rand.Rand) error {
	in, err := f.d.Open(f.name)
	if err != nil {
		return err
	}
	defer in.Close()
	data, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	keep := f.synced
	if percent > 0 && f.written > f.synced {
		keep += r.IntN((f.written-f.synced)*percent/100 + 1)
	}
	clear(data[keep:f.written])
	out, err := clone.Create(f.name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := out.Write(data); err != nil {
		return err
	}
	return out.Sync()
}

// Write implements vfs.File.
func (f *logFile) Write(p []byte) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	n, err := f.File.Write(p)
	f.written += n
	return n, err
}

// Sync implements vfs.File.
func (f *logFile) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.synced = f.written
	return nil
}

// SyncData implements vfs.File.
func (f *logFile) SyncData() error { return f.Sync() }

// SyncTo implements vfs.File.
func (f *logFile) SyncTo(int64) (bool, error) { return true, f.Sync() }

// Close implements vfs.File.
func (f *logFile) Close() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.logs[f.name] == f {
		delete(f.d.logs, f.name)
	}
	if f.synced == f.written {
		if err := f.File.Sync(); err != nil {
			return err
		}
	}
	return f.File.Close()
}

// slowStore is a store on which an acknowledgement and the load of a page can
// take time, so that other things can come before their end. Nothing takes time
// under a mutex that another goroutine waits for, which would stop the clock of the bubble.
type slowStore struct {
	*store.DB
	takes *atomic.Int64
}

// Apply implements store.Store.
func (s slowStore) Apply(lazy bool, changes ...store.Change) (store.Commit, error) {
	return s.ApplyMarked(lazy, nil, changes...)
}

// ApplyMarked implements store.Store.
func (s slowStore) ApplyMarked(lazy bool, marks []store.MarkChange, changes ...store.Change) (store.Commit, error) {
	takes := time.Duration(s.takes.Load())
	c, err := s.DB.ApplyMarked(lazy || takes > 0, marks, changes...)
	if takes > 0 && err == nil {
		c = slowCommit{c, takes}
	}
	return c, err
}

// Due implements store.Store.
func (s slowStore) Due(rows []store.Row, source string, p schedule.Priority, after store.Position, limit int) ([]store.Row, bool, error) {
	rows, more, err := s.DB.Due(rows, source, p, after, limit)
	time.Sleep(time.Duration(s.takes.Load()))
	return rows, more, err
}

type slowCommit struct {
	store.Commit
	takes time.Duration
}

// Wait implements store.Commit.
func (c slowCommit) Wait() error {
	time.Sleep(c.takes)
	return c.Commit.Wait()
}
