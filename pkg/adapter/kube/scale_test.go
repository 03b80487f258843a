package kube

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

var web = schedule.Workload{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}

// serveScale serves a Deployment. patched is called before each patch is judged.
func serveScale(s *served, replicas int, patched func(version *int)) *int {
	version := 1
	s.on("/apis/apps/v1", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"resources":[{"name":"deployments","kind":"Deployment","namespaced":true,"verbs":["get","list","watch"]},{"name":"deployments/scale","kind":"Scale"}]}`)
	})
	s.on("/apis/apps/v1/namespaces/ops/deployments/web/scale", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			body, _ := io.ReadAll(r.Body)
			if r.Header.Get("Content-Type") != "application/merge-patch+json" {
				s.t.Errorf("Content-Type %s", r.Header.Get("Content-Type"))
			}
			seen := version
			patched(&version)
			var n int
			if _, err := fmt.Sscanf(string(body), fmt.Sprintf(`{"metadata":{"resourceVersion":"%d"},"spec":{"replicas":%%d}}`, seen), &n); err != nil {
				s.t.Errorf("patch %s: %v", body, err)
			}
			if seen != version {
				problem(w, http.StatusConflict, "changed")
				return
			}
			replicas, version = n, version+1
		}
		spec := ""
		if replicas > 0 {
			spec = fmt.Sprintf(`"replicas":%d`, replicas)
		}
		_, _ = fmt.Fprintf(w, `{"kind":"Scale","metadata":{"resourceVersion":"%d"},"spec":{%s}}`, version, spec)
	})
	return &replicas
}

// A workload without replicas gets some, one with replicas none, and any other stays as it is, with the account's token.
func TestScale_SetsReplicas(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		has  int
		set  int32
		want int
	}{{0, 2, 2}, {3, 2, 3}, {3, 0, 0}, {0, 0, 0}} {
		s := newServed(t)
		replicas := serveScale(s, tt.has, func(*int) {})
		was, err := s.SetReplicas(t.Context(), watcher, web, tt.set)
		if err != nil || int(was) != tt.has || *replicas != tt.want {
			t.Errorf("%d set to %d: was %d, has %d, %v", tt.has, tt.set, was, *replicas, err)
		}
		if n, err := s.Replicas(t.Context(), watcher, web); err != nil || int(n) != tt.want {
			t.Errorf("read %d, %v", n, err)
		}
		if token := s.last().Header.Get("Authorization"); token != "Bearer ops/watcher no 1" {
			t.Errorf("sent %q", token)
		}
	}
}

// What another hand does between the read and the patch is not undone.
func TestScale_ConflictReadsAgain(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	var replicas *int
	once := false
	replicas = serveScale(s, 0, func(version *int) {
		if !once {
			once = true
			*version++
			*replicas = 5
		}
	})
	if was, err := s.SetReplicas(t.Context(), watcher, web, 1); err != nil || was != 5 || *replicas != 5 {
		t.Errorf("was %d, has %d, %v", was, *replicas, err)
	}
}

// Errors say whether the account may not, or the workload is not there.
func TestScale_Errors(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	if _, err := s.Replicas(t.Context(), watcher, web); !errors.Is(err, scale.ErrNoTarget) {
		t.Errorf("without a kind: %v", err)
	}
	s = newServed(t)
	serveScale(s, 0, func(*int) {})
	other := web
	other.Name = "other"
	if _, err := s.Replicas(t.Context(), watcher, other); !errors.Is(err, scale.ErrNoTarget) || !strings.Contains(err.Error(), "Deployment ops/other") {
		t.Errorf("without the object: %v", err)
	}
	s.on("/apis/apps/v1/namespaces/ops/deployments/web/scale", func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			problem(w, http.StatusForbidden, "no")
			return
		}
		_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"1"},"spec":{}}`)
	})
	_, err := s.SetReplicas(t.Context(), watcher, web, 1)
	denied, ok := errors.AsType[*objects.Forbidden](err)
	if !ok || !strings.Contains(denied.Error(), "kubectl auth can-i patch deployments.apps --subresource=scale -n ops --as=system:serviceaccount:ops:watcher") {
		t.Errorf("forbidden: %v", err)
	}
}
