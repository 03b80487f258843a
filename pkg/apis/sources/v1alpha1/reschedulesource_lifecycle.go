package v1alpha1

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// The conditions of a source. Ready is the sum of the others.
const (
	ConditionReady = apis.ConditionReady
	// ConditionSinkProvided: the sink was resolved to a URL.
	ConditionSinkProvided = duckv1.SourceConditionSinkProvided
	// ConditionDeadLetterSinkResolved: so was the dead letter sink, or there
	// is none.
	ConditionDeadLetterSinkResolved apis.ConditionType = "DeadLetterSinkResolved"
	// ConditionDeployed: the adapter runs.
	ConditionDeployed apis.ConditionType = "Deployed"
	// ConditionAddressable: the source has an address.
	ConditionAddressable apis.ConditionType = "Addressable"
	// ConditionOIDCIdentityCreated: the source has the identity that it shows
	// to its sinks, or needs none.
	ConditionOIDCIdentityCreated apis.ConditionType = "OIDCIdentityCreated"
	// ConditionLimited: the spec asks for more than the administrator's ceilings
	// allow, and is cut to them. It is there only then, with the severity Info,
	// and is not a part of Ready.
	ConditionLimited apis.ConditionType = "Limited"
	// ConditionWatching: the list of every resource of spec.watch is complete. It is
	// there only with spec.watch, and is then a part of Ready, unless it has the severity
	// Info: the API server became unreachable after the condition was True.
	ConditionWatching apis.ConditionType = "Watching"
)

// ReasonNotFound is why a target is not resolved that does not exist: of
// SinkProvided and DeadLetterSinkResolved.
const ReasonNotFound = "NotFound"

// ReasonNoMemory is why a source is not addressable for which the adapter has no memory: its
// last valid spec stays in force, if there is one.
const ReasonNoMemory = "NoMemory"

// ConditionDelivering says whether deliveries succeed. It has severity Info: it is not a
// part of Ready.
const ConditionDelivering apis.ConditionType = "Delivering"

// The reasons of Watching.
const (
	// ReasonWatchNotReported: the adapter has not reported on this generation yet.
	ReasonWatchNotReported = "NotReported"
	// ReasonInvalidKey: an expression does not compile, or its keys cannot be used.
	ReasonInvalidKey = "InvalidKey"
	// ReasonUnreachable: the API server does not answer the adapter. After Watching was
	// True it is no part of Ready: all changes are reported once the API server answers.
	ReasonUnreachable = "Unreachable"
	// ReasonQuotaExceeded: changes wait, because a quota of the source or its namespace is
	// used up. After Watching was True it is no part of Ready.
	ReasonQuotaExceeded = "QuotaExceeded"
)

// parts are what Ready sums up, in the order in which it quotes them.
var parts = []apis.ConditionType{
	ConditionSinkProvided,
	ConditionDeadLetterSinkResolved,
	ConditionDeployed,
	ConditionAddressable,
	ConditionOIDCIdentityCreated,
}

// conditions are of every source; one with a sink also has SinkProvided.
var (
	conditions         = apis.NewLivingConditionSet(parts[1:]...)
	conditionsWithSink = apis.NewLivingConditionSet(parts...)
)

// GetConditionSet implements duckv1.KRShaped.
func (s *RescheduleSource) GetConditionSet() apis.ConditionSet {
	if s.Spec.Sinkless() {
		return conditions
	}
	return conditionsWithSink
}

// GetStatus implements duckv1.KRShaped.
func (s *RescheduleSource) GetStatus() *duckv1.Status { return &s.Status.Status }

// GetUntypedSpec implements apis.HasSpec.
func (s *RescheduleSource) GetUntypedSpec() any { return s.Spec }

// NamesAudience says whether the spec itself asks for tokens to a target: then the
// source has an identity, whatever the cluster's authentication-oidc says.
func (s *RescheduleSource) NamesAudience() bool {
	targets := []*duckv1.Destination{&s.Spec.Sink}
	if d := s.Spec.Delivery; d != nil {
		targets = append(targets, d.DeadLetterSink)
	}
	for _, t := range targets {
		if t != nil && t.Audience != nil && *t.Audience != "" {
			return true
		}
	}
	return false
}

