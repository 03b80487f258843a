package command

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
	"github.com/reschedule-dev/reschedule/pkg/duration"
	"github.com/reschedule-dev/reschedule/sdk"
)

var podMetrics = schema.GroupVersionResource{Group: "metrics.k8s.io", Version: "v1beta1", Resource: "pods"}

// many is how many starts an hour are worth a slack.
const many = 12

const megabyte = 1e6

// saving is a row of savings.
type saving struct {
	Namespace       string  `json:"namespace"`
	Name            string  `json:"name"`
	Workload        string  `json:"workload"`
	Mode            string  `json:"mode"`
	ObservedSeconds int64   `json:"observedSeconds"`
	AsleepShare     float64 `json:"asleepShare"` // 0 to 1
	Starts          int64   `json:"starts"`
	StartsAnHour    float64 `json:"startsAnHour"`
	LastStart       string  `json:"lastStart,omitempty"`
	// MemoryBytes is of all replicas while awake; 0 = unknown. MemoryFrom is flag, metrics, request or unknown.
	MemoryBytes int64   `json:"memoryBytes,omitempty"`
	MemoryFrom  string  `json:"memoryFrom"`
	SavedMB     float64 `json:"savedMB"` // on average
	SavedMBh    float64 `json:"savedMBh"`
	// What a workload does while it would sleep, with mode Observe and without a sink.
	QuietRuns         int64  `json:"quietRuns,omitempty"`
	QuietEverySeconds int64  `json:"quietEverySeconds,omitempty"`
	Requeues          int64  `json:"requeues,omitempty"`
	Advice            string `json:"advice,omitempty"`
}

// savings is the command of that name.
func newSavings(p *program) *cobra.Command {
	var o *output
	var all bool
	var memory string
	c := p.command("savings [NAME...]", "Show what sleeping workloads save, or with mode Observe would save", `
$ savings
$ savings websites --memory 40Mi`,
		nil, func(cmd *cobra.Command, args []string) error {
			s, err := p.session()
			if err != nil {
				return err
			}
			defer s.close()
			if err := allOrNames(all, args); err != nil {
				return err
			}
			if err := s.cluster("savings", "no workload is scaled"); err != nil {
				return err
			}
			given := int64(0)
			if memory != "" {
				q, err := resource.ParseQuantity(memory)
				if err != nil || q.Sign() <= 0 {
					return usage("--memory: %q is not an amount of memory such as 40Mi", memory)
				}
				given = q.Value()
			}
			rows, err := inspector{s}.savings(cmd.Context(), args, all, given)
			if err != nil {
				return err
			}
			return p.printSavings(o, rows, all)
		})
	c.Long = c.Short + `, since the source exists.

The memory of a workload is --memory, or what metrics.k8s.io measures while it is awake, or
else the memory that its pods request; MEMORY says which. The adapter's own memory, which
all sources share, is not subtracted. While the adapter does not answer, the figures are of
the status, which may be an hour old for a workload that sleeps. A slack is suggested where a workload starts more than
12 times an hour: keys then wait for each other.`
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "the sources of all namespaces")
	c.Flags().StringVar(&memory, "memory", "", "memory of each replica, such as 40Mi, instead of what is measured or requested")
	c.ValidArgsFunction = p.completeSources
	o = outputFlags(c, "json", "yaml", "name", "ndjson")
	return c
}

// savings are the rows of the sources that have a workload.
func (s inspector) savings(ctx context.Context, names []string, all bool, memory int64) ([]saving, error) {
	objects, err := s.chosen(ctx, names, all)
	if err != nil {
		return nil, err
	}
	var scaled []*object
	for _, o := range objects {
		switch {
		case o.Spec.Scale != nil:
			scaled = append(scaled, o)
		case len(names) > 0:
			return nil, usage("source %s has no spec.scale: see create --scale and create --observe", o.Name)
		}
	}
	rows := make([]saving, len(scaled))
	concurrently(len(scaled), func(i int) {
		o := scaled[i]
		bytes, from := memory*replicas(o), "flag"
		if memory == 0 {
			bytes, from = s.memory(ctx, o)
		}
		rows[i] = savingOf(o, s.figures(ctx, o, scaled), bytes, from)
	})
	return rows, interrupted(ctx)
}

