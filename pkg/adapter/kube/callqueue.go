package kube

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// CallLimit bounds the calls of one kind to the API server.
type CallLimit struct {
	Slots int           // calls at once
	Share int           // slots that one owner may use
	Wait  time.Duration // how long a call waits for a slot; 0 = not at all
	Take  time.Duration // how long a call may take once it has a slot
}

// CallQueue is where calls of one kind wait for a slot. Each call names its
// owner, such as a namespace: an owner that uses up its share waits behind
// itself and not in front of others.
type CallQueue struct {
	limit CallLimit
	all   *semaphore.Weighted

	mu     sync.Mutex
	owners map[string]*ownerSlots // owners that have a call here
}

// ownerSlots are the slots of one owner.
type ownerSlots struct {
	slots *semaphore.Weighted
	calls int // waiting or under way
}

// NewCallQueue returns an empty queue.
func NewCallQueue(l CallLimit) *CallQueue {
	return &CallQueue{limit: l, all: semaphore.NewWeighted(int64(l.Slots)), owners: map[string]*ownerSlots{}}
}

// ErrBusy is the error of a call that got no slot in time.
var ErrBusy = errors.New("too many calls to the API server are under way")

// Do waits for a slot and makes the call, within the limits of the queue.
func (q *CallQueue) Do(ctx context.Context, owner string, call func(context.Context) error) error {
	release, err := q.Acquire(ctx, owner)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := q.WithTimeout(ctx)
	defer cancel()
	return call(ctx)
}

// WithTimeout returns a context that ends when a call must end.
func (q *CallQueue) WithTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, q.limit.Take)
}

// Acquire waits for a slot. The caller must release it.
func (q *CallQueue) Acquire(ctx context.Context, owner string) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, q.limit.Wait)
	defer cancel()
	o := q.join(owner)
	if !q.acquire(ctx, o.slots) {
		q.leave(owner, o)
		return nil, ErrBusy
	}
	if !q.acquire(ctx, q.all) {
		o.slots.Release(1)
		q.leave(owner, o)
		return nil, ErrBusy
	}
	return func() {
		q.all.Release(1)
		o.slots.Release(1)
		q.leave(owner, o)
	}, nil
}

func (q *CallQueue) acquire(ctx context.Context, s *semaphore.Weighted) bool {
	return s.TryAcquire(1) || q.limit.Wait > 0 && s.Acquire(ctx, 1) == nil
}

func (q *CallQueue) join(owner string) *ownerSlots {
	q.mu.Lock()
	defer q.mu.Unlock()
	o := q.owners[owner]
	if o == nil {
		o = &ownerSlots{slots: semaphore.NewWeighted(int64(q.limit.Share))}
		q.owners[owner] = o
	}
	o.calls++
	return o
}

func (q *CallQueue) leave(owner string, o *ownerSlots) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if o.calls--; o.calls == 0 {
		delete(q.owners, owner)
	}
}
