//go:build e2e && nodes

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Nodes are taken away as hack/cluster/worker.sh can. The tag nodes, which hack/e2e.sh sets
// for the cluster of make cluster-up, leaves this file out elsewhere.

// firstNode has the control plane, the operator and the recorder, and stays.
const firstNode = "node"

// Three members are on three nodes. A node loses its power and comes back, one is drained, one
// is lost for good: nothing is lost, and callers wait seconds. It replaces the one adapter
// that the other tests use, so it is not parallel.
func TestGroup_NodeLost(t *testing.T) {
	n := newNamespace(t, "nodes")
	n.singleAgain()
	n.deploy("operator", 2, streamRules...)
	s := n.source("nodes", toService("operator")+"delivery: {backoffDelay: PT0.5S, backoffPolicy: linear}\n")
	addWorkers(n, "1", "2")
	eventually(t, patience, "there are three members", n.replicate(n.explainer()))
	n.spread()
	stream := s.stream()
	stream.flow(150) // slow runs are under way when the first step begins
	var outages []outage
	for _, step := range []struct {
		name string
		do   func(pod *corev1.Pod) (back func() error)
		calm bool // no call may fail
		lost bool // the pod ends without a word
	}{
		{name: "the owner's node loses its power, and comes back with its disk", lost: true, do: func(pod *corev1.Pod) func() error {
			nodeScript(n, "kill", pod.Spec.NodeName)
			stream.flow(150) // while it is away
			nodeScript(n, "add", pod.Spec.NodeName)
			return n.restarted(pod)
		}},
		{name: "the owner's node is drained", calm: true, do: func(pod *corev1.Pod) func() error {
			if err := kubectl(t.Context(), "drain", pod.Spec.NodeName, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=2m"); err != nil {
				t.Fatal(err)
			}
			noneMayGo(n, pod.Name)
			stream.flow(50) // while it is away
			if err := kubectl(t.Context(), "uncordon", pod.Spec.NodeName); err != nil {
				t.Fatal(err)
			}
			return func() error { return n.replaced(pod) }
		}},
		{name: "the owner's node is lost for good, and another one takes its place", lost: true, do: func(pod *corev1.Pod) func() error {
			nodeScript(n, "kill", pod.Spec.NodeName)
			stream.flow(50)
			nodeScript(n, "add", "worker3")
			_, commands, found := strings.Cut(n.onPage("kubectl delete node"), "\n")
			if !found {
				t.Fatalf("%s has no line with the names", groupPage)
			}
			names := fmt.Sprintf("node=%s member=%s\n", pod.Spec.NodeName, pod.Name)
			if err := inCheckout(t.Context(), t.TempDir(), names+commands); err != nil {
				t.Fatal(err)
			}
			return func() error { return n.replaced(pod) }
		}},
		{name: "all pods are replaced, one after the other", calm: true, do: func(*corev1.Pod) func() error {
			before := n.podsOf(system, memberLabel)
			if err := kubectl(t.Context(), "-n", system, "rollout", "restart", "statefulset/"+adapter); err != nil {
				t.Fatal(err)
			}
			return func() error { return n.allReplaced(before) }
		}},
	} {
		before := outage{from: time.Now()} // a hand-over on a busy machine may cut deliveries off
		earlier := stream.repeated()
		pod := ownerOnWorker(n)
		before.to = time.Now()
		if !maps.Equal(earlier, stream.repeated()) {
			t.Errorf("%s: calls had to be repeated while the group was handed over before:\n%s", step.name, stream.why())
		}
		failed := stream.repeated()
		o := outage{from: before.to}
		eventually(t, patience, step.name+": all are back", step.do(pod))
		o.to = time.Now()
		outages = append(outages, before, o)
		stream.flow(50)
		if step.lost {
			forgetVolume(n, pod)
		}
		t.Logf("%s: callers had no answer for %s, all were back after %s; calls that were repeated before: %v, after: %v",
			step.name, stream.unanswered(o), o.to.Sub(o.from).Round(time.Second), failed, stream.repeated())
		if now := stream.repeated(); !maps.Equal(failed, now) {
			t.Logf("the newest reasons:\n%s", stream.why())
		}
		if step.calm && !maps.Equal(failed, stream.repeated()) {
			t.Errorf("%s: calls had to be repeated:\n%s", step.name, stream.why())
		}
	}
	n.spread()
	stream.end()
	stream.judge(outages...)
}

