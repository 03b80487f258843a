//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Each kill happens in the middle of a stream of calls, events and deliveries.

// Nothing acknowledged is lost when a node, a pod or a disk goes.
func disruptionLosesNothing(t *testing.T, turn func()) {
	const delivery = "delivery: {backoffDelay: PT0.5S, backoffPolicy: linear, backoffMax: PT5S}\n"
	n := newNamespace(t, "crash")
	n.deploy("operator", 2, streamRules...)
	n.serve("ksvc", nil, streamRules...)
	s := n.source("crash", toService("operator")+delivery)
	behind := n.source("behind", toKsvc("ksvc")+delivery) // the ingress and the activator are before it
	turn()
	s.served()
	stream, busy := s.streamOf(streamWriters, "service."), behind.streamOf(1, "ksvc.")
	var outages []outage
	var late []func() // what waits for what is new
	for i, c := range []struct {
		name string
		// kill returns once it is done, and says when all that it hit is back.
		kill func() (back func() error)
		// calm: callers and deliveries have nothing to do with it.
		calm bool
		// leaderless: a controller has no leader afterwards, so what is new is waited for at the end.
		leaderless bool
	}{
		{name: "the process of the adapter is killed", kill: func() func() error {
			pod := n.adapterPod()
			n.killContainers(pod)
			return n.restarted(pod)
		}},
		{name: "the pod of the adapter is deleted without grace", kill: func() func() error {
			pod := n.adapterPod()
			n.deleteNow(pod)
			return func() error { return n.replaced(pod) }
		}},
		{name: "the pod of the adapter is evicted, as from a node that is drained", kill: func() func() error {
			pod := n.adapterPod()
			n.evict(pod)
			return func() error { return n.replaced(pod) }
		}},
		{name: "the controller is killed", calm: true, leaderless: true, kill: func() func() error {
			pods := n.podsOf(system, "app.kubernetes.io/component="+controller)
			n.killContainers(pods...)
			return n.restarted(pods...)
		}},
		{name: "all containers of the node are killed", leaderless: true, kill: func() func() error {
			node := n.adapterPod().Spec.NodeName
			pods := slices.DeleteFunc(n.podsOf("", ""), func(p *corev1.Pod) bool { return p.Spec.NodeName != node })
			n.nodekill(node)
			return n.restarted(pods...)
		}},
	} {
		stream.flow(50)
		stream.underWay()
		busy.underWay()
		o := outage{from: time.Now(), calm: c.calm}
		eventually(t, patience, c.name+": it is back", c.kill())
		o.to = time.Now()
		outages = append(outages, o)
		stream.flow(100)
		busy.flow(10)
		eventually(t, patience, c.name+": the cluster is well", n.well)
		// What comes new is served as well, by the processes that have to lead for that. The lease of a
		// controller that was killed lasts a minute more, in which the node can be lost, and the streams
		// be judged.
		began, name := time.Now(), fmt.Sprintf("after-%d", i)
		served := func() {
			serves(n, name, toService("operator"))
			t.Logf("%s: a new source was served after %s", c.name, time.Since(began).Round(time.Millisecond))
		}
		if !c.leaderless {
			served()
			continue
		}
		n.apply(manifestOf(name, toService("operator")))
		late = append(late, served)
	}
	began := time.Now()
	n.apply(ksvc(n, "new", nil, "", containerOf(n, streamRules)))
	stream.end()
	busy.end()
	stream.judge(outages...)
	busy.judge(outages...)
	for _, served := range late {
		served()
	}
	n.ready(knativeService, "new")
	t.Logf("a new ksvc was ready after %s", time.Since(began).Round(time.Millisecond))
	serves(n, "new", toKsvc("new"))
}

// serves makes a source, or takes the existing source, and waits for a delivery of it.
func serves(n *namespace, name, sink string) {
	n.t.Helper()
	n.source(name, sink).put(name, `{}`)
	n.awaitRuns(patience, name, 1)
}

// adapterPod is the adapter's one pod, once it is ready.
func (n *namespace) adapterPod() *corev1.Pod {
	n.t.Helper()
	var pod *corev1.Pod
	eventually(n.t, patience, "the adapter has a pod", func() error {
		var err error
		if pod, err = n.Client.CoreV1().Pods(system).Get(n.t.Context(), adapter+"-0", metav1.GetOptions{}); err != nil {
			return err
		}
		return wellPod(pod)
	})
	return pod
}

// podsOf are the pods of a namespace, "" for all, that a selector selects and
// that run.
func (n *namespace) podsOf(namespace, selector string) []*corev1.Pod {
	n.t.Helper()
	list, err := n.Client.CoreV1().Pods(namespace).List(n.t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		n.t.Fatal(err)
	}
	var running []*corev1.Pod
	for _, p := range list.Items {
		if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			running = append(running, &p)
		}
	}
	return running
}

// deleteNow deletes a pod as kubectl delete --grace-period=0 --force does: the
// API server forgets it at once, whatever its process does.
func (n *namespace) deleteNow(pod *corev1.Pod) {
	n.t.Helper()
	now := int64(0)
	if err := n.Client.CoreV1().Pods(pod.Namespace).Delete(n.t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		n.t.Fatal(err)
	}
}

// killContainers kills the process of the one container of each pod, all at once on a node;
// the pods stay.
func (n *namespace) killContainers(pods ...*corev1.Pod) {
	n.t.Helper()
	ids := map[string][]string{}
	for _, pod := range pods {
		_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
		ids[pod.Spec.NodeName] = append(ids[pod.Spec.NodeName], id)
	}
	for node, ids := range ids {
		n.nodekill(node, ids...)
	}
}

