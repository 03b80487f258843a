package v1alpha1

import (
	"context"

	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	"knative.dev/pkg/apis"
)

// The defaults, as a manifest spells them.
const (
	DefaultDelay                      = "0s"
	DefaultBackoffPolicy              = eventingduckv1.BackoffPolicyExponential
	DefaultBackoffDelay               = "PT1S"
	DefaultTimeout                    = "PT10M"
	DefaultConflictPolicy             = ConflictPolicyReplace
	DefaultIngestConflictPolicy       = ConflictPolicyEarliest
	DefaultMaxInFlight          int32 = 100
	DefaultMaxPerSecond         int32 = 0
	DefaultMaxPending           int64 = 1_000_000
)

// SetDefaults fills in every default. delivery.retry, delivery.retryAfterMax
// and maxInterval have none: their absence means something.
func (s *RescheduleSource) SetDefaults(ctx context.Context) {
	s.Spec.SetDefaults(apis.WithinParent(ctx, s.ObjectMeta))
}

// SetDefaults fills in every default; references without a namespace get the
// one of the parent in ctx.
func (s *RescheduleSourceSpec) SetDefaults(ctx context.Context) {
	s.Sink.SetDefaults(ctx)

	if s.Delivery == nil {
		s.Delivery = &eventingduckv1.DeliverySpec{}
	}
	s.Delivery.DeadLetterSink.SetDefaults(ctx)
	setDefault(&s.Delivery.BackoffPolicy, DefaultBackoffPolicy)
	setDefault(&s.Delivery.BackoffDelay, DefaultBackoffDelay)
	setDefault(&s.Delivery.Timeout, DefaultTimeout)

	setDefault(&s.Delay, DefaultDelay)
	setDefault(&s.ConflictPolicy, DefaultConflictPolicy)

	if s.Ingest == nil {
		s.Ingest = &RescheduleSourceIngest{}
	}
	setDefault(&s.Ingest.ConflictPolicy, DefaultIngestConflictPolicy)

	if s.Limits == nil {
		s.Limits = &RescheduleSourceLimits{}
	}
	setDefault(&s.Limits.MaxInFlight, DefaultMaxInFlight)
	setDefault(&s.Limits.MaxPerSecond, DefaultMaxPerSecond)
	setDefault(&s.Limits.MaxPending, DefaultMaxPending)
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
