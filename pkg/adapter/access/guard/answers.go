package guard

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/loglimit"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	// maxPositive and maxNegative bound the caches. A positive answer holds the
	// caller, about 1 KB, so 8 MB when all are in use; a negative one is empty.
	maxPositive = 8192
	maxNegative = 4096
	// retrySoon is the Retry-After when too many callers are checked at once,
	// retryLater when the API server is at fault.
	retrySoon  = time.Second
	retryLater = 5 * time.Second
	// logInterval is the shortest time between two log lines about an API server that
	// does not answer.
	logInterval = time.Minute
)

// digest is the cache key of a question: no token is kept, and every key is small.
type digest [sha256.Size]byte

// digestOf hashes the parts in order, each with its length.
func digestOf(parts ...string) digest {
	var buf [2048]byte
	b := buf[:0]
	for _, p := range parts {
		b = binary.BigEndian.AppendUint32(b, uint32(len(p)))
		b = append(b, p...)
	}
	return sha256.Sum256(b)
}

// clock makes a function the clock of a cache.
type clock func() time.Time

func (c clock) Now() time.Time { return c() }

// unavailable refuses a caller who cannot be checked now.
func unavailable(after time.Duration, why string) error {
	return &schedule.Error{Code: schedule.CodeUnavailable, Detail: why + "; it may be tried again", RetryAfter: after}
}

// failures logs, once in a while, that callers cannot be checked.
type failures struct {
	log   *slog.Logger
	now   func() time.Time
	lines loglimit.Limit
}

// failed returns the refusal for a review without an answer, and logs it once in a
// while.
func (l *failures) failed(err error) error {
	if unlogged, ok := l.lines.Next(l.now()); ok {
		l.log.Error("callers cannot be checked", "failed", unlogged+1, "error", err)
	}
	if errors.Is(err, budget.ErrFull) {
		return unavailable(retrySoon, "too many callers are being checked at the moment")
	}
	return unavailable(retryLater, "the caller cannot be checked: the API server does not answer")
}

// answers caches the answers to one kind of question. A nil answer is negative.
// Positive and negative answers have caches of their own, so that a flood of
// refusals evicts no admitted caller.
type answers[V any] struct {
	failures           *failures
	renewals           *budget.Budget
	positive, negative *cache.LRUExpireCache
	flights            singleflight.Group
	now                func() time.Time
}

// positiveAnswer is a caller or a grant. When it is used after two thirds of its
// time, it is renewed in the background, so that a known caller stays known while
// others wait for the API server.
type positiveAnswer[V any] struct {
	v       *V
	renewAt atomic.Int64 // in nanoseconds
}

// question is a question to the API server, and the calls that it is one of.
type question[V any] struct {
	calls *budget.Budget
	owner string
	ask   func(context.Context) (*V, time.Duration, error)
}

func newAnswers[V any](f *failures, renewals *budget.Budget) *answers[V] {
	return &answers[V]{
		failures: f, renewals: renewals, now: f.now,
		positive: cache.NewLRUExpireCacheWithClock(maxPositive, clock(f.now)),
		negative: cache.NewLRUExpireCacheWithClock(maxNegative, clock(f.now)),
	}
}

// cached returns the cached answer, if there is one.
func (a *answers[V]) cached(key digest) (*V, bool) {
	var k any = key
	if y, ok := a.positive.Get(k); ok {
		return y.(*positiveAnswer[V]).v, true
	}
	_, ok := a.negative.Get(k)
	return nil, ok
}

// store caches an answer, unless its time is over already. An answer with less than
// the usual time ends with its token, so it is not renewed.
func (a *answers[V]) store(key digest, v *V, ttl time.Duration) {
	if v == nil {
		a.positive.Remove(key)
		a.negative.Add(key, nil, ttl)
		return
	}
	if ttl <= 0 {
		return
	}
	y := &positiveAnswer[V]{v: v}
	y.renewAt.Store(math.MaxInt64)
	if ttl >= positiveTTL {
		y.renewAt.Store(a.now().Add(ttl * 2 / 3).UnixNano())
	}
	a.positive.Add(key, y, ttl)
}

// renew asks again for an answer that expires soon, once for all callers and in the
// background. Without a free slot the next use of the answer tries again.
func (a *answers[V]) renew(ctx context.Context, key digest, owner string, ask func(context.Context) (*V, time.Duration, error)) {
	known, ok := a.positive.Get(key)
	if !ok {
		return
	}
	now, at := a.now(), &known.(*positiveAnswer[V]).renewAt
	due := at.Load()
	if now.UnixNano() < due || !at.CompareAndSwap(due, now.Add(renewRetry).UnixNano()) {
		return
	}
	slot := a.renewals.Claim(owner, "")
	if !slot.TryGrow(1) {
		return
	}
	go func() {
		defer slot.Release()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
		defer cancel()
		if v, ttl, err := ask(ctx); err == nil {
			a.store(key, v, ttl)
		}
	}()
}

// get asks the API server, once for all callers with the same question. A caller
// who goes away does not cancel the question of the others, so the review has a
// context of its own.
func (a *answers[V]) get(ctx context.Context, key digest, q question[V]) (*V, error) {
	answer := a.flights.DoChan(string(key[:]), func() (any, error) {
		v, cached := a.cached(key) // another flight may have ended since the first look
		if cached {
			return v, nil
		}
		ctx := context.WithoutCancel(ctx)
		slot, err := q.calls.Take(ctx, q.owner, "")
		if err != nil {
			return nil, a.failures.failed(err)
		}
		defer slot.Release()
		ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
		defer cancel()
		v, ttl, err := q.ask(ctx)
		if err != nil {
			return nil, a.failures.failed(err)
		}
		a.store(key, v, ttl)
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
