package v1alpha1

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
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
)

var conditions = apis.NewLivingConditionSet(
	ConditionSinkProvided,
	ConditionDeadLetterSinkResolved,
	ConditionDeployed,
	ConditionAddressable,
	ConditionOIDCIdentityCreated,
)

// GetConditionSet implements duckv1.KRShaped.
func (*RescheduleSource) GetConditionSet() apis.ConditionSet { return conditions }

// GetStatus implements duckv1.KRShaped.
func (s *RescheduleSource) GetStatus() *duckv1.Status { return &s.Status.Status }

// GetUntypedSpec implements apis.HasSpec.
func (s *RescheduleSource) GetUntypedSpec() any { return s.Spec }

// GetGroupVersionKind implements kmeta.OwnerRefable.
func (*RescheduleSource) GetGroupVersionKind() schema.GroupVersionKind {
	return SchemeGroupVersion.WithKind(Kind)
}

// InitializeConditions sets the conditions nobody has set yet to Unknown.
func (s *RescheduleSourceStatus) InitializeConditions() {
	conditions.Manage(s).InitializeConditions()
}
