package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	typed "github.com/reschedule-dev/reschedule/pkg/client/clientset/versioned/typed/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// source is one in the cluster, with whom it is called by.
type source struct {
	*programs
	t               *testing.T
	namespace, name string
	client          typed.RescheduleSourceInterface
	token           string // of a ServiceAccount of its namespace
	path            string // of its address, once it was read
}

// create makes a source in a namespace, and waits until it is ready.
func (p *programs) create(t *testing.T, namespace, name, spec string) *source {
	t.Helper()
	s := &source{programs: p, t: t, namespace: namespace, name: name, client: typedSourcesIn(t, namespace)}
	s.make(spec)
	s.ready()
	s.token = s.tokenOf(namespace, "caller", s.audience())
	return s
}

// make creates the object, which goes at the test's end: the adapter is there
// for all tests.
func (s *source) make(spec string) {
	s.t.Helper()
	_, err := server.Dynamic.Resource(resource).Namespace(s.namespace).Create(s.t.Context(), manifest(s.t, s.name, spec), strict)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		// The test's own context is over.
		if err := s.client.Delete(context.Background(), s.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.t.Log(err)
		}
	})
}

func (s *source) audience() string {
	return "sources.reschedule.dev/reschedulesource/" + s.namespace + "/" + s.name
}

// until waits until the object is so, and returns it.
func (s *source) until(what string, so func(*v1alpha1.RescheduleSource) bool) *v1alpha1.RescheduleSource {
	s.t.Helper()
	var last *v1alpha1.RescheduleSource
	defer func() {
		if s.t.Failed() && last != nil {
			text, _ := json.MarshalIndent(last.Status, "", "  ")
			s.t.Logf("its status: %s", text)
		}
	}()
	settle(s.t, func() bool {
		o, err := s.client.Get(s.t.Context(), s.name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		last = o
		return so(o)
	}, "%s/%s is not %s", s.namespace, s.name, what)
	return last
}

// ready waits until the source is, at its newest generation.
func (s *source) ready() *v1alpha1.RescheduleSource {
	s.t.Helper()
	return s.until("ready", func(o *v1alpha1.RescheduleSource) bool {
		return o.Status.ObservedGeneration == o.Generation && condition(o, apis.ConditionReady) == corev1.ConditionTrue
	})
}

func condition(o *v1alpha1.RescheduleSource, name apis.ConditionType) corev1.ConditionStatus {
	if c := o.Status.GetCondition(name); c != nil {
		return c.Status
	}
	return ""
}

// patch changes the spec.
func (s *source) patch(spec string) {
	s.t.Helper()
	if _, err := s.client.Patch(s.t.Context(), s.name, "application/merge-patch+json", fmt.Appendf(nil, `{"spec":%s}`, spec), metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// uid is the object's.
func (s *source) uid() string {
	s.t.Helper()
	o, err := s.client.Get(s.t.Context(), s.name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return string(o.UID)
}

// delete deletes the object.
func (s *source) delete() {
	s.t.Helper()
	if err := s.client.Delete(s.t.Context(), s.name, metav1.DeleteOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// address is where the source says it is, at the process instead of the pod.
func (s *source) address() string {
	s.t.Helper()
	if s.path != "" {
		return s.adapter.URL + s.path
	}
	o, err := s.client.Get(s.t.Context(), s.name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	if o.Status.Address == nil || o.Status.Address.URL == nil {
		s.t.Fatalf("%s has no address", s.name)
	}
	u := o.Status.Address.URL
	if want := "http://reschedule-adapter." + s.programs.namespace + ".svc.cluster.local/" + s.namespace + "/" + s.name; u.String() != want {
		s.t.Errorf("the address is %s, want %s", u, want)
	}
	s.path = u.Path
	return s.adapter.URL + s.path
}

// call calls the schedule API below the address.
func (s *source) call(token, method, path, body string) *harness.Reply {
	s.t.Helper()
	authorization := ""
	if token != "" {
		authorization = "Bearer " + token
	}
	r, err := harness.Do(s.t.Context(), method, s.address()+path, body, "Authorization", authorization)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// put schedules a key as the caller of the source's namespace.
func (s *source) put(key, body string) {
	s.t.Helper()
	if r := s.call(s.token, "PUT", harness.KeyPath(key), body); r.Status != 200 && r.Status != 201 {
		s.t.Fatalf("PUT %s: %d %s", key, r.Status, r.Body)
	}
}

// status is the status of GET for a key.
func (s *source) status(key string) int {
	s.t.Helper()
	return s.call(s.token, "GET", harness.KeyPath(key), "").Status
}

// served waits until the adapter knows the source.
func (s *source) served() {
	s.t.Helper()
	settle(s.t, func() bool { return s.call(s.token, "GET", "", "").Status == 200 }, "%s/%s is not served", s.namespace, s.name)
}

// tokenOf mints a token for a ServiceAccount, which is made if need be.
func (s *source) tokenOf(namespace, account string, audiences ...string) string {
	s.t.Helper()
	_, err := server.Client.CoreV1().ServiceAccounts(namespace).Create(s.t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		s.t.Fatal(err)
	}
	token, err := server.Token(s.t.Context(), namespace, account, audiences...)
	if err != nil {
		s.t.Fatal(err)
	}
	return token
}

// newSink is a sink of one test.
func newSink(t *testing.T) *harness.Sink {
	t.Helper()
	s := harness.NewSink()
	t.Cleanup(s.Close)
	return s
}

// to is the spec of a source with a sink's inbox.
func to(sink *harness.Sink, inbox string) string {
	return fmt.Sprintf("sink: {uri: %q}\n", sink.URL+"/"+inbox)
}
