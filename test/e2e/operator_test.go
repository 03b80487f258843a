//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// form is how an operator with controller-runtime, test/operators/obedient, is run:
// docs/sdk.md has the forms.
type form struct {
	mode        string // of an ApiServerSource; "": the RescheduleSource watches
	namespaces  bool   // it is for Namespaces, not for ConfigMaps
	with        string // the options of its manager
	concurrency int    // of a pod; 0: no limit
	annotations map[string]string
}

// operator is one that runs, with the source of its timers.
type operator struct {
	*source
	form
}

// doorAudience is the audience of an operator that asks for tokens of its source. The
// cluster's authentication-oidc stays as it is.
const doorAudience = "operator"

var leaseKind = schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}

// newOperator makes a namespace for an operator that is not there yet.
func newOperator(t *testing.T, f form) *operator {
	t.Helper()
	return &operator{&source{namespace: newNamespace(t, "operator")}, f}
}

// start starts it, and waits until everything is ready. It begins with a pod.
func (o *operator) start() {
	o.t.Helper()
	n, f := o.namespace, o.form
	n.account("operator", `
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, watch, create]}`)
	if f.namespaces {
		seeNamespaces(n, "operator")
	}
	spec := toKsvc("operator")
	if strings.Contains(f.with, "audience="+doorAudience) {
		spec = strings.Replace(spec, "sink: {", "sink: {audience: "+doorAudience+", ", 1)
	}
	if f.mode == "" {
		n.apply(o.service() + manifestOf("objects", spec+o.watch()))
		n.ready(knativeService, "operator")
		o.source = n.source("objects", spec+o.watch())
		return
	}
	spec += o.ingest()
	resources := `[{apiVersion: v1, kind: ConfigMap, selector: {matchLabels: {e2e: object}}}, {apiVersion: coordination.k8s.io/v1, kind: Lease}]`
	if f.namespaces {
		resources = fmt.Sprintf(`[{apiVersion: v1, kind: Namespace, selector: {matchLabels: {e2e: %s}}}]`, n.name)
	}
	// All at once, in the order of docs/sdk.md.
	n.apply(o.service() + manifestOf("objects", spec) + fmt.Sprintf(`
---
apiVersion: sources.knative.dev/v1
kind: ApiServerSource
metadata: {name: objects}
spec: {serviceAccountName: operator, mode: %s, resources: %s, sink: {ref: {apiVersion: sources.reschedule.dev/v1alpha1, kind: RescheduleSource, name: objects}}}
`, f.mode, resources))
	n.ready(knativeService, "operator")
	o.source = n.source("objects", spec)
	n.ready(apiServerSource, "objects")
}

// watchOver is the time over which objects that were there before are spread.
const watchOver = 10 * time.Second

// watch is the spec.watch for its objects and what they own.
func (o *operator) watch() string {
	resources := `
  - {apiVersion: v1, kind: ConfigMap, selector: {matchLabels: {e2e: object}}}
  - {apiVersion: coordination.k8s.io/v1, kind: Lease, owner: {apiVersion: v1, kind: ConfigMap}}`
	if o.namespaces {
		resources = fmt.Sprintf("\n  - {apiVersion: v1, kind: Namespace, selector: {matchLabels: {e2e: %s}}}", o.namespace.name)
	}
	return fmt.Sprintf("watch:\n  serviceAccountName: operator\n  resync: {over: %s}\n  resources:%s\n", watchOver, resources)
}

// ingest returns the spec.ingest to which docs/sdk.md links, for a kind that owns others.
func (o *operator) ingest() string {
	o.t.Helper()
	text, err := os.ReadFile("../../sdk/controller/testdata/apiserversource.yaml")
	if err != nil {
		o.t.Fatal(err)
	}
	_, from, found := strings.Cut(string(text), "\n  ingest:\n")
	ingest, _, ends := strings.Cut(from, "\n---\n")
	if !found || !ends {
		o.t.Fatal("the file has no ingest")
	}
	return "ingest:\n" + strings.NewReplacer("\n  ", "\n", "Website", o.kind(), "o.apiVersion.startsWith('example.com/')", "o.apiVersion == 'v1'").Replace("\n"+ingest)
}

