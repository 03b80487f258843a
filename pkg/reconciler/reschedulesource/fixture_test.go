package reschedulesource

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgotesting "k8s.io/client-go/testing"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

const (
	key     = "ops/git-repos"
	address = "http://reschedule-adapter.knative-eventing.svc.cluster.local/ops/git-repos"
	secured = "https://reschedule-adapter.knative-eventing.svc.cluster.local/ops/git-repos"
)

type option func(*v1alpha1.RescheduleSource)

// source is a source as its author wrote it, with a sink that is there.
func source(options ...option) *v1alpha1.RescheduleSource {
	s := &v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ops", Name: "git-repos", UID: "5f0c", Generation: 2, Labels: map[string]string{"team": "platform"},
	}}
	s.Spec.Sink = ref("serving.knative.dev/v1", "Service", "", "worker")
	for _, o := range options {
		o(s)
	}
	return s
}

// settled is a source with the status that a reconciliation leaves when all is
// well; options change what was different.
func settled(options ...option) *v1alpha1.RescheduleSource {
	s := source(append([]option{func(s *v1alpha1.RescheduleSource) {
		s.Status.ObservedGeneration = 2
		s.Status.SinkURI = url("http://worker.ops.svc.cluster.local")
		s.Status.AddressStatus.Address = at("http", address)
		s.Status.CloudEventAttributes = []duckv1.CloudEventAttributes{{
			Type: "dev.reschedule.due", Source: "/apis/sources.reschedule.dev/v1alpha1/namespaces/ops/reschedulesources/git-repos",
		}}
		s.Status.Conditions = duckv1.Conditions{
			{Type: "Addressable", Status: "True"},
			{Type: "DeadLetterSinkResolved", Status: "True", Reason: "DeadLetterSinkNotConfigured", Message: "No dead letter sink is configured."},
			{Type: "Deployed", Status: "True"},
			{Type: "OIDCIdentityCreated", Status: "True", Reason: "authentication-oidc feature disabled"},
			{Type: "Ready", Status: "True"},
			{Type: "SinkProvided", Status: "True"},
		}
	}}, options...)...)
	defaulted := s.DeepCopy()
	defaulted.SetDefaults(context.Background())
	if s.Status.SinkURI != nil {
		remember(s, sinkAnnotation, defaulted.Spec.Sink)
	}
	if d := defaulted.Spec.Delivery; d != nil && d.DeadLetterSink != nil && s.Status.DeadLetterSinkURI != nil {
		remember(s, deadLetterSinkAnnotation, *d.DeadLetterSink)
	}
	return s
}

// but makes conditions differ from the conditions of a settled source; Ready quotes the
// first of them that is not True.
func but(different ...apis.Condition) option {
	return func(s *v1alpha1.RescheduleSource) {
		set := func(c apis.Condition) {
			for i := range s.Status.Conditions {
				if s.Status.Conditions[i].Type == c.Type {
					s.Status.Conditions[i] = c
				}
			}
		}
		for _, c := range different {
			set(c)
		}
		for _, c := range different {
			if c.Status != corev1.ConditionTrue {
				c.Type = "Ready"
				set(c)
				return
			}
		}
	}
}

func condition(t apis.ConditionType, status corev1.ConditionStatus, reason, message string) apis.Condition {
	return apis.Condition{Type: t, Status: status, Reason: reason, Message: message}
}

func ref(apiVersion, kind, namespace, name string) duckv1.Destination {
	return duckv1.Destination{Ref: &duckv1.KReference{APIVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name}}
}

func uri(text string) duckv1.Destination { return duckv1.Destination{URI: url(text)} }

func url(text string) *apis.URL {
	u, err := apis.ParseURL(text)
	if err != nil {
		panic(err)
	}
	return u
}

func at(scheme, text string) *duckv1.Addressable {
	return &duckv1.Addressable{Name: &scheme, URL: url(text)}
}

func to(d duckv1.Destination) option {
	return func(s *v1alpha1.RescheduleSource) { s.Spec.Sink = d }
}

func deadLettersTo(d duckv1.Destination) option {
	return func(s *v1alpha1.RescheduleSource) {
		s.Spec.Delivery = &v1alpha1.RescheduleSourceDelivery{DeliverySpec: eventingduckv1.DeliverySpec{DeadLetterSink: &d}}
	}
}

func resolvedTo(text string) option {
	return func(s *v1alpha1.RescheduleSource) { s.Status.SinkURI = url(text) }
}

func deadLettersResolvedTo(text string) option {
	return func(s *v1alpha1.RescheduleSource) { s.Status.DeadLetterSinkURI = url(text) }
}

func ingesting(i v1alpha1.RescheduleSourceIngest) option {
	return func(s *v1alpha1.RescheduleSource) { s.Spec.Ingest = &i }
}

func becomes(s *v1alpha1.RescheduleSource) []clientgotesting.UpdateActionImpl {
	return []clientgotesting.UpdateActionImpl{{Object: s}}
}

var then = time.Date(2026, time.November, 21, 9, 0, 0, 0, time.UTC)

func counted(s *v1alpha1.RescheduleSource) {
	pending := int64(1204)
	s.Status.Pending, s.Status.NextDueAt = &pending, &metav1.Time{Time: then}
}

func reactors(r ...clientgotesting.ReactionFunc) []clientgotesting.ReactionFunc { return r }
