package v1alpha1

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// RescheduleSourceScale says which workload sleeps while there is nothing to deliver.
type RescheduleSourceScale struct {
	// TargetRef is the workload, in the source's namespace: a Deployment, a
	// StatefulSet or any other kind with the scale subresource.
	TargetRef ScaleTarget `json:"targetRef"`

	// Replicas is how many replicas it has while awake; default 1.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`

	// Cooldown is how long after the end of the last delivery it falls asleep;
	// default 10s, at least 1s.
	// +optional
	Cooldown *string `json:"cooldown,omitempty"`

	// StartTimeout is how long deliveries wait for it to accept connections; default 2m.
	// +optional
	StartTimeout *string `json:"startTimeout,omitempty"`

	// ServiceAccountName is the account, in the source's namespace, that gets and
	// patches the scale subresource; default: the account of watch, or else "default".
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// Mode is Auto, Awake or Observe; default Auto.
	// +optional
	Mode *ScaleMode `json:"mode,omitempty"`

	// Busy says where the workload's own metrics tell whether it works. Only without a
	// sink; default: it works as long as watched objects change.
	// +optional
	Busy *ScaleBusy `json:"busy,omitempty"`
}

// ScaleBusy is where each pod of the workload serves metrics of controller-runtime or
// client-go, with http or https.
type ScaleBusy struct {
	Port int32 `json:"port"`
	// Path is where the metrics are; default /metrics.
	// +optional
	Path *string `json:"path,omitempty"`
}

// ScaleTarget is a workload in the source's namespace.
type ScaleTarget struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
}

// ScaleMode says what a source does with its workload.
type ScaleMode string

// The modes.
const (
	ScaleAuto    ScaleMode = "Auto"    // asleep while there is nothing to deliver
	ScaleAwake   ScaleMode = "Awake"   // never asleep
	ScaleObserve ScaleMode = "Observe" // not scaled, but counted as if it were
)

// ScaleStatus is the adapter's report about spec.scale. The controller makes the
// condition Scaled of it.
type ScaleStatus struct {
	// State is Asleep, Starting or Awake.
	// +optional
	State string `json:"state,omitempty"`
	// Since is when State began.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Starts is how often the workload was woken since the source exists.
	Starts int64 `json:"starts"`
	// AwakeSeconds is for how long it was not asleep.
	AwakeSeconds int64 `json:"awakeSeconds"`
	// ObservedSeconds is for how long it was observed.
	ObservedSeconds int64 `json:"observedSeconds"`
	// LastStart is how long the last start took, such as 1.3s.
	// +optional
	LastStart string `json:"lastStart,omitempty"`

	// QuietRuns is how often an observed workload with spec.scale.busy has reconciled
	// while it would have slept: because of a timer in it, for example.
	// +optional
	QuietRuns int64 `json:"quietRuns,omitempty"`
	// QuietEverySeconds is the mean time from one of them to the next.
	// +optional
	QuietEverySeconds int64 `json:"quietEverySeconds,omitempty"`
	// Requeues is how many of its reconciles ended with RequeueAfter.
	// +optional
	Requeues int64 `json:"requeues,omitempty"`

	// Reason is why the workload cannot be scaled, in one word; absent while it can.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is Reason as a sentence.
	// +optional
	Message string `json:"message,omitempty"`

	// Held is the workload that the adapter may have scaled to zero. It is scaled up
	// again before Held is removed or names another one.
	// +optional
	Held *HeldWorkload `json:"held,omitempty"`
}

// HeldWorkload is what the adapter needs to scale a workload up again.
type HeldWorkload struct {
	ScaleTarget        `json:",inline"`
	Replicas           int32  `json:"replicas"`
	ServiceAccountName string `json:"serviceAccountName"`
}

// ScaleFinalizer keeps a deleted source until the adapter has scaled its workload up
// again, for 5 minutes at most.
const ScaleFinalizer = "sources.reschedule.dev/scale"

// ConditionScaled says whether the workload of spec.scale can be scaled. It has
// severity Info: it is not a part of Ready.
const ConditionScaled apis.ConditionType = "Scaled"

// The reasons of Scaled.
const (
	ReasonScaleForbidden    = "Forbidden"      // the account lacks a right
	ReasonNoSuchTarget      = "NoSuchTarget"   // there is no such workload, or it cannot be scaled
	ReasonStartTimeout      = "StartTimeout"   // it did not start within startTimeout
	ReasonTargetCrashed     = "Crashed"        // a container of it has ended with an error
	ReasonNoMetrics         = "NoMetrics"      // spec.scale.busy leads to no metrics that say whether it works
	ReasonScaleUnreachable  = "Unreachable"    // the API server does not answer the adapter
	ReasonKnativeService    = "KnativeService" // the sink is a Knative Service, which scales by itself
	ReasonScaleNotReported  = "NotReported"    // the adapter has not reported yet
	ReasonScaleCanBeScaled  = "Scaled"
	ReasonScaleOnlyObserved = "Observed"
)

// Bounds of spec.scale. The schema of the CRD has the same.
const (
	maxReplicas = 1000
	minCooldown = time.Second
	maxPort     = 65535
)

var busyPath = regexp.MustCompile(`^/[-A-Za-z0-9._~/]{0,253}$`)

func (s *RescheduleSourceSpec) setScaleDefaults() {
	scale := s.Scale
	if scale == nil {
		return
	}
	setDefault(&scale.Replicas, DefaultScaleReplicas)
	setDefault(&scale.Cooldown, DefaultScaleCooldown)
	setDefault(&scale.StartTimeout, DefaultScaleStartTimeout)
	setDefault(&scale.Mode, ScaleAuto)
	if scale.Busy != nil {
		setDefault(&scale.Busy.Path, DefaultBusyPath)
	}
}

