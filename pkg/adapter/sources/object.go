package sources

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	"knative.dev/pkg/apis"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// FromObject is the source that an object describes, every default filled in
// and its limits cut to the administrator's ceilings; a nil config has none. The
// targets are resolved: in a file the uris of the spec, in a cluster the uris of the status. It
// does not change the object. The error names everything that is wrong with it.
func FromObject(o *v1alpha1.RescheduleSource, t schedule.Targets, config *ceilings.Config) (*schedule.Spec, error) {
	src, _, errs := convert(o, t, config)
	if len(errs) > 0 {
		return nil, fmt.Errorf("sources: %s/%s: %w", o.Namespace, o.Name, errors.Join(errs...))
	}
	return src, nil
}

func convert(o *v1alpha1.RescheduleSource, t schedule.Targets, config *ceilings.Config) (*schedule.Spec, []ceilings.Cut, []error) {
	o = o.DeepCopy()
	o.SetDefaults(context.Background())
	spec, r := &o.Spec, newReader(o.Validate(context.Background()))
	src := &schedule.Spec{
		UID: uid(o), Namespace: o.Namespace, Name: o.Name,
		Targets:  t,
		Delivery: r.delivery(spec.Delivery),
		Delay:    r.duration("spec.delay", *spec.Delay),
		Policy:   r.policy("spec.conflictPolicy", *spec.ConflictPolicy),
		Ingest: schedule.Ingest{
			Key: spec.Ingest.Key, When: spec.Ingest.When,
			Policy:     r.policy("spec.ingest.conflictPolicy", *spec.Ingest.ConflictPolicy),
			Policies:   r.policies("spec.ingest.policies", *spec.Ingest.Policies),
			MaxDelay:   r.duration("spec.ingest.maxDelay", *spec.Ingest.MaxDelay),
			NeedsToken: *spec.Ingest.Authentication == v1alpha1.AuthenticationRequired,
		},
		RBACOnly: *spec.Access == v1alpha1.AccessRBAC,
		Audit:    spec.Audit,
		Suspend:  spec.Suspend,
		Jitter:   *spec.Jitter,
		Waking: schedule.Waking{
			WarmUp: r.duration("spec.warmUp", *spec.WarmUp), Slack: r.duration("spec.slack", *spec.Slack), Company: schedule.DefaultCompany,
		},
		Letters: schedule.Letters{Keep: int(*spec.DeadLetters.Keep), MaxAge: r.duration("spec.deadLetters.maxAge", *spec.DeadLetters.MaxAge)},
	}
	cuts := limit(src, spec, config.For(o.Namespace))
	if spec.MaxInterval != nil {
		src.MaxInterval = r.duration("spec.maxInterval", *spec.MaxInterval)
	}
	if spec.Schedule != nil { // which Validate has parsed
		src.Calendar = &schedule.Calendar{Cron: spec.Schedule.Cron, TimeZone: spec.Schedule.TimeZone}
	}
	if spec.Watch != nil {
		src.Watch = r.watch(o)
	}
	if spec.Scale != nil {
		src.Scale = r.scale(o)
		src.Company = src.Scale.Cooldown
		if src.Scale.Sinkless { // when a key is done the workload falls asleep at once
			src.Company = 0
		}
	}
	if spec.CloudEventOverrides != nil {
		src.Extensions = maps.Clone(spec.CloudEventOverrides.Extensions)
	}
	return src, cuts, r.errs
}

