package store

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options say where and how to open a store.
type Options struct {
	// Dir is the data directory; it is made when it is not there.
	Dir string
	// FS is the file system, default the operating system's.
	FS vfs.FS
	// ReadOnly changes nothing in the directory; it must hold a store.
	ReadOnly bool
	// Log, default none.
	Log *slog.Logger
	// Fatal is called once, on a goroutine of its own, when durability is
	// unknown: the process must end. Every later Apply and Wait fails.
	Fatal func(error)
	// Observe is called with how long a durable Apply took to reach stable
	// storage, from Apply to the end of Wait.
	Observe func(time.Duration)
	// Reserve is how many free bytes are kept back: below it Space returns ErrFull.
	// Default: a tenth of the file system, at least 16 MiB unless that is more
	// than a quarter of it, at most 512 MiB. Negative: none.
	Reserve int64
	// LogUse is how much the log of a group takes on the same disk, and how much it may take. On a small disk a quarter
	// of the disk is kept free for the log. nil: there is no such log.
	LogUse func() (now, most int64)

	// New opens the store in [NewDir], without the lock of Dir, which its caller has.
	New bool

	lenient    bool // open also what cannot be read in parts
	replicated bool // the replicated log takes the place of the engine's
	eitherForm bool // open a store of a single adapter, or of a member
}

const (
	// memTable is what a memtable grows to. The write-ahead log is replayed into
	// it, so it also bounds how long a start after a crash takes.
	memTable    = 12 << 20
	blockCache  = 56 << 20
	maxOpenFile = 256
	baseLevel   = 64 << 20
	// leastLevel0 and mostLevel0 bound how many flushed tables make a compaction: the more, the fewer times a row is
	// written. See docs/adr/0019-the-engine-stays-pebble.md.
	leastLevel0, mostLevel0 = 4, 16
)

// usage is the state of the file system below dir, false if that is unknown.
func usage(fs vfs.FS, dir string) (vfs.DiskUsage, bool) {
	u, err := fs.GetDiskUsage(dir)
	return u, err == nil && u.TotalBytes > 0
}

// reserve is the free space to keep back on a file system of the given size.
func (o *Options) reserve(total uint64) int64 {
	switch {
	case o.Reserve < 0:
		return 0
	case o.Reserve > 0:
		return o.Reserve
	}
	r := max(total/10, 16<<20)
	return int64(min(r, total/4, 512<<20))
}

// pebble makes the engine's options. total is the size of the file system, 0
// if unknown. On a small one the memtable must be small too, since a few
// write-ahead logs of its size are kept and used again. And so must a compaction, which
// takes space before it frees any: the memtables of level 0 and the base level fit half of the reserve, since
// replacements may use the other half.
func (db *DB) pebble(o *Options, fs vfs.FS, total uint64) *pebble.Options {
	mem, base, table, tables := uint64(memTable), int64(baseLevel), int64(2<<20), int64(mostLevel0)
	if total > 0 {
		mem = min(mem, max(total/64, 1<<20))
		base = min(base, int64(max(total/32, 2<<20)))
		table = min(table, base/32)
		tables = min(tables, max((o.reserve(total)/2-base)/int64(mem), leastLevel0))
	}
	ended := func(err error) {
		if err == nil {
			db.full.gaveUp.Store(false)
		}
	}
	p := &pebble.Options{
		FS:                          fs,
		ReadOnly:                    o.ReadOnly,
		ErrorIfNotExists:            o.ReadOnly,
		DisableWAL:                  o.replicated,
		FormatMajorVersion:          pebble.FormatWALSyncChunks,
		Merger:                      counterMerger,
		Logger:                      engineLog{db},
		MemTableSize:                mem,
		MemTableStopWritesThreshold: 3,
		CacheSize:                   blockCache,
		MaxOpenFiles:                maxOpenFile,
		// A full disk stops compactions; writes must go on meanwhile.
		L0CompactionThreshold: int(tables),
		L0StopWritesThreshold: 200,
		LBaseMaxBytes:         base,
		MaxManifestFileSize:   4 << 20,
		FlushDelayDeleteRange: 10 * time.Second,
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) {
				db.logLimited(&db.trouble, slog.LevelWarn, "store: background work failed and will be tried again", err.Error())
				db.pauseStats()
			},
			// The default ends the process. A bad block must not stop the others.
			DataCorruption: func(i pebble.DataCorruptionInfo) {
				db.corruptAt(fmt.Sprintf("%s: %v", i.Path, i.Details), i.Details)
				db.damaged.Store(true)
			},
			FlushBegin: func(pebble.FlushInfo) { db.flushing.Store(true) },
			FlushEnd: func(i pebble.FlushInfo) {
				db.flushing.Store(false)
				ended(i.Err)
			},
			CompactionEnd: func(i pebble.CompactionInfo) { ended(i.Err) },
			WriteStallBegin: func(i pebble.WriteStallBeginInfo) {
				db.stalled.Store(true)
				db.logLimited(&db.stalls, slog.LevelWarn, "store: writes wait for background work", i.Reason)
			},
			WriteStallEnd: func() { db.stalled.Store(false) },
		},
	}
	p.TargetFileSizes[0] = table
	p.Experimental.CompactionScheduler = &scheduler{low: db.space.isLow, flushing: db.flushing.Load}
	p.Experimental.FileCacheShards = min(runtime.GOMAXPROCS(0), 4)
	// A PUT mostly reads a key that is not there: a filter saves the read.
	for i := range p.Levels {
		p.Levels[i].FilterPolicy = filterPolicy
	}
	return p
}

// statsAgain is the pause before the engine looks again at a table that it
// cannot open.
const statsAgain = time.Minute

// pauseStats waits when the engine's collection of statistics has failed: it
// tries again at once, for ever. Everything else that fails in the background may
// hold the engine's lock, and must not wait here.
func (db *DB) pauseStats() {
	var callers [16]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers[:])])
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); strings.HasSuffix(f.Function, ".scanReadStateTableStats") {
			select {
			case <-db.keeper.stop:
			case <-time.After(statsAgain):
			}
			return
		}
	}
}

// engineLog receives what Pebble says. What it calls fatal concerns the
// write-ahead log or the manifest: durability is unknown.
type engineLog struct{ db *DB }

func (l engineLog) Infof(string, ...any) {}

func (l engineLog) Errorf(format string, args ...any) {
	l.db.logLimited(&l.db.trouble, slog.LevelError, "store: the engine is in trouble", fmt.Sprintf(format, args...))
}

func (l engineLog) Fatalf(format string, args ...any) {
	_ = l.db.fail(fmt.Errorf("store: engine: "+format, args...))
}

func (o *Options) fs() vfs.FS {
	if o.FS == nil {
		return vfs.Default
	}
	return o.FS
}
