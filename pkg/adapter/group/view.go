package group

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/backup"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// view is the view of a member, which a copy of another member's may replace. Its files are used
// under mu. A replacement holds mu for as long as the disk takes, so calls read only the atomics
// of current.
type view struct {
	options store.Options
	mu      sync.RWMutex
	current atomic.Pointer[store.View]
}

func openView(o store.Options) (*view, error) {
	current, err := store.OpenView(o)
	if err != nil {
		return nil, err
	}
	v := &view{options: o}
	v.current.Store(current)
	return v, nil
}

func (v *view) get() *store.View {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.current.Load()
}

// History is read while no copy takes the place of the view.
func (v *view) History() (history, before string, begun uint64, _ error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.current.Load().History()
}

// Sealed reports that the group has ended.
func (v *view) Sealed() bool { return v.current.Load().Sealed() }

// Applied implements replica.View.
func (v *view) Applied() uint64 { return v.current.Load().Applied() }

// Chain implements replica.View.
func (v *view) Chain() (applied, hash uint64) { return v.get().Chain() }

// Apply implements replica.View.
func (v *view) Apply(seq uint64, batch []byte) error { return v.get().Apply(seq, batch) }

// Flush implements replica.View.
func (v *view) Flush() error { return v.get().Flush() }

// Checkpoint and Usage implement backup.Store.
func (v *view) Checkpoint(use func(dir string) error) error { return v.get().Checkpoint(use) }

// Usage implements backup.Store.
func (v *view) Usage() (free, reserve, used int64, known bool) { return v.get().Usage() }

// replace puts another view in the place of the view: store.ReplaceView, or store.EmptyView.
func (v *view) replace(by func(store.Options) (*store.View, error)) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := v.current.Load().Close(); err != nil {
		return err
	}
	replaced, err := by(v.options)
	if errors.Is(err, store.ErrOldCopy) {
		refused := err
		if replaced, err = store.OpenView(v.options); err == nil {
			v.current.Store(replaced)
			return refused
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNoView, err)
	}
	v.current.Store(replaced)
	return nil
}

// errNoView is returned when there is neither the old view nor the new one: the process must end.
var errNoView = errors.New("group: the view cannot be opened")

// viewPath is where members read each other's view, below the port for members.
const viewPath = "/-/view"

// viewBytes is the header with the size of the view that is sent.
const viewBytes = "Reschedule-View-Bytes"

const (
	// copyRate bounds the bytes a second of a copy, so that the member that sends it still
	// does its own work.
	copyRate = 64 << 20
	// copyStall is how long the sender of a copy may be silent.
	copyStall = 30 * time.Second
)

// copies are of views: of this member's for others, and of others' in the place of this one's. The counters are all that
// changes; view has its own lock.
type copies struct {
	cfg         *Config
	view        *view
	peers       *peers
	stage       *stage
	taken, sent atomic.Int64
}

// sendView sends this member's view to a member whose view is older, one at a time.
func (c *copies) sendView(w http.ResponseWriter, r *http.Request) {
	above, err := strconv.ParseUint(r.URL.Query().Get("above"), 10, 64)
	if err != nil {
		http.Error(w, "above is not a number", http.StatusBadRequest)
		return
	}
	// Before it has joined, what it has is where a new group begins.
	e := c.stage.engine.Load()
	begins := c.stage.attempt.Load() != nil && e == nil
	if c.view.current.Load().Damaged() {
		unavailable(w, "this member's view is damaged")
		return
	}
	if !begins && (!c.stage.joined.Load() || !e.group.CaughtUp()) || c.view.Applied() <= above {
		unavailable(w, "this member's view is not newer")
		return
	}
	c.sent.Add(1)
	_, _, used, _ := c.view.Usage()
	w.Header().Set(viewBytes, strconv.FormatInt(used, 10))
	backup.Send(&pacedWriter{ResponseWriter: w, ctx: r.Context(), begun: time.Now()}, r, c.view, c.cfg.Log)
}

// pacedWriter writes at copyRate.
type pacedWriter struct {
	http.ResponseWriter
	ctx   context.Context
	begun time.Time
	sent  int64
}

// Unwrap is for http.ResponseController.
func (p *pacedWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *pacedWriter) Write(b []byte) (int, error) {
	n, err := p.ResponseWriter.Write(b)
	p.sent += int64(n)
	due := time.Duration(float64(p.sent) / copyRate * float64(time.Second))
	if ahead := due - time.Since(p.begun); ahead > time.Millisecond {
		select {
		case <-p.ctx.Done():
		case <-time.After(ahead):
		}
	}
	return n, err
}