// limit gives the source the limits that its spec names, or the administrator's
// defaults, none above the ceilings, and returns what was cut.
func limit(src *schedule.Spec, spec *v1alpha1.RescheduleSourceSpec, c ceilings.Ceilings) []ceilings.Cut {
	limits, cuts := c.Limits(spec)
	src.Limits = schedule.Limits{
		MaxPending: limits.MaxPending, MaxBytes: limits.MaxBytes,
		MaxInFlight: int(limits.MaxInFlight), MaxPerSecond: int(limits.MaxPerSecond),
	}
	// What the spec names was read exactly already.
	if src.Delivery.Timeout == 0 || src.Delivery.Timeout > limits.Timeout {
		src.Delivery.Timeout = limits.Timeout
	}
	src.Ceilings = schedule.Ceilings{
		MaxPending: c.MaxPending, MaxBytes: c.MaxBytes,
		MaxInFlight: int(c.MaxInFlight), MaxPerSecond: int(c.MaxPerSecond), MinDelay: c.MinDelay,
		MaxStarts: int(c.MaxStarts), MaxStartsOfAll: int(c.MaxStartsOfAll),
	}
	return cuts
}

func uid(o *v1alpha1.RescheduleSource) string {
	if o.UID != "" {
		return string(o.UID)
	}
	return o.Namespace + "/" + o.Name
}

// reader reads one field after the other and keeps the errors, one per field.
type reader struct {
	errs     []error
	reported map[string]bool // the fields that have an error
}

// newReader starts with the errors of the object's own validation. It puts the field
// first, as all errors of this package do.
func newReader(fe *apis.FieldError) *reader {
	r := &reader{reported: map[string]bool{}}
	if fe == nil {
		return r
	}
	for _, e := range fe.WrappedErrors() {
		text := e.Message
		if e.Details != "" {
			text += " (" + e.Details + ")"
		}
		r.errs = append(r.errs, fmt.Errorf("%s: %s", strings.Join(e.Paths, ", "), text))
		for _, path := range e.Paths {
			r.reported[path] = true
		}
	}
	return r
}

func (r *reader) note(field string, err error) {
	if err != nil && !r.reported[field] {
		r.errs = append(r.errs, err)
	}
}

func (r *reader) duration(field, s string) time.Duration {
	return r.upToMost(field, s, schedule.ParseDuration)
}

func (r *reader) isoDuration(field, s string) time.Duration {
	return r.upToMost(field, s, schedule.ParseISODuration)
}

// upToMost takes what the rules of the CRD take for 100 years, since they add in floating point,
// as 100 years: the API server would let it in, and no adapter serve it.
func (r *reader) upToMost(field, s string, parse func(field, s string) (time.Duration, error)) time.Duration {
	d, err := parse(field, s)
	if err == nil {
		return d
	}
	if _, rough := v1alpha1.ParseDuration(s); rough == nil {
		return schedule.MaxDuration // or Validate has said that it is not in ISO 8601
	}
	r.note(field, err)
	return d
}

func (r *reader) policy(field string, p v1alpha1.ConflictPolicy) schedule.Policy {
	policy, err := schedule.ParsePolicy(field, string(p))
	r.note(field, err)
	return policy
}

func (r *reader) policies(field string, list []v1alpha1.ConflictPolicy) []schedule.Policy {
	policies := make([]schedule.Policy, len(list))
	for i, p := range list {
		policies[i] = r.policy(fmt.Sprintf("%s[%d]", field, i), p)
	}
	return policies
}

func (r *reader) delivery(d *v1alpha1.RescheduleSourceDelivery) schedule.Delivery {
	out := schedule.Delivery{
		Linear:       *d.BackoffPolicy == eventingduckv1.BackoffPolicyLinear,
		BackoffDelay: r.isoDuration("spec.delivery.backoffDelay", *d.BackoffDelay),
		Structured:   d.Format != nil && *d.Format == eventingduckv1.DeliveryFormatJson,
	}
	if d.Timeout != nil {
		out.Timeout = r.isoDuration("spec.delivery.timeout", *d.Timeout)
	}
	if d.Retry != nil {
		retry := int(*d.Retry)
		out.Retry = &retry
	}
	if d.BackoffMax != nil {
		most := r.isoDuration("spec.delivery.backoffMax", *d.BackoffMax)
		out.BackoffMax = &most
	}
	if d.RetryAfterMax != nil {
		most := r.isoDuration("spec.delivery.retryAfterMax", *d.RetryAfterMax)
		out.RetryAfterMax = &most
	}
	return out
}
