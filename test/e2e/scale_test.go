//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// scaled is the spec of a source that scales the Deployment of its operator.
func scaled(more string) string {
	return toService("operator") + "scale: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: operator}, cooldown: 2s, serviceAccountName: scaler" + more + "}\n"
}

// scales makes the account that a source with scaled names.
func scales(n *namespace) {
	n.t.Helper()
	n.account("scaler", `[{apiGroups: [apps], resources: [deployments/scale], resourceNames: [operator], verbs: [get, patch]}]`)
}

// asleep waits until the operator has no pod and its Deployment no replicas.
func (n *namespace) asleep() {
	n.t.Helper()
	eventually(n.t, patience, "the operator sleeps", func() error {
		d, err := n.Client.AppsV1().Deployments(n.name).Get(n.t.Context(), "operator", metav1.GetOptions{})
		if err != nil {
			return err
		}
		pods, err := n.Client.CoreV1().Pods(n.name).List(n.t.Context(), metav1.ListOptions{LabelSelector: "app=operator"})
		if err == nil && (*d.Spec.Replicas > 0 || len(pods.Items) > 0) {
			err = fmt.Errorf("it has %d replicas and %d pods", *d.Spec.Replicas, len(pods.Items))
		}
		return err
	})
}

// patched makes a merge patch, in YAML, of the operator.
func (n *namespace) patched(patch string) {
	n.t.Helper()
	body, err := yaml.YAMLToJSON([]byte(patch))
	if err != nil {
		n.t.Fatal(err)
	}
	_, err = n.Client.AppsV1().Deployments(n.name).Patch(n.t.Context(), "operator", "application/merge-patch+json", body, metav1.PatchOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
}

// A call, a timer and a change wake the operator, also around rollouts, another hand and the end of its pod; each key
// runs once, never early, and the operator sleeps afterwards. Without its source it is awake.
func TestScale_SleepsThroughFaults(t *testing.T) {
	beside(t)
	n := newNamespace(t, "scale")
	scales(n)
	n.account("watcher", `[{apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]}]`)
	n.deploy("operator", 1, rule{"slow/", behaviour{Work: "5s"}})
	s := n.source("sleeper", scaled("")+"watch: {serviceAccountName: watcher, resources: [{apiVersion: v1, kind: ConfigMap, selector: {matchLabels: {wakes: it}}}]}\n"+
		"delivery: {backoffDelay: PT0.5S}\n")
	n.asleep()
	runsOnce := func(key string) {
		t.Helper()
		runs := n.awaitRuns(patience, key, 1)
		notEarly(n, runs...)
		if len(runs) != 1 || runs[0].Attempt != 0 {
			t.Errorf("%s ran more than once, or as a retry: %v", key, runs)
		}
		t.Logf("%s: the run began %s after its time", key, runs[0].Start.Sub(runs[0].DueAt).Round(time.Millisecond))
		n.asleep()
	}
	s.put("call", `{"delay": 0}`)
	runsOnce("call")
	s.put("timer", `{"delay": "4s"}`)
	runsOnce("timer")
	n.apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: changed, labels: {wakes: it}}\n")
	runsOnce("ConfigMap/" + n.name + "/changed")
	const rollout = `{"spec":{"template":{"metadata":{"annotations":{"rollout":%q}}}}}`
	n.patched(fmt.Sprintf(rollout, "asleep"))
	s.put("rolled-out", `{"delay": 0}`)
	runsOnce("rolled-out")
	s.put("slow/rollout", `{"delay": 0}`)
	eventually(t, patience, "slow/rollout is under way", func() error { return s.isUnderWay("slow/rollout") })
	n.patched(fmt.Sprintf(rollout, "awake"))
	n.awaitRuns(patience, "slow/rollout", 1)
	n.asleep()
	n.patched(`{"spec":{"replicas":2}}`) // another hand
	n.asleep()
	s.put("slow/kill", `{"delay": 0}`)
	eventually(t, patience, "slow/kill is under way", func() error { return s.isUnderWay("slow/kill") })
	for _, pod := range n.podsOf(n.name, "app=operator") {
		n.deleteNow(pod)
	}
	n.awaitRuns(patience, "slow/kill", 1)
	n.asleep()
	s.put("slow/zero", `{"delay": 0}`)
	eventually(t, patience, "slow/zero is under way", func() error { return s.isUnderWay("slow/zero") })
	n.patched(`{"spec":{"replicas":0}}`) // under a delivery
	n.awaitRuns(patience, "slow/zero", 1)
	n.asleep()
	if err := s.sources.SourcesV1alpha1().RescheduleSources(n.name).Delete(t.Context(), s.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "the source is deleted, and its operator is awake", func() error {
		if len(n.podsOf(n.name, "app=operator")) == 0 {
			return errors.New("it has no pod that runs")
		}
		return nil
	})
}

