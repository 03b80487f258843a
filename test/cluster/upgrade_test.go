package cluster

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// The manifests of 0.1.0, then these, then the older ones again, with a source,
// pending keys and callers. The programs stay: only manifests change.
func TestUpgrade_ManifestsAndBack(t *testing.T) {
	p, sink := running(t), newSink(t)
	older, err := os.ReadFile("testdata/reschedule-0.1.0.yaml")
	if err != nil {
		t.Fatal(err)
	}
	newer, err := filepath.Glob("../../config/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	steps := map[string]func() error{
		"0.1.0": func() error { return server.Apply(t.Context(), older) },
		"newer": func() error { return server.ApplyFiles(t.Context(), newer...) },
	}
	t.Cleanup(func() {
		if err := server.ApplyFiles(context.Background(), newer...); err != nil {
			t.Error(err)
		}
	})

	// Installed once: the upgrade starts from 0.1.0 alone.
	remove(t)
	if err := steps["0.1.0"](); err != nil {
		t.Fatal(err)
	}
	s := p.create(t, namespace(t, "upgrade"), "x", to(sink, "in"))
	s.served()
	s.put("far", `{"delay":"1h"}`)

	// Callers go on meanwhile: each call is answered with success.
	stop := make(chan struct{})
	var callers sync.WaitGroup
	var last string
	callers.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-t.Context().Done():
				return
			case <-time.After(20 * time.Millisecond):
			}
			key := "load-" + time.Now().Format("150405.000000")
			r, err := harness.Do(t.Context(), "PUT", s.address()+harness.KeyPath(key), `{"delay":"100ms"}`, "Authorization", "Bearer "+s.token)
			if err != nil || r.Status != 201 {
				t.Errorf("a call during the upgrade: %v %+v", err, r)
				return
			}
			last = key
		}
	})
	for _, step := range []string{"newer", "0.1.0", "newer"} {
		err := steps[step]()
		if !apierrors.IsInvalid(err) || !kube.RefusedAsImmutable(err) {
			t.Fatalf("applying %s over the other: %v", step, err)
		}
		remove(t) // kubectl delete --cascade=orphan, as docs/upgrade.md says
		if err := steps[step](); err != nil {
			t.Fatalf("applying %s: %v", step, err)
		}
		scaled(t, 1)
		s.ready()
		if got := s.status("far"); got != 200 {
			t.Errorf("after %s the pending key is answered with %d", step, got)
		}
	}
	close(stop)
	callers.Wait()
	if last == "" {
		t.Fatal("there was no load")
	}
	sink.Next(t, "in", last)

	// A field that 0.1.0 did not have works now.
	s.patch(`{"jitter":0.1}`)
	s.ready()
	s.delete()
	scaled(t, 0)
}
