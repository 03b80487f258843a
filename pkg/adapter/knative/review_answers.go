package knative

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	// maxYes and maxNo bound what is remembered. A yes holds who the caller
	// is, about 1 KB, so 8 MB when all are in use; a no holds nothing else.
	maxYes = 8192
	maxNo  = 4096
	// retrySoon is told to a caller who met a crowd, retryLater where the API server is at fault.
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

// failures tell the log once in a while that callers cannot be checked.
type failures struct {
	log *slog.Logger
	now func() time.Time

	mu     sync.Mutex
	quiet  time.Time // until then nothing is logged
	unsaid int       // failures since the last line
}

// failed makes the refusal of a review that did not come to an answer, and
// tells the log once in a while.
func (l *failures) failed(err error) error {
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
	failures *failures
	renewals *line
	yes, no  *cache.LRUExpireCache
	flights  singleflight.Group
	now      func() time.Time
}

// yes is an answer with a caller or a grant. One that is asked for again when
// two thirds of its time are over is renewed beside the call, so that who is
// known stays known whatever waits in front of the API server.
type yes[V any] struct {
	v       *V
	renewAt atomic.Int64 // in nanoseconds; the next renewal, then the one after that
}

// question is one to the API server, and the line that it waits in.
type question[V any] struct {
	line  *line
	share string
	ask   func(context.Context) (*V, time.Duration, error)
}

func newAnswers[V any](f *failures, renewals *line) *answers[V] {
	return &answers[V]{
		failures: f, renewals: renewals, now: f.now,
		yes: cache.NewLRUExpireCacheWithClock(maxYes, clock(f.now)),
		no:  cache.NewLRUExpireCacheWithClock(maxNo, clock(f.now)),
	}
}

// known returns the answer that still counts, if there is one.
func (a *answers[V]) known(key digest) (*V, bool) {
	var k any = key
	if y, ok := a.yes.Get(k); ok {
		return y.(*yes[V]).v, true
	}
	_, ok := a.no.Get(k)
	return nil, ok
}

// keep remembers an answer. One that does not count any longer is not kept,
// and an error is no answer. An answer that counts for less than the usual time
// ends with its token, so that it is not renewed.
func (a *answers[V]) keep(key digest, v *V, ttl time.Duration) {
	if v == nil {
		a.yes.Remove(key)
		a.no.Add(key, nil, ttl)
		return
	}
	if ttl <= 0 {
		return
	}
	y := &yes[V]{v: v}
	y.renewAt.Store(math.MaxInt64)
	if ttl >= yesFor {
		y.renewAt.Store(a.now().Add(ttl * 2 / 3).UnixNano())
	}
	a.yes.Add(key, y, ttl)
}

// renew asks again for an answer that will not count for much longer, once for
// all who use it, and without anybody waiting for it. Where there is no room the
// next use of the answer tries again.
func (a *answers[V]) renew(ctx context.Context, key digest, share string, ask func(context.Context) (*V, time.Duration, error)) {
	known, ok := a.yes.Get(key)
	if !ok {
		return
	}
	now, at := a.now(), &known.(*yes[V]).renewAt
	due := at.Load()
	if now.UnixNano() < due || !at.CompareAndSwap(due, now.Add(renewAgain).UnixNano()) {
		return
	}
	leave, err := a.renewals.enter(ctx, share)
	if err != nil {
		return
	}
	go func() {
		defer leave()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.renewals.take)
		defer cancel()
		if v, ttl, err := ask(ctx); err == nil {
			a.keep(key, v, ttl)
		}
	}()
}

// get gets the answer from the API server, once for all who ask at the same
// time. Whoever goes away leaves the question standing for the others, so the
// review runs under a context of its own.
func (a *answers[V]) get(ctx context.Context, key digest, q question[V]) (*V, error) {
	answer := a.flights.DoChan(string(key[:]), func() (any, error) {
		v, known := a.known(key) // since the caller looked, another flight may have landed
		if known {
			return v, nil
		}
		err := q.line.do(context.WithoutCancel(ctx), q.share, func(ctx context.Context) error {
			answer, ttl, err := q.ask(ctx)
			if err == nil {
				v = answer
				a.keep(key, v, ttl)
			}
			return err
		})
		if err != nil {
			return nil, a.failures.failed(err)
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
