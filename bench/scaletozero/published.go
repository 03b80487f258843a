package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/reschedule-dev/reschedule/bench/report"
)

// publishedOnes are the operators of test/published, namespace and Deployment, with an object of each, which is
// changed while they sleep.
var publishedOnes = []struct{ namespace, deployment, group string }{
	{"cert-manager", "cert-manager-cainjector", "cert-manager"},
	{"cert-manager", "cert-manager", "cert-manager"},
	{"flux-system", "source-controller", "flux"},
	{"flux-system", "kustomize-controller", "flux"},
	{"external-secrets", "external-secrets", "external-secrets"},
	{"external-secrets", "external-secrets-cert-controller", "external-secrets"},
	{"prometheus-operator", "prometheus-operator", "prometheus-operator"},
	{"kuberay", "kuberay-operator", "kuberay"},
	{"kopf", "kopfexample-operator", "kopf"},
	{"josdk", "webpages", "josdk"},
}

// published is the step of that name: operators that others wrote, as test/published/install.sh has installed them,
// resident, and then asleep by sources that the command line made.
type published struct {
	Conditions       string
	Resident, Asleep *bill
	Starts           map[string]int64 // by Deployment
}

// published measures each form for so long. In a third and in two thirds of the time asleep the samples of
// all are changed.
func (c *cluster) published(ctx context.Context, each time.Duration) *published {
	p := &published{Conditions: c.conditions(ctx), Starts: map[string]int64{}}
	groups := map[string]bool{}
	for _, o := range publishedOnes {
		groups[o.group] = true
	}
	sample := func(group string) string { return repo + "/bin/published/" + group + "/sample.yaml" }
	run(ctx, "{apiVersion: v1, kind: Namespace, metadata: {name: published}}", "kubectl", "apply", "-f", "-")
	for group := range groups {
		run(ctx, "", "kubectl", "apply", "-f", sample(group))
	}
	wait(ctx, time.Minute)
	p.Resident = c.measure(ctx, func() { wait(ctx, each) })
	cli := func(args ...string) {
		log.Print(run(ctx, "", "go", append([]string{"-C", repo + "/cli", "run", "."}, args...)...))
	}
	for _, o := range publishedOnes {
		account := []string{}
		if o.group == "flux" { // theirs may do everything
			account = []string{"--scale-service-account", "scaler"}
		}
		cli(append([]string{"create", o.deployment, "--namespace", o.namespace, "--observe", "deployment/" + o.deployment}, account...)...)
	}
	wait(ctx, time.Minute) // Observe says which metrics cannot be used
	for _, o := range publishedOnes {
		correct(ctx, o.namespace, o.deployment)
		cli("update", o.deployment, "--namespace", o.namespace, "--scale-mode", "Auto")
	}
	p.Asleep = c.measure(ctx, func() {
		for range 2 {
			wait(ctx, each/3)
			for group := range groups {
				run(ctx, "", "kubectl", "annotate", "--overwrite", "-f", sample(group), fmt.Sprintf("touched=%d", time.Now().Unix()))
			}
		}
		wait(ctx, each/3)
	})
	for _, o := range publishedOnes {
		var source struct {
			Status struct{ Scale struct{ Starts int64 } }
		}
		check(json.Unmarshal([]byte(run(ctx, "", "kubectl", "-n", o.namespace, "get", "reschedulesource", o.deployment, "-o", "json")), &source))
		p.Starts[o.deployment] = source.Status.Scale.Starts
		run(ctx, "", "kubectl", "-n", o.namespace, "delete", "reschedulesource", o.deployment)
	}
	return p
}

// correct does what a user would who has read what the command printed: metrics that say nothing are not used, and
// Pods are left out, which the operators here make or watch by a label: the pods of other operators would wake it.
func correct(ctx context.Context, namespace, name string) {
	source := new(unstructured.Unstructured)
	check(json.Unmarshal([]byte(run(ctx, "", "kubectl", "-n", namespace, "get", "reschedulesource", name, "-o", "json")), source))
	if reason, _, _ := unstructured.NestedString(source.Object, "status", "scale", "reason"); reason == "NoMetrics" {
		run(ctx, "", "kubectl", "-n", namespace, "patch", "reschedulesource", name, "--type", "merge", "--patch", `{"spec":{"scale":{"busy":null,"cooldown":"30s"}}}`)
	}
	kinds, _, err := unstructured.NestedSlice(source.Object, "spec", "watch", "resources")
	check(err)
	kinds = slices.DeleteFunc(kinds, func(k any) bool { return k.(map[string]any)["kind"] == "Pod" })
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"watch": map[string]any{"resources": kinds}}})
	check(err)
	run(ctx, "", "kubectl", "-n", namespace, "patch", "reschedulesource", name, "--type", "merge", "--patch", string(patch))
}

// overTime draws the memory of the pods and of Kubernetes.
func (p *published) overTime() report.Chart {
	c := report.Chart{Title: fmt.Sprintf("Memory of a node with %d operators that others wrote", len(publishedOnes)), Y: "MB, Kubernetes included",
		X: "minutes; measured; two times the objects of all are changed"}
	for _, l := range []struct {
		label string
		bill  *bill
	}{{"resident", p.Resident}, {"asleep", p.Asleep}} {
		c.Lines = append(c.Lines, l.label, points(l.bill.Traces[withoutKnative], 1.0/60, 0, 0))
	}
	return c
}

// Row is what the node used, the pods of operators that came and went, and the starts.
func (p *published) Row() string {
	starts := int64(0)
	for _, n := range p.Starts {
		starts += n
	}
	return fmt.Sprintf("%d | %.0f | %.0f | %.0f | %d | %.0f", len(publishedOnes), p.Resident.mean()/1e6, p.Asleep.least()/1e6, p.Asleep.mean()/1e6, starts, p.Asleep.Seconds/60)
}

// least is the least memory of the pods and of Kubernetes at a time, mean is the mean over the time; in bytes.
func (b *bill) least() float64 {
	least := math.Inf(1)
	for _, p := range b.Traces[withoutKnative] {
		least = min(least, p[1])
	}
	return least
}

func (b *bill) mean() (sum float64) {
	trace := b.Traces[withoutKnative]
	for _, p := range trace {
		sum += p[1] / float64(len(trace))
	}
	return sum
}