func (s *source) isUnderWay(key string) error {
	is := s.scheduled(key)
	if is == nil || is.InFlight == nil || !*is.InFlight {
		return fmt.Errorf("it is %+v", is)
	}
	return nil
}

// isScaled waits until the condition Scaled has a reason.
func (s *source) isScaled(reason string) {
	s.t.Helper()
	eventually(s.t, patience, "Scaled is "+reason, func() error {
		c := s.get().Status.GetCondition(v1alpha1.ConditionScaled)
		if c == nil || c.Reason != reason {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
}

// A pod that is slow to be ready costs no attempt, and one that answers 503 while it warms costs retries. What has no
// image, or whose account has no right, says so, and recovers.
func TestScale_WorkloadDoesNotStart(t *testing.T) {
	beside(t)
	n := newNamespace(t, "noscale")
	n.deploy("operator", 1, rule{"warms", behaviour{Status: 503, Failures: 2}})
	spec := func(startTimeout string) string {
		return scaled(", startTimeout: "+startTimeout) + "delivery: {backoffDelay: PT1S, backoffPolicy: linear, backoffMax: PT2S}\n"
	}
	s := n.source("sleeper", spec("2m")) // longer than a busy node takes
	// The account comes later. Where the operator is awake, deliveries need no right.
	n.apply("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: scaler}\n")
	s.isScaled("Forbidden")
	s.put("awake", `{"delay": 0}`)
	n.awaitRuns(patience, "awake", 1)
	scales(n)
	s.isScaled("Scaled")
	n.asleep()
	n.patched(`{"spec":{"template":{"spec":{"containers":[` + strings.Replace(containerOf(n, []rule{{"warms", behaviour{Status: 503, Failures: 2}}}), "{name: function",
		`{readinessProbe: {tcpSocket: {port: 8080}, initialDelaySeconds: 10}, name: function`, 1) + `]}}}}`)
	s.put("slow", `{"delay": 0}`)
	if runs := n.awaitRuns(patience, "slow", 1); runs[0].Attempt != 0 || runs[0].Start.Sub(runs[0].DueAt) < 10*time.Second {
		t.Errorf("not ready for 10 s: %v", runs)
	}
	s.put("warms", `{"delay": 0}`)
	if runs := n.awaitRuns(patience, "warms", 3); runs[2].Attempt != 2 {
		t.Errorf("503 while it warms: %v", runs)
	}
	n.asleep()
	image := images.function
	set := func(image string) {
		n.patched(fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[%s]}}}}`, strings.Replace(containerOf(n, nil), images.function, image, 1)))
	}
	n.apply(manifestOf("sleeper", spec("20s")))
	set("example.invalid/none")
	s.put("none", `{"delay": 0}`)
	s.isScaled("StartTimeout")
	set(image)
	n.awaitRuns(patience, "none", 1)
	s.isScaled("Scaled")
	n.asleep()
}

// A wake survives the end of the adapter at each of its steps, also without a sink: nothing is lost, none is early, and
// the operator sleeps in the end.
func scaleOverKills(t *testing.T, turn func()) {
	n := newNamespace(t, "wakekill")
	scales(n)
	n.deploy("operator", 1, rule{"slow", behaviour{Work: "3s"}})
	s := n.source("sleeper", scaled("")+"delivery: {backoffDelay: PT0.5S}\n")
	m := newNamespace(t, "sinklesskill")
	resident(m, `, {name: METRICS, value: ":8080"}, {name: WORK, value: 1s}`)
	z := sleeper{m.source("sleeper", sleeping(", cooldown: 2s, busy: {port: 8080}"))}
	turn()
	n.asleep()
	m.asleep()
	// More kills in a row would wait for the kubelet's back-off: while it is woken, while it starts, in the delivery.
	for i, at := range []time.Duration{10 * time.Millisecond, 500 * time.Millisecond, 2500 * time.Millisecond} {
		key := fmt.Sprintf("slow/%d", i)
		due := s.put(key, `{"delay": "2s"}`).DueAt
		pod := n.adapterPod()
		eventually(t, patience, "the step of the wake has come", func() error {
			if left := time.Until(due.Add(at)); left > 0 {
				return fmt.Errorf("%s are left", left)
			}
			return nil
		})
		generation := z.change("a", i)
		n.killContainers(pod)
		eventually(t, patience, "the adapter is back", n.restarted(pod))
		notEarly(n, n.awaitRuns(patience, key, 1)...)
		z.seen("a", generation)
		n.asleep()
		m.asleep()
		s.served()
	}
}
