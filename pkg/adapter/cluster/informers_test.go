package cluster

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access/guard"
	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// A cluster without the EventPolicy resource has no policies, until it has the
// resource.
func TestPolicies_AppearWithTheirResource(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		var there atomic.Bool
		r.policies.PrependReactor("list", "eventpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !there.Load(), nil, apierrors.NewNotFound(kube.EventPolicies.GroupResource(), "")
		})
		c, start := r.connect(), time.Now()
		if since := time.Since(start); since > 5*time.Second {
			t.Errorf("the start took %v", since)
		}
		pass(time.Hour)
		expect(t, "lines", 1, r.log.count("no EventPolicy resource"))
		if n := len(r.policies.Actions()); n > 200 {
			t.Errorf("asked %d times in an hour", n)
		}
		there.Store(true)
		if err := r.policies.Tracker().Add(newPolicy("p")); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		expect(t, "policies", 1, len(c.informers.policies.GetStore().List()))
	})
}

// An API server that starts does not know its custom resources for a moment.
func TestPolicies_OneNotFoundIsNotNone(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		var lists atomic.Int64
		r.policies.PrependReactor("list", "eventpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
			switch lists.Add(1) {
			case 1, 4:
				return true, nil, apierrors.NewNotFound(kube.EventPolicies.GroupResource(), "")
			case 2, 3: // client-go asks twice then; others than this one sleep on a clock of their own
				return true, nil, apierrors.NewResourceExpired("too old")
			}
			return false, nil, nil
		})
		if err := r.policies.Tracker().Add(newPolicy("p")); err != nil {
			t.Fatal(err)
		}
		c := r.connect()
		expect(t, "policies", 1, len(c.informers.policies.GetStore().List()))
		expect(t, "lines", 0, r.log.count("no EventPolicy resource"))
	})
}

// EventPolicies that may not be read delay the start: that is not having none.
func TestPolicies_ForbiddenIsNotNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newEnv(t)
		defer r.close()
		r.policies.PrependReactor("list", "eventpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(kube.EventPolicies.GroupResource(), "", errors.New("no RBAC"))
		})
		ctx, cancel := context.WithTimeout(r.ctx, time.Hour)
		defer cancel()
		_, err := New(Config{}).connect(ctx, r.clients())
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "first list of EventPolicies:") {
			t.Errorf("connected: %v", err)
		}
	})
}

// EventPolicies are followed, also through a broken watch.
func TestPolicies_AreFollowedThroughABreak(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		watcher, broken := watch.NewFake(), false
		r.policies.PrependWatchReactor("eventpolicies", func(clienttesting.Action) (bool, watch.Interface, error) {
			return !broken, watcher, nil
		})
		at := func(version, name string, from ...string) *unstructured.Unstructured {
			o := newPolicy(name, from...)
			o.SetResourceVersion(version)
			return o
		}
		there := func(objects ...*unstructured.Unstructured) {
			t.Helper()
			synctest.Wait()
			all, err := r.cluster.informers.policies.GetIndexer().ByIndex(cache.NamespaceIndex, "ops")
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]any{}
			for _, o := range all {
				got[o.(metav1.Object).GetName()] = o
			}
			if len(got) != len(objects) {
				t.Errorf("%d policies, want %d", len(got), len(objects))
			}
			for _, o := range objects {
				want, err := guard.ReadPolicy(o)
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(want, got[o.GetName()]) {
					t.Errorf("policy %s is %+v, want %+v", o.GetName(), got[o.GetName()], want)
				}
			}
		}
		a, b, c := at("1", "a", insider), at("2", "b", insider), at("3", "c", outsider)
		for _, o := range []*unstructured.Unstructured{a, b} {
			if err := r.policies.Tracker().Add(o); err != nil {
				t.Fatal(err)
			}
		}
		r.connect()
		there(a, b)
		watcher.Add(c)
		there(a, b, c)
		a = at("4", "a", outsider)
		watcher.Modify(a)
		there(a, b, c)
		watcher.Delete(c)
		there(a, b)
		// While there is no watch, a is changed and b deleted.
		if err := r.policies.Tracker().Delete(kube.EventPolicies, "ops", "b"); err != nil {
			t.Fatal(err)
		}
		a = at("9", "a", person)
		if err := r.policies.Tracker().Update(kube.EventPolicies, a, "ops"); err != nil {
			t.Fatal(err)
		}
		broken = true
		watcher.Error(new(apierrors.NewResourceExpired("too old").Status()))
		pass(time.Minute)
		there(a)
		a = at("10", "a", insider)
		if err := r.policies.Tracker().Update(kube.EventPolicies, a, "ops"); err != nil {
			t.Fatal(err)
		}
		there(a)
	})
}

