package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	"knative.dev/pkg/kmeta"
)

// +genclient
// +genreconciler
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:defaulter-gen=true

// RescheduleSource is a durable, keyed, delaying work queue whose worker is a
// Knative sink.
type RescheduleSource struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   RescheduleSourceSpec   `json:"spec,omitempty"`
	Status RescheduleSourceStatus `json:"status,omitempty"`
}

var (
	_ runtime.Object     = (*RescheduleSource)(nil)
	_ kmeta.OwnerRefable = (*RescheduleSource)(nil)
	_ apis.Validatable   = (*RescheduleSource)(nil)
	_ apis.Defaultable   = (*RescheduleSource)(nil)
	_ apis.HasSpec       = (*RescheduleSource)(nil)
	_ duckv1.KRShaped    = (*RescheduleSource)(nil)
)

// RescheduleSourceSpec is the desired state of a source. Durations outside
// delivery are written in Go style (5m30s) or as ISO 8601 (PT5M30S).
type RescheduleSourceSpec struct {
	// SourceSpec is the sink that events are delivered to and the overrides
	// (ceOverrides) that are applied last to each of them.
	duckv1.SourceSpec `json:",inline"`

	// Delivery says how a delivery is made, repeated and given up; its
	// durations are ISO 8601. Unlike elsewhere in Knative an unset retry means
	// for ever: a schedule is not lost because its operator is down.
	// +optional
	Delivery *RescheduleSourceDelivery `json:"delivery,omitempty"`

	// Delay is used when a request names no time; default 0s.
	// +optional
	Delay *string `json:"delay,omitempty"`

	// ConflictPolicy decides about the time when a request names a key that
	// already waits; default replace.
	// +optional
	ConflictPolicy *ConflictPolicy `json:"conflictPolicy,omitempty"`

	// MaxInterval makes a key due again so long after a run that succeeded and
	// asked for nothing; unset or 0s = off.
	// +optional
	MaxInterval *string `json:"maxInterval,omitempty"`

	// Schedule is the calendar of every key that names no time of its own, in place of delay and
	// maxInterval. A key with a time of its own returns to it after its run.
	// +optional
	Schedule *RescheduleSourceSchedule `json:"schedule,omitempty"`

	// Slack is for how long a key, once it is due, may wait to be delivered together with
	// others, so that they wake the sink together; default 0s = not at all.
	// +optional
	Slack *string `json:"slack,omitempty"`

	// Ingest says what becomes of CloudEvents sent to the source's address.
	// +optional
	Ingest *RescheduleSourceIngest `json:"ingest,omitempty"`

	// DeadLetters says which events that were given up are kept, without a dead letter
	// sink or when that refuses them.
	// +optional
	DeadLetters *RescheduleSourceDeadLetters `json:"deadLetters,omitempty"`

	// WarmUp is how long before a due time the sink is called, if nothing was delivered
	// in the last 30 seconds; default 0s = off.
	// +optional
	WarmUp *string `json:"warmUp,omitempty"`

	// Jitter, 0 to 1, is the share of itself by which a wait may grow that an outcome
	// asks for: Reschedule-After, maxInterval, retries and resync; default 0.
	// +optional
	Jitter *float64 `json:"jitter,omitempty"`

	// Watch says which objects of the API server schedule keys when they change.
	// +optional
	Watch *RescheduleSourceWatch `json:"watch,omitempty"`

	// Scale says which workload sleeps while there is nothing to deliver.
	// +optional
	Scale *RescheduleSourceScale `json:"scale,omitempty"`

	// Limits bound what the source may take.
	// +optional
	Limits *RescheduleSourceLimits `json:"limits,omitempty"`

	// Access says which callers the namespace alone admits to the schedule API;
	// default namespace.
	// +optional
	Access *Access `json:"access,omitempty"`

	// Audit makes the adapter log a line for each admitted change: time, caller,
	// verb, key and result.
	// +optional
	Audit bool `json:"audit,omitempty"`

	// Suspend stops deliveries; schedules are still accepted.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// RescheduleSourceSchedule is a calendar.
type RescheduleSourceSchedule struct {
	// Cron is an expression of five fields, or a descriptor such as @hourly.
	Cron string `json:"cron"`

	// TimeZone is the name of an IANA time zone; default UTC.
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
}

// Access says which callers may use the schedule API.
type Access string

// The kinds of access.
const (
	// AccessNamespace admits every ServiceAccount of the source's namespace, and
	// callers that RBAC admits.
	AccessNamespace Access = "namespace"
	// AccessRBAC admits only callers that RBAC admits, also callers of the source's
	// namespace.
	AccessRBAC Access = "rbac"
)

// ConflictPolicy decides about the time of a key that already waits.
type ConflictPolicy string

// The conflict policies.
const (
	ConflictPolicyReplace  ConflictPolicy = "replace"  // the new time
	ConflictPolicyEarliest ConflictPolicy = "earliest" // the sooner
	ConflictPolicyLatest   ConflictPolicy = "latest"   // the later
	ConflictPolicyKeep     ConflictPolicy = "keep"     // no change at all
	ConflictPolicyFail     ConflictPolicy = "fail"     // refuse the request
)

// RescheduleSourceDelivery is Knative's DeliverySpec with its newest field.
type RescheduleSourceDelivery struct {
	eventingduckv1.DeliverySpec `json:",inline"`

	// BackoffMax caps the wait between retries, ISO 8601; unset: 1000 s.
	// +optional
	BackoffMax *string `json:"backoffMax,omitempty"`
}

// RescheduleSourceIngest says what becomes of CloudEvents sent to the source's
// address.
type RescheduleSourceIngest struct {
	// Key is a CEL expression over event that makes the key, a string; without
	// it the key is the event's subject, or else its source and id.
	// +optional
	Key string `json:"key,omitempty"`

	// When is a CEL expression over event, a bool; false = the event is
	// accepted and dropped.
	// +optional
	When string `json:"when,omitempty"`

	// ConflictPolicy is the policy of events that name none; default earliest.
	// +optional
	ConflictPolicy *ConflictPolicy `json:"conflictPolicy,omitempty"`

	// Policies are the policies that an event may ask for with reschedulepolicy;
	// default earliest and keep, which neither remove nor postpone a schedule.
	// Empty: an event may ask for none.
	// +optional
	Policies *[]ConflictPolicy `json:"policies,omitempty"`

	// MaxDelay bounds the delay that an event may ask for; default 8760h.
	// +optional
	MaxDelay *string `json:"maxDelay,omitempty"`

	// Authentication says whether events need a token of an admitted caller;
	// default cluster.
	// +optional
	Authentication *Authentication `json:"authentication,omitempty"`
}

// Authentication says whether CloudEvents need a token.
type Authentication string

// The kinds of authentication.
const (
	// AuthenticationCluster follows Knative's flag authentication-oidc.
	AuthenticationCluster Authentication = "cluster"
	// AuthenticationRequired always requires a token.
	AuthenticationRequired Authentication = "required"
)

// RescheduleSourceDeadLetters says which dead letters are kept.
type RescheduleSourceDeadLetters struct {
	// Keep is how many of the newest are kept, one for each key; default 100, 0 = none.
	// +optional
	Keep *int32 `json:"keep,omitempty"`

	// MaxAge is how long one is kept; default 168h.
	// +optional
	MaxAge *string `json:"maxAge,omitempty"`
}

// RescheduleSourceLimits bound what a source may take. The administrator's
// ceilings bound each of them; a limit that is not set is the administrator's
// default.
type RescheduleSourceLimits struct {
	// MaxInFlight is how many deliveries may run in parallel; default 100.
	// +optional
	MaxInFlight *int32 `json:"maxInFlight,omitempty"`

	// MaxPerSecond is how many deliveries may start a second; 0 = no limit.
	// +optional
	MaxPerSecond *int32 `json:"maxPerSecond,omitempty"`

	// MaxPending is how many keys may wait; default 1000000. Over it a new key
	// is refused; one that waits can still be replaced.
	// +optional
	MaxPending *int64 `json:"maxPending,omitempty"`

	// MaxBytes is how many bytes may be stored: keys, attributes and data, before
	// compression; default: the namespace's share. Over it growth is refused; an
	// entry can still be replaced by one that is not larger.
	// +optional
	MaxBytes *resource.Quantity `json:"maxBytes,omitempty"`
}

// DeliveriesStatus says whether deliveries succeed.
type DeliveriesStatus struct {
	// Status is True, False or Unknown.
	Status string `json:"status,omitempty"`
	// Reason is the reason, in one word.
	Reason string `json:"reason,omitempty"`
	// Message is the last status, its time and a short text.
	Message string `json:"message,omitempty"`
}

// RescheduleSourceStatus is what was observed of a source.
type RescheduleSourceStatus struct {
	// SourceStatus is the conditions, the resolved sink, the attributes of the
	// source's own events and its OIDC identity.
	duckv1.SourceStatus `json:",inline"`

	// AddressStatus is where schedules and CloudEvents are sent.
	duckv1.AddressStatus `json:",inline"`

	// DeliveryStatus is the resolved dead letter sink.
	eventingduckv1.DeliveryStatus `json:",inline"`

	// AppliedEventPoliciesStatus lists the EventPolicies that apply to the source.
	eventingduckv1.AppliedEventPoliciesStatus `json:",inline"`

	// Pending is how many keys wait or are due. The adapter refreshes it and
	// nextDueAt at most every 30 seconds.
	// +optional
	Pending *int64 `json:"pending,omitempty"`

	// NextDueAt is when the next key is due.
	// +optional
	NextDueAt *metav1.Time `json:"nextDueAt,omitempty"`

	// SinkRevision is the latest ready revision of a sink that is a Knative Service, and the uid of the Service,
	// while spec.watch.resync.onRevision needs it. The controller writes it.
	// +optional
	SinkRevision string `json:"sinkRevision,omitempty"`

	// OldestDueAt is since when the key that is due longest waits.
	// +optional
	OldestDueAt *metav1.Time `json:"oldestDueAt,omitempty"`

	// InFlight is how many keys are being delivered.
	// +optional
	InFlight *int64 `json:"inFlight,omitempty"`

	// Retrying is how many keys are between two attempts.
	// +optional
	Retrying *int64 `json:"retrying,omitempty"`

	// Deliveries is the adapter's report about deliveries. The controller makes the
	// condition Delivering of it.
	// +optional
	Deliveries *DeliveriesStatus `json:"deliveries,omitempty"`

	// Refused is why the adapter has no memory for the spec, absent while it has. The
	// controller makes a part of the condition Addressable of it.
	// +optional
	Refused string `json:"refused,omitempty"`

	// Watched is how many objects are watched. The adapter writes it.
	// +optional
	Watched *int64 `json:"watched,omitempty"`

	// Watch is the adapter's report about spec.watch. The controller makes the
	// condition Watching of it.
	// +optional
	Watch *WatchStatus `json:"watch,omitempty"`

	// Scale is the adapter's report about spec.scale.
	// +optional
	Scale *ScaleStatus `json:"scale,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RescheduleSourceList is a list of sources.
type RescheduleSourceList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []RescheduleSource `json:"items"`
}
