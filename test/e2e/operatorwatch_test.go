//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestWatch_ObjectsOncePerRevision has objects that are older than their source, objects
// that come later, and another revision of the operator.
func TestWatch_ObjectsOncePerRevision(t *testing.T) {
	beside(t)
	o := newOperator(t, form{})
	var keys []string
	for i := range 10 {
		keys = append(keys, o.create(fmt.Sprintf("old-%d", i), "ok"))
	}
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept-out", Annotations: map[string]string{"e2e/script": "ok"}}}
	if _, err := o.Client.CoreV1().ConfigMaps(o.namespace.name).Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o.start()
	var starts []time.Time
	for _, key := range keys {
		starts = append(starts, o.done(key, "ok")[0].Start)
	}
	slices.SortFunc(starts, time.Time.Compare)
	// They are spread, but all that are due when the pod is there run at once.
	if over := starts[len(starts)-1].Sub(starts[0]); over > watchOver+patience/2 {
		t.Errorf("they came up within %s, want %s", over, watchOver)
	}

	// Another pod of the same revision is woken for what is new, and for no more.
	o.atZero("operator")
	keys = append(keys, o.create("new", "ok"))
	o.done(keys[len(keys)-1], "ok")

	f := o.form
	f.annotations = map[string]string{"e2e/revision": "another"}
	o.change(f)
	for _, key := range keys {
		o.awaitRuns(patience, key, 2)
		runs := o.done(key, "ok", "ok")
		if pod := runs[1].Pod; !strings.HasPrefix(pod, "operator-00002-") {
			t.Errorf("the second run of %s was in %s", key, pod)
		}
	}

	// A caller asks for one more, of some.
	if r := o.call("POST", "/resync", `{"over":"0s","prefix":"`+o.key("old-1")+`"}`); r.Status != 200 || strings.TrimSpace(string(r.Body)) != `{"scheduled":1}` {
		t.Errorf("a resync is answered with %d %s", r.Status, r.Body)
	}
	o.awaitRuns(patience, o.key("old-1"), 3)
	o.done(o.key("old-1"), "ok", "ok", "ok")
	if all := o.runs(""); len(all) != 2*len(keys)+1 {
		t.Errorf("there were %d runs of %d objects: %v", len(all), len(keys), all)
	}
}

