//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// configWatcherExample is a module of its own.
const configWatcherExample = "sdk/examples/config-watcher"

var configWatcher = schema.GroupVersionKind{Group: "k8spatterns.com", Version: "v1", Kind: "ConfigWatcher"}

// watchedApp is the sample of the example, with its operator beside it.
type watchedApp struct{ *namespace }

// watcherStatus is the status of its ConfigWatcher.
type watcherStatus struct {
	ConfigHash string
	Pending    *struct {
		ConfigHash           string
		ChangedAt, RestartAt time.Time
	}
	Restarts    int
	LastRestart *time.Time
	Conditions  []metav1.Condition
}

// resolvedExample are the manifests of a folder of the example, with its images
// built and pushed.
func resolvedExample(t *testing.T, folder string) string {
	t.Helper()
	out, err := ko(t.Context(), configWatcherExample, "resolve", "--sbom=none", "-f", folder)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// status is as it is now.
func (a *watchedApp) status() (watcherStatus, error) {
	var o struct{ Status watcherStatus }
	resource, err := a.Resource(configWatcher, a.name)
	if err != nil {
		return o.Status, err
	}
	got, err := resource.Get(a.t.Context(), "webapp", metav1.GetOptions{})
	if err != nil {
		return o.Status, err
	}
	text, err := got.MarshalJSON()
	if err != nil {
		return o.Status, err
	}
	return o.Status, json.Unmarshal(text, &o)
}

// await waits until the status is as wanted, and returns it.
func (a *watchedApp) await(deadline time.Duration, what string, is func(watcherStatus) bool) watcherStatus {
	a.t.Helper()
	var s watcherStatus
	eventually(a.t, deadline, "the ConfigWatcher says that "+what, func() error {
		var err error
		if s, err = a.status(); err != nil {
			return err
		}
		if !is(s) {
			text, _ := json.Marshal(s)
			return fmt.Errorf("its status is %s", text)
		}
		return nil
	})
	return s
}

// because says that Ready has this reason.
func because(reason string) func(watcherStatus) bool {
	return func(s watcherStatus) bool {
		ready := meta.FindStatusCondition(s.Conditions, "Ready")
		return ready != nil && ready.Reason == reason
	}
}

// greet changes the ConfigMap, and returns when, by the API server's clock and in
// whole seconds.
func (a *watchedApp) greet(greeting string) time.Time {
	a.t.Helper()
	c, err := a.Client.CoreV1().ConfigMaps(a.name).Patch(a.t.Context(), "webapp-config", types.MergePatchType,
		fmt.Appendf(nil, `{"data":{"greeting":%q}}`, greeting), metav1.PatchOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	var at time.Time
	for _, f := range c.ManagedFields {
		if f.Time != nil && f.Time.After(at) {
			at = f.Time.Time
		}
	}
	return at
}

// pods are the webapp's pods that are not being deleted, by uid.
func (a *watchedApp) pods() map[types.UID]corev1.Pod {
	a.t.Helper()
	list, err := a.Client.CoreV1().Pods(a.name).List(a.t.Context(), metav1.ListOptions{LabelSelector: "app=webapp"})
	if err != nil {
		a.t.Fatal(err)
	}
	pods := map[types.UID]corev1.Pod{}
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			pods[p.UID] = p
		}
	}
	return pods
}

// stillThere fails unless the pods are the same as before.
func (a *watchedApp) stillThere(before map[types.UID]corev1.Pod, when string) {
	a.t.Helper()
	now := a.pods()
	for uid, p := range before {
		if _, ok := now[uid]; !ok {
			a.t.Errorf("%s pod %s was gone", when, p.Name)
		}
	}
}

// replaced waits until as many pods as before, all of them new, serve the greeting, and returns them. The
// condition of the Deployment would not do: right after the deletion it still is the old condition.
func (a *watchedApp) replaced(before map[types.UID]corev1.Pod, greeting string) map[types.UID]corev1.Pod {
	a.t.Helper()
	var after map[types.UID]corev1.Pod
	eventually(a.t, patience, "the pods are new", func() error {
		after = a.pods()
		for uid, p := range after {
			if _, old := before[uid]; old {
				return fmt.Errorf("pod %s was not restarted", p.Name)
			}
			if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				return fmt.Errorf("pod %s is not ready", p.Name)
			}
		}
		if len(after) != len(before) {
			return fmt.Errorf("there were %d pods, and are %d", len(before), len(after))
		}
		got, err := a.proxied(a.t.Context(), proxyCall{method: "GET", namespace: a.name, service: "webapp"})
		if err != nil {
			return fmt.Errorf("the webapp does not answer: %w", err)
		}
		if string(got) != greeting+"\n" {
			return fmt.Errorf("the webapp says %q", got)
		}
		return nil
	})
	return after
}

