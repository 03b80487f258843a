//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1 "k8s.io/api/core/v1"
)

// After a new revision each of 2,000 objects is due, and an edit goes before all of them.
func TestWatch_EditOvertakesAResync(t *testing.T) {
	beside(t)
	const objects = 2000
	n := newNamespace(t, "overtake")
	startRecorder(n)
	n.account("watcher", `
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]}`)
	var next atomic.Int64
	var group errgroup.Group
	for range 8 {
		group.Go(func() error {
			for i := next.Add(1); i <= objects; i = next.Add(1) {
				o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("object-%04d", i), Labels: map[string]string{"e2e": "object"}}}
				if _, err := n.Client.CoreV1().ConfigMaps(n.name).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	revision := map[string]string{"autoscaling.knative.dev/min-scale": "1"}
	n.serve("sink", revision, rule{"", behaviour{Work: "10ms"}})
	s := n.source("objects", toKsvc("sink")+`
limits: {maxInFlight: 2}
watch:
  serviceAccountName: watcher
  resync: {over: 0s}
  resources: [{apiVersion: v1, kind: ConfigMap, selector: {matchLabels: {e2e: object}}, changes: Any}]
`)
	s.awaitCounts("the first list has run", 0)

	revision["e2e/revision"] = "another"
	n.serve("sink", revision, rule{"", behaviour{Work: "10ms"}})
	var c struct {
		Due        int
		Priorities map[string]struct{ Due int }
	}
	count := func() {
		t.Helper()
		if err := json.Unmarshal(s.call("GET", "", "").Body, &c); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, patience, "all objects are due for the new revision", func() error {
		if count(); c.Priorities["low"].Due < objects/2 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	const edited = "object-2000"
	key := "ConfigMap/" + n.name + "/" + edited
	before, err := containing(n, "recorder", "/runs", key)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	changeObject(n, edited, 1)
	eventually(t, patience, "the edit is run", func() error {
		after, err := containing(n, "recorder", "/runs", key)
		if err != nil || len(after) > len(before) {
			return err
		}
		return fmt.Errorf("%s has %d reports", key, len(after))
	})
	took := time.Since(began)
	if count(); c.Priorities["low"].Due == 0 {
		t.Error("the resync was over before the edit was run: nothing was overtaken")
	}
	t.Logf("the edit was run within %s, with %d objects due before it came, and %d afterwards", took.Round(time.Millisecond), objects, c.Priorities["low"].Due)
}
