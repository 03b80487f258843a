package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The view is flushed when it is keepEntries ahead of its files, and after keepEvery in any
// case, so that a start has little to read.
const (
	keepPause   = 500 * time.Millisecond
	keepEvery   = 5 * time.Second
	keepEntries = 2000
	lookEvery   = time.Second // at what the others report
)

// KeepBytes is how much of the log is kept for a member that is away. One that comes back
// later takes a copy of another member's view.
const KeepBytes = 64 << 20

// newest are the newest entries of the log, up to Config.Keep bytes.
type newest struct {
	chunks []chunk
	bytes  int64
	below  uint64 // the entries up to this number are older
}

type chunk struct {
	last  uint64 // number of an entry
	bytes int64
}

// chunkBytes is how exactly the size of the log is known.
const chunkBytes = 64 << 10

// add counts an entry.
func (n *newest) add(seq uint64, size, keep int64) {
	if len(n.chunks) == 0 || n.chunks[len(n.chunks)-1].bytes >= min(chunkBytes, keep/8) {
		n.chunks = append(n.chunks, chunk{})
	}
	c := &n.chunks[len(n.chunks)-1]
	c.last, c.bytes, n.bytes = seq, c.bytes+size, n.bytes+size
	n.forget(keep)
}

// extend counts newer entries.
func (n *newest) extend(newer newest, keep int64) {
	n.chunks = append(n.chunks, newer.chunks...)
	n.bytes += newer.bytes
	n.below = max(n.below, newer.below)
	n.forget(keep)
}

func (n *newest) forget(keep int64) {
	for n.bytes > keep && len(n.chunks) > 1 {
		n.below, n.bytes = max(n.below, n.chunks[0].last), n.bytes-n.chunks[0].bytes
		n.chunks = slices.Delete(n.chunks, 0, 1)
	}
}

// keeper knows what of the log need not be kept: by how much there is, and by what the views have on disk.
type keeper struct {
	cfg     *Config
	trimmed atomic.Uint64 // by this member
	copies  atomic.Bool   // Report.Copies

	// mu guards the three below, for a moment: who applies an entry counts it, and the goroutine of keep reads.
	mu      sync.Mutex
	newest  newest
	before  uint64 // the last entry that was applied when newest began
	counted bool   // newest has the entries before too

	marking sync.Mutex // held while a mark is written, and while the view is emptied: a mark is never of a view that is gone
	emptied int        // how often the view was; with marking

	// Of the goroutine of keep alone.
	reported   Report
	reportedAt time.Duration
}

// Trimmed is the number of the last entry that this member removed from the log, 0: none.
func (k *keeper) Trimmed() uint64 { return k.trimmed.Load() }

// entryBytes is about what the log needs for an entry beside its data.
const entryBytes = 200

// count counts an entry that was applied.
func (k *keeper) count(seq uint64, size int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.newest.add(seq, int64(size)+entryBytes, k.cfg.Keep)
}

// reset begins anew to count what is applied. What the log had before is counted meanwhile,
// since it takes seconds where entries are small.
func (k *keeper) reset() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.newest, k.before, k.counted = newest{}, k.cfg.View.Applied(), false
}

