package knative

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// lane is how much of one kind of call may be under way.
type lane struct {
	slots int           // at once
	share int           // of them, for the calls of one name
	wait  time.Duration // how long a call waits for its turn; 0 = not at all
	take  time.Duration // how long it may take then
}

// line is where calls of one kind queue for the API server. Each has the
// name of its cause: a name that has a share under way waits behind itself.
type line struct {
	lane
	all *semaphore.Weighted

	mu     sync.Mutex
	shares map[string]*share // of the names that have a call here
}

type share struct {
	slots *semaphore.Weighted
	calls int // that wait or are under way
}

func newLine(l lane) *line {
	return &line{lane: l, all: semaphore.NewWeighted(int64(l.slots)), shares: map[string]*share{}}
}

var errBusy = errors.New("too many calls to the API server are under way")

// do makes the call when it is its turn.
func (l *line) do(ctx context.Context, name string, call func(context.Context) error) error {
	leave, err := l.enter(ctx, name)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, l.take)
	defer cancel()
	return call(ctx)
}

// enter waits for a place. Who got one must leave.
func (l *line) enter(ctx context.Context, name string) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, l.wait)
	defer cancel()
	s := l.join(name)
	if !l.acquire(ctx, s.slots) {
		l.part(name, s)
		return nil, errBusy
	}
	if !l.acquire(ctx, l.all) {
		s.slots.Release(1)
		l.part(name, s)
		return nil, errBusy
	}
	return func() {
		l.all.Release(1)
		s.slots.Release(1)
		l.part(name, s)
	}, nil
}

func (l *line) acquire(ctx context.Context, of *semaphore.Weighted) bool {
	return of.TryAcquire(1) || l.wait > 0 && of.Acquire(ctx, 1) == nil
}

func (l *line) join(name string) *share {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.shares[name]
	if s == nil {
		s = &share{slots: semaphore.NewWeighted(int64(l.share))}
		l.shares[name] = s
	}
	s.calls++
	return s
}

func (l *line) part(name string, s *share) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.calls--; s.calls == 0 {
		delete(l.shares, name)
	}
}
