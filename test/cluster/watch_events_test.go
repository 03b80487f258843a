package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/yaml"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// definition is a CustomResourceDefinition whose objects may hold anything.
func definition(group, kind, scope string, short ...string) []byte {
	lower := strings.ToLower(kind)
	return fmt.Appendf(nil, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]ss.%[1]s}
spec:
  group: %[1]s
  names: {kind: %[3]s, listKind: %[3]sList, plural: %[2]ss, singular: %[2]s, shortNames: [%[5]s]}
  scope: %[4]s
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, group, lower, kind, scope, strings.Join(short, ", "))
}

const watchGroup = "watch.test"

// defineKinds makes the kinds that the tests watch.
var defineKinds = sync.OnceValue(func() error {
	for _, d := range [][]byte{
		definition(watchGroup, "Website", "Namespaced"), definition(watchGroup, "Zone", "Cluster"),
		definition("serving.knative.dev", "Service", "Namespaced", "ksvc"),
	} {
		if err := server.Apply(context.Background(), d); err != nil {
			return err
		}
	}
	return nil
})

// objects make and change what is watched, in one namespace.
type objects struct {
	t         *testing.T
	namespace string
}

// watched is a namespace with an account named watcher that has no rights yet.
func watched(t *testing.T, prefix string) objects {
	t.Helper()
	if err := defineKinds(); err != nil {
		t.Fatal(err)
	}
	o := objects{t, namespace(t, prefix)}
	o.account()
	return o
}

func (o objects) account() {
	o.t.Helper()
	_, err := server.Client.CoreV1().ServiceAccounts(o.namespace).Create(o.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "watcher"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		o.t.Fatal(err)
	}
}

// permit gives an account watcher rights in the namespace of o.
func (o objects) permit(namespace string, resources ...string) {
	o.t.Helper()
	allow(o.t, o.namespace, "Role", `{apiGroups: ["*"], resources: [`+strings.Join(resources, ", ")+`], verbs: [get, list, watch]}`, "ServiceAccount, name: watcher, namespace: "+namespace)
}

// permitEverywhere gives the account rights in all namespaces.
func (o objects) permitEverywhere(resources ...string) {
	o.t.Helper()
	roles, bindings := server.Client.RbacV1().ClusterRoles(), server.Client.RbacV1().ClusterRoleBindings()
	allow(o.t, o.namespace, "ClusterRole", `{apiGroups: ["*"], resources: [`+strings.Join(resources, ", ")+`], verbs: [get, list, watch]}`, "ServiceAccount, name: watcher, namespace: "+o.namespace)
	o.t.Cleanup(func() {
		_ = bindings.Delete(context.Background(), o.namespace, metav1.DeleteOptions{}) // no other test has it
		_ = roles.Delete(context.Background(), o.namespace, metav1.DeleteOptions{})
	})
}

const (
	website   = `{"apiVersion":"watch.test/v1","kind":"Website","metadata":{"name":%q,"labels":{"site":%[1]q}},"spec":{"n":%q}}`
	zone      = `{"apiVersion":"watch.test/v1","kind":"Zone","metadata":{"name":%q}}`
	configMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labels":{"site":%q},"ownerReferences":%s}}`
)

// apply makes or changes an object, and returns it.
func (o objects) apply(format string, args ...any) *unstructured.Unstructured {
	o.t.Helper()
	u := o.read(fmt.Sprintf(format, args...))
	if err := server.ApplyIn(o.t.Context(), o.namespace, fmt.Appendf(nil, format, args...)); err != nil {
		o.t.Fatal(err)
	}
	client, err := server.Resource(u.GroupVersionKind(), o.namespace)
	if err != nil {
		o.t.Fatal(err)
	}
	if u, err = client.Get(o.t.Context(), u.GetName(), metav1.GetOptions{}); err != nil {
		o.t.Fatal(err)
	}
	return u
}

func (o objects) read(text string) *unstructured.Unstructured {
	o.t.Helper()
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON([]byte(text)); err != nil {
		o.t.Fatal(err)
	}
	return u
}