// kind is the kind of its objects.
func (f form) kind() string {
	if f.namespaces {
		return "Namespace"
	}
	return "ConfigMap"
}

// service is its ksvc.
func (o *operator) service() string {
	o.t.Helper()
	n, f := o.namespace, o.form
	annotations := map[string]string{"autoscaling.knative.dev/max-scale": "1"}
	maps.Copy(annotations, quickly)
	maps.Copy(annotations, f.annotations)
	controllers := "configmaps"
	if f.namespaces {
		controllers = "namespaces"
	}
	// Without a client it has neither an address nor a token.
	var url, mounts, volumes string
	if slices.Contains(strings.Fields(f.with), "client") {
		url = fmt.Sprintf(", {name: RESCHEDULE_URL, value: 'http://%s.%s.svc/%s/objects'}", adapter, system, n.name)
		mounts = ", volumeMounts: [{name: reschedule, mountPath: /var/run/reschedule, readOnly: true}]"
		volumes = ", volumes: [{name: reschedule, projected: {sources: [{serviceAccountToken: {path: token, audience: sources.reschedule.dev/reschedulesource/" + n.name + "/objects, expirationSeconds: 3600}}]}}]"
	}
	return ksvc(n, "operator", annotations,
		fmt.Sprintf("serviceAccountName: operator, timeoutSeconds: 600, containerConcurrency: %d%s", f.concurrency, volumes),
		fmt.Sprintf("{image: %q, env: [{name: NAMESPACE, value: %s}, {name: RECORDER, value: %q}, {name: FOR, value: %s}, {name: WITH, value: %q}%s], securityContext: %s%s}",
			images.operator, n.name, recorderURL(n), controllers, f.with, url, restricted, mounts))
}

// change makes a new revision, in another form.
func (o *operator) change(f form) {
	o.t.Helper()
	o.form = f
	o.apply(o.service())
	o.ready(knativeService, "operator")
}

