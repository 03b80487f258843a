// Package v1alpha1 is the RescheduleSource resource: its types, defaults,
// validation and conditions.
//
// It guarantees that a manifest means the same in a cluster and in the file of
// a standalone adapter: SetDefaults sets the defaults of the custom resource
// definition's schema, and Validate applies its rules.
//
// How it works: the spec embeds Knative's SourceSpec and DeliverySpec and the
// status its SourceStatus, AddressStatus, DeliveryStatus and
// AppliedEventPoliciesStatus, so that the resource is a Source and an
// Addressable to every Knative tool. Optional fields are pointers, so that an
// invalid "" or 0 is refused and not taken for an absent field.
//
// It leaves to others: parsing durations and their upper limit
// (adapter/sources), compiling CEL expressions (ingest, controller), and
// resolving references (controller).
//
// +k8s:deepcopy-gen=package
// +groupName=sources.reschedule.dev
package v1alpha1