// Connect names the fields of Config that are not set.
func TestConnect_NamesAMissingField(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{Namespace: systemNamespace}, {REST: &rest.Config{}}} {
		if _, err := New(cfg).Connect(t.Context()); err == nil || !strings.Contains(err.Error(), "must be set") {
			t.Errorf("connected: %v", err)
		}
	}
}

// The caches keep only the fields that are read.
func TestInformers_KeepOnlyWhatIsRead(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		c := r.connect()
		o, err := c.sources.RescheduleSources("ops").Get("a")
		if err != nil {
			t.Fatal(err)
		}
		want := object("a")
		want.Labels = map[string]string{"team": "a"}
		expect(t, "source", want, o)
		for name, kept := range map[string]bool{"kube-root-ca.crt": false, configFeatures: true, configLogging: true, configObservability: true, "certs": true} {
			cm, ok, err := c.informers.configs.GetStore().GetByKey(systemNamespace + "/" + name)
			if err != nil || !ok {
				t.Fatal(name, ok, err)
			}
			if got := cm.(*corev1.ConfigMap); len(got.BinaryData) > 0 || (len(got.Data) > 0) != kept {
				t.Errorf("ConfigMap %s has %v and %v", name, got.Data, got.BinaryData)
			}
		}
	}, object("a", func(o *v1alpha1.RescheduleSource) {
		o.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		o.Annotations = map[string]string{"of-its-author": "x", corev1.LastAppliedConfigAnnotation: "{}"}
		o.Labels = map[string]string{"team": "a"}
		o.Status.Conditions = duckv1.Conditions{{Type: v1alpha1.ConditionReady}}
		o.Status.CloudEventAttributes = []duckv1.CloudEventAttributes{{Type: "x"}}
		o.Status.Address = &duckv1.Addressable{URL: apis.HTTP("adapter")}
		o.Status.Policies = []eventingduckv1.AppliedEventPolicyRef{{Name: "p"}}
	}), filled("kube-root-ca.crt"), filled(configFeatures), filled(configLogging), filled(configObservability),
		bundle("certs", map[string]string{"a": "b"}))
}

func filled(name string) *corev1.ConfigMap {
	cm := configMap(name, map[string]string{"_example": "b"})
	cm.BinaryData = map[string][]byte{"b": []byte("c")}
	return cm
}

// Certificates that many sources share are kept once.
func TestInformers_KeepACertificateOnce(t *testing.T) {
	t.Parallel()
	var s slimSources
	one := func(certs string) *v1alpha1.RescheduleSource {
		o := object("a", wantsDeadLetters)
		o.Status.SinkCACerts, o.Status.DeadLetterSinkCACerts = new(certs), new(certs)
		o.Spec.Sink.CACerts, o.Spec.Delivery.DeadLetterSink.CACerts = new(certs), new(certs)
		if _, err := s.slim(o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	a, b := one("pem"), one("pem")
	for _, certs := range []*string{a.Status.DeadLetterSinkCACerts, a.Spec.Sink.CACerts, a.Spec.Delivery.DeadLetterSink.CACerts, b.Status.SinkCACerts} {
		if certs != a.Status.SinkCACerts || *certs != "pem" {
			t.Errorf("another copy, of %q", *certs)
		}
	}
	for i := range 10 * maxCertificates {
		if o := one(strings.Repeat("x", i)); *o.Status.SinkCACerts != strings.Repeat("x", i) {
			t.Fatal("the certificates of another")
		}
	}
	if n := len(s.certificates); n > maxCertificates {
		t.Errorf("%d texts are kept, want at most %d", n, maxCertificates)
	}
}
