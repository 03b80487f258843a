//go:build race

package guard

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// Copies of Knative's types, for the reason that knative_test.go gives. They only write policies for ReadPolicy; without
// the race detector, the same tests write them with Knative's.
type (
	theirPolicy struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata,omitempty"`
		Spec              theirSpec   `json:"spec,omitempty"`
		Status            theirStatus `json:"status,omitempty"`
	}
	theirSpec struct {
		To      []theirTo     `json:"to,omitempty"`
		From    []theirFrom   `json:"from,omitempty"`
		Filters []theirFilter `json:"filters,omitempty"`
	}
	theirTo struct {
		Ref      *theirRef      `json:"ref,omitempty"`
		Selector *theirSelector `json:"selector,omitempty"`
	}
	theirFrom struct {
		Sub *string `json:"sub,omitempty"`
	}
	theirRef struct {
		APIVersion string `json:"apiVersion,omitempty"`
		Kind       string `json:"kind"`
		Name       string `json:"name"`
	}
	theirSelector struct {
		*metav1.LabelSelector `json:",inline"`
		*metav1.TypeMeta      `json:",inline"`
	}
	theirStatus struct {
		duckv1.Status `json:",inline"`
		From          []string `json:"from,omitempty"`
	}
	theirFilter struct {
		All    []theirFilter     `json:"all,omitempty"`
		Any    []theirFilter     `json:"any,omitempty"`
		Not    *theirFilter      `json:"not,omitempty"`
		Exact  map[string]string `json:"exact,omitempty"`
		Prefix map[string]string `json:"prefix,omitempty"`
		Suffix map[string]string `json:"suffix,omitempty"`
		CESQL  string            `json:"cesql,omitempty"`
	}
)

func markReady(p *theirPolicy) {
	p.Status.Conditions = duckv1.Conditions{{Type: apis.ConditionReady, Status: corev1.ConditionTrue}}
}

func markUnresolved(p *theirPolicy, reason, message string) {
	p.Status.Conditions = duckv1.Conditions{{Type: apis.ConditionReady, Status: corev1.ConditionFalse, Reason: reason, Message: message}}
}