// figures are what the adapter answers, or else what the status says; nil: nothing is known yet.
func (s inspector) figures(ctx context.Context, o *object, others []*object) *sdk.Scale {
	if src, err := s.connect(ctx, o, others); err == nil {
		if n, err := src.Counts(ctx); err == nil && n.Scale != nil {
			return n.Scale
		}
	}
	if o.Status.Scale == nil {
		return nil
	}
	return &o.Status.Scale.Scale
}

func replicas(o *object) int64 {
	if n := o.Spec.Scale.Replicas; n != nil {
		return *n
	}
	return 1
}

func savingOf(o *object, n *sdk.Scale, bytes int64, from string) saving {
	scale := o.Spec.Scale
	row := saving{
		Namespace: o.Namespace, Name: o.Name, Workload: scale.TargetRef.Kind + "/" + scale.TargetRef.Name,
		Mode: cmp.Or(scale.Mode, "Auto"), MemoryBytes: bytes, MemoryFrom: from,
	}
	if n == nil || n.ObservedSeconds <= 0 {
		row.Advice = "nothing was observed yet"
		return row
	}
	hours := float64(n.ObservedSeconds) / 3600
	row.ObservedSeconds, row.Starts, row.LastStart = n.ObservedSeconds, n.Starts, n.LastStart
	row.AsleepShare, row.StartsAnHour = asleepShare(n), float64(n.Starts)/hours
	row.SavedMB = row.AsleepShare * float64(bytes) / megabyte
	row.SavedMBh = row.SavedMB * hours
	row.QuietRuns, row.QuietEverySeconds, row.Requeues = n.QuietRuns, n.QuietEverySeconds, n.Requeues
	if n.Reason != "" {
		row.Advice = n.Reason + ": see why"
		return row
	}
	var advice []string
	if text := timers(o, n); text != "" {
		advice = append(advice, text)
	}
	if row.StartsAnHour > many && n.ObservedSeconds >= 600 && noSlack(o.Spec.Slack) {
		// A start at random times, and then none for a slack of the mean time between two: half as many.
		advice = append(advice, fmt.Sprintf("slack: %s would halve the wakes", rounded(time.Duration(float64(time.Hour)/row.StartsAnHour))))
	}
	row.Advice = strings.Join(advice, "; ")
	return row
}

// timers is the advice on timers inside of a workload without a sink, which end when it sleeps.
func timers(o *object, n *sdk.Scale) string {
	if w := o.workload(); !w.Sinkless || w.Mode != "Observe" {
		return ""
	}
	every := max(time.Duration(n.QuietEverySeconds)*time.Second, time.Second)
	most, _ := duration.Parse(o.Spec.MaxInterval) // 0: there is none
	switch {
	case n.QuietRuns > 1 && (most == 0 || most > every*3/2):
		return fmt.Sprintf("reconciles every %[1]s without a change: set maxInterval to %[1]s", rounded(every))
	case n.QuietRuns <= 1 && n.Requeues > 0 && most == 0:
		return "its reconciles ask for RequeueAfter: observe longer"
	}
	return ""
}

func noSlack(text string) bool {
	d, err := duration.Parse(text)
	return text == "" || err == nil && d == 0
}