// Sinkless reports whether the source sends no events: it only wakes its workload.
func (s *RescheduleSourceSpec) Sinkless() bool {
	return s.Scale != nil && s.Watch != nil && s.Sink == (duckv1.Destination{})
}

// ScaleAccount is the account that scales the workload, "" without spec.scale.
func (s *RescheduleSourceSpec) ScaleAccount() string {
	if s.Scale == nil {
		return ""
	}
	account := s.Scale.ServiceAccountName
	if s.Watch != nil {
		account = cmp.Or(account, s.Watch.ServiceAccountName)
	}
	return cmp.Or(account, DefaultWatchAccount)
}

// ScaleMode is the mode of spec.scale, "" without it.
func (s *RescheduleSourceSpec) ScaleMode() ScaleMode {
	switch {
	case s.Scale == nil:
		return ""
	case s.Scale.Mode == nil:
		return ScaleAuto
	}
	return *s.Scale.Mode
}

// Scales reports whether the workload of spec.scale is scaled, not only observed.
func (s *RescheduleSourceSpec) Scales() bool {
	mode := s.ScaleMode()
	return mode != "" && mode != ScaleObserve
}

func (s *RescheduleSourceSpec) validateScale() *apis.FieldError {
	scale := s.Scale
	if scale == nil {
		return nil
	}
	ref := &scale.TargetRef
	errs := validateKind(ref.APIVersion, ref.Kind)
	if bad := validation.IsDNS1123Subdomain(ref.Name); bad != nil {
		errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("%.64q is not the name of an object", ref.Name), "name"))
	}
	errs = errs.ViaField("targetRef")
	errs = errs.Also(validateAtLeast("replicas", scale.Replicas, 1))
	if scale.Replicas != nil && *scale.Replicas > maxReplicas {
		errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("%d is more than %d", *scale.Replicas, maxReplicas), "replicas"))
	}
	bad := validateDuration("cooldown", scale.Cooldown)
	if bad == nil && scale.Cooldown != nil {
		if d, err := ParseDuration(*scale.Cooldown); err == nil && d < minCooldown {
			bad = apis.ErrGeneric(fmt.Sprintf("%.64q is less than 1s", *scale.Cooldown), "cooldown")
		}
	}
	errs = errs.Also(bad)
	errs = errs.Also(validateDuration("startTimeout", scale.StartTimeout))
	if scale.ServiceAccountName != "" && validation.IsDNS1123Subdomain(scale.ServiceAccountName) != nil {
		errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("%.64q is not the name of a ServiceAccount", scale.ServiceAccountName), "serviceAccountName"))
	}
	errs = errs.Also(validateOneOf("mode", scale.Mode, ScaleAuto, ScaleAwake, ScaleObserve))
	errs = errs.Also(scale.Busy.validate().ViaField("busy"))
	if scale.Busy != nil && !s.Sinkless() {
		errs = errs.Also(apis.ErrGeneric("is only for a source without a sink: the end of a delivery says when the workload is idle", "busy"))
	}
	errs = errs.ViaField("scale")
	if IsKnativeService(s.Sink.Ref) {
		errs = errs.Also(apis.ErrGeneric("a Knative Service scales by itself: remove scale, or name a Service in front of the workload as the sink", "scale", "sink.ref"))
	}
	return errs
}

// validate reports what is wrong with spec.scale.busy.
func (b *ScaleBusy) validate() *apis.FieldError {
	if b == nil {
		return nil
	}
	var errs *apis.FieldError
	if b.Port < 1 || b.Port > maxPort {
		errs = apis.ErrGeneric(fmt.Sprintf("%d is not from 1 to %d", b.Port, maxPort), "port")
	}
	if b.Path != nil && !busyPath.MatchString(*b.Path) {
		errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("%.64q is not a path such as %s", *b.Path, DefaultBusyPath), "path"))
	}
	return errs
}

// IsKnativeService reports whether a reference names a Knative Service, or what it consists of.
func IsKnativeService(ref *duckv1.KReference) bool {
	if ref == nil {
		return false
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && strings.EqualFold(gv.Group, "serving.knative.dev")
}

// MarkScaled sets Scaled from the adapter's report; without spec.scale the source does
// not have it.
func (s *RescheduleSourceStatus) MarkScaled(mode ScaleMode) {
	c := apis.Condition{Type: ConditionScaled, Status: "True", Reason: ReasonScaleCanBeScaled}
	switch {
	case mode == "":
		_ = conditions.Manage(s).ClearCondition(ConditionScaled) // only a part of Ready cannot be cleared
		return
	case s.Scale == nil || s.Scale.State == "" && s.Scale.Reason == "":
		c.Status, c.Reason, c.Message = "Unknown", ReasonScaleNotReported, "The adapter has not reported on the workload yet."
	case s.Scale.Reason != "":
		c.Status, c.Reason, c.Message = "False", s.Scale.Reason, s.Scale.Message
	case mode == ScaleObserve:
		c.Reason, c.Message = ReasonScaleOnlyObserved, "The workload is not scaled; the counters say what scaling would save."
	}
	s.setScaled(c)
}

// MarkNotScaled says why spec.scale cannot be used.
func (s *RescheduleSourceStatus) MarkNotScaled(reason, message string) {
	s.setScaled(apis.Condition{Type: ConditionScaled, Status: "False", Reason: reason, Message: message})
}

func (s *RescheduleSourceStatus) setScaled(c apis.Condition) {
	c.Severity = apis.ConditionSeverityInfo
	conditions.Manage(s).SetCondition(c)
}
