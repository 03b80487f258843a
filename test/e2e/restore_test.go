//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

const operationsPage = "docs/operations.md"

// An adapter whose volume is lost has all that the back-up has, after the commands of the page,
// and nothing that was made since.
func restoreInTheCluster(t *testing.T, turn func()) {
	const kept = 40
	n := newNamespace(t, "restore")
	user := n.explainer()
	s := n.source("restored", "suspend: true\nsink: {uri: 'http://127.0.0.1:1/'}")
	backup, _, found := strings.Cut(n.onPageOf(operationsPage, "kn source reschedule backup -f reschedule.tar"), "\n")
	if !found {
		t.Fatalf("%s has another way to a back-up", operationsPage)
	}
	backup = "cd \"$DIR\"\n" + strings.Replace(backup, "kn source reschedule", "'"+user.binary+"'", 1)
	restore := n.onPageOf(operationsPage, "args: [restore")
	turn()
	s.served()
	n.oneAdapterAfterARestore()

	before := map[string]harness.Schedule{}
	for i := range kept {
		key := fmt.Sprintf("kept/%d", i)
		s.put(key, fmt.Sprintf(`{"delay": "%dh"}`, i+1))
		before[key] = *s.scheduled(key)
	}
	dir := t.TempDir()
	if err := inCheckout(t.Context(), dir, backup); err != nil {
		t.Fatal(err)
	}
	s.put("later", `{"delay": "1h"}`)
	s.call("DELETE", harness.KeyPath("kept/0"), "")

	began := time.Now()
	if err := inCheckout(t.Context(), dir, "cd \"$DIR\"\n"+restore); err != nil {
		t.Fatal(err)
	}
	s.served()
	t.Logf("restored within %s", time.Since(began).Round(time.Second))
	for key, want := range before {
		got := s.scheduled(key)
		if got == nil {
			t.Errorf("%s is not restored", key)
		} else if diff := cmp.Diff(want, *got); diff != "" {
			t.Errorf("%s is not as it was (-want +got):\n%s", key, diff)
		}
	}
	if s.scheduled("later") != nil {
		t.Error("a key that was made after the back-up is there: nothing was restored")
	}
	if c := s.counts(); c.Pending != kept {
		t.Errorf("%+v, want %d keys", c, kept)
	}
	eventually(t, patience, "the cluster is well", n.well)
}

// oneAdapterAfterARestore leaves the cluster with a controller and an adapter without the step
// that restores, when a test ends that has failed.
func (n *namespace) oneAdapterAfterARestore() {
	n.t.Cleanup(func() {
		if !n.t.Failed() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // the test's own is over
		defer cancel()
		(&namespace{cluster: n.cluster, t: n.t, name: system}).dump(ctx)
		err := n.removeAdapters(ctx)
		if err == nil {
			_ = exec.CommandContext(ctx, "kubectl", "-n", system, "scale", "deployment", "reschedule-controller", "--replicas=1").Run() // ko apply sets it, too
			err = inCheckout(ctx, n.t.TempDir(), installed)
		}
		if err != nil {
			n.t.Errorf("the cluster has not one adapter again: %v", err)
		}
	})
}
