package v1alpha1

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"knative.dev/pkg/apis/duck"
	"knative.dev/pkg/apis/duck/ducktypes"
	duckv1 "knative.dev/pkg/apis/duck/v1"
)

// The resource implements every duck type that Knative looks for.
func TestDuckTypes_AreImplemented(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]ducktypes.Implementable{
		"Source":      &duckv1.Source{},
		"Addressable": &duckv1.Addressable{},
		"Conditions":  &duckv1.Conditions{},
		"KResource":   &duckv1.KResource{},
		"AuthStatus":  &duckv1.AuthStatus{},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := duck.VerifyType(&RescheduleSource{}, want); err != nil {
				t.Error(err)
			}
		})
	}
}

// The scheme knows the resource.
func TestScheme_KnowsTheResource(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	kinds, _, err := scheme.ObjectKinds(&RescheduleSource{})
	if err != nil {
		t.Fatal(err)
	}
	if want := (&RescheduleSource{}).GetGroupVersionKind(); len(kinds) != 1 || kinds[0] != want {
		t.Errorf("kinds are %v, want %v", kinds, want)
	}
	if want := "sources.reschedule.dev/v1alpha1, Kind=RescheduleSource"; kinds[0].String() != want {
		t.Errorf("kind is %v, want %v", kinds[0], want)
	}
	if _, err := scheme.New(SchemeGroupVersion.WithKind(Kind + "List")); err != nil {
		t.Error(err)
	}
	if got, want := Resource("reschedulesources").String(), "reschedulesources.sources.reschedule.dev"; got != want {
		t.Errorf("resource is %v, want %v", got, want)
	}
}