// TestWatch_OwnersChange gives what an object owns to another one: both are run.
func TestWatch_OwnersChange(t *testing.T) {
	beside(t)
	o := newOperator(t, form{})
	o.start()
	leases, err := o.Resource(leaseKind, o.namespace.name)
	if err != nil {
		t.Fatal(err)
	}
	first, second := o.create("first", "own, ok"), o.create("second", "ok")
	o.awaitRuns(patience, first, 2) // for itself, and for its Lease
	o.done(second, "ok")
	o.atZero("operator")
	owner, err := o.objects().Get(t.Context(), "second", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before := len(o.of(first))
	patch := fmt.Appendf(nil, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"second","uid":%q}]}}`, owner.GetUID())
	if _, err := leases.Patch(t.Context(), "first", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	o.awaitRuns(patience, second, 2)
	o.awaitRuns(patience, first, before+1)

	// A Lease of no owner wakes none.
	all := len(o.runs(""))
	if _, err := leases.Patch(t.Context(), "first", types.MergePatchType, []byte(`{"metadata":{"ownerReferences":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	o.awaitRuns(patience, second, 3) // it lost it
	if _, err := leases.Patch(t.Context(), "first", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	o.done(o.create("last", "ok"), "ok") // by then it would have come
	if runs := o.runs(""); len(runs) != all+2 {
		t.Errorf("%d runs, want %d: %v", len(runs), all+2, runs)
	}
}

// TestWatch_NothingIsMissed changes objects in bursts when the operator is at zero.
func TestWatch_NothingIsMissed(t *testing.T) {
	beside(t)
	const objects, changes = 30, 10
	o := newOperator(t, form{})
	names, versions := o.watched(objects)

	random(t).Shuffle(objects, func(i, j int) { names[i], names[j] = names[j], names[i] })
	began := time.Now()
	for _, name := range names {
		for i := range changes {
			versions[o.key(name)] = changeObject(o.namespace, name, i)
		}
	}
	t.Logf("%d changes in %s", objects*changes, time.Since(began).Round(time.Millisecond))
	o.awaitLastSeen(versions)
	o.awaitCounts("nothing is left", 0)
}

// watched starts the operator, makes objects that it sees, and waits until it is at zero. It
// returns their names, and their versions by key.
func (o *operator) watched(objects int) (names []string, versions map[string]string) {
	o.t.Helper()
	o.start()
	names, versions = make([]string, objects), map[string]string{}
	for i := range names {
		names[i] = fmt.Sprintf("object-%02d", i)
		versions[o.create(names[i], "ok")] = o.version(names[i])
	}
	o.awaitLastSeen(versions)
	o.atZero("operator")
	return names, versions
}

// Objects change, go and come while the adapter has no pod: each change is seen afterwards, and
// nothing else is run again.
func watchWithoutAnAdapter(t *testing.T, turn func()) {
	const objects = 30
	o := newOperator(t, form{})
	names, versions := o.watched(objects)
	turn()
	o.awaitCounts("nothing is left", 0)
	before := map[string]int{}
	for _, name := range names {
		before[name] = len(o.of(o.key(name)))
	}
	pod := o.adapterPod()
	serve := cordon(o.namespace)
	o.deleteNow(pod)
	// The process may outlive the pod: the API server forgets such a pod before its node has ended it.
	eventually(t, patience, "the adapter answers no more", func() error {
		if r, err := o.try("GET", "", ""); err == nil {
			return fmt.Errorf("it answered %d", r.Status)
		}
		return nil
	})
	gone, again, changed, same := names[0], names[1], names[2], names[3:]
	o.remove(gone)
	o.remove(again)
	o.create(again, "ok")
	versions[o.key(again)] = o.version(again)
	versions[o.key(changed)] = changeObject(o.namespace, changed, 1)
	o.create("new", "ok")
	versions[o.key("new")] = o.version("new")
	delete(versions, o.key(gone))
	serve()
	eventually(t, patience, "the adapter has another pod", func() error { return o.replaced(pod) })

	o.awaitLastSeen(versions)
	eventually(t, patience, "the operator was woken for the object that is gone", func() error {
		if runs := o.of(o.key(gone)); runs[len(runs)-1].step() != "gone" {
			return fmt.Errorf("its runs are %v", runs)
		}
		return nil
	})
	o.awaitCounts("nothing is left", 0)
	for _, name := range same {
		if runs := o.of(o.key(name)); len(runs) != before[name] {
			t.Errorf("%s has not changed, and was run again: %v", name, runs[before[name]:])
		}
	}
}

// awaitLastSeen waits until the newest run of each key has seen the version.
func (o *operator) awaitLastSeen(versions map[string]string) {
	o.t.Helper()
	eventually(o.t, patience, "the last state of each object was seen", func() error {
		all, err := runReports(o.namespace)
		if err != nil {
			return err
		}
		newest := last(all)
		for key, version := range versions {
			if r := newest[key]; r.Seen != version {
				return fmt.Errorf("%s saw version %q of %s, want %s", r, r.Seen, key, version)
			}
		}
		return nil
	})
}

// cordon keeps new pods from all nodes, until the function that it returns is called, or
// the test ends.
func cordon(n *namespace) (end func()) {
	n.t.Helper()
	nodes, err := n.Client.CoreV1().Nodes().List(n.t.Context(), metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	set := func(unschedulable bool) error {
		var errs error
		for _, node := range nodes.Items {
			if node.Spec.Unschedulable { // it is not ours to open
				continue
			}
			_, err := n.Client.CoreV1().Nodes().Patch(context.Background(), node.Name, types.MergePatchType,
				fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, unschedulable), metav1.PatchOptions{})
			errs = errors.Join(errs, err)
		}
		return errs
	}
	if err := set(true); err != nil {
		n.t.Fatal(err)
	}
	end = func() {
		if err := set(false); err != nil {
			n.t.Error(err)
		}
	}
	n.t.Cleanup(end)
	return end
}