// status changes an object's status only.
func (o objects) status(u *unstructured.Unstructured, status string) {
	o.t.Helper()
	client, err := server.Resource(u.GroupVersionKind(), o.namespace)
	if err == nil {
		_, err = client.Patch(o.t.Context(), u.GetName(), "application/merge-patch+json", []byte(`{"status":`+status+`}`), metav1.PatchOptions{}, "status")
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o objects) delete(u *unstructured.Unstructured) {
	o.t.Helper()
	client, err := server.Resource(u.GroupVersionKind(), o.namespace)
	if err == nil {
		err = client.Delete(o.t.Context(), u.GetName(), metav1.DeleteOptions{})
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// watching is the spec of a source that watches; what exists is scheduled at once.
func watching(sink *harness.Sink, inbox, watch string) string {
	return to(sink, inbox) + "watch: {serviceAccountName: watcher, resync: {over: 0s}, " + watch + "}"
}

const websites = "resources: [{apiVersion: watch.test/v1, kind: Website}]"

// source makes a source in the namespace, and does not wait.
func (o objects) source(p *programs, name, spec string) *source {
	o.t.Helper()
	s := &source{programs: p, t: o.t, namespace: o.namespace, name: name, client: typedSourcesIn(o.t, o.namespace)}
	s.make(spec)
	s.token = s.tokenOf(o.namespace, "caller", s.audience())
	return s
}

// watches waits until the condition Watching has a status and a reason, and returns
// its message.
func (s *source) watches(status corev1.ConditionStatus, reason string) string {
	s.t.Helper()
	var message string
	s.until("watching "+string(status)+" "+reason, func(o *v1alpha1.RescheduleSource) bool {
		c := o.Status.GetCondition("Watching")
		if c == nil || c.Status != status || c.Reason != reason || o.Status.ObservedGeneration != o.Generation {
			return false
		}
		message = c.Message
		return true
	})
	return message
}

// quiet wants an inbox with these deliveries by key, and nothing that waits.
func (s *source) quiet(sink *harness.Sink, inbox string, want map[string]int) {
	s.t.Helper()
	s.idle()
	got := map[string]int{}
	for _, d := range sink.Of(inbox, "") {
		got[d.Key]++
	}
	if !maps.Equal(got, want) {
		s.t.Errorf("deliveries to %s by key: %v, want %v", inbox, got, want)
	}
}

// idle waits until nothing waits.
func (s *source) idle() {
	s.t.Helper()
	settle(s.t, func() bool {
		var c harness.Counts
		r := s.call(s.token, "GET", "", "")
		return r.Status == 200 && json.Unmarshal(r.Body, &c) == nil && c.Pending == 0 && c.InFlight == 0
	}, "%s/%s still has something to deliver", s.namespace, s.name)
}

// An object that is made, changed and deleted has the events of ApiServerSource, and a call schedules it once more.
func TestWatch_FromObjectToEvent(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	o := watched(t, "watch")
	o.permit(o.namespace, "websites")
	s := o.source(p, "x", watching(sink, "in", websites))
	s.watches("True", "")
	s.ready()
	key := "Website/" + o.namespace + "/a"
	event := func(verb string, u *unstructured.Unstructured) {
		t.Helper()
		d := sink.Next(t, "in", key)
		for name, want := range map[string]string{
			"type":    "dev.knative.apiserver.ref." + verb,
			"source":  "/apis/v1/namespaces/" + o.namespace + "/reschedulesources/x",
			"subject": "/apis/watch.test/v1/namespaces/" + o.namespace + "/websites/a",
			"kind":    "Website", "apiversion": "watch.test/v1", "name": "a", "namespace": o.namespace,
		} {
			if got := d.Attr(name); got != want && name != "source" {
				t.Errorf("%s: attribute %s is %q, want %q", verb, name, got, want)
			} else if name == "source" && !strings.Contains(got, o.namespace) {
				t.Errorf("%s: attribute source is %q", verb, got)
			}
		}
		var got, want map[string]any
		if err := json.Unmarshal(d.Body, &got); err != nil {
			t.Fatal(err)
		}
		want = map[string]any{"kind": "Website", "namespace": o.namespace, "name": "a", "uid": string(u.GetUID()), "apiVersion": "watch.test/v1", "resourceVersion": u.GetResourceVersion()}
		if verb == "delete" { // the version of the deletion is newer than the last one
			got["resourceVersion"], want["resourceVersion"] = "", ""
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: data %v, want %v", verb, got, want)
		}
	}
	a := o.apply(website, "a", "1")
	event("add", a)
	o.status(a, `{"seen":true}`)
	o.apply(website, "later", "1") // its run comes after one of the status would
	sink.Next(t, "in", "Website/"+o.namespace+"/later")
	changed := o.apply(website, "a", "2")
	event("update", changed)
	if r := s.call(s.token, "GET", "", ""); !strings.Contains(string(r.Body), `"watched":2`) {
		t.Errorf("its counts are %s", r.Body)
	}
	if r := s.call(s.token, "POST", "/resync", `{"prefix":"`+key+`"}`); string(r.Body) != `{"scheduled":1}`+"\n" {
		t.Errorf("a resync: %d %s", r.Status, r.Body)
	}
	if d := sink.Next(t, "in", key); d.Attr("type") != "dev.reschedule.due" || d.Attr("subject") != key {
		t.Errorf("resynced: %v", d.Attributes)
	}
	o.delete(a)
	event("delete", a)
	again := o.apply(website, "a", "1")
	event("add", again)
	s.quiet(sink, "in", map[string]int{key: 5, "Website/" + o.namespace + "/later": 1})
}

// An object without a namespace has a key without one.
func TestWatch_ClusterScopedKind(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	o := watched(t, "zones")
	o.permitEverywhere("zones")
	s := o.source(p, "x", watching(sink, "in", "resources: [{apiVersion: watch.test/v1, kind: Zone}]"))
	s.watches("True", "")
	z := o.apply(zone, o.namespace)
	key := "Zone//" + o.namespace
	d := sink.Next(t, "in", key)
	if d.Attr("subject") != "/apis/watch.test/v1/namespaces//zones/"+o.namespace || d.Attr("type") != "dev.knative.apiserver.ref.add" {
		t.Errorf("%v", d.Attributes)
	}
	o.delete(z)
	sink.Next(t, "in", key)
	s.quiet(sink, "in", map[string]int{key: 2})
}

// A missing account and a missing right are named, and what exists is scheduled once
// they are there. The adapter's own account never has the right.
func TestWatch_ForbiddenUntilTheRoleIsMade(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	o := watched(t, "rights")
	o.apply(website, "a", "1")
	if err := server.Client.CoreV1().ServiceAccounts(o.namespace).Delete(t.Context(), "watcher", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s := o.source(p, "x", watching(sink, "in", websites))
	if m := s.watches("False", "Forbidden"); !strings.Contains(m, o.namespace+"/watcher") && !strings.Contains(m, o.namespace+":watcher") {
		t.Errorf("without the account: %s", m)
	}
	o.account()
	words := []string{"list", "websites.watch.test", "kubectl auth can-i", "system:serviceaccount:" + o.namespace + ":watcher", "-n " + o.namespace}
	s.until("refused by name", func(o *v1alpha1.RescheduleSource) bool {
		c := o.Status.GetCondition("Watching")
		return c != nil && c.Reason == "Forbidden" && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(c.Message, w) })
	})
	user, groups := p.adapterUser()
	if allowed(t, user, groups, o.namespace, watchGroup+" websites list") {
		t.Error("the adapter's own account may list: the test proves nothing")
	}
	o.permit(o.namespace, "websites")
	s.watches("True", "")
	s.until("counting one object", func(o *v1alpha1.RescheduleSource) bool { return o.Status.Watched != nil && *o.Status.Watched == 1 })
	sink.Next(t, "in", "Website/"+o.namespace+"/a")
	o.apply(website, "b", "1")
	sink.Next(t, "in", "Website/"+o.namespace+"/b")
}

func (p *programs) adapterUser() (string, []string) {
	return serviceAccount("knative-eventing", adapterAccount)
}

// A kind that does not exist is waited for, also in a group that does; when it goes,
// its objects are reported as deleted.
func TestWatch_KindComesAndGoes(t *testing.T) {
	t.Parallel()
	p, sink := running(t), newSink(t)
	o := watched(t, "late")
	o.permit(o.namespace, "lates", "websites")
	s := o.source(p, "x", watching(sink, "in", "resources: [{apiVersion: watch.test/v1, kind: Late}, {apiVersion: watch.test/v1, kind: Website}]"))
	if m := s.watches("False", "NoSuchKind"); !strings.Contains(m, "Late of watch.test/v1") {
		t.Errorf("message %s", m)
	}
	o.apply(website, "a", "1") // what exists is watched meanwhile
	sink.Next(t, "in", "Website/"+o.namespace+"/a")
	late := definition(watchGroup, "Late", "Namespaced")
	if err := server.Apply(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	o.apply(`{"apiVersion":"watch.test/v1","kind":"Late","metadata":{"name":"l"}}`)
	s.watches("True", "")
	key := "Late/" + o.namespace + "/l"
	sink.Next(t, "in", key)
	o.delete(o.read(string(mustJSON(t, late))))
	if d := sink.Next(t, "in", key); d.Attr("type") != "dev.knative.apiserver.ref.delete" {
		t.Errorf("%v", d.Attributes)
	}
	s.watches("False", "NoSuchKind")
	if err := server.Apply(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	s.watches("True", "")
	o.apply(`{"apiVersion":"watch.test/v1","kind":"Late","metadata":{"name":"l"}}`)
	sink.Next(t, "in", key)
	s.quiet(sink, "in", map[string]int{key: 3, "Website/" + o.namespace + "/a": 1})
}

func mustJSON(t *testing.T, manifest []byte) []byte {
	t.Helper()
	text, err := yaml.YAMLToJSONStrict(manifest)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
