package v1alpha1

import (
	"context"

	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	"knative.dev/pkg/apis"
)

// The defaults, as a manifest spells them.
const (
	DefaultDelay                = "0s"
	DefaultBackoffPolicy        = eventingduckv1.BackoffPolicyExponential
	DefaultBackoffDelay         = "PT1S"
	DefaultConflictPolicy       = ConflictPolicyReplace
	DefaultIngestConflictPolicy = ConflictPolicyEarliest
	DefaultIngestMaxDelay       = "8760h"
	DefaultAuthentication       = AuthenticationCluster
	DefaultAccess               = AccessNamespace
	DefaultDeadLettersKeep      = int32(100)
	DefaultDeadLettersMaxAge    = "168h"
	DefaultWarmUp               = "0s"
	DefaultJitter               = 0.0
	DefaultWatchAccount         = "default"
	DefaultScaleReplicas        = int32(1)
	DefaultScaleCooldown        = "10s"
	DefaultScaleStartTimeout    = "2m"
	DefaultBusyPath             = "/metrics"
	DefaultSlack                = "0s"
)

// DefaultIngestPolicies are the policies that an event may ask for.
func DefaultIngestPolicies() []ConflictPolicy {
	return []ConflictPolicy{ConflictPolicyEarliest, ConflictPolicyKeep}
}

// SetDefaults fills in every default. delivery.retry, backoffMax and retryAfterMax,
// maxInterval, watch, its selectors and resync.over, and scale have none: their absence means something.
// watch.resources[].changes has a default that depends on other fields. The limits and
// delivery.timeout have none either: their defaults are the administrator's.
func (s *RescheduleSource) SetDefaults(ctx context.Context) {
	s.Spec.SetDefaults(apis.WithinParent(ctx, s.ObjectMeta))
}

// SetDefaults fills in every default; references without a namespace get the
// one of the parent in ctx.
func (s *RescheduleSourceSpec) SetDefaults(ctx context.Context) {
	s.Sink.SetDefaults(ctx)

	if s.Delivery == nil {
		s.Delivery = &RescheduleSourceDelivery{}
	}
	s.Delivery.DeadLetterSink.SetDefaults(ctx)
	setDefault(&s.Delivery.BackoffPolicy, DefaultBackoffPolicy)
	setDefault(&s.Delivery.BackoffDelay, DefaultBackoffDelay)

	setDefault(&s.Delay, DefaultDelay)
	setDefault(&s.ConflictPolicy, DefaultConflictPolicy)

	if s.Ingest == nil {
		s.Ingest = &RescheduleSourceIngest{}
	}
	setDefault(&s.Ingest.ConflictPolicy, DefaultIngestConflictPolicy)
	setDefault(&s.Ingest.Policies, DefaultIngestPolicies())
	setDefault(&s.Ingest.MaxDelay, DefaultIngestMaxDelay)
	setDefault(&s.Ingest.Authentication, DefaultAuthentication)
	setDefault(&s.Access, DefaultAccess)
	if s.DeadLetters == nil {
		s.DeadLetters = &RescheduleSourceDeadLetters{}
	}
	setDefault(&s.DeadLetters.Keep, DefaultDeadLettersKeep)
	setDefault(&s.DeadLetters.MaxAge, DefaultDeadLettersMaxAge)
	setDefault(&s.WarmUp, DefaultWarmUp)
	setDefault(&s.Jitter, DefaultJitter)
	setDefault(&s.Slack, DefaultSlack)
	s.Watch.setDefaults()
	s.setScaleDefaults()
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
