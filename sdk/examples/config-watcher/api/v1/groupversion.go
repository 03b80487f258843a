// Package v1 is the API of the operator: the resource ConfigWatcher.
//
// +kubebuilder:object:generate=true
// +groupName=k8spatterns.com
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the book's, so that its ConfigWatchers work here.
var GroupVersion = schema.GroupVersion{Group: "k8spatterns.com", Version: "v1"}

// AddToScheme adds the types to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &ConfigWatcher{}, &ConfigWatcherList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