// seeNamespaces lets an account read Namespaces, for as long as the test is.
func seeNamespaces(n *namespace, account string) {
	n.t.Helper()
	meta := metav1.ObjectMeta{Name: n.name, OwnerReferences: []metav1.OwnerReference{ownerReference(n)}}
	_, err := n.Client.RbacV1().ClusterRoles().Create(n.t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get", "list", "watch"}}},
	}, metav1.CreateOptions{})
	if err == nil {
		_, err = n.Client.RbacV1().ClusterRoleBindings().Create(n.t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: n.name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: n.name, Name: account}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// ownerReference is the namespace as the owner of cluster-scoped objects, which go with it.
func ownerReference(n *namespace) metav1.OwnerReference {
	n.t.Helper()
	o, err := n.Client.CoreV1().Namespaces().Get(n.t.Context(), n.name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: o.Name, UID: o.UID}
}

// objects is the client of what the operator is for.
func (o *operator) objects() dynamic.ResourceInterface {
	o.t.Helper()
	r, err := o.Resource(schema.GroupVersionKind{Version: "v1", Kind: o.kind()}, o.namespace.name)
	if err != nil {
		o.t.Fatal(err)
	}
	return r
}

// full is the name of an object. The name of a Namespace must be unique in
// the cluster.
func (o *operator) full(name string) string {
	if o.namespaces {
		return o.namespace.name + "-" + name
	}
	return name
}

// key is the key of an object.
func (o *operator) key(name string) string {
	if o.namespaces {
		return o.kind() + "//" + o.full(name)
	}
	return o.kind() + "/" + o.namespace.name + "/" + name
}

// create makes an object with a script of what is done with it, and returns its
// key.
func (o *operator) create(name, script string) string {
	o.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": o.kind()}}
	u.SetName(o.full(name))
	u.SetLabels(map[string]string{"e2e": "object"})
	u.SetAnnotations(map[string]string{"e2e/script": script})
	if o.namespaces {
		u.SetLabels(map[string]string{"e2e": o.namespace.name})
		u.SetOwnerReferences([]metav1.OwnerReference{ownerReference(o.namespace)})
	}
	if _, err := o.objects().Create(o.t.Context(), u, metav1.CreateOptions{}); err != nil {
		o.t.Fatal(err)
	}
	return o.key(name)
}

// instruct gives an object another script.
func (o *operator) instruct(name, script string) {
	o.t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"e2e/script":%q}}}`, script)
	if _, err := o.objects().Patch(o.t.Context(), o.full(name), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		o.t.Fatal(err)
	}
}

// version is the resourceVersion of an object.
func (o *operator) version(name string) string {
	o.t.Helper()
	u, err := o.objects().Get(o.t.Context(), o.full(name), metav1.GetOptions{})
	if err != nil {
		o.t.Fatal(err)
	}
	return u.GetResourceVersion()
}

func (o *operator) remove(name string) {
	o.t.Helper()
	if err := o.objects().Delete(o.t.Context(), o.full(name), metav1.DeleteOptions{}); err != nil {
		o.t.Fatal(err)
	}
}

// step is what was done in a run.
func (r run) step() string {
	var done struct{ Step string }
	_ = json.Unmarshal(r.Data, &done) // a function's has none
	return done.Step
}

func stepsOf(runs []run) (of []string) {
	for _, r := range runs {
		of = append(of, r.step())
	}
	return of
}

// of are the runs of a key so far, in the order of their starts.
func (o *operator) of(key string) []run {
	o.t.Helper()
	return slices.DeleteFunc(o.runs(key), func(r run) bool { return r.Key != key })
}

// left waits until nothing is left of a key that was run, and returns its runs.
func (o *operator) left(key string) []run {
	o.t.Helper()
	o.awaitRuns(patience, key, 1)
	eventually(o.t, patience, "nothing is left of "+key, func() error {
		if is := o.scheduled(key); is != nil {
			return fmt.Errorf("it is %s, due %s, attempt %d; its runs are %v", is.State, is.DueAt, *is.Attempt, o.of(key))
		}
		return nil
	})
	return o.of(key)
}

// done waits for the last of these runs of a key, and that nothing is left of
// it, and fails unless the runs were these.
func (o *operator) done(key string, want ...string) []run {
	o.t.Helper()
	eventually(o.t, patience, key+" is run to the end", func() error {
		got := stepsOf(o.of(key))
		if len(got) == 0 || got[len(got)-1] != want[len(want)-1] {
			return fmt.Errorf("its runs were %q", got)
		}
		return nil
	})
	runs := o.left(key)
	if got := stepsOf(runs); !slices.Equal(got, want) {
		o.t.Errorf("the runs of %s were %q, want %q: %v", key, got, want, runs)
	}
	return runs
}

// TestOperator_WorksFromZero is one in each form.
func TestOperator_WorksFromZero(t *testing.T) {
	beside(t)
	for name, f := range map[string]form{
		"watched":                              {with: "audience=" + doorAudience},
		"watched, objects without a namespace": {namespaces: true},
		"behind a source":                      {mode: "Resource", with: "audience=" + doorAudience},
		"behind a source, names of objects without one": {mode: "Reference", namespaces: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const again = pastZero
			o := newOperator(t, f)
			o.start()
			o.withoutPods()

			// A change wakes it, and so does what it asked for then.
			created := time.Now()
			key := o.create("timed", "after="+again.String()+", ok")
			first := o.awaitRuns(patience, key, 1)[0]
			t.Logf("cold: the first run began %s after the object was made", first.Start.Sub(created).Round(time.Millisecond))
			waiting := o.waiting(key)
			if after := waiting.DueAt.Sub(first.End); after < again || after > again+10*time.Second {
				t.Errorf("it asked for %s, and is due again after %s", again, after)
			}
			o.atZero("operator")
			if time.Now().After(waiting.DueAt) {
				t.Fatalf("Serving took longer than %s to zero: make pastZero longer", again)
			}
			runs := o.done(key, "after="+again.String(), "ok")
			second := runs[len(runs)-1]
			late := second.Start.Sub(waiting.DueAt)
			t.Logf("cold: the second run began %s after its time", late.Round(time.Millisecond))
			if late < -100*time.Millisecond || second.Pod == first.Pod {
				t.Errorf("the second run began %s late, in %s, the first was in %s", late, second.Pod, first.Pod)
			}

			// It has a pod now. All that Reconcile can return:
			failing := []string{"error", "requeue", "panic", "error", "ok"}
			key = o.create("failing", strings.Join(failing, ", "))
			o.counted(key, 4)
			runs = o.done(key, failing...)
			for i := range runs[1:] {
				wait := time.Second << i
				if gap := runs[i+1].Start.Sub(runs[i].End); gap < wait || gap > wait+3*time.Second {
					t.Errorf("after failure %d it was retried after %s, want %s", i+1, gap, wait)
				}
			}
			o.done(o.create("final", "terminal"), "terminal")

			// What is changed during a run has another one, behind it.
			key = o.create("changed", "work=2s")
			o.underWay(key, "work=2s")
			o.instruct("changed", "ok")
			if runs = o.done(key, "work=2s", "ok"); len(runs) == 2 && runs[1].Start.Before(runs[0].End) {
				t.Errorf("two runs at once: %v", runs)
			}

			// What is deleted is not woken for any more.
			key = o.create("deleted", "after=1h")
			o.waiting(key)
			o.remove("deleted")
			runs = o.left(key)
			if last := runs[len(runs)-1].step(); last != "gone" {
				t.Errorf("the last run of what was deleted was %q: %v", last, runs)
			}

			if !f.namespaces {
				o.ownsLeases()
			}
		})
	}
}

// withoutPods waits until it has none: pods that are being deleted may still
// take an event.
func (o *operator) withoutPods() {
	o.t.Helper()
	eventually(o.t, patience, "the operator has no pod", func() error {
		pods, err := o.Client.CoreV1().Pods(o.namespace.name).List(o.t.Context(), metav1.ListOptions{LabelSelector: "serving.knative.dev/service=operator"})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("it has %d", len(pods.Items))
		}
		return err
	})
}

// counted watches a key that fails so often, and fails unless the source counts
// its runs.
func (o *operator) counted(key string, failures int) {
	o.t.Helper()
	seen := map[int]bool{}
	eventually(o.t, patience, "the last failure of "+key+" is counted", func() error {
		before := len(o.of(key))
		is := o.scheduled(key)
		if is == nil || *is.InFlight || is.State == "inFlight" || len(o.of(key)) != before {
			return errors.New("it is being run, or not scheduled")
		}
		attempt := *is.Attempt
		if attempt != before {
			return final{fmt.Errorf("the source counts %d attempts after %d runs", attempt, before)}
		}
		seen[attempt] = true
		if attempt < failures {
			return fmt.Errorf("it has failed %d times", attempt)
		}
		return nil
	})
}

// ownsLeases deletes what an object owns, of which its owner hears.
func (o *operator) ownsLeases() {
	o.t.Helper()
	key := o.create("owner", "own after=1h")
	leases, err := o.Resource(leaseKind, o.namespace.name)
	if err != nil {
		o.t.Fatal(err)
	}
	o.waiting(key)
	before, err := leases.Get(o.t.Context(), "owner", metav1.GetOptions{})
	if err != nil {
		o.t.Fatal(err)
	}
	if err := leases.Delete(o.t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
		o.t.Fatal(err)
	}
	eventually(o.t, patience, "its owner has another Lease", func() error {
		after, err := leases.Get(o.t.Context(), "owner", metav1.GetOptions{})
		if err == nil && after.GetUID() == before.GetUID() {
			err = errors.New("it is the old Lease")
		}
		return err
	})
	o.awaitCounts("all of it under the key of the owner", 1)
	o.waiting(key)
}
