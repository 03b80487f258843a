package reschedulesource

import (
	"encoding/pem"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	. "knative.dev/pkg/reconciler/testing"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// Each kind of sink is resolved.
func TestSink_EachKindIsResolved(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	audience, http, brokersCA, broker := "the audience", "http", "the broker's CA", "the broker"

	below := ref("serving.knative.dev/v1", "Service", "", "worker")
	below.URI = url("/reconcile?fast=1")
	encrypted := ref("v1", "Service", "", "plain")
	encrypted.CACerts = &ca
	named := ref("eventing.knative.dev/v1", "Broker", "", "default")
	named.Ref.Address = &http
	trusted := uri("https://example.com/sink")
	trusted.CACerts, trusted.Audience = &ca, &audience

	var sinks, deadLetterSinks TableTest
	for _, test := range []struct {
		name     string
		sink     duckv1.Destination
		uri      string
		ca       *string
		audience *string
		tracks   string
	}{
		{"a Knative Service", ref("serving.knative.dev/v1", "Service", "", "worker"), "http://worker.ops.svc.cluster.local", nil, nil, "serving.knative.dev/v1 Service ops/worker"},
		{"a Knative Service of another namespace", ref("serving.knative.dev/v1", "Service", "other", "worker"), "http://worker.other.svc.cluster.local", nil, nil, "serving.knative.dev/v1 Service other/worker"},
		{"a path below it", below, "http://worker.ops.svc.cluster.local/reconcile?fast=1", nil, nil, "serving.knative.dev/v1 Service ops/worker"},
		{"a Service", ref("v1", "Service", "", "plain"), "http://plain.ops.svc.cluster.local", nil, nil, "v1 Service ops/plain"},
		{"a Service with a CA", encrypted, "https://plain.ops.svc.cluster.local", &ca, nil, "v1 Service ops/plain"},
		{"a Broker, at its first address", ref("eventing.knative.dev/v1", "Broker", "", "default"), "https://broker/ops/default", &brokersCA, &broker, "eventing.knative.dev/v1 Broker ops/default"},
		{"a Broker, at an address by name", named, "http://broker/ops/default", nil, nil, "eventing.knative.dev/v1 Broker ops/default"},
		{"a Channel", ref("messaging.knative.dev/v1", "Channel", "", "pipe"), "http://pipe-kn-channel.ops.svc.cluster.local", nil, nil, "messaging.knative.dev/v1 Channel ops/pipe"},
		{"a URI", uri("http://example.com/sink"), "http://example.com/sink", nil, nil, ""},
		{"a URI with a CA and an audience", trusted, "https://example.com/sink", &ca, &audience, ""},
	} {
		worker, tracked := uri("http://worker.ops.svc.cluster.local"), []string{}
		who, others := option(func(*v1alpha1.RescheduleSource) {}), []runtime.Object{adapter(1, 1)}
		if test.sink.Audience != nil {
			who, others = identified, append(others, account())
		}
		if test.tracks != "" {
			tracked = append(tracked, test.tracks)
		}
		sinks = append(sinks, TableRow{
			Name: test.name, Key: key, Objects: append(slices.Clip(others), source(to(test.sink))),
			WantStatusUpdates: becomes(settled(to(test.sink), who, func(s *v1alpha1.RescheduleSource) {
				s.Status.SinkURI, s.Status.SinkCACerts, s.Status.SinkAudience = url(test.uri), test.ca, test.audience
			})),
			PostConditions: []func(*testing.T, *TableRow){tracks(tracked...)},
		})
		deadLetterSinks = append(deadLetterSinks, TableRow{
			Name: "dead letters: " + test.name, Key: key,
			Objects: append(slices.Clip(others), source(to(worker), deadLettersTo(test.sink))),
			WantStatusUpdates: becomes(settled(to(worker), deadLettersTo(test.sink), who, but(deadLettersResolved), func(s *v1alpha1.RescheduleSource) {
				s.Status.DeliveryStatus = eventingduckv1.DeliveryStatus{
					DeadLetterSinkURI: url(test.uri), DeadLetterSinkCACerts: test.ca, DeadLetterSinkAudience: test.audience,
				}
			})),
			PostConditions: []func(*testing.T, *TableRow){tracks(tracked...)},
		})
	}
	sinks.Test(t, reconciling)
	deadLetterSinks.Test(t, reconciling)
}

// A sink that cannot be resolved keeps its last URI.
func TestSink_KeepsTheLastURI(t *testing.T) {
	t.Parallel()
	var rows TableTest
	for _, test := range []struct {
		name         string
		sink         duckv1.Destination
		reason, says string
	}{
		{"it does not exist", ref("serving.knative.dev/v1", "Service", "", "gone"), "NotFound",
			`Service ops/gone (serving.knative.dev/v1): failed to get object ops/gone: services.serving.knative.dev "gone" not found`},
		{"it does not exist in the namespace that is named", ref("v1", "Service", "other", "plain"), "NotFound",
			`Service other/plain (v1): failed to get object other/plain: services "plain" not found`},
		{"it has no address yet", ref("serving.knative.dev/v1", "Service", "", "starting"), "NotResolved",
			`Service ops/starting (serving.knative.dev/v1): address not set for Kind = Service, Namespace = ops, Name = starting, APIVersion = serving.knative.dev/v1, Group = , Address = `},
		{"its address is long", ref("serving.knative.dev/v1", "Service", "", "far"), "NotResolved",
			`Service ops/far (serving.knative.dev/v1): has 2081 characters, more than 2048: status.address.url`},
		{"its certificates and audience are long", ref("serving.knative.dev/v1", "Service", "", "trusting"), "NotResolved",
			"Service ops/trusting (serving.knative.dev/v1): has 2049 characters, more than 2048: status.address.audience\nhas 262145 characters, more than 262144: status.address.CACerts"},
		{"an unknown kind", ref("nowhere.dev/v1", "Nothing", "", "x"), "NotFound",
			`Nothing ops/x (nowhere.dev/v1): failed to get lister for nowhere.dev/v1, Resource=nothings: the server could not find the requested resource (list nothings.nowhere.dev)`},
	} {
		known := "the last CA"
		last := func(s *v1alpha1.RescheduleSource) {
			s.Status.SinkCACerts, s.Status.SinkAudience = &known, &known
			s.Status.DeadLetterSinkCACerts, s.Status.DeadLetterSinkAudience = &known, &known
		}
		rows = append(rows, TableRow{
			Name: test.name, Key: key, Objects: []runtime.Object{settled(to(test.sink), resolvedTo("https://last"), last, noDeadLetters), adapter(1, 1)},
			WantErr: true,
			WantStatusUpdates: becomes(settled(to(test.sink), resolvedTo("https://last"), last, noDeadLetters,
				but(condition("SinkProvided", "False", test.reason, test.says)))),
			WantEvents: []string{Eventf("Warning", "SinkNotFound", "Sink not found: %s", test.says)},
		}, TableRow{
			Name: "dead letters: " + test.name, Key: key, WantErr: true,
			Objects: []runtime.Object{settled(deadLettersTo(test.sink), deadLettersResolvedTo("https://last"), last, noCA), adapter(1, 1)},
			WantStatusUpdates: becomes(settled(deadLettersTo(test.sink), deadLettersResolvedTo("https://last"), last, noCA,
				but(condition("DeadLetterSinkResolved", "False", test.reason, test.says)))),
			WantEvents: []string{Eventf("Warning", "DeadLetterSinkNotFound", "Dead letter sink not found: %s", test.says)},
		})
	}
	rows.Test(t, reconciling)
}

// After the sink in the spec was replaced by one that cannot be resolved, new events went to the old one.
func TestSink_AnotherKeepsNoURI(t *testing.T) {
	t.Parallel()
	gone := ref("v1", "Service", "", "gone")
	const says = `Service ops/gone (v1): failed to get object ops/gone: services "gone" not found`
	replaced, deadReplaced := settled(), settled(deadLettersTo(uri("http://dead")), deadLettersResolvedTo("http://dead"), but(deadLettersResolved))
	before := replaced.Status.Annotations
	deadBefore := deadReplaced.Status.Annotations
	to(gone)(replaced)
	deadLettersTo(gone)(deadReplaced)
	TableTest{{
		Name: "sink", Key: key, WantErr: true, Objects: []runtime.Object{replaced, adapter(1, 1)},
		WantStatusUpdates: becomes(settled(to(gone), but(condition("SinkProvided", "False", "NotFound", says)), func(s *v1alpha1.RescheduleSource) {
			s.Status.SinkURI, s.Status.Annotations = nil, before
		})),
		WantEvents: []string{Eventf("Warning", "SinkNotFound", "Sink not found: %s", says)},
	}, {
		Name: "dead letter sink", Key: key, WantErr: true, Objects: []runtime.Object{deadReplaced, adapter(1, 1)},
		WantStatusUpdates: becomes(settled(deadLettersTo(gone), but(condition("DeadLetterSinkResolved", "False", "NotFound", says)), func(s *v1alpha1.RescheduleSource) {
			s.Status.Annotations = deadBefore
		})),
		WantEvents: []string{Eventf("Warning", "DeadLetterSinkNotFound", "Dead letter sink not found: %s", says)},
	}}.Test(t, reconciling)
}

func noDeadLetters(s *v1alpha1.RescheduleSource) {
	s.Status.DeliveryStatus = eventingduckv1.DeliveryStatus{}
}

func noCA(s *v1alpha1.RescheduleSource) { s.Status.SinkCACerts, s.Status.SinkAudience = nil, nil }

// A source is ready only once its dead letter sink is resolved.
func TestDeadLetterSink_BeforeReady(t *testing.T) {
	t.Parallel()
	gone, plain := ref("v1", "Service", "", "gone"), ref("v1", "Service", "", "plain")
	const says = `Service ops/gone (v1): failed to get object ops/gone: services "gone" not found`
	TableTest{{
		Name: "a new source with a dead letter sink that is not there is not ready", Key: key, WantErr: true,
		Objects:           []runtime.Object{source(deadLettersTo(gone)), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(deadLettersTo(gone), but(condition("DeadLetterSinkResolved", "False", "NotFound", says)))),
		WantEvents:        []string{Eventf("Warning", "DeadLetterSinkNotFound", "Dead letter sink not found: %s", says)},
	}, {
		Name: "it is when it appears", Key: key,
		Objects: []runtime.Object{settled(deadLettersTo(plain), but(condition("DeadLetterSinkResolved", "False", "NotFound", says))), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(deadLettersTo(plain), but(deadLettersResolved),
			deadLettersResolvedTo("http://plain.ops.svc.cluster.local"))),
		PostConditions: []func(*testing.T, *TableRow){tracks("serving.knative.dev/v1 Service ops/worker", "v1 Service ops/plain")},
	}, {
		Name: "one that is no longer wanted is forgotten", Key: key,
		Objects:           []runtime.Object{settled(deadLettersResolvedTo("http://plain.ops.svc.cluster.local"), but(deadLettersResolved)), adapter(1, 1)},
		WantStatusUpdates: becomes(settled()),
	}, {
		Name: "delivery without a dead letter sink has none", Key: key,
		Objects:           []runtime.Object{source(retrying), adapter(1, 1)},
		WantStatusUpdates: becomes(settled(retrying)),
	}}.Test(t, reconciling)
}

func retrying(s *v1alpha1.RescheduleSource) {
	retry := int32(3)
	s.Spec.Delivery = &v1alpha1.RescheduleSourceDelivery{DeliverySpec: eventingduckv1.DeliverySpec{Retry: &retry}}
}

// Conditions and Events are read by more people than specs.
func TestSink_PasswordIsNotShown(t *testing.T) {
	t.Parallel()
	uri, err := apis.ParseURL("http://user:secret@sink.ops/path")
	if err != nil {
		t.Fatal(err)
	}
	if got := describe(duckv1.Destination{URI: uri}); got != "http://user:xxxxx@sink.ops/path" {
		t.Errorf("described as %s", got)
	}
}
