package schedule

import (
	"strings"
	"time"
)

// Defaults of a source.
const (
	DefaultTimeout      = 10 * time.Minute
	DefaultBackoffDelay = time.Second
	DefaultMaxInFlight  = 100
	DefaultMaxPending   = 1_000_000
	// MaxBackoff caps every wait between attempts, as client-go does.
	MaxBackoff = 1000 * time.Second
	// MinWait is the least wait that an outcome leads to, client-go's first one. Without
	// it a sink that asks for no wait would get thousands of deliveries a second of one key.
	MinWait = 5 * time.Millisecond
	// maxFloor is the least cap of the floor of a back-off, and the cap of the wait
	// that an event has to keep to a failed attempt.
	maxFloor = time.Second
)

// Spec is the settings of one RescheduleSource, resolved and with defaults. A
// Spec is immutable: a new one replaces it.
type Spec struct {
	UID             string // owns the schedules: another uid is another source
	Namespace, Name string

	Targets
	// Extensions are spec.ceOverrides, applied last to every event.
	Extensions map[string]string
	Delivery   Delivery

	Delay       time.Duration
	Policy      Policy        // of requests that name none
	MaxInterval time.Duration // 0 = off
	// Jitter is the share of itself that a wait which an outcome asks for may grow by.
	Jitter float64
	Waking
	Letters Letters
	Ingest  Ingest
	Watch   *Watch // nil: the source watches nothing
	Scale   Scale

	// RBACOnly admits no caller to the schedule API for its namespace alone.
	RBACOnly bool
	Audit    bool // a log line for each admitted change

	Limits
	// Ceilings bound the sources of the namespace together.
	Ceilings Ceilings
	Suspend  bool
}

// Waking is when the sink of a source wakes.
type Waking struct {
	// Calendar is of every key that names no time of its own, in place of Delay and MaxInterval; nil = none.
	Calendar *Calendar
	// WarmUp is how long before a due time the sink is called to be awake then; 0 = off.
	WarmUp time.Duration
	// Slack is for how long an occurrence may wait for company: see [Entry.OwnSlack].
	Slack time.Duration
	// Company is how long after a delivery the sink is taken to be awake.
	Company time.Duration
}

// Targets are where a source delivers to.
type Targets struct {
	Sink       Target
	DeadLetter *Target
	// ServiceAccount is the account, in the source's namespace, whose token is sent to
	// targets with an audience; "" = no token.
	ServiceAccount string
}

// Ingest is how CloudEvents become requests.
type Ingest struct {
	Key, When string        // CEL, "" = none
	Policy    Policy        // of events that name none
	Policies  []Policy      // what an event may ask for
	MaxDelay  time.Duration // the longest delay that an event may ask for
	// NeedsToken requires a token of an admitted caller for each event, also
	// where the cluster requires none.
	NeedsToken bool
}

// Limits bound a source.
type Limits struct {
	MaxInFlight  int
	MaxPerSecond int // 0 = no limit
	MaxPending   int64
	MaxBytes     int64 // stored, before compression; 0 = no limit of its own
}

// Ceilings are the administrator's bounds of a namespace, over the sum of its
// sources; 0 = none.
type Ceilings struct {
	MaxPending   int64
	MaxBytes     int64 // stored, before compression
	MaxInFlight  int
	MaxPerSecond int
	// MaxStarts bounds the workloads that start at a time; MaxStartsOfAll bounds them
	// over all namespaces.
	MaxStarts, MaxStartsOfAll int
	// MinDelay raises every shorter wait that a request, an event or an outcome
	// requires; it does not affect retries, whose least wait is MinWait.
	MinDelay time.Duration
}

// Path is the source's address below the host, "namespace/name"; both are DNS
// names, so it needs no escaping.
func (s *Spec) Path() string { return s.Namespace + "/" + s.Name }

// EventSource is the CloudEvents source attribute of the source's own events.
func (s *Spec) EventSource() string {
	return "/apis/sources.reschedule.dev/v1alpha1/namespaces/" + s.Namespace + "/reschedulesources/" + s.Name
}

// Target is an address to deliver to.
type Target struct {
	URL      string
	CACerts  string // PEM, trusted beside the system's; "" = none
	Audience string // of the OIDC token to send; "" = none
}

// Secure reports whether a delivery of the source may use TLS.
func (s *Spec) Secure() bool {
	return s.Sink.secure() || s.DeadLetter != nil && s.DeadLetter.secure()
}

func (t Target) secure() bool {
	const scheme = "https:"
	return len(t.URL) > len(scheme) && strings.EqualFold(t.URL[:len(scheme)], scheme)
}

// Delivery is how deliveries of a source are made and repeated.
type Delivery struct {
	Retry         *int // retries after the first attempt; nil = for ever
	Linear        bool // back-off grows linearly, else exponentially
	BackoffDelay  time.Duration
	Timeout       time.Duration
	BackoffMax    *time.Duration // nil: MaxBackoff
	RetryAfterMax *time.Duration // nil: honoured up to MaxBackoff
	Structured    bool           // delivery.format json
}

// wait is the pause after the n-th failed attempt of an occurrence, n from 1,
// raised by the sink's Retry-After up to its cap. It is not shorter than the floor,
// MinWait doubled for each failure: a short backoffDelay must not make a loop.
func (d *Delivery) wait(n uint32, retryAfter time.Duration) time.Duration {
	most, mostAsked := MaxBackoff, MaxBackoff
	if d.BackoffMax != nil {
		most = *d.BackoffMax
	}
	if d.RetryAfterMax != nil {
		mostAsked = *d.RetryAfterMax
	}
	w := most
	switch {
	case !d.Linear:
		w = exponential(d.BackoffDelay, 2, most, n)
	case d.BackoffDelay <= 0 || int64(n) <= int64(most/d.BackoffDelay):
		w = d.BackoffDelay * time.Duration(n)
	}
	return max(w, exponential(MinWait, 2, max(most, maxFloor), n), min(retryAfter, mostAsked))
}

// eventFloor is the least wait from the n-th failed run of a key in a row to an attempt
// that an event brings forward. Events that come often must not undo the back-off.
func eventFloor(n uint32) time.Duration {
	if n == 0 {
		return 0
	}
	return exponential(MinWait, 2, maxFloor, n)
}

// exhausted reports whether the occurrence has used up its retries after n failed
// attempts.
func (d *Delivery) exhausted(n uint32) bool {
	return d.Retry != nil && int64(n) > int64(*d.Retry)
}
