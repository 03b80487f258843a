package knative

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	// maxYes and maxNo bound what is remembered. A yes holds who the caller
	// is, about 1 KB, so 8 MB when all are in use; a no holds nothing else.
	maxYes = 8192
	maxNo  = 4096
	// maxReviews are under way at once; a review takes an API server some
	// milliseconds, so this is thousands a second.
	maxReviews = 32
	// waitFor is how long a review waits for its turn, takeFor how long it may take.
	waitFor = 2 * time.Second
	takeFor = 10 * time.Second
	// retrySoon is told to whoever met a crowd, retryLater where the API server is at fault.
	retrySoon  = time.Second
	retryLater = 5 * time.Second
	// sayEvery is how often the log is told that the API server does not answer.
	sayEvery = time.Minute
)

// digest stands for a question, so that no token is kept and every key is small.
type digest [sha256.Size]byte

// digestOf is of the parts in order; where one ends counts.
func digestOf(parts ...string) digest {
	var room [2048]byte
	b := room[:0]
	for _, p := range parts {
		b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return sha256.Sum256(b)
}

// clock is a function as the clock of a cache.
type clock func() time.Time

func (c clock) Now() time.Time { return c() }

// unavailable is the refusal when it cannot be told who may.
func unavailable(after time.Duration, why string) error {
	return &schedule.Error{Code: schedule.CodeUnavailable, Detail: why + "; it may be tried again", RetryAfter: after}
}

// line is where all reviews queue for the API server.
type line struct {
	slots *semaphore.Weighted
	log   *slog.Logger
	now   func() time.Time

	mu     sync.Mutex
	quiet  time.Time // until then nothing is logged
	unsaid int       // failures since the last line
}

func newLine(log *slog.Logger, now func() time.Time) *line {
	return &line{slots: semaphore.NewWeighted(maxReviews), log: log, now: now}
}

var errBusy = errors.New("too many reviews are under way")

// do runs the review when it is its turn.
func (l *line) do(ctx context.Context, review func(context.Context) error) error {
	wait, cancel := context.WithTimeout(ctx, waitFor)
	defer cancel()
	if l.slots.Acquire(wait, 1) != nil {
		return errBusy
	}
	defer l.slots.Release(1)
	ctx, cancel = context.WithTimeout(ctx, takeFor)
	defer cancel()
	return review(ctx)
}

// failed makes the refusal of a review that did not come to an answer, and
// tells the log once in a while.
func (l *line) failed(err error) error {
	l.mu.Lock()
	now := l.now()
	l.unsaid++
	n := l.unsaid
	say := !now.Before(l.quiet)
	if say {
		l.quiet, l.unsaid = now.Add(sayEvery), 0
	}
	l.mu.Unlock()
	if say {
		l.log.Error("callers cannot be checked", "failed", n, "error", err)
	}
	if errors.Is(err, errBusy) {
		return unavailable(retrySoon, "too many callers are being checked at the moment")
	}
	return unavailable(retryLater, "the caller cannot be checked: the API server does not answer")
}

// answers are those to one kind of question that still count. Nil is the
// answer no. Yes and no have room of their own, so that a flood of refusals
// pushes nobody out who was let in.
type answers[V any] struct {
	line    *line
	yes, no *cache.LRUExpireCache
	flights singleflight.Group
}

func newAnswers[V any](l *line, now func() time.Time) *answers[V] {
	return &answers[V]{
		line: l,
		yes:  cache.NewLRUExpireCacheWithClock(maxYes, clock(now)),
		no:   cache.NewLRUExpireCacheWithClock(maxNo, clock(now)),
	}
}

// known returns the answer that still counts, if there is one.
func (a *answers[V]) known(key digest) (*V, bool) {
	var k any = key
	if v, ok := a.yes.Get(k); ok {
		return v.(*V), true
	}
	_, ok := a.no.Get(k)
	return nil, ok
}

// keep remembers an answer. One that does not count any longer is not kept,
// and an error is no answer.
func (a *answers[V]) keep(key digest, v *V, ttl time.Duration) {
	switch {
	case ttl <= 0:
	case v != nil:
		a.yes.Add(key, v, ttl)
	default:
		a.no.Add(key, nil, ttl)
	}
}

// ask gets the answer from the API server, once for all who ask at the same
// time. Whoever goes away leaves the question standing for the others, so the
// review runs under a context of its own.
func (a *answers[V]) ask(ctx context.Context, key digest, review func(context.Context) (*V, time.Duration, error)) (*V, error) {
	answer := a.flights.DoChan(string(key[:]), func() (any, error) {
		v, known := a.known(key) // since the caller looked, another flight may have landed
		if known {
			return v, nil
		}
		err := a.line.do(context.WithoutCancel(ctx), func(ctx context.Context) error {
			answer, ttl, err := review(ctx)
			if err == nil {
				v = answer
				a.keep(key, v, ttl)
			}
			return err
		})
		if err != nil {
			return nil, a.line.failed(err)
		}
		return v, nil
	})
	select {
	case <-ctx.Done():
		return nil, unavailable(retrySoon, "the call ended before the caller was checked")
	case got := <-answer:
		if got.Err != nil {
			return nil, got.Err
		}
		return got.Val.(*V), nil
	}
}
