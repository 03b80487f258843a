package reschedulesource

import (
	"context"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgotesting "k8s.io/client-go/testing"
	. "knative.dev/pkg/reconciler/testing"

	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// watching lets the spec watch Secrets, by this key expression.
func watching(key string) option {
	return func(s *v1alpha1.RescheduleSource) {
		s.Spec.Watch = &v1alpha1.RescheduleSourceWatch{Resources: []v1alpha1.WatchResource{{APIVersion: "v1", Kind: "Secret", Key: key}}}
		if of := s.Status.CloudEventAttributes; len(of) == 1 { // of a settled source
			for _, verb := range []string{"add", "update", "delete"} {
				s.Status.CloudEventAttributes = append(s.Status.CloudEventAttributes,
					duckv1.CloudEventAttributes{Type: "dev.knative.apiserver.ref." + verb, Source: of[0].Source})
			}
		}
	}
}

// reported is the adapter's report about the source's generation.
func reported(status, reason, message string) option {
	return func(s *v1alpha1.RescheduleSource) {
		n := int64(3)
		s.Status.Watched = &n
		s.Status.Watch = &v1alpha1.WatchStatus{ObservedGeneration: 2, Status: status, Reason: reason, Message: message}
	}
}

// observed is the condition and the revision that a reconciliation adds.
func observed(status corev1.ConditionStatus, reason, message, revision string) option {
	return func(s *v1alpha1.RescheduleSource) {
		c := condition("Watching", status, reason, message)
		s.Status.Conditions = append(s.Status.Conditions, c)
		but(c)(s)
		s.Status.SinkRevision = revision
	}
}

// Watching is there only with spec.watch. It is the adapter's report, or what is wrong
// with an expression.
func TestWatching_Condition(t *testing.T) {
	t.Parallel()
	const unreported = "The adapter has not reported on this generation yet."
	const broken = "spec.watch.resources[0].key: yields int, not string"
	old := func(s *v1alpha1.RescheduleSource) { s.Status.Watch.ObservedGeneration = 1 }
	TableTest{{
		Name: "no report yet", Key: key, Objects: []runtime.Object{source(watching("")), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(watching(""), observed("Unknown", "NotReported", unreported, ""))),
	}, {
		Name: "a report", Key: key, Objects: []runtime.Object{settled(watching(""), reported("True", "", "")), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(watching(""), reported("True", "", ""), observed("True", "", "", ""))),
	}, {
		Name: "a refusal", Key: key, Objects: []runtime.Object{settled(watching(""), reported("False", "Forbidden", "no")), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(watching(""), reported("False", "Forbidden", "no"), observed("False", "Forbidden", "no", ""))),
	}, {
		Name: "a report on an older generation", Key: key, Objects: []runtime.Object{settled(watching(""), reported("True", "", ""), old), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(watching(""), reported("True", "", ""), old, observed("Unknown", "NotReported", unreported, ""))),
	}, {
		Name: "nothing to change", Key: key, Objects: []runtime.Object{settled(watching(""), reported("True", "", ""), observed("True", "", "", "")), adapter(1, 1)},
	}, {
		Name: "an expression that does not compile", Key: key, WantErr: true,
		Objects:           []runtime.Object{settled(watching("1"), reported("True", "", "")), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(watching("1"), reported("True", "", ""), observed("False", "InvalidKey", broken, ""))),
		WantEvents:        []string{Eventf("Warning", "WatchInvalid", "%s", broken)},
	}, {
		Name: "watch was removed", Key: key, Objects: []runtime.Object{settled(reported("False", "Forbidden", "no"), observed("False", "Forbidden", "no", "x-1")), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(reported("False", "Forbidden", "no"))),
	}}.Test(t, reconciling)
}

// The status has the latest ready revision of a sink that is a Knative Service, while
// a resync follows it.
func TestSinkRevision_OfAKnativeService(t *testing.T) {
	t.Parallel()
	without := func(s *v1alpha1.RescheduleSource) {
		no := false
		s.Spec.Watch.Resync = &v1alpha1.WatchResync{OnRevision: &no}
	}
	revised := to(ref("serving.knative.dev/v1", "Service", "ops", "revised"))
	elsewhere := to(ref("serving.knative.dev/v1", "Service", "other", "revised"))
	moving := to(ref("serving.knative.dev/v1", "Service", "ops", "moving"))
	longwinded := to(ref("serving.knative.dev/v1", "Service", "ops", "longwinded"))
	plain, address := to(ref("v1", "Service", "", "plain")), resolvedTo("http://revised.ops.svc.cluster.local")
	good := reported("True", "", "")
	is := func(revision string) option { return observed("True", "", "", revision) }
	fails := func(code int) context.Context {
		return context.WithValue(t.Context(), getServices{}, clientgotesting.ReactionFunc(func(clientgotesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewGenericServerResponse(code, "get", schema.GroupResource{Group: "serving.knative.dev", Resource: "services"}, "revised", "it is down", 0, true)
		}))
	}
	failed := apierrors.NewGenericServerResponse(http.StatusInternalServerError, "get", schema.GroupResource{Group: "serving.knative.dev", Resource: "services"}, "revised", "it is down", 0, true)
	TableTest{{
		Name: "the revision", Key: key, Objects: []runtime.Object{source(revised, watching(""), good), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(revised, watching(""), good, address, is("revised-00002/uid-of-revised"))),
	}, {
		Name: "of another namespace", Key: key, Objects: []runtime.Object{source(elsewhere, watching(""), good), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(elsewhere, watching(""), good, resolvedTo("http://revised.other.svc.cluster.local"), is("revised-00007/uid-of-revised"))),
	}, {
		Name: "the same revision", Key: key, Objects: []runtime.Object{settled(revised, watching(""), good, address, is("revised-00002/uid-of-revised")), adapter(1, 1)},
	}, {
		Name: "a revision of the same name, after the Service was deleted", Key: key,
		Objects:           []runtime.Object{settled(revised, watching(""), good, address, is("revised-00002/another")), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(revised, watching(""), good, address, is("revised-00002/uid-of-revised"))),
	}, {
		Name: "requests do not reach the next one yet", Key: key,
		Objects: []runtime.Object{settled(moving, watching(""), good, resolvedTo("http://moving.ops.svc.cluster.local"), is("moving-00002")), adapter(1, 1)},
	}, {
		Name: "no resync at a revision", Key: key, Objects: []runtime.Object{settled(revised, watching(""), without, good, address, is("revised-00001")), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(revised, watching(""), without, good, address, is(""))),
	}, {
		Name: "a sink of another kind", Key: key, Objects: []runtime.Object{settled(plain, watching(""), good, resolvedTo("http://plain.ops.svc.cluster.local"), is("revised-00001")), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(plain, watching(""), good, resolvedTo("http://plain.ops.svc.cluster.local"), is(""))),
	}, {
		Name: "a text that names no revision", Key: key, Objects: []runtime.Object{source(longwinded, watching(""), good), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(longwinded, watching(""), good, resolvedTo("http://longwinded.ops.svc.cluster.local"), is(""))),
	}, {
		Name: "it may not be read", Key: key, Ctx: fails(http.StatusForbidden),
		Objects:           []runtime.Object{settled(revised, watching(""), good, address, is("revised-00001")), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(revised, watching(""), good, address, is(""))),
	}, {
		Name: "it cannot be read now", Key: key, Ctx: fails(http.StatusInternalServerError), WantErr: true,
		Objects:    []runtime.Object{settled(revised, watching(""), good, address, is("revised-00001")), adapter(1, 1)},
		WantEvents: []string{Eventf("Warning", "InternalError", "reading the revision of the sink: %v", failed)},
	}}.Test(t, reconciling)
}

// Knative makes EventTypes of the events that a source sends about what it watches, too.
func TestEventAttributes_OfAWatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s    *v1alpha1.RescheduleSource
		want int
	}{{source(), 1}, {source(watchingAs("watcher")), 4}} {
		publishEventAttributes(c.s)
		publishEventAttributes(c.s) // again
		all := c.s.Status.CloudEventAttributes
		if len(all) != c.want || all[0].Type != "dev.reschedule.due" || c.want > 1 && all[3].Type != "dev.knative.apiserver.ref.delete" {
			t.Errorf("%+v, want %d", all, c.want)
		}
		for _, a := range all {
			if a.Source != "/apis/sources.reschedule.dev/v1alpha1/namespaces/ops/reschedulesources/git-repos" {
				t.Errorf("%+v", a)
			}
		}
	}
}
