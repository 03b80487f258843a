package main

import (
	"cmp"
	"context"
	"log"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The parts of the bill: costs are added up for each.
const (
	resident   = "resident"   // the operator that runs all the time
	serverless = "serverless" // the operator at zero, as its manifest has it: its source watches
	warmed     = "warmed"     // the same with warm-up
	defaults   = "defaults"   // the same with Knative's own settings
	fed        = "fed"        // the same behind an ApiServerSource of its own
	shared     = "shared"     // the same behind an ApiServerSource for many, with a Broker in between

	watcher       = "watcher"        // an ApiServerSource's pod, for one operator
	sharedWatcher = "shared watcher" // for many

	adapter    = "adapter"    // RescheduleSource's data plane
	controller = "controller" // RescheduleSource's control plane

	activator  = "activator"
	autoscaler = "autoscaler"
	serving    = "serving" // the rest of Knative Serving
	ingress    = "ingress"
	eventing   = "eventing" // Knative Eventing without its Broker
	broker     = "broker"   // Knative's own Broker on in-memory channels

	kubernetesItself = "kubernetes" // the processes of the node and of the control plane
)

// namespacePrefix begins the name of every namespace that this program makes.
const namespacePrefix = "expiry-"

// ingressNamespaces has the namespaces of the ingresses that Knative documents, and of Traefik.
var ingressNamespaces = []string{"kourier-system", "istio-system", "contour-external", "contour-internal", "traefik"}

// part returns the part of a subject, or "" for a pod of another application,
// which is not counted.
func part(s subject, pod metav1.ObjectMeta) string {
	of := podPart(pod)
	switch {
	case s.kind == processOf:
		return kubernetesItself
	case s.kind == shimOf && of != "":
		return shimOf + " " + of
	}
	return of
}

func podPart(pod metav1.ObjectMeta) string {
	component := pod.Labels["app.kubernetes.io/component"]
	form, found := formOf(pod.Namespace)
	fromSource := pod.Labels["eventing.knative.dev/source"] != ""
	has := func(prefix string) bool { return strings.HasPrefix(pod.Name, prefix) }
	in := func(namespace string) bool { return pod.Namespace == namespace }
	switch {
	case found && fromSource && form == shared:
		return sharedWatcher
	case found && fromSource:
		return watcher
	case found:
		return form
	case slices.Contains(ingressNamespaces, pod.Namespace):
		return ingress
	case in("knative-serving") && has(activator):
		return activator
	case in("knative-serving") && has(autoscaler+"-") && !has("autoscaler-hpa"):
		return autoscaler
	case in("knative-serving") && (strings.Contains(pod.Name, "gateway") || strings.Contains(pod.Name, "traefik")):
		return ingress
	case in("knative-serving"):
		return serving
	case in("knative-eventing") && component == "reschedule-adapter":
		return adapter
	case in("knative-eventing") && component == "reschedule-controller":
		return controller
	case in("knative-eventing") && (has("imc-") || has("mt-broker-")):
		return broker
	case in("knative-eventing"):
		return eventing
	}
	return ""
}

// sample is a reading at an instant, in seconds of the record.
type sample struct {
	at float64
	reading
}

// series are the samples of one subject, oldest first.
type series []sample

// cost is memory over time, and CPU time.
type cost struct {
	Memory float64 // byte-seconds of its own
	Text   float64 // byte-seconds of mapped programs
	CPU    float64 // seconds
}

func (c cost) plus(other cost) cost {
	return cost{c.Memory + other.Memory, c.Text + other.Text, c.CPU + other.CPU}
}

func (c cost) times(n float64) cost { return cost{c.Memory * n, c.Text * n, c.CPU * n} }

// bytes returns all memory.
func (c cost) bytes() float64 { return c.Memory + c.Text }

// between returns the cost from one instant to another, with straight lines
// between the samples. A subject that is not older than the record had used
// nothing when it started.
func (s series) between(from, to float64, older bool) cost {
	var c cost
	for i := 1; i < len(s); i++ {
		start, end := max(s[i-1].at, from), min(s[i].at, to)
		if start >= end {
			continue
		}
		x, y := along(s[i-1], s[i], start), along(s[i-1], s[i], end)
		half := (end - start) / 2
		c = c.plus(cost{(x.memory + y.memory) * half, (x.text + y.text) * half, max(y.cpu-x.cpu, 0)}) // a restarted process begins at 0
	}
	if len(s) > 0 && !older && s[0].at >= from && s[0].at < to {
		c.CPU += s[0].cpu
	}
	return c
}

// along returns the reading at an instant between two samples.
func along(a, b sample, at float64) reading {
	share := (at - a.at) / (b.at - a.at)
	return reading{a.cpu + (b.cpu-a.cpu)*share, a.memory + (b.memory-a.memory)*share, a.text + (b.text-a.text)*share}
}

// record has the readings over time, and the pods of them.
type record struct {
	began  time.Time
	read   meter
	series map[subject]series
	older  map[subject]bool // existed when the record began
	pods   map[string]metav1.ObjectMeta
	missed int // readings that failed
}

func newRecord(read meter) *record {
	return &record{read: read, series: map[subject]series{}, older: map[subject]bool{}, pods: map[string]metav1.ObjectMeta{}}
}

// seconds returns an instant in seconds of the record.
func (r *record) seconds(at time.Time) float64 { return at.Sub(r.began).Seconds() }

// keep reads at an interval until ctx ends. A failed reading leaves a gap.
func (r *record) keep(ctx context.Context, c cluster, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		err := r.once(ctx)
		if err == nil && i%4 == 0 {
			err = r.name(ctx, c)
		}
		if err != nil && ctx.Err() == nil {
			r.missed++
			log.Print(err)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// once adds a reading of all subjects.
func (r *record) once(ctx context.Context) error {
	readings, err := r.read(ctx)
	if err != nil {
		return err
	}
	now, first := time.Now(), r.began.IsZero()
	if first {
		r.began = now
	}
	for s, read := range readings {
		if first {
			r.older[s] = true
		}
		r.series[s] = append(r.series[s], sample{r.seconds(now), read})
	}
	return nil
}

// name learns the names of the pods of the readings.
func (r *record) name(ctx context.Context, c cluster) error {
	pods, err := c.pods(ctx)
	for _, pod := range pods {
		r.pods[string(pod.UID)] = pod.ObjectMeta
	}
	return err
}

// usage is the cost of one subject.
type usage struct {
	part string
	pod  metav1.ObjectMeta
	subject
	cost
	seconds  float64 // that it existed
	complete bool    // the time has its whole life
}

// between returns the cost of all subjects that belong to a part.
func (r *record) between(began, ended time.Time) []usage {
	from, to := r.seconds(began), r.seconds(ended)
	bySubject := func(a, b subject) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name)) }
	var all []usage
	for _, s := range slices.SortedFunc(maps.Keys(r.series), bySubject) {
		samples := r.series[s]
		first, last := samples[0].at, samples[len(samples)-1].at
		u := usage{part: part(s, r.pods[s.name]), pod: r.pods[s.name], subject: s, seconds: min(last, to) - max(first, from)}
		if u.part == "" || u.seconds <= 0 {
			continue
		}
		u.cost = samples.between(from, to, r.older[s])
		u.complete = !r.older[s] && first >= from && last < to-3
		all = append(all, u)
	}
	return all
}

// trace returns the memory of the pods of a part in a namespace, at an interval: seconds and bytes.
func (r *record) trace(began, ended time.Time, every float64, form, ns string) (points [][2]float64) {
	from, to := r.seconds(began), r.seconds(ended)
	for at := from; at <= to; at += every {
		sum := 0.0
		for s, samples := range r.series {
			if pod := r.pods[s.name]; s.kind != podOf || pod.Namespace != ns || podPart(pod) != form {
				continue
			}
			for i := range samples {
				if samples[i].at == at {
					sum += samples[i].memory + samples[i].text
				} else if i > 0 && samples[i-1].at < at && at < samples[i].at {
					between := along(samples[i-1], samples[i], at)
					sum += between.memory + between.text
				}
			}
		}
		points = append(points, [2]float64{at - from, sum})
	}
	return points
}