// addWorkers adds nodes to the cluster, and removes all but the first when the test ends, with the
// pods on them.
func addWorkers(n *namespace, numbers ...string) {
	n.t.Helper()
	n.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // the test's own is over
		defer cancel()
		if n.t.Failed() {
			(&namespace{cluster: n.cluster, t: n.t, name: system}).dump(ctx)
		}
		err := kubectl(ctx, "-n", system, "delete", "statefulset", adapter, "--ignore-not-found")
		if err := errors.Join(err, worker(ctx, "remove", "1", "2", "3")); err != nil {
			n.t.Errorf("the cluster has not one node again: %v", err)
		}
	})
	if err := worker(n.t.Context(), "add", numbers...); err != nil {
		n.t.Fatal(err)
	}
}

// nodeScript does something to one node.
func nodeScript(n *namespace, verb, node string) {
	n.t.Helper()
	number, found := strings.CutPrefix(node, "worker")
	if !found {
		n.t.Fatalf("%s is not a worker", node)
	}
	if err := worker(n.t.Context(), verb, number); err != nil {
		n.t.Fatal(err)
	}
}

func worker(ctx context.Context, verb string, numbers ...string) error {
	if out, err := exec.CommandContext(ctx, "../../hack/cluster/worker.sh", append([]string{verb}, numbers...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("worker.sh %s %v: %w\n%s", verb, numbers, err, tail(string(out)))
	}
	return nil
}

// forgetVolume has the nodes forget the connections to a pod that is gone. A call that it never answered leaves
// an entry in its node's table of connections, for two to five minutes. A new call from the same port
// goes to the address of that pod, which is no endpoint any more: "no route to host". It is a call
// of the loss, and a calm step that comes after must not be blamed for it.
func forgetVolume(n *namespace, pod *corev1.Pod) {
	n.t.Helper()
	if err := worker(n.t.Context(), "forget", pod.Status.PodIP); err != nil {
		n.t.Fatal(err)
	}
}

// spread fails unless each member is on a node of its own.
func (n *namespace) spread() {
	n.t.Helper()
	var nodes []string
	for _, pod := range n.podsOf(system, memberLabel) {
		nodes = append(nodes, pod.Spec.NodeName)
	}
	slices.Sort(nodes)
	if len(slices.Compact(slices.Clone(nodes))) != groupSize {
		n.t.Fatalf("the members are on %v, want three nodes", nodes)
	}
}

// ownerOnWorker is the owner's pod. One on the first node hands over before.
func ownerOnWorker(n *namespace) *corev1.Pod {
	n.t.Helper()
	for {
		pod := n.groupOwner()
		if pod.Spec.NodeName != firstNode {
			return pod
		}
		if err := kubectl(n.t.Context(), "-n", system, "delete", "pod", pod.Name); err != nil {
			n.t.Fatal(err)
		}
		eventually(n.t, patience, "the member on the first node is back", func() error { return n.replaced(pod) })
	}
}

// noneMayGo fails unless the budget forbids the eviction of a member while another one is away.
func noneMayGo(n *namespace, away string) {
	n.t.Helper()
	for _, pod := range n.podsOf(system, memberLabel) {
		if pod.Name == away {
			continue
		}
		err := n.Client.PolicyV1().Evictions(system).Evict(n.t.Context(), &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Name: pod.Name, Namespace: system},
			DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
		})
		if !apierrors.IsTooManyRequests(err) {
			n.t.Errorf("%s may be evicted while %s is away: %v", pod.Name, away, err)
		}
	}
}
