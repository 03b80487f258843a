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

// upToDate returns once the view has all that was acknowledged before the call.
func (m *Member) upToDate() error {
	entries := m.entries.Load()
	if entries == nil {
		return errors.New("group: this member has not opened its log yet")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	// A change goes through a majority. When it returns, this member has all earlier ones.
	if _, err := m.group.Mark(ctx); err != nil {
		return fmt.Errorf("group: no majority answers, or the view is not on disk: %w", err)
	}
	s, err := (*entries).State(ctx)
	if err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for m.group.Reached() < s.Last {
		select {
		case <-ctx.Done():
			return fmt.Errorf("group: this member is at entry %d of %d: try again, or another member", m.group.Reached(), s.Last)
		case <-tick.C:
		}
	}
	return nil
}

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

// sendView sends this member's view to a member whose view is older, one at a time.
func (m *Member) sendView(w http.ResponseWriter, r *http.Request) {
	above, err := strconv.ParseUint(r.URL.Query().Get("above"), 10, 64)
	if err != nil {
		http.Error(w, "above is not a number", http.StatusBadRequest)
		return
	}
	// Before it has joined, what it has is where a new group begins.
	begins := m.attempt.Load() != nil && m.entries.Load() == nil
	if m.view.current.Load().Damaged() {
		unavailable(w, "this member's view is damaged")
		return
	}
	if !begins && (!m.joined.Load() || !m.group.CaughtUp()) || m.view.Applied() <= above {
		unavailable(w, "this member's view is not newer")
		return
	}
	m.sent.Add(1)
	_, _, used, _ := m.view.Usage()
	w.Header().Set(viewBytes, strconv.FormatInt(used, 10))
	backup.Send(&pacedWriter{ResponseWriter: w, ctx: r.Context(), begun: time.Now()}, r, m.view, m.cfg.Log)
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

// copyView is replica.Config.Copy. It asks the owner last, which has other work. A view that is wrong is removed once
// another member sends its own.
func (m *Member) copyView(ctx context.Context, wrong bool, hold func()) error {
	owner, _, _ := m.group.Owner()
	from := m.cfg.others()
	if at := slices.Index(from, owner.Member); at >= 0 {
		from = append(slices.Delete(from, at, at+1), owner.Member)
	}
	name, took, err := m.copyAny(ctx, from, wrong, hold)
	if err == nil {
		m.copied.Add(1)
		m.cfg.Log.Info("the view was replaced by a copy", "from", name, "applied", m.view.Applied(), "took", took)
	}
	return err
}

// copyAny takes a copy of the view of the first member that gives one, and returns its name. Where this member's disk has
// no space it does not ask the next one.
func (m *Member) copyAny(ctx context.Context, from []string, wrong bool, hold func()) (name string, took time.Duration, failed error) {
	for _, name := range from {
		begun := time.Now()
		err := m.copyFrom(ctx, name, wrong, hold)
		if err == nil {
			return name, time.Since(begun), nil
		}
		if errors.Is(err, errNoView) {
			m.cfg.Fatal(err)
			return "", 0, err
		}
		failed = errors.Join(failed, fmt.Errorf("member %s: %w", name, err))
		if errors.Is(err, errNoSpace) || errors.Is(err, syscall.ENOSPC) {
			break
		}
	}
	return "", 0, failed
}

func (m *Member) copyFrom(ctx context.Context, name string, wrong bool, hold func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stalled := time.AfterFunc(copyStall, cancel)
	defer stalled.Stop()
	above := m.view.Applied()
	if wrong {
		above = 0
	}
	url := m.cfg.url(name, viewPath) + "?above=" + strconv.FormatUint(above, 10)
	request, err := m.memberRequest(ctx, http.MethodGet, url)
	if err != nil {
		return err
	}
	answer, err := m.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("group: the member answered %d", answer.StatusCode)
	}
	if err := os.RemoveAll(store.NewDir(m.view.options)); err != nil { // of a process that was killed
		return err
	}
	size, err := strconv.ParseInt(answer.Header.Get(viewBytes), 10, 64)
	if err != nil {
		return fmt.Errorf("group: the header %s: %w", viewBytes, err)
	}
	if wrong && m.view.Applied() > 0 {
		if err := m.removeView(ctx); err != nil {
			return err
		}
	}
	if err := m.makeSpace(ctx, size); err != nil {
		return err
	}
	hold()
	if _, err := backup.Receive(ctx, stallReader{answer.Body, stalled}, m.view.options); err != nil {
		return err
	}
	return m.view.replace(store.ReplaceView)
}

// errNoSpace is the error of a copy that this member's disk has no space for.
var errNoSpace = errors.New("group: the disk has no space for a copy of the view: free space, or enlarge the disk")

// makeSpace makes space for a copy of so many bytes. Where two views have none, this member's own one is removed: it is
// too old for the log.
func (m *Member) makeSpace(ctx context.Context, size int64) error {
	free, reserve, used, known := m.view.Usage()
	switch {
	case !known || free >= size+reserve:
		return nil
	case m.entries.Load() == nil || m.view.Applied() == 0 || free+used < size+reserve:
		return fmt.Errorf("%w: it takes %d bytes and a reserve of %d; %d are free, and the old view has %d", errNoSpace, size, reserve, free, used)
	}
	m.cfg.Log.Info("the old view is removed, since a copy needs its space", "bytes", size, "free", free, "old", used)
	return m.removeView(ctx)
}

// removeView empties the view.
func (m *Member) removeView(ctx context.Context) error {
	return m.group.Empty(ctx, func() error { return m.view.replace(store.EmptyView) })
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
