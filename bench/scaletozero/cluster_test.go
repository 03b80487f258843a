package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The cluster of KUBECONFIG is asked for pods, nodes, metrics and deletions, and takes ConfigMaps.
func TestCluster_API(t *testing.T) {
	created := make(chan string, 1)
	mux := http.NewServeMux()
	for path, answer := range map[string]string{
		"/api/v1/pods": `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"uid":"u","name":"p","namespace":"expiry-fed-0"}}]}`,
		"/api/v1/nodes": `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"n"},"status":{"capacity":{"cpu":"2","memory":"24683656Ki"},
			"nodeInfo":{"kernelVersion":"6","containerRuntimeVersion":"containerd://1","kubeletVersion":"v1"}}}]}`,
		"/api/v1/nodes/n/proxy/metrics/cadvisor":                                    `container_memory_rss{container="",id="/pod` + uid + `",image="",name="",namespace="a",pod="b"} 7 1` + "\n",
		"/apis/apps/v1/namespaces/knative-eventing/deployments/eventing-controller": `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"labels":{"app.kubernetes.io/version":"9"}}}`,
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, answer)
		})
	}
	mux.HandleFunc("POST /api/v1/namespaces/ns/configmaps", func(w http.ResponseWriter, r *http.Request) {
		created <- r.URL.Path
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"kind":"ConfigMap","apiVersion":"v1"}`)
	})
	ctx, cancel := context.WithCancel(t.Context())
	watches := 0
	mux.HandleFunc("GET /api/v1/configmaps", func(w http.ResponseWriter, r *http.Request) {
		if watches++; watches > 1 { // all events of the first have been seen
			cancel()
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		for _, event := range [][2]string{{"ADDED", "1h"}, {"DELETED", "8s"}, {"ADDED", "1h"}} {
			fmt.Fprintf(w, `{"type":%q,"object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"namespace":"expiry-fed-0","creationTimestamp":%q,"labels":{"expires-after":%q}}}}`+"\n",
				event[0], time.Now().Add(-10*time.Second).UTC().Format(time.RFC3339), event[1])
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	config := `{"current-context":"c","clusters":[{"name":"c","cluster":{"server":"` + server.URL + `"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`
	dir := t.TempDir()
	write(t, dir, map[string]string{"config": config})
	t.Setenv("KUBECONFIG", filepath.Join(dir, "config"))
	c, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.work(t.Context(), []job{{ns: "ns"}}, time.Millisecond); err != nil || len(created) != 1 {
		t.Errorf("%v, %d created", err, len(created))
	}
	if pods, err := c.pods(t.Context()); err != nil || len(pods) != 1 || pods[0].UID != "u" || podPart(pods[0].ObjectMeta) != fed {
		t.Errorf("%v, %+v", err, pods)
	}
	readings, err := c.kubelets(t.Context())
	if diff := cmp.Diff(map[subject]reading{{podOf, uid}: {memory: 7}}, readings, cmp.AllowUnexported(subject{}, reading{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	found, err := c.conditions(t.Context(), "")
	if got := found.Node + "; " + strings.Join(found.Versions, ", "); got != "1 node(s) with 2 cores and 24683656Ki, Linux 6, containerd 1; Kubernetes v1, Knative 9" || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	// Created ten seconds ago with a life of eight; a timestamp has whole seconds.
	if late := c.lateness(ctx); len(late[fed]) != 1 || late[fed][0] < 2 || late[fed][0] > 10 {
		t.Errorf("%v", late)
	}
}