// countOlder counts what the log had when the keeper was reset.
func (k *keeper) countOlder(ctx context.Context) error {
	k.mu.Lock()
	before, counted := k.before, k.counted
	k.mu.Unlock()
	if counted {
		return nil
	}
	var older newest
	for after, more := uint64(0), true; more; {
		var p Page
		err := bounded(ctx, func(ctx context.Context) (err error) {
			p, err = k.cfg.Log.Read(ctx, after)
			return err
		})
		if err != nil {
			return err
		}
		more = p.More
		for _, e := range p.Entries {
			if e.Seq > before {
				more = false // it is counted when it is applied
				break
			}
			older.add(e.Seq, int64(len(e.Data))+entryBytes, k.cfg.Keep)
			after = e.Seq
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.before == before { // else the view is another one meanwhile
		older.extend(k.newest, k.cfg.Keep)
		k.newest, k.counted = older, true
	}
	return nil
}

// removable is the number up to which the log need not be kept: all views have these
// entries on disk, or a majority has, and they are too old to be kept for the others.
func (k *keeper) removable(marks map[string]uint64) uint64 {
	saved := make([]uint64, 0, len(k.cfg.Members))
	for _, m := range k.cfg.Members {
		saved = append(saved, marks[m]) // 0 of a member that never wrote one
	}
	slices.Sort(saved)
	k.mu.Lock()
	defer k.mu.Unlock()
	return min(k.cfg.View.Applied(), max(saved[0], min(saved[(len(saved)-1)/2], k.newest.below)))
}

// keep flushes the view from time to time and records that in the log. The owner removes from
// the log what need not be kept.
func (g *Group) keep(ctx context.Context) {
	cfg := &g.cfg
	saved, at, looked := uint64(0), cfg.Clock(), time.Duration(0)
	for first := true; ; {
		pause(ctx, keepPause)
		if ctx.Err() != nil {
			return
		}
		g.report(ctx)
		applied := cfg.View.Applied()
		if first || applied > saved && (cfg.Clock()-at >= keepEvery || applied-saved >= keepEntries) {
			marked, err := g.Mark(ctx)
			if errors.Is(err, errFlush) {
				cfg.Logger.Error("the view cannot be flushed; the log is kept meanwhile", "error", err)
				continue
			}
			if err == nil {
				saved, at, first = marked, cfg.Clock(), false
			}
		}
		if err := g.countOlder(ctx); err != nil {
			cfg.Logger.Warn("the log cannot be read; trying again", "error", err)
		}
		if cfg.Clock()-looked >= lookEvery {
			if bounded(ctx, g.look) == nil {
				looked = cfg.Clock()
			}
		}
		if t := g.tenure.Load(); t.Valid() {
			_ = bounded(ctx, t.trim)
		}
	}
}

var errFlush = errors.New("replica: the view is not on disk")

// Mark flushes the view, and records in the log that it is on disk up to the entry that it returns.
func (k *keeper) Mark(ctx context.Context) (uint64, error) {
	k.marking.Lock()
	emptied, applied := k.emptied, k.cfg.View.Applied()
	k.marking.Unlock()
	if err := k.cfg.View.Flush(); err != nil { // it may take long
		return 0, fmt.Errorf("%w: %w", errFlush, err)
	}
	k.marking.Lock()
	defer k.marking.Unlock()
	if emptied != k.emptied {
		return 0, errEmptied
	}
	return applied, bounded(ctx, func(ctx context.Context) error { return k.cfg.Log.Mark(ctx, k.cfg.Member, applied) })
}

var errEmptied = errors.New("replica: the view was emptied meanwhile")

// Empty removes the mark, and then calls empty, which empties the view: the empty view is not taken for a disk that went
// back. A mark of the view before is not written any more.
func (k *keeper) Empty(ctx context.Context, empty func() error) error {
	k.marking.Lock()
	defer k.marking.Unlock()
	k.emptied++
	if err := bounded(ctx, func(ctx context.Context) error { return k.cfg.Log.Mark(ctx, k.cfg.Member, 0) }); err != nil {
		return err
	}
	return empty()
}

// trim removes from the log what need not be kept.
func (t *Tenure) trim(ctx context.Context) error {
	g := t.g
	marks, err := g.cfg.Log.Marks(ctx)
	if err != nil {
		return err
	}
	low := g.removable(marks)
	if low <= g.trimmed.Load() {
		return nil
	}
	reports, err := g.cfg.Log.Reports(ctx)
	if err != nil {
		return err
	}
	low = min(low, t.holdLog(reports, marks))
	if low <= g.trimmed.Load() {
		return nil
	}
	if err := g.cfg.Log.Trim(ctx, low); err != nil {
		return err
	}
	g.trimmed.Store(low)
	return nil
}

// look takes over what the other members report.
func (g *Group) look(ctx context.Context) error {
	reports, err := g.cfg.Log.Reports(ctx)
	if err == nil {
		g.compareAll(g.known.get().Owner.Member, reports)
	}
	return err
}

func bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return do(ctx)
}
