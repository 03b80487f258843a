package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
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

var errDisk = errors.New("the disk says no")

// failing injects err into what match says, once it is switched on.
type failing struct {
	on    atomic.Bool
	match func(errorfs.Op) bool
	err   error
	hits  atomic.Int64
}

func (f *failing) wrap(fs vfs.FS) vfs.FS {
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if f.on.Load() && f.match(op) {
			f.hits.Add(1)
			return f.err
		}
		return nil
	}))
}

func isSync(op errorfs.Op) bool {
	return op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileSyncTo
}

func isWrite(op errorfs.Op) bool {
	return op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpCreate
}

func isTable(op errorfs.Op) bool { return strings.HasSuffix(op.Path, ".sst") }

func isLog(op errorfs.Op) bool { return strings.HasSuffix(op.Path, ".log") }

func entry(revision uint64, size int) *schedule.Entry {
	now := time.Now().UTC()
	return &schedule.Entry{Revision: revision, Occurrence: revision, ScheduledAt: now, DueAt: now, Event: &schedule.Event{Data: make([]byte, size)}}
}

// opened is a store on a file system that may fail, and its fatal errors.
func opened(t *testing.T, fs vfs.FS) (*store.DB, chan error) {
	t.Helper()
	fatal := make(chan error, 10)
	db, err := store.Open(store.Options{Dir: "data", FS: fs, Fatal: func(err error) { fatal <- err }})
	must(t, err)
	return db, fatal
}

func mustPut(t *testing.T, db *store.DB, key string, size int) {
	t.Helper()
	must(t, put(db, key, size))
}

func put(db *store.DB, key string, size int) error {
	old, err := db.Get("s", key)
	if err != nil {
		return err
	}
	r, err := db.NextRevision()
	if err != nil {
		return err
	}
	c, err := db.Apply(false, store.Change{Source: "s", Key: key, Old: old, New: entry(r, size)})
	if err != nil {
		return err
	}
	return c.Wait()
}

// A failed write of the log is fatal and never acknowledged.
func TestLog_FailedWriteIsFatal(t *testing.T) {
	t.Parallel()
	for name, match := range map[string]func(errorfs.Op) bool{
		"fsync":             func(op errorfs.Op) bool { return isLog(op) && isSync(op) },
		"write":             func(op errorfs.Op) bool { return isLog(op) && op.Kind == errorfs.OpFileWrite },
		"fsync of anything": isSync,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := vfs.NewCrashableMem()
			bad := &failing{match: match, err: errDisk}
			db, fatal := opened(t, bad.wrap(mem))
			var acknowledged sync.Map
			var callers sync.WaitGroup
			for g := range 8 {
				callers.Go(func() {
					for i := range 1_000_000 {
						if g == 0 && i == 20 {
							bad.on.Store(true)
						}
						key := fmt.Sprintf("%d/%d", g, i)
						if err := put(db, key, 100); err != nil {
							return
						}
						acknowledged.Store(key, true)
					}
					t.Error("a million changes were acknowledged")
				})
			}
			callers.Wait()
			if err := <-fatal; !errors.Is(err, errDisk) {
				t.Fatal(err)
			}
			if err := put(db, "later", 1); !errors.Is(err, errDisk) {
				t.Fatalf("a later change: %v", err)
			}
			if _, err := db.Apply(true); !errors.Is(err, errDisk) {
				t.Fatalf("a later lazy change: %v", err)
			}
			image := mem.CrashClone(vfs.CrashCloneCfg{})
			if err := db.Close(); !errors.Is(err, errDisk) {
				t.Fatalf("closing: %v", err)
			}
			if len(fatal) > 0 {
				t.Fatal("it was fatal twice")
			}
			after := mustOpen(t, image, "data")
			defer after.Close()
			acknowledged.Range(func(key, _ any) bool {
				if e, err := after.Get("s", key.(string)); e == nil || err != nil {
					t.Errorf("key %v was acknowledged and is lost: %v", key, err)
				}
				return true
			})
		})
	}
}

// After a failed fsync of a log, the manifest or the directory, or a log that cannot be made, every call ends with the
// error of the disk, also a change that was under way.
func TestLog_AfterAFailureAllCallsEnd(t *testing.T) {
	t.Parallel()
	for name, match := range map[string]func(errorfs.Op) bool{
		"log":       func(op errorfs.Op) bool { return isLog(op) && isSync(op) },
		"new log":   func(op errorfs.Op) bool { return isLog(op) && op.Kind != errorfs.OpFileWrite && changes(op) },
		"manifest":  func(op errorfs.Op) bool { return strings.Contains(op.Path, "MANIFEST") && isSync(op) },
		"directory": func(op errorfs.Op) bool { return op.Path == "data/store" && isSync(op) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := &failing{match: match, err: errDisk}
			db, fatal := opened(t, bad.wrap(small(vfs.NewMem())))
			bad.on.Store(true)
			var callers sync.WaitGroup
			for g := range uint64(4) {
				callers.Go(func() {
					var err error
					for i := uint64(1); err == nil; i++ { // no change is waited for: the next one meets the failure
						_, err = db.Apply(false, store.Change{Source: "s", Key: fmt.Sprint(g, i), New: entry(g<<32+i, 4<<10)})
					}
					if !errors.Is(err, errDisk) {
						t.Errorf("the change: %v", err)
					}
				})
			}
			callers.Wait()
			if err := <-fatal; !errors.Is(err, errDisk) {
				t.Errorf("fatal: %v", err)
			}
			if err := db.Close(); !errors.Is(err, errDisk) {
				t.Errorf("closing: %v", err)
			}
		})
	}
}

