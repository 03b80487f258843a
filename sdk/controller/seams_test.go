package controller

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
)

// A handler that embeds the plain one is For too: the kind of an operator that counts its
// objects was not found, so that keys without data were refused.
func TestSeams_HandlerAroundThePlainOne(t *testing.T) {
	t.Parallel()
	type counting[T client.Object] struct {
		handler.TypedEnqueueRequestForObject[T]
		Counter int
	}
	type mapping struct{ handler.Funcs }
	type named struct {
		H handler.EnqueueRequestForObject
	}
	for _, test := range []struct {
		handler any
		want    bool
	}{
		{&handler.EnqueueRequestForObject{}, true},
		{&handler.TypedEnqueueRequestForObject[*corev1.ConfigMap]{}, true},
		{&counting[client.Object]{}, true},
		{&mapping{}, false},
		{&named{}, false},
		{handler.Funcs{}, false},
		{counting[client.Object]{}, false},
	} {
		if got := mapsToItself(reflect.TypeOf(test.handler)); got != test.want {
			t.Errorf("%T: %t", test.handler, got)
		}
	}
}
