package dispatch

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// metrics are the dispatcher's instruments. Counters have the source's
// namespace and name and the disposition, never a key, and end with the source.
// Histograms have only the namespace, because a histogram cannot be ended.
type metrics struct {
	lateness  metric.Float64Histogram
	duration  metric.Float64Histogram
	start     metric.Float64Histogram // of workloads
	observing metric.Registration

	mu         sync.Mutex
	namespaces map[string]metric.MeasurementOption
}

// counters are a lane's attempts since the start: to deliver keys and dead letters, by
// schedule.Dispositions, and the failed ones of both by failure.
type counters struct {
	keys, letters [len(schedule.Dispositions)]atomic.Int64
	failed        [len(failureTypes)]atomic.Int64
	gaveUp        [len(givenUp)]atomic.Int64 // when the last event ended so, in Unix milliseconds; 0: none did
}

// givenUp are what becomes of an event whose deliveries have ended without success.
var givenUp = [...]schedule.Disposition{schedule.DeadLettered, schedule.KeptLetter, schedule.Dropped}

// failureTypes are why attempts fail: the class of the answer's status, a wait that could not
// be read, no answer within delivery.timeout, or no answer for another reason.
var failureTypes = [...]string{"4xx", "429", "5xx", schedule.BadAnswer, "timeout", "no_answer", "other"}

func failureType(o *schedule.Outcome) string {
	switch code := o.Failure.Code; {
	case o.TimedOut:
		return "timeout"
	case code == 0:
		return "no_answer"
	case schedule.IsBadAnswer(code):
		return schedule.BadAnswer
	case code == 429:
		return "429"
	case code >= 400 && code <= 499:
		return "4xx"
	case code >= 500 && code <= 599:
		return "5xx"
	}
	return "other"
}

// maxNamespaces bounds the namespaces that are labels of histograms. Further ones
// share an empty label.
const maxNamespaces = 1000

// Forget ends the dispatcher's metrics, which go on after Stop.
func (d *Dispatcher) Forget() {
	_ = d.metrics.observing.Unregister() // it was registered, which is all that can go wrong
}

func newMetrics(meter metric.Meter, d *Dispatcher) (*metrics, error) {
	if meter == nil {
		meter = noop.Meter{}
	}
	var failed error
	counter := func(name, help string) metric.Int64ObservableCounter {
		c, err := meter.Int64ObservableCounter(name, metric.WithDescription(help))
		failed = errors.Join(failed, err)
		return c
	}
	histogram := func(name, help string, bounds ...float64) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(help), metric.WithExplicitBucketBoundaries(bounds...))
		failed = errors.Join(failed, err)
		return h
	}
	m := &metrics{
		namespaces: map[string]metric.MeasurementOption{},
		lateness: histogram("reschedule_lateness", "How long after its time an attempt was started.",
			.001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30, 300, 900, 3600),
		duration: histogram("reschedule_delivery_duration", "How long an attempt took, until the sink's answer was read.",
			.001, .005, .01, .05, .1, .5, 1, 5, 30, 60, 300, 600),
		start: histogram("reschedule_workload_start_duration", "How long workloads took from scaling up to the first connection to their sink.",
			.25, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 60, 120),
	}
	workloads, err := newWorkloadMetrics(meter)
	failed = errors.Join(failed, err)
	deliveries := counter("reschedule_deliveries",
		"Attempts to deliver keys, by what became of them: delivered, retrying, dead_lettered, kept, dropped, expired, superseded, aborted.")
	letters := counter("reschedule_dead_letter_deliveries",
		"Attempts to deliver dead letters to the dead letter sink, by what became of them: delivered, retrying, kept, dropped, aborted.")
	failures := counter("reschedule_delivery_failures",
		"Failed attempts to deliver keys and dead letters, by why: 4xx, 429, 5xx, bad_answer, timeout, no_answer, other.")
	warmUps := counter("reschedule_warm_ups", "Calls that woke the sink of a source before a due time: spec.warmUp.")
	throttled, err := meter.Float64ObservableCounter("reschedule_throttled", metric.WithUnit("s"),
		metric.WithDescription("How long due keys had to wait for a limit: limits.maxInFlight, limits.maxPerSecond, max-in-flight and max-per-second of the namespace, adapter, the share of its slots and memory, or scale, the start of the workload."))
	failed = errors.Join(failed, err)
	gaveUp, err := meter.Float64ObservableGauge("reschedule_given_up_timestamp", metric.WithUnit("s"),
		metric.WithDescription("Unix time at which an event of the source was given up last, by what became of it: dead_lettered, kept, dropped. Absent until one was, since the start."))
	failed = errors.Join(failed, err)
	memory, err := meter.Int64ObservableGauge("reschedule_delivery_bytes",
		metric.WithDescription("Memory counted for the deliveries under way, of all sources."), metric.WithUnit("By"))
	if err = errors.Join(failed, err); err != nil {
		return nil, err
	}
	m.observing, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(memory, d.memory.Used())
		for _, l := range d.all() {
			settings := l.source.Spec()
			with := func(label, value string) metric.MeasurementOption {
				return metric.WithAttributeSet(queue.Labels(settings, attribute.String(label, value)))
			}
			if n := l.warming.calls.Load(); n > 0 {
				o.ObserveInt64(warmUps, n, metric.WithAttributeSet(queue.Labels(settings)))
			}
			for i, what := range schedule.Dispositions {
				if n := l.keys[i].Load(); n > 0 {
					o.ObserveInt64(deliveries, n, with("result", string(what)))
				}
				if n := l.letters[i].Load(); n > 0 {
					o.ObserveInt64(letters, n, with("result", string(what)))
				}
			}
			for i, why := range failureTypes {
				if n := l.failed[i].Load(); n > 0 {
					o.ObserveInt64(failures, n, with("error.type", why))
				}
			}
			for i, what := range givenUp {
				if at := l.gaveUp[i].Load(); at > 0 {
					o.ObserveFloat64(gaveUp, float64(at)/1000, with("result", string(what)))
				}
			}
			if state, ok := d.Workload(l.source); ok {
				workloads.observe(o, settings, state)
			}
			for i, took := range d.throttled(l) {
				if took > 0 {
					o.ObserveFloat64(throttled, took.Seconds(), with("limit", limitNames[i]))
				}
			}
		}
		return nil
	}, append(workloads.all(), deliveries, letters, failures, gaveUp, throttled, warmUps, memory)...)
	return m, err
}

