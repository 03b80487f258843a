//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// underWay waits for a run with a step that has not ended, and returns it.
func (o *operator) underWay(key, step string) run {
	o.t.Helper()
	var is run
	eventually(o.t, patience, key+" is in "+step, func() error {
		runs := o.of(key)
		if len(runs) == 0 {
			return errors.New("it was not run")
		}
		if is = runs[len(runs)-1]; is.step() != step || !is.End.IsZero() {
			return fmt.Errorf("its last run is %s, in %q", is, is.step())
		}
		return nil
	})
	return is
}

// deletePod deletes a pod, by force or not.
func (o *operator) deletePod(name string, force bool) {
	o.t.Helper()
	options := metav1.DeleteOptions{}
	if force {
		options.GracePeriodSeconds = new(int64)
	}
	if err := o.Client.CoreV1().Pods(o.namespace.name).Delete(o.t.Context(), name, options); err != nil {
		o.t.Fatal(err)
	}
}

// An operator that is killed at any point loses nothing.
func TestOperator_KilledLosesNothing(t *testing.T) {
	beside(t)
	o := newOperator(t, form{mode: "Resource"})
	o.start()
	// Its process ends: before the work, in the middle of it, and around the answer.
	for i, step := range []string{"exit", "work=1s exit", "exit=0s after=2s", "exit=1ms after=2s", "exit=3ms after=2s", "exit=10ms after=2s"} {
		o.done(o.create(fmt.Sprintf("killed-%d", i), step+", ok"), step, "ok")
	}
	// Each time is an attempt.
	failing := []string{"after=1s", "exit", "error", "work=1s exit", "error", "ok"}
	waits := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}
	runs := o.done(o.create("failing", strings.Join(failing, ", ")), failing...)
	for i, wait := range waits {
		const work = time.Second
		if gap := runs[i+2].Start.Sub(runs[i+1].Start); gap < wait || gap > wait+work+3*time.Second {
			t.Errorf("after failure %d it was retried after %s, want %s", i+1, gap, wait)
		}
	}

	// Its pod goes.
	key := o.create("forced", "after=1s, work=20s, ok")
	killed := o.underWay(key, "work=20s")
	o.deletePod(killed.Pod, true)
	runs = o.done(key, "after=1s", "work=20s", "ok")
	if is := runs[1]; !is.End.IsZero() || runs[2].Pod == is.Pod {
		t.Errorf("it was not killed: %v", runs)
	}
}

// A run that has begun ends and counts when the operator is stopped.
func TestOperator_StoppedEndsItsRun(t *testing.T) {
	beside(t)
	o := newOperator(t, form{mode: "Resource"})
	o.start()
	for name, c := range map[string]struct {
		step string
		stop func(run)
	}{
		// SIGTERM comes when Knative's proxy has seen the run end.
		"deleted": {"work=10s after=2s", func(r run) { o.deletePod(r.Pod, false) }},
		// It comes in the middle of the run.
		"terminated": {"term work=5s after=2s", func(run) {}},
		// The old pod is called until the new one is ready, which takes half a minute on a busy machine.
		"revised": {"work=10s after=30s", func(run) {
			f := o.form
			f.annotations = map[string]string{"e2e/revision": "another"}
			o.change(f)
		}},
	} {
		key := o.create(name, c.step+", ok")
		c.stop(o.underWay(key, c.step))
		runs := o.done(key, c.step, "ok")
		first, second := runs[0], runs[1]
		if first.End.IsZero() || second.Pod == first.Pod && name != "terminated" {
			t.Errorf("%s: it was not stopped, or did not end: %v", name, runs)
		}
		if gap := second.Start.Sub(first.End); gap < 2*time.Second {
			t.Errorf("%s: it came up again after %s, want 2s", name, gap)
		}
	}
}

// TestOperator_ReplicasShareNoKey has three, of which one is
// killed.
func TestOperator_ReplicasShareNoKey(t *testing.T) {
	beside(t)
	const (
		objects, changes = 10, 5
		step             = "work=3s"
	)
	o := newOperator(t, form{mode: "Resource", with: "replicas cached-reads", concurrency: 5, annotations: map[string]string{
		"autoscaling.knative.dev/min-scale": "3",
		"autoscaling.knative.dev/max-scale": "3",
	}})
	o.start()
	names, versions := make([]string, objects), map[string]string{}
	for i := range names {
		names[i] = fmt.Sprintf("object-%d", i)
		versions[o.create(names[i], step)] = o.version(names[i])
	}
	var killedPod string
	var killedAt time.Time
	for change := range changes {
		// Of the last object, whose run cannot be over before all were made or changed.
		pod := o.underWay(o.key(names[objects-1]), step).Pod
		for _, name := range names {
			versions[o.key(name)] = changeObject(o.namespace, name, change)
		}
		if change != changes/2 {
			continue
		}
		killedPod, killedAt = pod, time.Now()
		o.deletePod(pod, true)
	}
	o.awaitLastSeen(versions)
	o.awaitCounts("nothing is left", 0)
	all, err := runReports(o.namespace)
	if err != nil {
		t.Fatal(err)
	}
	// Runs that had not ended when their pod was killed: they may go on for a moment when
	// their delivery has failed already.
	killed := map[string]bool{}
	for _, r := range all {
		if r.Pod == killedPod && (r.End.IsZero() || r.End.After(killedAt)) {
			killed[r.Run] = true
		} else {
			delete(killed, r.Run)
		}
	}
	is := oneAtATime(t, slices.DeleteFunc(all, func(r runReport) bool { return killed[r.Run] }))
	t.Logf("%d runs of %d changes in %d pods, at most %d at once; %d were killed", is.runs, objects*(changes+1), len(is.pods), is.most, len(killed))
	if len(is.pods) < 2 || is.most < 2 || len(killed) == 0 {
		t.Errorf("there were no replicas at work: %+v", is)
	}
}
