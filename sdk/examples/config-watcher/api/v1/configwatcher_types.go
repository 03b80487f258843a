package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.22.0 object crd paths=. output:crd:dir=../../config/crd

// ConfigWatcher has pods restarted when a ConfigMap changes.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=cw
// +kubebuilder:printcolumn:name="ConfigMap",type=string,JSONPath=`.spec.configMap`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Restart At",type=string,JSONPath=`.status.pending.restartAt`
// +kubebuilder:printcolumn:name="Restarts",type=integer,JSONPath=`.status.restarts`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ConfigWatcher struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   ConfigWatcherSpec   `json:"spec"`
	Status ConfigWatcherStatus `json:"status,omitempty"`
}

// ConfigWatcherSpec says which pods are restarted, when what changes.
type ConfigWatcherSpec struct {
	// The name of the ConfigMap, of the same namespace.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ConfigMap string `json:"configMap"`

	// The labels of the pods to restart. At least one: without any they were all
	// pods of the namespace.
	//
	// +required
	// +kubebuilder:validation:MinProperties=1
	PodSelector map[string]string `json:"podSelector"`

	// How long after a change of the ConfigMap the pods are restarted, such as
	// 5m. What changes meanwhile is part of the same restart.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration such as 1m30s, and not negative"
	RolloutDelay metav1.Duration `json:"rolloutDelay,omitzero"`
}

// ConfigWatcherStatus is what the operator remembers.
type ConfigWatcherStatus struct {
	// The generation of the spec that was seen last.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// The hash of what the pods were started with: of the ConfigMap when it was
	// first seen, and from then on at the last restart.
	ConfigHash string `json:"configHash,omitempty"`

	// The change that has not reached the pods yet.
	Pending *PendingRestart `json:"pending,omitempty"`

	// How often pods were restarted, and when last.
	Restarts    int64        `json:"restarts,omitempty"`
	LastRestart *metav1.Time `json:"lastRestart,omitempty"`

	// Ready is True while the pods have the ConfigMap as it is.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PendingRestart is a restart that has not happened yet.
type PendingRestart struct {
	// The hash of the ConfigMap when it was seen last.
	ConfigHash string `json:"configHash"`

	// When it was first seen like that. Pods that are younger have it.
	ChangedAt metav1.MicroTime `json:"changedAt"`

	// When the pods are restarted: rolloutDelay after the first of the changes.
	RestartAt metav1.MicroTime `json:"restartAt"`
}

// ConfigWatcherList is a list of ConfigWatchers.
//
// +kubebuilder:object:root=true
type ConfigWatcherList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ConfigWatcher `json:"items"`
}

// What the condition Ready says, and why.
const (
	Ready = "Ready"

	UpToDate          = "UpToDate"
	RestartPending    = "RestartPending"
	ConfigMapNotFound = "ConfigMapNotFound"
)
