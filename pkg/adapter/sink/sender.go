package sink

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
	"weak"

	"go.opentelemetry.io/otel/trace"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Config is what a Sender needs; the zero value works.
type Config struct {
	// Log gets a warning for an answer that cannot be read; nil means slog.Default.
	Log *slog.Logger
	// Ignored is called for a part of an answer that cannot be read and changes nothing, as often as it is logged;
	// may be nil. It must not block.
	Ignored func(src *schedule.Spec, key, why string)
	// Tracer makes a span of every attempt; nil means no spans. The trace
	// context of the schedule call reaches the sink either way.
	Tracer trace.Tracer
	// Token returns the bearer token of a source for a target with an audience;
	// nil means none is sent.
	Token func(ctx context.Context, src *schedule.Spec, target schedule.Target) (string, error)
	// TokenRefused is called when a target answers 401 to a token; may be nil. It must not
	// block.
	TokenRefused func(src *schedule.Spec, target schedule.Target)
	// RootCAs are trusted beside a target's CACerts; nil means the system's.
	RootCAs *x509.CertPool
	// MaxIdle bounds the idle connections to all sinks together, default DefaultMaxIdle;
	// one with TLS counts as four. With more deliveries in flight, the others dial each
	// time.
	MaxIdle int
	// ReplyBytes bounds the memory of all replies that are being read, default
	// DefaultReplyBytes.
	ReplyBytes int64
	// Dial connects to a sink; nil means over TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Now is the wall clock, for a Retry-After with a date; nil means time.Now.
	Now func() time.Time
}

// Sender delivers attempts. It is safe for concurrent use.
type Sender struct {
	cfg        Config
	pool       *idlePool
	names      *names
	replies    *budget.Budget
	roots      atomic.Pointer[x509.CertPool]
	sources    cache[weak.Pointer[schedule.Spec], *constants] // weak, so that replaced settings can be freed
	routes     cache[string, *route]                          // by URL: a key with certificates would keep them in memory
	transports cache[string, *transport]
	proxy      func(*http.Request) (*url.URL, error) // another one in tests

	drainTimeout, replyTimeout time.Duration // shorter in tests
}

// DefaultReplyBytes bounds the memory of all replies that are being read.
const DefaultReplyBytes = 44 << 20

// DefaultMaxIdle bounds the idle connections to all sinks.
const DefaultMaxIdle = 1000

// Caches are bounded; see cache.
const (
	keptSources    = 4096
	keptTransports = 64
)

// New returns a Sender.
func New(cfg Config) *Sender {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.MaxIdle <= 0 {
		cfg.MaxIdle = DefaultMaxIdle
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Sender{
		cfg:     cfg,
		pool:    &idlePool{limit: cfg.MaxIdle},
		names:   newNames(new(net.Dialer).DialContext),
		replies: budget.New(cmp.Or(cfg.ReplyBytes, DefaultReplyBytes)),
		proxy:   proxyOf(http.ProxyFromEnvironment),

		drainTimeout: drainTime, replyTimeout: replyTime,
	}
	s.sources.limit, s.routes.limit, s.transports.limit = keptSources, keptSources, keptTransports
	s.roots.Store(cfg.RootCAs)
	s.transports.evicted = (*transport).retire
	s.transports.weight = func(caCerts string) int { return 1 + len(caCerts)/(64<<10) } // of 256 KiB it takes 650 KB
	return s
}

// connect connects to an address of a source's sink, or of its proxy.
func (s *Sender) connect(ctx context.Context, src *schedule.Spec, address string) (net.Conn, error) {
	if s.cfg.Dial != nil {
		return s.cfg.Dial(ctx, "tcp", address)
	}
	return s.names.dial(ctx, src, address)
}

// Trust replaces Config.RootCAs from the next delivery on.
func (s *Sender) Trust(roots *x509.CertPool) {
	s.roots.Store(roots)
	s.transports.clear() // new transports have the new roots
}

// Close drops idle connections. Deliveries under way go on.
func (s *Sender) Close() { s.transports.clear() }

// errTimeout is the cause of a delivery cut off by delivery.timeout.
var errTimeout = errors.New("the delivery timeout passed")

// Send makes one attempt. When ctx is cancelled, or the attempt is called off, it is cut off
// and its outcome is Aborted, unless the sink's answer is already known. A deadline of ctx
// counts as the delivery's timeout.
func (s *Sender) Send(ctx context.Context, a schedule.Attempt) schedule.Outcome {
	timeout := a.Source.Delivery.Timeout
	if timeout <= 0 {
		timeout = schedule.DefaultTimeout
	}
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if a.OnCallOff != nil {
		a.OnCallOff(func() { cancel(errCalledOff) })
	}
	limit := timeLimit{end: time.Now().Add(timeout), timer: time.AfterFunc(timeout, func() { cancel(errTimeout) })}
	defer limit.timer.Stop()
	span, limited := s.trace(limited, &a)
	o := s.attempt(limited, &a, limit)
	cutOff := errors.Is(ctx.Err(), context.Canceled) || errors.Is(context.Cause(limited), errCalledOff)
	if cutOff && o.Kind != schedule.Succeeded && o.Failure.Code < 300 { // without a whole answer
		o = schedule.Outcome{Kind: schedule.Aborted}
	}
	if span != nil {
		endSpan(span, o)
	}
	return o
}

// timeLimit ends an attempt when delivery.timeout has passed, or sooner while its answer is read.
type timeLimit struct {
	end   time.Time
	timer *time.Timer
}

// allow lets the next step take d, but not beyond the end.
func (l timeLimit) allow(d time.Duration) { l.timer.Reset(min(d, time.Until(l.end))) }

// attempt makes the request within limit.
func (s *Sender) attempt(ctx context.Context, a *schedule.Attempt, limit timeLimit) schedule.Outcome {
	r, err := s.route(a.Target)
	if err != nil {
		return failed(a, err)
	}
	transport, err := s.transport(a.Target.CACerts)
	if err != nil {
		return failed(a, err)
	}
	m := messages.Get().(*message)
	defer m.free()
	if err := s.request(ctx, m, a, r); err != nil {
		if _, ok := errors.AsType[*unsendableError](err); ok {
			return schedule.Outcome{Kind: schedule.Rejected, Failure: r.failure(0, []byte(err.Error()))}
		}
		o := failed(a, err)
		_, o.Unsent = errors.AsType[*tokenError](err)
		return o
	}
	resp, err := transport.roundTrip(ctx, r, m, a.Begin)
	if errors.Is(err, errCalledOff) {
		return schedule.Outcome{Kind: schedule.Aborted}
	}
	if err != nil {
		_, unreached := errors.AsType[*unreachedError](err)
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		timedOut := errors.Is(err, errTimeout) || errors.Is(err, context.DeadlineExceeded)
		return schedule.Outcome{Kind: schedule.Failed, Failure: r.failure(0, dispatchError(err)), TimedOut: timedOut, Unreached: unreached}
	}
	if resp.StatusCode == http.StatusUnauthorized && s.cfg.TokenRefused != nil && s.needsToken(a.Source, a.Target) {
		s.cfg.TokenRefused(a.Source, a.Target)
	}
	return s.read(ctx, a, r, resp, limit)
}

func failed(a *schedule.Attempt, err error) schedule.Outcome {
	return schedule.Outcome{Kind: schedule.Failed, Failure: schedule.Failure{Dest: redact(a.Target.URL), Data: dispatchError(err)}}
}

// dispatchError describes a failure without an answer in the words of Knative's
// dispatcher.
func dispatchError(err error) []byte { return clip(fmt.Appendf(nil, "dispatch error: %v", err)) }
