package kube

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	authn "k8s.io/api/authentication/v1"
	authz "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

const systemNamespace = "knative-eventing"

func expect[T any](t *testing.T, what string, want, got T) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// recorder is an API server that gives a fixed answer and records calls.
type recorder struct {
	mu     sync.Mutex
	calls  []string   // "METHOD path type"
	query  url.Values // of the last one
	answer any
	code   int

	apiVersion, kind string // of bodies
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	if strings.HasSuffix(q.Header.Get("Content-Type"), "protobuf") { // it starts with the kind
		head, _, _ := bytes.Cut(body, []byte(r.kind))
		if !bytes.HasPrefix(head, []byte("k8s\x00")) || len(head) == len(body) || !bytes.Contains(head, []byte(r.apiVersion)) {
			http.Error(w, "the body is no "+r.apiVersion+" "+r.kind, http.StatusBadRequest)
			return
		}
	}
	r.query = q.URL.Query()
	r.calls = append(r.calls, strings.TrimSpace(strings.Join([]string{q.Method, q.URL.Path, q.Header.Get("Content-Type")}, " ")))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(r.code)
	_ = json.NewEncoder(w).Encode(r.answer)
}

// calling returns the clients of a recorder.
func calling(t *testing.T) (Clients, *recorder) {
	t.Helper()
	r := &recorder{code: http.StatusOK}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	c, err := NewClients(&rest.Config{Host: server.URL}, systemNamespace)
	if err != nil {
		t.Fatal(err)
	}
	return c, r
}