// nodekill runs images/nodekill on a node and waits for its end.
func (n *namespace) nodekill(node string, args ...string) {
	n.t.Helper()
	root := int64(0)
	privileged := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "nodekill-"},
		Spec: corev1.PodSpec{
			NodeName: node, HostPID: true, RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "nodekill", Image: images.nodekill, Args: args,
				Env:             []corev1.EnvVar{{Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}}},
				SecurityContext: &corev1.SecurityContext{Privileged: &privileged, RunAsUser: &root},
			}},
		},
	}
	pods := n.Client.CoreV1().Pods(n.name)
	pod, err := pods.Create(n.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	eventually(n.t, patience, "nodekill has ended", func() error {
		if pod, err = pods.Get(n.t.Context(), pod.Name, metav1.GetOptions{}); err != nil {
			return err // the API server may be in a pod too
		}
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("it is %s: %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
		}
		return nil
	})
	var said []byte
	eventually(n.t, patience, "the log of nodekill", func() error {
		said, err = pods.GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(n.t.Context())
		return err
	})
	if n.t.Log(strings.TrimSpace(string(said))); pod.Status.Phase == corev1.PodFailed {
		n.t.Fatal("nodekill has failed")
	}
}

// restarted says whether each container of pods has been started again since,
// and is well. A pod that is gone has been replaced.
func (n *namespace) restarted(before ...*corev1.Pod) func() error {
	left := map[types.UID]*corev1.Pod{}
	for _, p := range before {
		left[p.UID] = p
	}
	return func() error {
		list, err := n.Client.CoreV1().Pods("").List(n.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		now := map[types.UID]*corev1.Pod{}
		for i := range list.Items {
			now[list.Items[i].UID] = &list.Items[i]
		}
		var last error
		for uid, was := range left {
			is := now[uid]
			if is == nil || is.DeletionTimestamp != nil || is.Status.Phase == corev1.PodFailed || is.Status.Phase == corev1.PodSucceeded {
				delete(left, uid)
				continue
			}
			err := wellPod(is)
			for i, c := range is.Status.ContainerStatuses {
				if c.RestartCount <= was.Status.ContainerStatuses[i].RestartCount {
					err = fmt.Errorf("container %s has not been restarted", c.Name)
				}
			}
			if err == nil {
				delete(left, uid)
				continue
			}
			last = fmt.Errorf("%d of %d pods are not back; %s/%s: %w", len(left), len(before), is.Namespace, is.Name, err)
		}
		return last
	}
}

// replaced says whether another pod of the same name is well.
func (n *namespace) replaced(before *corev1.Pod) error {
	is, err := n.Client.CoreV1().Pods(before.Namespace).Get(n.t.Context(), before.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if is.UID == before.UID {
		return fmt.Errorf("%s is the old pod", is.Name)
	}
	return wellPod(is)
}

// wellPod says what a pod lacks to be ready.
func wellPod(pod *corev1.Pod) error {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	var said []string
	for _, c := range pod.Status.ContainerStatuses {
		switch {
		case c.State.Waiting != nil:
			said = append(said, c.Name+" waits: "+c.State.Waiting.Reason+" "+c.State.Waiting.Message)
		case c.State.Terminated != nil:
			said = append(said, c.Name+" ended: "+c.State.Terminated.Reason+" "+c.State.Terminated.Message)
		}
		if last := c.LastTerminationState.Terminated; last != nil && last.Message != "" {
			said = append(said, "it ended before with: "+last.Message)
		}
	}
	return fmt.Errorf("pod %s is %s and not ready: %s", pod.Name, pod.Status.Phase, strings.Join(said, "; "))
}

// well says what the cluster lacks before other tests can go on: every
// Deployment and StatefulSet has all its pods, and the webhooks answer.
func (n *namespace) well() error {
	ctx := n.t.Context()
	for _, namespace := range []string{system, "knative-serving", "kube-system", n.name} {
		deployments, err := n.Client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, d := range deployments.Items {
			if d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas < *d.Spec.Replicas || d.Status.AvailableReplicas < *d.Spec.Replicas || d.Status.Replicas > *d.Spec.Replicas {
				return fmt.Errorf("deployment %s: %d of %d replicas are available", d.Name, d.Status.AvailableReplicas, *d.Spec.Replicas)
			}
		}
		sets, err := n.Client.AppsV1().StatefulSets(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, s := range sets.Items {
			if s.Status.ObservedGeneration < s.Generation || s.Status.UpdatedReplicas < *s.Spec.Replicas || s.Status.AvailableReplicas < *s.Spec.Replicas || s.Status.Replicas > *s.Spec.Replicas {
				return fmt.Errorf("statefulset %s: %d of %d replicas are available", s.Name, s.Status.AvailableReplicas, *s.Spec.Replicas)
			}
		}
	}
	return admitted(n)
}

var knativeRoute = schema.GroupVersionKind{Group: "serving.knative.dev", Version: "v1", Kind: "Route"}

// admitted says whether the webhooks of Knative let an object in.
func admitted(n *namespace) error {
	for gvk, spec := range map[schema.GroupVersionKind]map[string]any{
		knativeRoute: {"traffic": []any{map[string]any{"configurationName": "none", "latestRevision": true, "percent": int64(100)}}},
		trigger:      {"broker": "default", "subscriber": map[string]any{"uri": "http://example.com"}},
	} {
		resource, err := n.Resource(gvk, n.name)
		if err != nil {
			return err
		}
		o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
		o.SetGroupVersionKind(gvk)
		o.SetName("admitted")
		if _, err := resource.Create(n.t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			return err
		}
	}
	return nil
}
