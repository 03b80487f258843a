package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// servePods serves a Deployment with a selector, and its pods.
func servePods(s *served, pods ...string) {
	s.on("/apis/apps/v1", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"resources":[{"name":"deployments","kind":"Deployment","namespaced":true,"verbs":["get","list","watch"]}]}`)
	})
	s.on("/apis/apps/v1/namespaces/ops/deployments/web/scale", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"1"},"spec":{"replicas":1},"status":{"selector":"app=web"}}`)
	})
	s.on("/api/v1/namespaces/ops/pods", func(w http.ResponseWriter, r *http.Request) {
		if got := r.FormValue("labelSelector") + " " + r.FormValue("fieldSelector") + " " + r.FormValue("limit"); got != "app=web status.phase!=Failed,status.phase!=Succeeded 100" {
			s.t.Errorf("pods are listed with %s", got)
		}
		_, _ = fmt.Fprintf(w, `{"items":[%s]}`, strings.Join(pods, ","))
	})
}

// A pod is ready, or its problem is the one that kubectl shows; pods that are about to end do not count.
func TestExamine_ReadsPods(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	servePods(s,
		`{"metadata":{"uid":"1","name":"web-1"},"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[{"restartCount":2},{"restartCount":1}]}}`,
		`{"metadata":{"uid":"2","name":"web-2"},"status":{"phase":"Pending","containerStatuses":[{"name":"web","state":{"waiting":{"reason":"ImagePullBackOff","message":"no such image"}}}]}}`,
		`{"metadata":{"uid":"3","name":"web-3"},"status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","message":"too little memory"}]}}`,
		`{"metadata":{"uid":"5","name":"web-5","deletionTimestamp":"2026-01-01T00:00:00Z"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`,
		`{"metadata":{"uid":"6","name":"web-6"},"status":{"phase":"Pending","containerStatuses":[{"name":"web","state":{"waiting":{"reason":"ContainerCreating"}}}]}}`,
	)
	got, err := s.Examine(t.Context(), objects.Account{Namespace: "ops", Name: "scaler"}, web, schedule.Busy{})
	want := scale.Health{Replicas: 1, Pods: []scale.Pod{
		{UID: "1", Ready: true, Restarts: 3},
		{UID: "2", Problem: "Container web of pod web-2: ImagePullBackOff no such image"},
		{UID: "3", Problem: "It has no node: too little memory"},
		{UID: "6"},
	}}
	if fmt.Sprint(got) != fmt.Sprint(want) || err != nil {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
}

// The metrics of ready pods are added up. A workload that waits for its Lease has one that leads, or waits.
func TestExamine_ReadsMetrics(t *testing.T) {
	t.Parallel()
	metrics := func(text string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
		t.Cleanup(s.Close)
		_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
		return port
	}
	for text, want := range map[string]scale.Work{
		"workqueue_depth 0\ncontroller_runtime_reconcile_total{result=\"requeue_after\"} 2\n": {Known: true, Reconciles: 2, Requeues: 2},
		"workqueue_depth 1\nleader_election_master_status 0\n":                                {Known: true, Busy: true, Waits: true},
		"": {},
	} {
		s := newServed(t)
		servePods(s, `{"metadata":{"uid":"1"},"status":{"podIP":"127.0.0.1","conditions":[{"type":"Ready","status":"True"}]}}`)
		port, _ := strconv.Atoi(metrics(text))
		got, err := s.Examine(t.Context(), objects.Account{Namespace: "ops", Name: "scaler"}, web, schedule.Busy{Port: int32(port), Path: "/metrics"})
		if got.Work != want || err != nil {
			t.Errorf("%q: %+v, %v; want %+v", text, got.Work, err, want)
		}
	}
	s := newServed(t)
	servePods(s, `{"metadata":{"uid":"1"},"status":{"podIP":"127.0.0.1","conditions":[{"type":"Ready","status":"True"}]}}`)
	if got, err := s.Examine(t.Context(), objects.Account{Namespace: "ops", Name: "scaler"}, web, schedule.Busy{Port: 1, Path: "/metrics"}); got.Work.Failed == nil || err != nil {
		t.Errorf("nothing listens: %+v, %v", got.Work, err)
	}
}

// Without the right to list pods the error says so; a scale without a selector would have all pods.
func TestExamine_SaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	servePods(s)
	s.on("/api/v1/namespaces/ops/pods", func(w http.ResponseWriter, _ *http.Request) { problem(w, http.StatusForbidden, "no") })
	_, err := s.Examine(t.Context(), objects.Account{Namespace: "ops", Name: "scaler"}, web, schedule.Busy{})
	if denied, ok := errors.AsType[*objects.Forbidden](err); !ok || !strings.Contains(denied.Error(), "kubectl auth can-i list pods -n ops --as=system:serviceaccount:ops:scaler") {
		t.Errorf("%v", err)
	}
	s.on("/apis/apps/v1/namespaces/ops/deployments/web/scale", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"spec": map[string]any{"replicas": 1}})
	})
	if _, err := s.Examine(t.Context(), objects.Account{Namespace: "ops", Name: "scaler"}, web, schedule.Busy{}); !errors.Is(err, scale.ErrNoTarget) {
		t.Errorf("%v", err)
	}
}
