//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// operated has an operator look after ConfigMaps of a namespace, once they are
// watched: RescheduleSource → ksvc with three replicas. The source's spec is
// without its sink.
func operated(t *testing.T, name, spec string, rules ...rule) *source {
	t.Helper()
	n := newNamespace(t, name)
	n.account("operator", `[{apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]}]`)
	// With a limit the activator stands before the pods and gives each a run in
	// turn; without, a client that keeps connections to some would leave others out.
	serveWith(n, "operator", map[string]string{
		"autoscaling.knative.dev/min-scale": "3",
		"autoscaling.knative.dev/max-scale": "3",
	}, "serviceAccountName: operator, containerConcurrency: 10", rules...)
	s := n.source("objects", toKsvc("operator")+spec)
	eventually(t, patience, "three replicas are ready", func() error {
		pods, err := n.replicas("operator")
		if err != nil {
			return err
		}
		ready := slices.DeleteFunc(pods, func(p corev1.Pod) bool {
			return !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			})
		})
		if len(ready) != 3 {
			return fmt.Errorf("%d are", len(ready))
		}
		return nil
	})
	return s
}

// watchObjects makes an ApiServerSource of the ConfigMaps that are looked after.
func watchObjects(n *namespace, mode, sink string) {
	n.t.Helper()
	n.apply(fmt.Sprintf(`
apiVersion: sources.knative.dev/v1
kind: ApiServerSource
metadata: {name: objects}
spec:
  serviceAccountName: operator
  mode: %s
  resources: [{apiVersion: v1, kind: ConfigMap, selector: {matchLabels: {e2e: object}}}]
  sink: %s
`, mode, sink))
	n.ready(apiServerSource, "objects")
}

// ref is the source as a sink or subscriber.
func (s *source) ref() string {
	return "{ref: {apiVersion: sources.reschedule.dev/v1alpha1, kind: RescheduleSource, name: " + s.name + "}}"
}

// makeObject makes a ConfigMap that is looked after, and returns its version.
func makeObject(n *namespace, name string) string {
	n.t.Helper()
	o, err := n.Client.CoreV1().ConfigMaps(n.name).Create(n.t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"e2e": "object"}}}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return o.ResourceVersion
}