// take is replica.Config.Copy. It asks the owner last, which has other work. A view that is wrong is removed once
// another member sends its own.
func (c *copies) take(ctx context.Context, wrong bool, hold func()) error {
	owner, _, _ := c.stage.engine.Load().group.Owner()
	from := c.cfg.others()
	if at := slices.Index(from, owner.Member); at >= 0 {
		from = append(slices.Delete(from, at, at+1), owner.Member)
	}
	name, took, err := c.any(ctx, from, wrong, hold)
	if err == nil {
		c.taken.Add(1)
		c.cfg.Log.Info("the view was replaced by a copy", "from", name, "applied", c.view.Applied(), "took", took)
	}
	return err
}

// any takes a copy of the view of the first member that gives one, and returns its name. Where this member's disk has
// no space it does not ask the next one.
func (c *copies) any(ctx context.Context, from []string, wrong bool, hold func()) (name string, took time.Duration, failed error) {
	for _, name := range from {
		begun := time.Now()
		err := c.from(ctx, name, wrong, hold)
		if err == nil {
			return name, time.Since(begun), nil
		}
		if errors.Is(err, errNoView) {
			c.cfg.Fatal(err)
			return "", 0, err
		}
		failed = errors.Join(failed, fmt.Errorf("member %s: %w", name, err))
		if errors.Is(err, errNoSpace) || errors.Is(err, syscall.ENOSPC) {
			break
		}
	}
	return "", 0, failed
}

func (c *copies) from(ctx context.Context, name string, wrong bool, hold func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stalled := time.AfterFunc(copyStall, cancel)
	defer stalled.Stop()
	above := c.view.Applied()
	if wrong {
		above = 0
	}
	url := c.cfg.url(name, viewPath) + "?above=" + strconv.FormatUint(above, 10)
	request, err := c.peers.request(ctx, http.MethodGet, url)
	if err != nil {
		return err
	}
	answer, err := c.peers.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("group: the member answered %d", answer.StatusCode)
	}
	if err := os.RemoveAll(store.NewDir(c.view.options)); err != nil { // of a process that was killed
		return err
	}
	size, err := strconv.ParseInt(answer.Header.Get(viewBytes), 10, 64)
	if err != nil {
		return fmt.Errorf("group: the header %s: %w", viewBytes, err)
	}
	if wrong && c.view.Applied() > 0 {
		if err := c.removeView(ctx); err != nil {
			return err
		}
	}
	if err := c.makeSpace(ctx, size); err != nil {
		return err
	}
	hold()
	if _, err := backup.Receive(ctx, stallReader{answer.Body, stalled}, c.view.options); err != nil {
		return err
	}
	return c.view.replace(store.ReplaceView)
}

// errNoSpace is the error of a copy that this member's disk has no space for.
var errNoSpace = errors.New("group: the disk has no space for a copy of the view: free space, or enlarge the disk")

// makeSpace makes space for a copy of so many bytes. Where two views have none, this member's own one is removed: it is
// too old for the log.
func (c *copies) makeSpace(ctx context.Context, size int64) error {
	free, reserve, used, known := c.view.Usage()
	switch {
	case !known || free >= size+reserve:
		return nil
	case c.stage.engine.Load() == nil || c.view.Applied() == 0 || free+used < size+reserve:
		return fmt.Errorf("%w: it takes %d bytes and a reserve of %d; %d are free, and the old view has %d", errNoSpace, size, reserve, free, used)
	}
	c.cfg.Log.Info("the old view is removed, since a copy needs its space", "bytes", size, "free", free, "old", used)
	return c.removeView(ctx)
}

// removeView empties the view.
func (c *copies) removeView(ctx context.Context) error {
	return c.stage.engine.Load().group.Empty(ctx, func() error { return c.view.replace(store.EmptyView) })
}

// stallReader reads while something comes. Only the wait for the sender counts: to verify a large
// view, while the end of the answer is not read yet, takes longer.
type stallReader struct {
	io.Reader
	stalled *time.Timer
}

func (a stallReader) Read(p []byte) (int, error) {
	a.stalled.Reset(copyStall)
	defer a.stalled.Stop()
	return a.Reader.Read(p)
}