// A failed fsync of a lazy change is fatal.
func TestFsync_FailedOfALazyChangeIsFatal(t *testing.T) {
	t.Parallel()
	bad := &failing{match: isSync, err: errDisk}
	db, fatal := opened(t, bad.wrap(vfs.NewMem()))
	bad.on.Store(true)
	must(t, errorOf(db.Apply(true, store.Change{Source: "s", Key: "k", New: entry(1, 1)})))
	if err := <-fatal; !errors.Is(err, errDisk) {
		t.Fatal(err)
	}
	if err := db.Close(); !errors.Is(err, errDisk) {
		t.Fatal(err)
	}
}

// small makes the store take the file system for a small one, with small memtables.
func small(mem *vfs.MemFS) *vfs.MemFS {
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 30, TotalBytes: 1 << 20})
	return mem
}

// Writes of tables wait while the disk is full. A used-up quota is a full disk, and so is one that says so when a table
// is synced; the log has few lines of it.
func TestFullDisk_WritesOfTablesWait(t *testing.T) {
	t.Parallel()
	many, few, lasts := 1000, 64, 5*time.Minute // more than the memtables hold
	if testing.Short() {
		many, few, lasts = 400, 20, time.Minute
	}
	tables := func(op errorfs.Op) bool { return isTable(op) && isWrite(op) }
	log := func(op errorfs.Op) bool { return isLog(op) && isWrite(op) }
	for name, test := range map[string]struct {
		match      func(errorfs.Op) bool
		errno      syscall.Errno
		puts, size int
		lasts      time.Duration
	}{
		"flushes and compactions": {tables, syscall.ENOSPC, many, 4 << 10, time.Minute},
		"the log":                 {log, syscall.ENOSPC, many, 4 << 10, time.Minute},
		"everything":              {isWrite, syscall.ENOSPC, many, 4 << 10, time.Minute},
		// Few large values: a flush that fails is tried again ten times a second, and writes its blocks each time.
		"a quota on the log":    {log, syscall.EDQUOT, few, 64 << 10, lasts},
		"a quota on everything": {isWrite, syscall.EDQUOT, few, 64 << 10, lasts},
		"fsync of tables":       {func(op errorfs.Op) bool { return isTable(op) && isSync(op) }, syscall.ENOSPC, few, 64 << 10, lasts},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				mem := small(vfs.NewCrashableMem())
				full := &failing{match: test.match, err: &vfsError{test.errno}}
				var log bytes.Buffer
				db, err := store.Open(store.Options{Dir: "data", FS: full.wrap(mem), Log: slog.New(slog.NewTextHandler(&log, nil)),
					Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
				must(t, err)
				for i := range test.puts / 30 {
					mustPut(t, db, fmt.Sprint(i), test.size)
				}
				full.on.Store(true)
				defer time.AfterFunc(test.lasts, func() { full.on.Store(false) }).Stop()
				for i := range test.puts {
					mustPut(t, db, fmt.Sprint(i), test.size)
				}
				time.Sleep(test.lasts) // fake
				synctest.Wait()
				must(t, db.Close())
				if hits := full.hits.Load(); hits == 0 || hits > 100_000 {
					t.Errorf("it met the full disk %d times", hits)
				}
				if n := strings.Count(log.String(), "\n"); test.puts == few && (n > 30 || log.Len() > 30_000) {
					t.Errorf("%d lines, %d bytes in ten minutes:\n%.2000s", n, log.Len(), log.String())
				}
				mustVerify(t, mem, "data")
			})
		})
	}
}

// vfsError is how the operating system's errors come.
type vfsError struct{ errno syscall.Errno }

func (e *vfsError) Error() string { return "write: " + e.errno.Error() }
func (e *vfsError) Unwrap() error { return e.errno }

// A full disk is reported before a change is made.
func TestFullDisk_IsReportedBeforehand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		free := func(n uint64) { mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: n, TotalBytes: 64 << 20}) }
		free(64 << 20)
		db := mustOpen(t, mem, "data")
		defer db.Close()
		for _, step := range []struct {
			free        uint64
			large, tiny error // for a namespace that holds a megabyte, or a byte
		}{{20 << 20, nil, nil}, {16 << 20, store.ErrFull, nil}, {8<<20 - 1, store.ErrFull, store.ErrFull}, {0, store.ErrFull, store.ErrFull}, {17 << 20, nil, nil}} {
			free(step.free)
			time.Sleep(time.Second) // fake: the answer is kept for a moment
			if large, tiny := db.Space(1, 1<<20), db.Space(1, 1); !errors.Is(large, step.large) || !errors.Is(tiny, step.tiny) {
				t.Errorf("with %d bytes free: %v, %v", step.free, large, tiny)
			}
		}
		mustPut(t, db, "k", 1)
	})
}

