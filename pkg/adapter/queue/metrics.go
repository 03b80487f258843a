package queue

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The results of changes: of requests, and of keys that a DELETE removed.
const resultCancelled = "cancelled"

var changeResults = [...]string{string(schedule.Created), string(schedule.Replaced), string(schedule.Merged), string(schedule.Kept), resultCancelled}

// tally counts the changes of a source by result, since the start.
type tally [len(changeResults)]atomic.Int64

func (t *tally) add(result string, n int64) { t[slices.Index(changeResults[:], result)].Add(n) }

// limitNames are the limits of a source, as quotas and throttling name them.
var limitNames = [...]string{quotaPending, quotaBytes, "limits.maxInFlight", "limits.maxPerSecond"}

// ceilingNames are the limits of a namespace: keys of config-reschedule.
var ceilingNames = [...]string{ceilingPending, ceilingBytes, "max-in-flight", "max-per-second"}

// metrics are the queue's instruments. [Labels] are their labels; a key is
// never a label.
type metrics struct {
	observing metric.Registration
}

func newMetrics(meter metric.Meter, q *Queue) (*metrics, error) {
	if meter == nil {
		meter = noop.Meter{}
	}
	var failed error
	counter := func(name, help string) metric.Int64ObservableCounter {
		c, err := meter.Int64ObservableCounter(name, metric.WithDescription(help))
		failed = errors.Join(failed, err)
		return c
	}
	gauge := func(name, help string) metric.Int64ObservableGauge {
		g, err := meter.Int64ObservableGauge(name, metric.WithDescription(help))
		failed = errors.Join(failed, err)
		return g
	}
	seconds := func(name, help string) metric.Float64ObservableGauge {
		g, err := meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(help))
		failed = errors.Join(failed, err)
		return g
	}
	expired := counter("reschedule_expired", "Occurrences dropped because they were not delivered before their expiresAt.")
	refused := counter("reschedule_quota_refused", "Changes that were refused for a quota: limits.maxPending or limits.maxBytes of the source, max-pending or max-bytes of its namespace, or the disk.")
	pending := gauge("reschedule_pending", "Keys that wait or are due.")
	due := gauge("reschedule_due", "Keys whose time has come and that are not being delivered, retries among them.")
	retrying := gauge("reschedule_retrying", "Keys between two attempts: the last attempt failed, and there will be another one.")
	changes := counter("reschedule_changes", "Changes of keys that calls, events and watches made: created, replaced, merged, kept, cancelled.")
	limits := gauge("reschedule_limit", "The limits of a source that are in force: limits.maxPending, limits.maxBytes, limits.maxInFlight, limits.maxPerSecond. One that is not set is absent.")
	ceilings := gauge("reschedule_namespace_limit", "The limits that the sources of a namespace share, from config-reschedule: max-pending, max-bytes, max-in-flight, max-per-second. One that is not set is absent.")
	suspended := gauge("reschedule_source_suspended", "1 while the source is suspended, else 0.")
	inFlight := gauge("reschedule_in_flight", "Deliveries of keys under way.")
	letters := gauge("reschedule_dead_letters_pending", "Dead letters that wait for the dead letter sink; absent without one.")
	kept := gauge("reschedule_dead_letters_kept", "Dead letters that are kept; absent while there is none.")
	lettersInFlight := gauge("reschedule_dead_letters_in_flight", "Deliveries to the dead letter sink under way; absent without one.")
	paused := gauge("reschedule_deliveries_paused", "1 while no delivery starts because the disk has no space for its outcome, else 0.")
	stored := gauge("reschedule_stored_bytes", "Bytes of the source's keys and dead letters, as quotas count them.")
	marked := gauge("reschedule_watch_stored_bytes", "Bytes that are remembered of the source's watched objects, as max-bytes counts them; absent while there are none.")
	storedKeys := gauge("reschedule_stored_keys", "Keys of the source, pending and in flight, as quotas count them.")
	lag := seconds("reschedule_oldest_due_age", "How long the key that is due longest waits for its first attempt, from the end of its slack; 0 when there is none, and while the source is suspended.")
	bandPending := gauge("reschedule_priority_pending", "Keys that wait or are due, by priority; absent while all keys are normal.")
	bandDue := gauge("reschedule_priority_due", "Keys whose time has come and that are not being delivered, by priority; absent while all keys are normal.")
	bandLag := seconds("reschedule_priority_oldest_due_age", "How long the key that is due longest waits for its first attempt, by priority; absent while all keys are normal.")
	next := seconds("reschedule_next_due_timestamp", "Unix time of the soonest due time that is still ahead; absent when there is none.")
	if failed != nil {
		return nil, failed
	}
	var m metrics
	var err error
	m.observing, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		limited := map[string]bool{}
		o.ObserveInt64(paused, one(q.paused.Load()))
		for _, s := range q.Sources() {
			c, err := s.Counts()
			if err != nil {
				continue // removed meanwhile
			}
			settings := s.Spec()
			labels := metric.WithAttributeSet(Labels(settings))
			with := func(label, value string) metric.MeasurementOption {
				return metric.WithAttributeSet(Labels(settings, attribute.String(label, value)))
			}
			o.ObserveInt64(pending, c.Pending, labels)
			o.ObserveInt64(due, c.Due, labels)
			o.ObserveInt64(retrying, c.Retrying, labels)
			o.ObserveInt64(inFlight, c.InFlight, labels)
			if settings.DeadLetter != nil || c.DeadLetters > 0 {
				o.ObserveInt64(letters, c.DeadLetters, labels)
				o.ObserveInt64(lettersInFlight, c.LettersInFlight, labels)
			}
			if c.Kept > 0 {
				o.ObserveInt64(kept, c.Kept, labels)
			}
			o.ObserveInt64(stored, s.usage.bytes.Load(), labels)
			if n := s.Marks.Bytes(); n > 0 {
				o.ObserveInt64(marked, n, labels)
			}
			o.ObserveInt64(storedKeys, s.usage.keys.Load(), labels)
			if n := s.expired.Load(); n > 0 {
				o.ObserveInt64(expired, n, labels)
			}
			for i := range s.usage.refused {
				if n := s.usage.refused[i].Load(); n > 0 {
					o.ObserveInt64(refused, n, with("quota", quotas[i]))
				}
			}
			for i, result := range changeResults {
				if n := s.changes[i].Load(); n > 0 {
					o.ObserveInt64(changes, n, with("result", result))
				}
			}
			for i, n := range [...]int64{settings.MaxPending, settings.MaxBytes, int64(settings.MaxInFlight), int64(settings.MaxPerSecond)} {
				if n > 0 {
					o.ObserveInt64(limits, n, with("limit", limitNames[i]))
				}
			}
			if !limited[settings.Namespace] {
				limited[settings.Namespace] = true
				shared := &settings.Ceilings
				for i, n := range [...]int64{shared.MaxPending, shared.MaxBytes, int64(shared.MaxInFlight), int64(shared.MaxPerSecond)} {
					if n > 0 {
						o.ObserveInt64(ceilings, n, metric.WithAttributes(Namespace.String(settings.Namespace), attribute.String("limit", ceilingNames[i])))
					}
				}
			}
			if !c.NextDueAt.IsZero() {
				o.ObserveFloat64(next, float64(c.NextDueAt.UnixMilli())/1000, labels)
			}
			age := func(oldest time.Time) float64 {
				if settings.Suspend || oldest.IsZero() {
					return 0
				}
				return max(q.cfg.Now().Sub(oldest).Seconds(), 0)
			}
			for i, b := range c.Bands {
				if c.Bands[schedule.NormalPriority.Band()].Pending == c.Pending {
					break
				}
				labels := with("priority", schedule.Priorities[i].String())
				o.ObserveInt64(bandPending, b.Pending, labels)
				o.ObserveInt64(bandDue, b.Due, labels)
				o.ObserveFloat64(bandLag, age(b.OldestUntriedAt), labels)
			}
			o.ObserveInt64(suspended, one(settings.Suspend), labels)
			o.ObserveFloat64(lag, age(c.OldestUntriedAt), labels)
		}
		return nil
	}, paused, pending, due, retrying, suspended, inFlight, letters, kept, lettersInFlight, stored, marked, storedKeys, lag, bandPending, bandDue, bandLag, next, limits, ceilings, expired, refused, changes)
	return &m, err
}

func one(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

func (m *metrics) close() {
	_ = m.observing.Unregister() // it was registered, which is all that can go wrong
}

// Namespace is the attribute of metrics that names a source's namespace.
// Knative uses the same attributes. They differ from the labels that Prometheus
// gives to the target of a scrape, which are called namespace and name.
const Namespace = attribute.Key("kn.source.namespace")

// Labels are the attributes of metrics that name a source, and more.
func Labels(s *schedule.Spec, more ...attribute.KeyValue) attribute.Set {
	return attribute.NewSet(append(more, Namespace.String(s.Namespace), attribute.String("kn.source.name", s.Name))...)
}
