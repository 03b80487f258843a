package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"log"
	"math/rand/v2"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// thinner is the step thin: forms that are awake, with many large objects of their kind.
type thinner struct {
	Conditions     string
	Objects, Bytes int
	Forms          map[string]crowd
}

// crowd is what an operator with many objects costs while its pod starts, and afterwards.
type crowd struct {
	Before, Starts, Idle *bill
	Ready                []float64 // seconds from a new pod to its work
}

// crowd creates the operator, and then its objects. Each start is of a new pod that finds all objects.
func (c *cluster) crowd(ctx context.Context, form string, of thinner, starts int, settle, before time.Duration) (got crowd) {
	ns := namespace(form, 0)
	log.Printf("%s: %d objects", ns, of.Objects)
	run(ctx, inNamespace(manifestOf(ctx, form), ns), "kubectl", "apply", "-f", "-")
	var creating errgroup.Group
	creating.SetLimit(8)
	random := rand.NewChaCha8([32]byte{})
	for i := range of.Objects {
		text := make([]byte, of.Bytes*3/4) // in base64 it is as large as it has to be, and no compression of a list makes it small
		random.Read(text)
		creating.Go(func() error {
			_, err := c.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("object-%d", i), Labels: map[string]string{lives: "8760h"}},
				Data:       map[string]string{"text": base64.StdEncoding.EncodeToString(text)},
			}, metav1.CreateOptions{})
			return err
		})
	}
	check(creating.Wait())
	wait(ctx, settle)
	got.Before = c.measure(ctx, func() { wait(ctx, before) })
	got.Starts = c.measure(ctx, func() {
		for range starts {
			got.Ready = append(got.Ready, c.restart(ctx, ns).Seconds())
			wait(ctx, before/4)
		}
	})
	wait(ctx, settle)
	got.Idle = c.measure(ctx, func() { wait(ctx, before) })
	run(ctx, "", "kubectl", "delete", "namespace", ns)
	return got
}

// restart deletes the pods of a namespace. It returns the time from a new pod to the line of
// its log that says that it is ready.
func (c *cluster) restart(ctx context.Context, ns string) time.Duration {
	pods, err := c.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	check(err)
	changes, err := c.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{ResourceVersion: pods.ResourceVersion})
	check(err)
	defer changes.Stop()
	check(c.CoreV1().Pods(ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	var name string
	var created time.Time
	for change := range changes.ResultChan() {
		pod, is := change.Object.(*corev1.Pod)
		if is && change.Type == watch.Added {
			name, created = pod.Name, time.Now()
		}
		if is && pod.Name == name && pod.Status.Phase == corev1.PodRunning {
			break
		}
	}
	logs, err := c.CoreV1().Pods(ns).GetLogs(name, &corev1.PodLogOptions{Follow: true, Timestamps: true}).Stream(ctx)
	check(err)
	defer logs.Close()
	for lines := bufio.NewScanner(logs); lines.Scan(); {
		if at, text, _ := strings.Cut(lines.Text(), " "); strings.HasSuffix(text, " ready") {
			ready, err := time.Parse(time.RFC3339Nano, at)
			check(err)
			return ready.Sub(created)
		}
	}
	log.Fatalf("%s/%s ended before it was ready", ns, name)
	return 0
}