// eventsWithReason waits for an Event on the ConfigWatcher, and returns all with the reason.
func (a *watchedApp) eventsWithReason(reason string) []eventsv1.Event {
	a.t.Helper()
	var events []eventsv1.Event
	eventually(a.t, patience, "an Event "+reason, func() error {
		list, err := a.Client.EventsV1().Events(a.name).List(a.t.Context(), metav1.ListOptions{FieldSelector: "regarding.kind=ConfigWatcher"})
		if err != nil {
			return err
		}
		events = slices.DeleteFunc(list.Items, func(e eventsv1.Event) bool { return e.Reason != reason })
		if len(events) == 0 {
			return fmt.Errorf("none of %d Events is", len(list.Items))
		}
		return nil
	})
	return events
}

// mayDelete gives the operator the right to delete pods, or takes it.
func (a *watchedApp) mayDelete(may bool) {
	a.t.Helper()
	roles := a.Client.RbacV1().Roles(a.name)
	role, err := roles.Get(a.t.Context(), "config-watcher", metav1.GetOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	i := slices.IndexFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "pods") })
	if i < 0 {
		a.t.Fatalf("role config-watcher has no rule for pods: %v", role.Rules)
	}
	verbs := slices.DeleteFunc(role.Rules[i].Verbs, func(v string) bool { return v == "delete" })
	if may {
		verbs = append(verbs, "delete")
	}
	role.Rules[i].Verbs = verbs
	if _, err := roles.Update(a.t.Context(), role, metav1.UpdateOptions{}); err != nil {
		a.t.Fatal(err)
	}
}

