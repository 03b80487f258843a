package main

import (
	"context"
	"fmt"
	"log"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// dense is the step density: many operators on one node, each with a kind of its own, whose
// object expires after a day.
type dense struct {
	Conditions string
	Operators  int
	Forms      map[string]crammed
}

// crammed is what many operators of one form cost: the node without them, while they are
// deployed, while nothing is due, and while all of them are woken at once.
type crammed struct {
	Empty, Deploy, Idle, Storm *bill
	Ran                        []float64 // seconds from the change of all objects to the end of the work of each operator, sorted
	Starting                   int       // the most pods that started at a time
}

// density measures the forms one after the other.
func (c *cluster) density(ctx context.Context, operators int, settle, before time.Duration) *dense {
	d := &dense{c.conditions(ctx), operators, map[string]crammed{}}
	kinds := kindsOf(operators)
	run(ctx, kinds, "kubectl", "apply", "-f", "-")
	run(ctx, "", "kubectl", "wait", "crd", "-l", "density", "--for=condition=Established", "--timeout=2m")
	for _, form := range []string{denseResident, denseAsleep} {
		log.Printf("%d operators: %s", operators, form)
		manifest, all, objects, namespaces := manifestOf(ctx, form), "", "", []string{}
		for i := range operators {
			namespaces = append(namespaces, namespace(form, i))
			all += ofKind(inNamespace(manifest, namespace(form, i)), i) + "\n---\n"
			objects += fmt.Sprintf("---\n%s\n", ofKind(objectOfKind, i, "NAMESPACE", namespace(form, i)))
		}
		var got crammed
		got.Empty = c.measure(ctx, func() { wait(ctx, before) })
		if got.Empty.Used[nodeItself].Pods == 0 {
			log.Fatal("density reads /proc/meminfo of the node: run it there")
		}
		got.Deploy = c.measure(ctx, func() {
			run(ctx, all, "kubectl", "apply", "-f", "-")
			await(ctx, "each operator has started once", func() bool { return c.started(form) >= operators })
			run(ctx, objects, "kubectl", "apply", "-f", "-")
			wait(ctx, settle)
			c.atZero(ctx)
		})
		got.Idle = c.measure(ctx, func() { wait(ctx, before) })
		got.Storm = c.measure(ctx, func() {
			got.Ran, got.Starting = c.storm(ctx, form, operators)
			c.atZero(ctx)
		})
		d.Forms[form] = got
		run(ctx, "", "kubectl", append([]string{"delete", "namespace"}, namespaces...)...)
	}
	run(ctx, kinds, "kubectl", "delete", "-f", "-")
	return d
}

const densityGroup = "density.reschedule.dev"

// kindOfNumber and objectOfKind are of the operator with the number 0.
const (
	kindOfNumber = `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: kind0s.` + densityGroup + `, labels: {density: "0"}}
spec:
  group: ` + densityGroup + `
  scope: Namespaced
  names: {plural: kind0s, singular: kind0, kind: Kind0}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`
	objectOfKind = `apiVersion: ` + densityGroup + `/v1
kind: Kind0
metadata: {name: one, namespace: NAMESPACE, labels: {` + lives + `: 24h}}`
)

// kindsOf returns the manifest of the kinds of so many operators.
func kindsOf(operators int) (manifest string) {
	for i := range operators {
		manifest += ofKind(kindOfNumber, i)
	}
	return manifest
}

// ofKind returns a manifest with the kind of a number, and other replacements.
func ofKind(manifest string, number int, replacements ...string) string {
	n := strconv.Itoa(number)
	return strings.NewReplacer(append(replacements, "kind0", "kind"+n, "Kind0", "Kind"+n)...).Replace(manifest)
}

// started returns how many namespaces of a form had a pod.
func (c *cluster) started(form string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	had := map[string]bool{}
	for _, pod := range c.pods {
		if podPart(pod) == form {
			had[pod.Namespace] = true
		}
	}
	return len(had)
}

// storm lets all objects expire at once. Each operator deletes its own.
func (c *cluster) storm(ctx context.Context, form string, operators int) (ran []float64, starting int) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	var deleting errgroup.Group
	begin, ends := make(chan time.Time), make(chan float64, operators)
	for i := range operators {
		objects := c.metadata.Resource(schema.GroupVersionResource{Group: densityGroup, Version: "v1", Resource: fmt.Sprintf("kind%ds", i)}).Namespace(namespace(form, i))
		changes, err := objects.Watch(ctx, metav1.ListOptions{})
		check(err)
		deleting.Go(func() error {
			began := <-begin
			if _, err := objects.Patch(ctx, "one", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+lives+`":"1s"}}}`), metav1.PatchOptions{}); err != nil {
				return err
			}
			for change := range changes.ResultChan() {
				if change.Type == watch.Deleted {
					ends <- time.Since(began).Seconds()
					return nil
				}
			}
			return fmt.Errorf("the operator in %s did not delete its object", namespace(form, i))
		})
	}
	now := time.Now()
	for range operators {
		begin <- now
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		check(deleting.Wait())
		close(ends)
	}()
	for done, tick := false, time.Tick(50*time.Millisecond); !done; {
		select {
		case <-over:
			done = true
		case <-tick:
			starting = max(starting, c.starting(form))
		}
	}
	for end := range ends {
		ran = append(ran, end)
	}
	slices.Sort(ran)
	return ran, starting
}

// starting returns how many pods of a form start.
func (c *cluster) starting(form string) (n int) {
	for _, object := range c.live.List() {
		pod := object.(*corev1.Pod)
		ready := slices.ContainsFunc(pod.Status.Conditions, func(is corev1.PodCondition) bool {
			return is.Type == corev1.PodReady && is.Status == corev1.ConditionTrue
		})
		if podPart(pod.ObjectMeta) == form && !ready && pod.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}
