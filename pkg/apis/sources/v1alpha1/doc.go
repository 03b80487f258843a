// Package v1alpha1 is the RescheduleSource resource: its types, defaults,
// validation and conditions.
//
// It guarantees that a manifest means the same in a cluster and in the file of
// a standalone adapter: SetDefaults fills in what the custom resource
// definition's schema defaults, and Validate refuses what its rules refuse.
//
// How it works: the spec embeds Knative's SourceSpec and DeliverySpec and the
// status its SourceStatus, AddressStatus, DeliveryStatus and
// AppliedEventPoliciesStatus, so that the resource is a Source and an
// Addressable to every Knative tool. Optional fields are pointers, so that ""
// or 0 where neither makes sense is refused and not taken for absence.
//
// It leaves to others: what a duration comes to, and its upper limit
// (adapter/sources), whether a CEL expression compiles (ingest, controller),
// and resolving references (controller).
//
// +k8s:deepcopy-gen=package
// +groupName=sources.reschedule.dev
package v1alpha1