// changeObject writes something new into one, and returns its version.
func changeObject(n *namespace, name string, value int) string {
	n.t.Helper()
	o, err := n.Client.CoreV1().ConfigMaps(n.name).Patch(n.t.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"data":{"value":"%d"}}`, value), metav1.PatchOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return o.ResourceVersion
}

// runReport is what a function reported to the recorder about a run, at its start
// or its end.
type runReport struct {
	run
	at time.Time // by the recorder's clock
}

// runReports returns the starts and ends of runs in the order in which they happened,
// whatever the clocks of the functions say.
func runReports(n *namespace) ([]runReport, error) {
	records, err := n.recorded("/runs")
	if err != nil {
		return nil, err
	}
	all := make([]runReport, len(records))
	for i, r := range records {
		if err := json.Unmarshal(r.Body, &all[i].run); err != nil {
			return nil, fmt.Errorf("a run %s: %w", r.Body, err)
		}
		all[i].at = r.At
	}
	return all, nil
}

// last are the newest runs of keys that came to their end.
func last(all []runReport) map[string]runReport {
	of := map[string]runReport{}
	for _, r := range all {
		if !r.End.IsZero() {
			of[r.Key] = r
		}
	}
	return of
}

// awaitSeen waits until the newest run of each key has seen the version.
func awaitSeen(n *namespace, what string, versions map[string]string) {
	n.t.Helper()
	eventually(n.t, patience, what, func() error {
		all, err := runReports(n)
		if err != nil {
			return err
		}
		newest := last(all)
		var not []string
		for key, version := range versions {
			if r, ok := newest[key]; !ok || r.Seen != version || r.Status != 204 {
				not = append(not, fmt.Sprintf("%s: %s saw version %q, want %q", key, r, r.Seen, version))
			}
		}
		if len(not) > 0 {
			return fmt.Errorf("%d of %d have not: %s", len(not), len(versions), strings.Join(not[:min(len(not), 3)], "; "))
		}
		return nil
	})
}

// awaitCounts waits until so many keys wait for a time that has not come, and
// nothing else is there.
func (s *source) awaitCounts(what string, pending int) {
	s.t.Helper()
	eventually(s.t, patience, what, func() error {
		r, err := s.try("GET", "", "")
		if err != nil {
			return err // a new pod delivers a moment before the Service reaches it
		}
		var c harness.Counts
		if r.Into(s.t, &c); r.Status != 200 || c.Pending != pending || c.Due != 0 || c.InFlight != 0 {
			return fmt.Errorf("%d %+v", r.Status, c)
		}
		return nil
	})
}

// spread is where runs took place.
type spread struct {
	runs  int
	pods  map[string]bool
	keys  map[string]map[string]bool // the pods of a key
	most  int                        // runs under way at a time
	total time.Duration              // from the first start to the last end
}

// oneAtATime fails if a run of a key began before the previous run had ended.
func oneAtATime(t *testing.T, all []runReport) spread {
	t.Helper()
	s := spread{pods: map[string]bool{}, keys: map[string]map[string]bool{}}
	under := map[string]runReport{}
	var overlaps []string
	for _, r := range all {
		if !r.End.IsZero() {
			if under[r.Key].Run == r.Run {
				delete(under, r.Key)
			}
			continue
		}
		if before, ok := under[r.Key]; ok {
			overlaps = append(overlaps, fmt.Sprintf("%s in %s, %s after one in %s", r.Key, r.Pod, r.at.Sub(before.at), before.Pod))
		}
		under[r.Key] = r
		if s.keys[r.Key] == nil {
			s.keys[r.Key] = map[string]bool{}
		}
		s.keys[r.Key][r.Pod], s.pods[r.Pod] = true, true
		s.runs++
		s.most = max(s.most, len(under))
	}
	if n := len(overlaps); n > 0 {
		t.Errorf("%d runs began while one of the same key was under way: %s", n, strings.Join(overlaps[:min(n, 3)], "; "))
	}
	if len(all) > 0 {
		s.total = all[len(all)-1].at.Sub(all[0].at)
	}
	return s
}

// Changes of objects collapse and the last state of each is seen by one replica at a time.
func TestChanges_CollapseToTheLastState(t *testing.T) {
	beside(t)
	const objects, changes = 20, 10
	for mode, c := range map[string]struct {
		spec   string
		key    string // of an object, with NAMESPACE and NAME
		prefix string // of the types of its events
	}{
		// The key is the event's subject, as that is when the source says none.
		"Resource": {"", "/apis/v1/namespaces/NAMESPACE/configmaps/NAME", "dev.knative.apiserver.resource."},
		"Reference": {
			"ingest: {key: \"event.kind + '/' + event.namespace + '/' + event.name\"}\n",
			"ConfigMap/NAMESPACE/NAME", "dev.knative.apiserver.ref.",
		},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			// With a resync in an hour, the keys of objects that are there wait.
			s := operated(t, "collapse", c.spec+"maxInterval: 1h\n", rule{"", behaviour{Read: "configmaps", Work: "1s"}})
			watchObjects(s.namespace, mode, s.ref())
			keyOf := func(name string) string {
				return strings.NewReplacer("NAMESPACE", s.namespace.name, "NAME", name).Replace(c.key)
			}
			names := make([]string, objects)
			versions := map[string]string{}
			for i := range names {
				names[i] = fmt.Sprintf("object-%02d", i)
				versions[keyOf(names[i])] = makeObject(s.namespace, names[i])
			}
			awaitSeen(s.namespace, "each object was seen", versions)
			s.awaitCounts("each object waits for its resync", objects)
			before, err := runReports(s.namespace)
			if err != nil {
				t.Fatal(err)
			}

			// Runs take long beside a change, also on a slow machine: else there is nothing to collapse.
			// Objects change in bursts, as when a user applies or a status settles.
			random(t).Shuffle(objects, func(i, j int) { names[i], names[j] = names[j], names[i] })
			began := time.Now()
			for _, name := range names {
				for i := range changes {
					versions[keyOf(name)] = changeObject(s.namespace, name, i)
				}
			}
			took := time.Since(began)
			awaitSeen(s.namespace, "the last state of each object was seen", versions)
			s.awaitCounts("each object waits for its resync", objects)
			all, err := runReports(s.namespace)
			if err != nil {
				t.Fatal(err)
			}
			during := oneAtATime(t, all[len(before):])
			t.Logf("%d changes of %d objects in %s: %d runs of 1 s in %d pods, at most %d at a time, over %s",
				objects*changes, objects, took.Round(time.Millisecond), during.runs, len(during.pods), during.most, during.total.Round(time.Millisecond))
			if during.runs > objects*changes/2 {
				t.Errorf("%d changes made %d runs: they did not collapse", objects*changes, during.runs)
			}
			if whole := oneAtATime(t, all); len(whole.pods) != 3 || whole.most < 2 {
				t.Errorf("runs were in %d pods, %d at a time: the replicas did not share the work", len(whole.pods), whole.most)
			} else if !slices.ContainsFunc(slices.Collect(maps.Values(whole.keys)), func(pods map[string]bool) bool { return len(pods) > 1 }) {
				t.Errorf("no key ran in two pods")
			}
			for key, r := range last(all) {
				if r.Type != c.prefix+"update" || r.attr("reschedulekey") != key {
					t.Errorf("the last run of %s is of type %s and key %s", key, r.Type, r.attr("reschedulekey"))
				}
				if want := "/apis/v1/namespaces/" + s.namespace.name + "/configmaps/" + r.attr("name"); r.attr("subject") != want {
					t.Errorf("the subject of %s is %q, want %q", key, r.attr("subject"), want)
				}
				if mode != "Resource" {
					continue
				}
				var object corev1.ConfigMap
				if err := json.Unmarshal(r.Data, &object); err != nil {
					t.Fatal(err)
				}
				if object.ResourceVersion != versions[key] {
					t.Errorf("the last event of %s has version %s, want the version of the last change, %s", key, object.ResourceVersion, versions[key])
				}
			}

			// What is gone is seen to be gone, and not looked after any more.
			for _, name := range names {
				if err := s.Client.CoreV1().ConfigMaps(s.namespace.name).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				versions[keyOf(name)] = ""
			}
			awaitSeen(s.namespace, "each object was seen to be gone", versions)
			s.awaitCounts("nothing waits for a resync", 0)
			if all, err = runReports(s.namespace); err != nil {
				t.Fatal(err)
			}
			for key, r := range last(all) {
				if r.Type != c.prefix+"delete" {
					t.Errorf("the last run of %s is of type %s", key, r.Type)
				}
			}
			oneAtATime(t, all)
		})
	}
}

// A failing key backs off without holding up the others.
func TestChanges_FailingKeyDelaysNoOther(t *testing.T) {
	beside(t)
	const (
		others   = 10
		failures = 5
		delay    = time.Second
	)
	s := operated(t, "failing", "ingest: {key: event.name}\ndelivery: {backoffDelay: PT1S}\n",
		rule{"broken", behaviour{Read: "configmaps", Status: 500, Failures: failures}},
		rule{"", behaviour{Read: "configmaps", Work: "300ms"}})
	watchObjects(s.namespace, "Reference", s.ref())
	versions := map[string]string{}
	for i := range others {
		name := fmt.Sprintf("object-%02d", i)
		versions[name] = makeObject(s.namespace, name)
	}
	awaitSeen(s.namespace, "each object was seen", versions)

	makeObject(s.namespace, "broken")
	attempts := func() (starts, ends []runReport, all []runReport) {
		all, err := runReports(s.namespace)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			switch {
			case r.Key != "broken":
			case r.End.IsZero():
				starts = append(starts, r)
			default:
				ends = append(ends, r)
			}
		}
		return starts, ends, all
	}
	var starts, ends, all []runReport
	rounds := 0
	for deadline := time.Now().Add(patience); len(ends) < failures; rounds++ {
		if time.Now().After(deadline) {
			t.Fatalf("%d attempts after %s and %d rounds of the others: %v", len(ends), patience, rounds, ends)
		}
		for name := range versions {
			versions[name] = changeObject(s.namespace, name, rounds)
		}
		awaitSeen(s.namespace, "the others are looked after", versions)
		starts, ends, all = attempts()
	}
	if now := s.scheduled("broken"); now == nil || now.Attempt == nil || *now.Attempt != failures || now.State != "due" {
		t.Errorf("after %d failures it is %+v", failures, now)
	}
	for n := 1; n < failures; n++ {
		// To the answer of the run before, there was a moment more.
		gap, backoff := starts[n].at.Sub(ends[n-1].at), delay<<(n-1)
		meanwhile := 0
		for _, r := range all {
			if r.Key != "broken" && !r.End.IsZero() && r.at.After(ends[n-1].at) && r.at.Before(starts[n].at) {
				meanwhile++
			}
		}
		t.Logf("attempt %d after %s, back-off %s; meanwhile %d runs of others", starts[n].Attempt, gap.Round(time.Millisecond), backoff, meanwhile)
		if starts[n].Attempt != n || starts[n].ID != starts[0].ID || !starts[n].DueAt.Equal(starts[0].DueAt) {
			t.Errorf("attempt %d is %s", n, starts[n])
		}
		if gap < backoff {
			t.Errorf("attempt %d began %s after the previous attempt, want at least %s", n, gap, backoff)
		}
		if n == failures-1 && meanwhile < others {
			t.Errorf("only %d runs of others in the %s before attempt %d", meanwhile, gap, n)
		}
	}
	var late []run
	for _, r := range all {
		if r.Key != "broken" && r.End.IsZero() {
			late = append(late, r.run)
		}
	}
	t.Logf("%d rounds of the others; they began after their time: %s", rounds, lateness(late))

	// A change does not wait for the back-off: it may be what mends the object.
	repaired := changeObject(s.namespace, "broken", 1)
	versions["broken"] = repaired
	awaitSeen(s.namespace, "the repaired object was seen", map[string]string{"broken": repaired})
	starts, ends, all = attempts()
	if len(ends) != failures+1 || starts[failures].Attempt != failures {
		t.Fatalf("%d attempts: %v", len(ends), starts)
	}
	gap, backoff := starts[failures].at.Sub(ends[failures-1].at), delay<<(failures-1)
	t.Logf("attempt %d, after a change, came after %s, back-off %s", failures, gap.Round(time.Millisecond), backoff)
	if gap >= backoff {
		t.Errorf("a change waited for the back-off: %s", gap)
	}
	s.awaitCounts("nothing is left", 0)
	oneAtATime(t, all)
}