// The config watcher of the book.
func TestConfigWatcher_OfTheBook(t *testing.T) {
	beside(t)
	definition, err := os.ReadFile(filepath.Join("../..", configWatcherExample, "config/crd/k8spatterns.com_configwatchers.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	define(t, "configwatchers.k8spatterns.com", string(definition))
	sample := resolvedExample(t, "config/samples")
	t.Run("restarts pods once after its delay", func(t *testing.T) { watchedInBothForms(t, sample) })
	t.Run("is refused when it would do harm", refusedConfigWatchers)
}

// watchedInBothForms has the operator at work, from the same code, resident and
// at zero.
func watchedInBothForms(t *testing.T, sample string) {
	for form, c := range map[string]struct {
		delay     time.Duration
		deployed  func(*namespace)
		idle      func(*namespace) // before the change
		meanwhile func(*namespace) // while pods wait for their restart
	}{
		"resident": {
			delay:    40 * time.Second, // longer than another pod takes to be the leader
			deployed: func(n *namespace) { n.ready(deployment, "config-watcher") },
			idle:     func(*namespace) {},
			// What it knew in its memory is gone then.
			meanwhile: func(n *namespace) {
				err := n.Client.CoreV1().Pods(n.name).DeleteCollection(n.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=config-watcher"})
				if err != nil {
					n.t.Fatal(err)
				}
			},
		},
		"serverless": {
			delay: pastZero,
			deployed: func(n *namespace) {
				n.ready(knativeService, "config-watcher")
				n.ready(rescheduling, "config-watcher")
			},
			idle:      func(n *namespace) { n.atZero("config-watcher") },
			meanwhile: func(n *namespace) { n.atZero("config-watcher") },
		},
	} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			a := &watchedApp{newNamespace(t, "config-"+form)}
			a.apply(resolvedExample(t, "config/"+form))
			c.deployed(a.namespace)
			const delay = "rolloutDelay: 2m"
			if !strings.Contains(sample, delay) {
				t.Fatalf("the sample has no %q to replace:\n%s", delay, sample)
			}
			a.apply(strings.ReplaceAll(sample, delay, "rolloutDelay: "+c.delay.String()))
			a.ready(deployment, "webapp")
			a.ready(configWatcher, "webapp")
			c.idle(a.namespace)

			before := a.pods()
			changed := a.greet("Hello")
			first := a.await(patience, "a restart is pending", func(s watcherStatus) bool { return s.Pending != nil })
			due := first.Pending.RestartAt
			a.greet("Good morning")
			second := a.await(patience, "it has changed again", func(s watcherStatus) bool {
				return s.Pending == nil || s.Pending.ConfigHash != first.Pending.ConfigHash
			})
			if second.Pending == nil || !second.Pending.RestartAt.Equal(due) || !second.Pending.ChangedAt.After(first.Pending.ChangedAt) {
				t.Fatalf("after the first change %+v was pending, after the second %+v", first.Pending, second.Pending)
			}
			c.meanwhile(a.namespace)
			left := time.Until(due)
			if left <= 0 {
				t.Fatalf("the delay of %s was over before that: make it longer", c.delay)
			}
			a.stillThere(before, fmt.Sprintf("%s before the restart", left.Round(time.Second)))

			done := a.await(left+patience, "pods were restarted", func(s watcherStatus) bool { return s.Pending == nil })
			if done.Restarts != 1 || done.LastRestart == nil || !because("UpToDate")(done) || done.ConfigHash != second.Pending.ConfigHash {
				t.Errorf("after the restart the status is %+v", done)
			}
			events := a.eventsWithReason("RestartedPods")
			if len(events) != 1 || !strings.HasSuffix(events[0].Note, fmt.Sprintf(": %d", len(before))) {
				t.Errorf("the Events are %+v, want one of %d pods", events, len(before))
			}
			t.Logf("the pods were restarted %s after their time", events[0].EventTime.Sub(due).Round(time.Millisecond))
			after := a.replaced(before, "Good morning")
			for _, p := range after {
				if earliest := changed.Add(c.delay); p.CreationTimestamp.Time.Before(earliest) {
					t.Errorf("pod %s is of %s, before %s", p.Name, p.CreationTimestamp, earliest)
				}
			}

			// What fails is tried again until it works.
			resource, err := a.Resource(configWatcher, a.name)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := resource.Patch(t.Context(), "webapp", types.MergePatchType, []byte(`{"spec":{"rolloutDelay":"2s"}}`), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			a.ready(configWatcher, "webapp")
			a.mayDelete(false)
			a.greet("Good night")
			if failed := a.eventsWithReason("RestartFailed"); !strings.Contains(failed[0].Note, "forbidden") {
				t.Errorf("it says %q", failed[0].Note)
			}
			a.stillThere(after, "without the right to delete them")
			a.mayDelete(true)
			a.await(patience, "pods were restarted again", func(s watcherStatus) bool { return s.Restarts == 2 && s.Pending == nil })

			if err := a.Client.CoreV1().ConfigMaps(a.name).Delete(t.Context(), "webapp-config", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			a.await(patience, "there is no ConfigMap", because("ConfigMapNotFound"))
		})
	}
}

func refusedConfigWatchers(t *testing.T) {
	resource, err := world.Resource(configWatcher, "default")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		spec string
		says string // "" if it is not refused
	}{
		"as in the book":         {`{"configMap":"a","podSelector":{"app":"webapp"}}`, ""},
		"with a delay":           {`{"configMap":"a","podSelector":{"app":"webapp"},"rolloutDelay":"1m30s"}`, ""},
		"an empty selector":      {`{"configMap":"a","podSelector":{}}`, "at least 1 properties"},
		"no selector":            {`{"configMap":"a"}`, "podSelector: Required"},
		"no ConfigMap":           {`{"podSelector":{"app":"webapp"}}`, "configMap: Required"},
		"a ConfigMap of no name": {`{"configMap":"","podSelector":{"app":"webapp"}}`, "at least 1 chars"},
		"a delay of days":        {`{"configMap":"a","podSelector":{"app":"webapp"},"rolloutDelay":"1d"}`, "such as 1m30s"},
		"a negative delay":       {`{"configMap":"a","podSelector":{"app":"webapp"},"rolloutDelay":"-1s"}`, "not negative"},
		"an endless delay":       {`{"configMap":"a","podSelector":{"app":"webapp"},"rolloutDelay":"9999999999h"}`, "such as 1m30s"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &unstructured.Unstructured{}
			if err := o.UnmarshalJSON(fmt.Appendf(nil, `{"apiVersion":"k8spatterns.com/v1","kind":"ConfigWatcher","metadata":{"name":"webapp"},"spec":%s}`, c.spec)); err != nil {
				t.Fatal(err)
			}
			_, err := resource.Create(t.Context(), o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("the API server says %v, want %q", err, c.says)
			}
		})
	}
}
