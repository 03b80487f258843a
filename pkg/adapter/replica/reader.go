package replica

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// reader brings a view up to the log. The goroutine that stands by uses it, and during a tenure the owner's appends, one
// at a time; others read tail alone.
type reader struct {
	log  Log
	view View
	did  func(e *Entry, whole bool) // called for each entry; whole: a batch was applied
	// tail is the number of the newest entry that was read, or appended by this member: the last one of the
	// view, or a part behind it, which parts has.
	tail  atomic.Uint64
	parts assembly
}

// reset begins where the view is.
func (r *reader) reset() {
	r.parts.batch = nil
	r.tail.Store(r.view.Applied())
}

// errView is the error of a view that cannot take an entry.
var errView = errors.New("replica: an entry cannot be applied")

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (r *reader) apply(e Entry) error {
	at := r.tail.Load()
	if e.Seq <= at {
		return nil
	}
	if e.Seq != at+1 {
		return fmt.Errorf("%w: it is at %d, the log goes on at %d", ErrGap, at, e.Seq)
	}
	batch, whole, err := r.parts.add(&e)
	if err != nil {
		return err
	}
	if whole {
		if err := r.view.Apply(e.Seq, batch); err != nil {
			return fmt.Errorf("%w: %d: %w", errView, e.Seq, err)
		}
	}
	r.tail.Store(e.Seq)
	r.did(&e, whole)
	return nil
}

// read brings the view up to what this member has of the log, and returns where to follow it from.
func (r *reader) read(ctx context.Context) (int64, error) {
	for {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		p, err := r.log.Read(ctx, r.tail.Load())
		cancel()
		if err != nil {
			return 0, err
		}
		for _, e := range p.Entries {
			if err := r.apply(e); err != nil {
				return 0, err
			}
		}
		if !p.More {
			return p.Revision, nil
		}
	}
}

// readTo brings the view up to the state, which this member has received.
func (r *reader) readTo(ctx context.Context, s *State) error {
	if err := s.check(); err != nil || s.Last <= r.tail.Load() {
		return err
	}
	if _, err := r.read(ctx); err != nil {
		return err
	}
	if at := r.tail.Load(); s.Last > at {
		return fmt.Errorf("%w: it is at %d, the log at %d", ErrGap, at, s.Last)
	}
	return nil
}