// While flushes have no space and changes wait for them, Space refuses others.
func TestFullDisk_FlushesThatFailRefuseChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		full := &failing{match: func(op errorfs.Op) bool { return isTable(op) && isWrite(op) }, err: syscall.ENOSPC}
		mem := small(vfs.NewMem())
		db := mustOpen(t, full.wrap(mem), "data")
		defer db.Close()
		full.on.Store(true)
		var callers sync.WaitGroup
		defer callers.Wait()
		defer full.on.Store(false)
		callers.Go(func() {
			for i := range 1000 { // more than the memtables hold
				if err := put(db, fmt.Sprint(i), 4<<10); err != nil {
					t.Error(err)
				}
			}
		})
		for range 100 {
			time.Sleep(time.Second) // fake: the changes run as far as they can
			if err := db.Space(1, 1); !errors.Is(err, store.ErrFull) || !db.Waiting() || !db.LowOnSpace() || db.HasAmpleSpace() {
				t.Fatalf("while changes wait: %v", err)
			}
		}
		full.on.Store(false)
		callers.Wait()
		if err := db.Space(1, 1); err != nil || db.Waiting() {
			t.Errorf("with space again: %v", err)
		}
	})
}

// A full disk when the log changes: Close returns, the change is refused, and what was acknowledged is there.
func TestFullDisk_CloseEndsAChangeOfLogs(t *testing.T) {
	t.Parallel()
	for name, match := range map[string]func(errorfs.Op) bool{
		"new log": func(op errorfs.Op) bool { return isLog(op) && op.Kind != errorfs.OpFileWrite && changes(op) },
		"old log": func(op errorfs.Op) bool { return isLog(op) && op.Kind == errorfs.OpFileWrite },
		"all":     changes,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				mem := vfs.NewCrashableMem()
				full := &failing{match: match, err: syscall.ENOSPC}
				db, _ := opened(t, full.wrap(mem))
				mustPut(t, db, "acknowledged", 1)
				full.on.Store(true)
				c, err := db.Apply(false, store.Change{Source: "s", Key: "waits", New: entry(99, 1)})
				must(t, err)
				waited := make(chan error, 1)
				go func() { waited <- c.Wait() }()
				ended := make(chan error, 1)
				go func() {
					for i := 0; ; i++ { // lazy changes do not wait for the log: one of them changes it
						c, err := db.Apply(true, store.Change{Source: "s", Key: fmt.Sprint(i), New: entry(uint64(i+100), 255<<10)})
						if err == nil && i == 1000 {
							err = c.Wait()
						}
						if err != nil {
							ended <- err
							return
						}
					}
				}()
				for full.hits.Load() == 0 {
					time.Sleep(time.Second) // fake
				}
				time.Sleep(time.Minute) // fake: it waits where it is
				if err := db.Space(0, 0); !errors.Is(err, store.ErrFull) {
					t.Errorf("space: %v", err)
				}
				if err := db.Close(); !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("closing: %v", err)
				}
				if err := <-waited; !errors.Is(err, syscall.ENOSPC) && (err != nil || name != "new log") { // the old one takes it
					t.Errorf("waiting: %v", err)
				}
				if err := <-ended; !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, store.ErrClosed) {
					t.Errorf("the change: %v", err)
				}
				db = mustOpen(t, mem, "data")
				defer db.Close()
				if e, err := db.Get("s", "acknowledged"); err != nil || e == nil {
					t.Errorf("after the next start: %v, %v", e, err)
				}
			})
		})
	}
}

// changes reports an operation that needs space.
func changes(op errorfs.Op) bool {
	switch op.Kind {
	case errorfs.OpCreate, errorfs.OpReuseForWrite, errorfs.OpFileWrite, errorfs.OpRename, errorfs.OpLink:
		return true
	}
	return false
}

// An fsync without space has maybe dropped data: nothing is acknowledged, nothing is tried again.
func TestFsync_WithoutSpaceIsFatal(t *testing.T) {
	t.Parallel()
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		full := &failing{match: func(op errorfs.Op) bool { return isLog(op) && isSync(op) }, err: &vfsError{errno}}
		db, fatal := opened(t, full.wrap(vfs.NewMem()))
		full.on.Store(true)
		if err := put(db, "k", 1); !errors.Is(err, errno) {
			t.Errorf("it is acknowledged: %v", err)
		}
		if err := <-fatal; !errors.Is(err, errno) || full.hits.Load() != 1 {
			t.Errorf("%d fsyncs: %v", full.hits.Load(), err)
		}
		_ = db.Close() // it says so once more
	}
}