// rounded is a duration in whole minutes or tens of seconds, as a person would write it.
func rounded(d time.Duration) string {
	step := 10 * time.Second
	if d >= 2*time.Minute {
		step = time.Minute
	}
	d = max(d.Round(step), step)
	switch {
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}

// asleepShare is the share of the time in which the workload was asleep, 0 to 1.
func asleepShare(s *sdk.Scale) float64 {
	if s.ObservedSeconds <= 0 {
		return 0
	}
	return max(0, 1-float64(s.AwakeSeconds)/float64(s.ObservedSeconds))
}

func percent(s *sdk.Scale) string { return fmt.Sprintf("%.1f%%", 100*asleepShare(s)) }

func (e *env) printSavings(o *output, rows []saving, all bool) error {
	names := columns("Name", "Workload", "Mode", "Asleep", "Of", "Starts", "An hour", "Last start", "Memory", "Saves MB", "Saved MBh", "Advice")
	if all {
		names = append(columns("Namespace"), names...)
	}
	l := o.list(e.out, "reschedulesource.sources.reschedule.dev/", names)
	for _, r := range rows {
		memory := r.MemoryFrom
		if r.MemoryBytes > 0 {
			memory = fmt.Sprintf("%.1f MB (%s)", float64(r.MemoryBytes)/megabyte, r.MemoryFrom)
		}
		row := []any{
			r.Name, r.Workload, r.Mode, fmt.Sprintf("%.1f%%", 100*r.AsleepShare), why.Short(time.Duration(r.ObservedSeconds) * time.Second), r.Starts,
			fmt.Sprintf("%.1f", r.StartsAnHour), dash(r.LastStart), memory, "-", "-", r.Advice,
		}
		if r.MemoryBytes > 0 {
			row[9], row[10] = fmt.Sprintf("%.1f", r.SavedMB), fmt.Sprintf("%.1f", r.SavedMBh)
		}
		if all {
			row = append([]any{r.Namespace}, row...)
		}
		if err := l.add(r, r.Name, row...); err != nil {
			return err
		}
	}
	return l.end(e.err, "No source has a workload (spec.scale).")
}

// memory is what all replicas of a workload take: as measured, or else as its pods request.
func (s inspector) memory(ctx context.Context, o *object) (bytes int64, from string) {
	target, err := s.workloadOf(ctx, o.Namespace, o.Spec.Scale.TargetRef)
	if err != nil {
		return 0, "unknown"
	}
	if bytes := s.measuredMemory(ctx, target); bytes > 0 {
		return bytes * replicas(o), "metrics"
	}
	var sum int64
	for _, c := range containers(target) {
		text, _, _ := unstructured.NestedString(c, "resources", "requests", "memory")
		if q, err := resource.ParseQuantity(text); err == nil {
			sum += q.Value()
		}
	}
	if sum > 0 {
		return sum * replicas(o), "request"
	}
	return 0, "unknown"
}

// containers are the containers of the workload's pods.
func containers(target *unstructured.Unstructured) (found []map[string]any) {
	all, _, _ := unstructured.NestedSlice(target.Object, "spec", "template", "spec", "containers")
	for _, c := range all {
		if c, ok := c.(map[string]any); ok {
			found = append(found, c)
		}
	}
	return found
}

// measuredMemory is the most memory of a pod of the workload that metrics.k8s.io has; 0: it has none.
func (s inspector) measuredMemory(ctx context.Context, target *unstructured.Unstructured) (most int64) {
	matching, found, _ := unstructured.NestedStringMap(target.Object, "spec", "selector", "matchLabels")
	if !found || len(matching) == 0 {
		return 0
	}
	pods, err := s.api.Resource(podMetrics).Namespace(target.GetNamespace()).List(ctx, metav1.ListOptions{LabelSelector: labels.Set(matching).String(), Limit: 100})
	if err != nil {
		return 0
	}
	for i := range pods.Items {
		var sum int64
		all, _, _ := unstructured.NestedSlice(pods.Items[i].Object, "containers")
		for _, c := range all {
			c, _ := c.(map[string]any)
			text, _, _ := unstructured.NestedString(c, "usage", "memory")
			if q, err := resource.ParseQuantity(text); err == nil {
				sum += q.Value()
			}
		}
		most = max(most, sum)
	}
	return most
}

// workloadOf reads a workload, of any kind that the API server has.
func (s inspector) workloadOf(ctx context.Context, namespace string, ref workloadRef) (*unstructured.Unstructured, error) {
	resource, err := s.resourceOf(ref)
	if err != nil {
		return nil, err
	}
	return s.api.Resource(resource).Namespace(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
}

func (s inspector) resourceOf(ref workloadRef) (found schema.GroupVersionResource, err error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return found, err
	}
	client, err := discovery.NewDiscoveryClientForConfig(s.config)
	if err != nil {
		return found, err
	}
	list, err := client.ServerResourcesForGroupVersion(ref.APIVersion)
	if err != nil {
		return found, err
	}
	for _, r := range list.APIResources {
		if r.Kind == ref.Kind && r.Namespaced && !subresource(r.Name) {
			return gv.WithResource(r.Name), nil
		}
	}
	return found, fmt.Errorf("the API server has no %s in %s", ref.Kind, ref.APIVersion)
}