// GetGroupVersionKind implements kmeta.OwnerRefable.
func (*RescheduleSource) GetGroupVersionKind() schema.GroupVersionKind {
	return SchemeGroupVersion.WithKind(Kind)
}

// Summarize makes Ready quote the first of the conditions that is False, or
// else the first that is not True. Left to itself the condition set quotes the
// one that changed last, which is another one after a reconciliation in which
// nothing changed.
func (s *RescheduleSourceStatus) Summarize() {
	manager := conditions.Manage(s)
	var unknown *apis.Condition
	for _, part := range append(slices.Clip(parts), ConditionWatching) {
		c := manager.GetCondition(part)
		optional := part == ConditionSinkProvided || part == ConditionWatching
		switch {
		case optional && (c == nil || c.Severity == apis.ConditionSeverityInfo):
			continue
		case c == nil: // it was not reconciled yet
			c = &apis.Condition{}
		case c.IsFalse():
			manager.MarkFalse(ConditionReady, c.Reason, "%s", c.Message)
			return
		case c.IsTrue():
			continue
		}
		if unknown == nil {
			unknown = c
		}
	}
	if unknown != nil {
		manager.MarkUnknown(ConditionReady, unknown.Reason, "%s", unknown.Message)
		return
	}
	manager.MarkTrue(ConditionReady)
}

// MarkSink makes addr the sink of the source.
func (s *RescheduleSourceStatus) MarkSink(addr *duckv1.Addressable) {
	s.SinkURI, s.SinkCACerts, s.SinkAudience = addr.URL, addr.CACerts, addr.Audience
	s.setPart(ConditionSinkProvided, apis.Condition{Status: corev1.ConditionTrue})
}

// ClearSink records that the source has no sink and needs none.
func (s *RescheduleSourceStatus) ClearSink() {
	s.SinkURI, s.SinkCACerts, s.SinkAudience = nil, nil, nil
	_ = conditions.Manage(s).ClearCondition(ConditionSinkProvided) // only a part of the condition set cannot be cleared
}