// Each client calls the API server with the method, path and encoding of its kind.
func TestClients_CallTheAPIServer(t *testing.T) {
	t.Parallel()
	const protobuf = " application/vnd.kubernetes.protobuf"
	policy := unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "eventing.knative.dev/v1alpha1", "kind": "EventPolicy", "metadata": map[string]any{"namespace": "ops", "name": "p"},
	}}
	ctx, event := t.Context(), &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "e"}}
	for want, c := range map[string]struct {
		apiVersion, kind string
		answer           any
		call             func(Clients) (any, error)
	}{
		"POST /apis/authentication.k8s.io/v1/tokenreviews" + protobuf: {
			"authentication.k8s.io/v1", "TokenReview", &authn.TokenReview{Status: authn.TokenReviewStatus{Authenticated: true}},
			func(c Clients) (any, error) { return c.ReviewToken(ctx, &authn.TokenReview{}) },
		},
		"POST /apis/authorization.k8s.io/v1/subjectaccessreviews" + protobuf: {
			"authorization.k8s.io/v1", "SubjectAccessReview", &authz.SubjectAccessReview{Status: authz.SubjectAccessReviewStatus{Allowed: true}},
			func(c Clients) (any, error) { return c.ReviewAccess(ctx, &authz.SubjectAccessReview{}) },
		},
		"POST /api/v1/namespaces/ops/serviceaccounts/a-oidc/token" + protobuf: {
			"authentication.k8s.io/v1", "TokenRequest", &authn.TokenRequest{Status: authn.TokenRequestStatus{Token: "t"}},
			func(c Clients) (any, error) {
				return c.RequestToken(ctx, cache.ObjectName{Namespace: "ops", Name: "a-oidc"}, &authn.TokenRequest{})
			},
		},
		"PATCH /apis/sources.reschedule.dev/v1alpha1/namespaces/ops/reschedulesources/a/status application/merge-patch+json": {
			"sources.reschedule.dev/v1alpha1", "RescheduleSource", &v1alpha1.RescheduleSource{},
			func(c Clients) (any, error) {
				return &v1alpha1.RescheduleSource{}, c.PatchStatus(ctx, cache.ObjectName{Namespace: "ops", Name: "a"}, []byte("{}"))
			},
		},
		"POST /api/v1/namespaces/ops/events" + protobuf:  {"v1", "Event", event, func(c Clients) (any, error) { return c.Events.Create(event) }},
		"PUT /api/v1/namespaces/ops/events/e" + protobuf: {"v1", "Event", event, func(c Clients) (any, error) { return c.Events.Update(event) }},
		"PATCH /api/v1/namespaces/ops/events/e application/strategic-merge-patch+json": {
			"v1", "Event", event, func(c Clients) (any, error) { return c.Events.Patch(event, []byte("{}")) },
		},
		"GET /apis/sources.reschedule.dev/v1alpha1/reschedulesources": {
			"sources.reschedule.dev/v1alpha1", "RescheduleSourceList", &v1alpha1.RescheduleSourceList{Items: []v1alpha1.RescheduleSource{{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "a"}}}},
			func(c Clients) (any, error) {
				return cache.ToListerWithContext(c.Sources).ListWithContext(ctx, metav1.ListOptions{})
			},
		},
		"GET /api/v1/namespaces/" + systemNamespace + "/configmaps": {
			"v1", "ConfigMapList", &corev1.ConfigMapList{Items: []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "c"}, Data: map[string]string{"a": "b"}}}},
			func(c Clients) (any, error) {
				return cache.ToListerWithContext(c.ConfigMaps).ListWithContext(ctx, metav1.ListOptions{})
			},
		},
		"GET /apis/eventing.knative.dev/v1alpha1/eventpolicies": {
			"eventing.knative.dev/v1alpha1", "EventPolicyList", &unstructured.UnstructuredList{Object: map[string]any{}, Items: []unstructured.Unstructured{policy}},
			func(c Clients) (any, error) {
				return cache.ToListerWithContext(c.Policies).ListWithContext(ctx, metav1.ListOptions{})
			},
		},
	} {
		made, r := calling(t)
		answer := fieldsOf(t, c.answer)
		sent := maps.Clone(answer)
		sent["apiVersion"], sent["kind"] = c.apiVersion, c.kind
		r.apiVersion, r.kind = c.apiVersion, c.kind
		r.answer = sent
		got, err := c.call(made)
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		expect(t, "calls", []string{want}, r.calls)
		if _, ok := got.(*unstructured.UnstructuredList); !ok { // that keeps its kind
			expect(t, want, answer, fieldsOf(t, got))
		}
		r.answer, r.code = apierrors.NewForbidden(corev1.Resource("x"), "x", nil).Status(), http.StatusForbidden
		if _, err := c.call(made); !apierrors.IsForbidden(err) {
			t.Errorf("%s, forbidden: %v", want, err)
		}
	}
}

// Each informer lists again where etcd was put back to an older state: its watch is of a version that has expired.
func TestClients_EtcdIsPutBack(t *testing.T) {
	t.Parallel()
	c, r := calling(t)
	r.answer = map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{"resourceVersion": "9"}}
	for what, watched := range map[string]cache.ListerWatcher{"sources": c.Sources, "policies": c.Policies, "ConfigMaps": c.ConfigMaps} {
		_, err := cache.ToWatcherWithContext(watched).WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "10"})
		if !apierrors.IsResourceExpired(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// An informer's first list may be of any version, and schedules of a source that is not in it are purged: it must have
// each source that exists.
func TestClients_FirstListOfSourcesIsNewest(t *testing.T) {
	t.Parallel()
	c, r := calling(t)
	r.answer = map[string]any{"apiVersion": "sources.reschedule.dev/v1alpha1", "kind": "RescheduleSourceList", "items": []any{}}
	for version, want := range map[string]string{"0": "", "7": "7"} {
		if _, err := cache.ToListerWithContext(c.Sources).ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: version}); err != nil {
			t.Fatal(err)
		}
		if got := r.query.Get("resourceVersion"); got != want {
			t.Errorf("a list of version %s asks for %q, want %q", version, got, want)
		}
	}
}

// fieldsOf returns the fields of an object as JSON.
func fieldsOf(t *testing.T, o any) (fields map[string]any) {
	t.Helper()
	raw, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(raw, &fields)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fields
}