func (d *Dispatcher) all() []*lane {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(d.lanes))
}

// namespace is the label of histograms.
func (m *metrics) namespace(name string) metric.MeasurementOption {
	m.mu.Lock()
	defer m.mu.Unlock()
	l, ok := m.namespaces[name]
	switch {
	case ok:
	case len(m.namespaces) < maxNamespaces:
		l = metric.WithAttributeSet(attribute.NewSet(queue.Namespace.String(name)))
		m.namespaces[name] = l
	default:
		l = metric.WithAttributeSet(attribute.NewSet(queue.Namespace.String("")))
	}
	return l
}

// Loss is an event that its sink does not get.
type Loss struct {
	Source       *schedule.Spec
	Key          string
	DeadLettered bool   // it goes to the dead letter sink
	Kept         bool   // it is kept as a dead letter; if neither, it is gone
	Dest         string // the URL that refused it, without a password and a query
	Code         int    // the status of the last answer, 0 when there was none
}

// lossLines is how many lines a second the log has of the events that one source's sinks do not get.
const lossLines = 20

func (d *Dispatcher) logLoss(l *lane, t *queue.Delivery, o *schedule.Outcome, what schedule.Disposition, dest string) {
	leftOut, ok := l.losses.Next(time.Now())
	if !ok {
		return
	}
	log := d.cfg.Log.With("source", t.Source.Path(), "key", t.Key, "revision", t.Revision(), "attempt", t.Number(),
		"deadLetter", t.Entry.DeadLetter != nil, "dest", dest, "code", o.Failure.Code, "linesLeftOut", leftOut)
	switch what {
	case schedule.KeptLetter:
		log.Warn("an event is kept as a dead letter")
	case schedule.DeadLettered:
		log.Warn("an event goes to the dead letter sink")
	default:
		log.Warn("an event was dropped: it was refused or its retries are used up, and it can be neither sent to a dead letter sink nor kept")
	}
}

// report counts an attempt, and logs an event that was dropped or dead-lettered.
func (d *Dispatcher) report(l *lane, t *queue.Delivery, o schedule.Outcome, what schedule.Disposition, took time.Duration) {
	ctx := context.Background()
	if isSent(t) {
		label := d.metrics.namespace(t.Source.Namespace)
		d.metrics.lateness.Record(ctx, t.Lateness.Seconds(), label)
		d.metrics.duration.Record(ctx, took.Seconds(), label)
	}
	results := &l.keys
	if t.Entry.DeadLetter != nil {
		results = &l.letters
	}
	results[slices.Index(schedule.Dispositions[:], what)].Add(1)
	if o.Kind == schedule.Failed || o.Kind == schedule.Rejected {
		l.failed[slices.Index(failureTypes[:], failureType(&o))].Add(1)
	}
	dest, _, _ := strings.Cut(o.Failure.Dest, "?") // a query may hold a secret
	lost := slices.Index(givenUp[:], what)
	if lost >= 0 {
		l.gaveUp[lost].Store(d.cfg.Now().UnixMilli())
	}
	if lost >= 0 && d.cfg.Lost != nil {
		d.cfg.Lost(Loss{Source: t.Source, Key: t.Key, DeadLettered: what == schedule.DeadLettered, Kept: what == schedule.KeptLetter, Dest: dest, Code: o.Failure.Code})
	}
	if t.Entry.DeadLetter == nil {
		d.observeHealth(l, t, &o, dest)
	}
	if lost >= 0 {
		d.logLoss(l, t, &o, what, dest)
	}
}