// MarkNoSink says why the sink has no URL. The last one that was known stays:
// a sink that cannot be found for a while is no reason to stop delivering.
func (s *RescheduleSourceStatus) MarkNoSink(reason, format string, args ...any) {
	s.setPart(ConditionSinkProvided, apis.Condition{Status: corev1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// MarkDeadLetterSink makes addr the dead letter sink of the source.
func (s *RescheduleSourceStatus) MarkDeadLetterSink(addr *duckv1.Addressable) {
	s.DeliveryStatus = eventingduckv1.NewDeliveryStatusFromAddressable(addr)
	conditions.Manage(s).MarkTrue(ConditionDeadLetterSinkResolved)
}

// MarkDeadLetterSinkNotConfigured records that the source has none and needs none.
func (s *RescheduleSourceStatus) MarkDeadLetterSinkNotConfigured() {
	s.DeliveryStatus = eventingduckv1.DeliveryStatus{}
	conditions.Manage(s).MarkTrueWithReason(ConditionDeadLetterSinkResolved, "DeadLetterSinkNotConfigured", "No dead letter sink is configured.")
}

// MarkNoDeadLetterSink says why the dead letter sink has no URL. The last one
// that was known stays.
func (s *RescheduleSourceStatus) MarkNoDeadLetterSink(reason, format string, args ...any) {
	conditions.Manage(s).MarkFalse(ConditionDeadLetterSinkResolved, reason, format, args...)
}

// MarkDeployed records that the adapter runs.
func (s *RescheduleSourceStatus) MarkDeployed() {
	conditions.Manage(s).MarkTrue(ConditionDeployed)
}

// MarkDeploying records that the adapter is on its way.
func (s *RescheduleSourceStatus) MarkDeploying(reason, format string, args ...any) {
	conditions.Manage(s).MarkUnknown(ConditionDeployed, reason, format, args...)
}

// MarkNotDeployed says why there is no adapter.
func (s *RescheduleSourceStatus) MarkNotDeployed(reason, format string, args ...any) {
	conditions.Manage(s).MarkFalse(ConditionDeployed, reason, format, args...)
}

// MarkAddressable records that the source can be called at its address.
func (s *RescheduleSourceStatus) MarkAddressable() {
	conditions.Manage(s).MarkTrue(ConditionAddressable)
}

// MarkNotAddressable sets the condition to False with a reason. It does not change the address.
func (s *RescheduleSourceStatus) MarkNotAddressable(reason, format string, args ...any) {
	conditions.Manage(s).MarkFalse(ConditionAddressable, reason, format, args...)
}

// MarkLimited says which fields of the spec are cut, and to what.
func (s *RescheduleSourceStatus) MarkLimited(reason, format string, args ...any) {
	conditions.Manage(s).MarkTrueWithReason(ConditionLimited, reason, format, args...)
}

// ClearLimited records that nothing of the spec is cut.
func (s *RescheduleSourceStatus) ClearLimited() {
	_ = conditions.Manage(s).ClearCondition(ConditionLimited) // only a part of Ready cannot be cleared
}

// MarkWatching sets Watching from the adapter's report, if that is about this
// generation.
func (s *RescheduleSourceStatus) MarkWatching(generation int64) {
	report := s.Watch
	if report == nil || report.ObservedGeneration != generation {
		s.setPart(ConditionWatching, apis.Condition{Status: corev1.ConditionUnknown, Reason: ReasonWatchNotReported, Message: "The adapter has not reported on this generation yet."})
		return
	}
	c := apis.Condition{Status: corev1.ConditionUnknown, Reason: report.Reason, Message: report.Message}
	if status := corev1.ConditionStatus(report.Status); status == corev1.ConditionTrue || status == corev1.ConditionFalse {
		c.Status = status
	}
	if c.Status != corev1.ConditionTrue && (c.Reason == ReasonUnreachable || c.Reason == ReasonQuotaExceeded) && report.WasTrue {
		c.Severity = apis.ConditionSeverityInfo
	}
	s.setPart(ConditionWatching, c)
}

// MarkNotWatching says why spec.watch cannot be used.
func (s *RescheduleSourceStatus) MarkNotWatching(reason, message string) {
	s.setPart(ConditionWatching, apis.Condition{Status: corev1.ConditionFalse, Reason: reason, Message: message})
}

// setPart sets a condition that not every source has, with its severity: without one it is a part
// of Ready. The condition set would make it one of severity Info.
func (s *RescheduleSourceStatus) setPart(t apis.ConditionType, c apis.Condition) {
	c.Type = t
	conditions.Manage(s).SetCondition(c)
}

// ClearWatching records that the source watches nothing.
func (s *RescheduleSourceStatus) ClearWatching() {
	_ = conditions.Manage(s).ClearCondition(ConditionWatching) // only a part of the condition set cannot be cleared
}

// MarkDelivering sets Delivering from the adapter's report; without one the source does
// not have it.
func (s *RescheduleSourceStatus) MarkDelivering() {
	report := s.Deliveries
	if report == nil {
		_ = conditions.Manage(s).ClearCondition(ConditionDelivering) // only a part of Ready cannot be cleared
		return
	}
	c := apis.Condition{Type: ConditionDelivering, Status: corev1.ConditionUnknown, Severity: apis.ConditionSeverityInfo, Reason: report.Reason, Message: report.Message}
	if status := corev1.ConditionStatus(report.Status); status == corev1.ConditionTrue || status == corev1.ConditionFalse {
		c.Status = status
	}
	conditions.Manage(s).SetCondition(c)
}

// MarkOIDCIdentityCreatedSucceeded implements eventing's
// auth.OIDCIdentityStatusMarker.
func (s *RescheduleSourceStatus) MarkOIDCIdentityCreatedSucceeded() {
	conditions.Manage(s).MarkTrue(ConditionOIDCIdentityCreated)
}

// MarkOIDCIdentityCreatedSucceededWithReason implements eventing's
// auth.OIDCIdentityStatusMarker.
func (s *RescheduleSourceStatus) MarkOIDCIdentityCreatedSucceededWithReason(reason, format string, args ...any) {
	conditions.Manage(s).MarkTrueWithReason(ConditionOIDCIdentityCreated, reason, format, args...)
}

// MarkOIDCIdentityCreatedFailed implements eventing's
// auth.OIDCIdentityStatusMarker.
func (s *RescheduleSourceStatus) MarkOIDCIdentityCreatedFailed(reason, format string, args ...any) {
	conditions.Manage(s).MarkFalse(ConditionOIDCIdentityCreated, reason, format, args...)
}
