package controller

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// planQueues are two controllers For ConfigMaps and one For nothing.
func planQueues() (first, second, mapper *queue) {
	configMaps := kind{GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap")}
	namespaces := map[string]cache.Config{"ns": {}}
	first, second, mapper = newQueue("first", nil), newQueue("second", nil), newQueue("mapper", nil)
	first.kind, first.prefix, first.namespaces = configMaps, "ConfigMap", namespaces
	second.kind, second.namespaces = configMaps, namespaces
	mapper.namespaces = namespaces
	return first, second, mapper
}

// requestOf is the request for an object NAMESPACE/NAME.
func requestOf(name string) reconcile.Request {
	namespace, name, _ := strings.Cut(name, "/")
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// describe is a plan as text, without what is not there.
func (is plan) describe() string {
	var parts []string
	add := func(what string, ts []string) {
		if slices.Sort(ts); len(ts) > 0 {
			parts = append(parts, what+" "+strings.Join(ts, " "))
		}
	}
	texts := func(ts []target) (all []string) {
		for _, t := range ts {
			all = append(all, t.queue.name+":"+t.request.String())
		}
		return all
	}
	var decided, scheduled []string
	for _, d := range is.decided {
		of := "the key"
		if d.queue != nil {
			of = d.queue.name + ":" + d.request.String()
		}
		outcome := cmp.Or(map[bool]string{true: "gone"}[d.gone], d.after.String())
		decided = append(decided, of+"="+outcome)
	}
	for _, d := range is.schedule {
		scheduled = append(scheduled, d.key+"="+d.after.String())
	}
	add("run", texts(is.run))
	add("check", texts(is.check))
	add("decided", decided)
	add("schedule", scheduled)
	add("survivors", texts(is.survivors))
	add("outside", is.outside)
	return strings.Join(parts, "; ")
}

// TestPlan_OfAChange has a row for each rule about events of objects.
func TestPlan_OfAChange(t *testing.T) {
	t.Parallel()
	first, second, mapper := planQueues()
	p := planner{queues: []*queue{first, second, mapper}}
	of := func(v verb, kind, name string) *change {
		return &change{verb: v, gvk: schema.GroupVersionKind{Version: "v1", Kind: kind}, name: requestOf(name).NamespacedName}
	}
	in := func(q *queue, name string, after time.Duration) delayed {
		return delayed{q.target(requestOf(name)), after}
	}
	again := func(after time.Duration, ts ...target) (last answer) {
		for _, t := range ts {
			last.add(delayed{t, after})
		}
		return last
	}
	a := first.target(requestOf("ns/a"))
	const key = "ConfigMap/ns/a"
	for _, row := range []struct {
		about      string
		withClient bool
		observation
		want string
	}{
		{"a change", false, observation{key: key, change: of(updated, "ConfigMap", "ns/a"), enqueued: []delayed{in(first, "ns/a", 0), in(second, "ns/a", 0)}}, "run first:ns/a second:ns/a"},
		{"a change that predicates drop", false, observation{key: key, change: of(updated, "ConfigMap", "ns/a")}, ""},
		{"a change that predicates drop as at a start", false, observation{key: key, change: of(updated, "ConfigMap", "ns/a"), atStart: true}, "decided the key=gone"},
		{"the same, before a timer", false, observation{key: key, change: of(updated, "ConfigMap", "ns/a"), atStart: true, last: again(time.Hour, a)}, "decided first:ns/a=1h0m0s"},
		{"the same, of an object that maps to none", false, observation{key: "Pod/ns/p", change: of(updated, "Pod", "ns/p"), atStart: true}, ""},
		{"the same, of an owned object", false, observation{key: key, change: of(updated, "Secret", "ns/s"), atStart: true}, "check first:ns/a second:ns/a"},
		{"a change of an unknown kind", false, observation{key: "X//x", change: of(updated, "X", "/x"), atStart: true, unknown: true, watched: true}, "decided the key=gone"},
		{"the same of an ApiServerSource", false, observation{key: "X//x", change: of(updated, "X", "/x"), atStart: true, unknown: true}, ""},
		{"a change that predicates drop, before a timer", false, observation{key: key, change: of(updated, "ConfigMap", "ns/a"), last: again(time.Hour, a)}, "decided first:ns/a=1h0m0s"},
		{"a change that predicates drop, after a timer", false, observation{key: key, change: of(updated, "ConfigMap", "ns/a"), last: again(0, a)}, "run first:ns/a"},
		{"a change that runs what a timer is for", false, observation{key: key, change: of(updated, "ConfigMap", "ns/a"), enqueued: []delayed{in(first, "ns/a", 0)}, last: again(time.Hour, a)}, "run first:ns/a"},
		{"a handler's delay after a timer's", false, observation{key: key, change: of(updated, "Pod", "ns/p"), known: true, enqueued: []delayed{in(first, "ns/a", 2*time.Hour)}, last: again(time.Hour, a)}, "decided first:ns/a=1h0m0s"},
		{"a handler's delay before a timer's", false, observation{key: key, change: of(updated, "Pod", "ns/p"), known: true, enqueued: []delayed{in(first, "ns/a", time.Minute)}, last: again(time.Hour, a)}, "decided first:ns/a=1m0s"},
		{"another object, in a new process", false, observation{key: key, change: of(updated, "Pod", "ns/p")}, "check first:ns/a second:ns/a"},
		{"another object, in a new process, with a client", true, observation{key: key, change: of(updated, "Pod", "ns/p")}, "check first:ns/a"},
		{"another object, with all that waits known", false, observation{key: key, change: of(updated, "Pod", "ns/p"), known: true}, ""},
		{"another object, under a key without a kind", false, observation{key: "mapper/ns/a", change: of(updated, "Pod", "ns/p")}, "run mapper:ns/a"},
		{"another object that maps to others", false, observation{key: "Pod/ns/p", change: of(updated, "Pod", "ns/p"), enqueued: []delayed{in(mapper, "ns/a", 0), in(first, "ns/b", 0)}}, "run first:ns/b mapper:ns/a"},
		{"another object that maps to others, with a client", true, observation{key: "Pod/ns/p", change: of(updated, "Pod", "ns/p"), enqueued: []delayed{in(mapper, "ns/a", time.Minute), in(first, "/b", 0)}}, "schedule ConfigMap//b=0s mapper/ns/a=1m0s"},
		{"its own object under another key, with a client", true, observation{key: "other", change: of(updated, "ConfigMap", "ns/a"), enqueued: []delayed{in(first, "ns/a", 0)}}, "run first:ns/a"},
		{"its own object of two controllers, with a client", true, observation{key: key, change: of(updated, "ConfigMap", "ns/a"), enqueued: []delayed{in(first, "ns/a", 0), in(second, "ns/a", 0)}}, "run first:ns/a; schedule second/ns/a=0s"},
		{"a deletion", false, observation{key: key, change: of(deleted, "ConfigMap", "ns/a"), gone: true, enqueued: []delayed{in(first, "ns/a", 0)}}, "run first:ns/a; decided second:ns/a=gone"},
		{"a deletion that predicates drop, before a timer", false, observation{key: key, change: of(deleted, "ConfigMap", "ns/a"), gone: true, last: again(time.Hour, a)}, "decided first:ns/a=gone second:ns/a=gone"},
		{"a deletion of an object that is there again", false, observation{key: key, change: of(deleted, "ConfigMap", "ns/a"), enqueued: []delayed{in(first, "ns/a", 0)}}, "run first:ns/a; survivors first:ns/a second:ns/a"},
		{"an update of an object that is gone", false, observation{key: key, change: of(updated, "ConfigMap", "ns/a"), gone: true}, "decided first:ns/a=gone second:ns/a=gone"},
		{"the deletion of an owned object", false, observation{key: key, change: of(deleted, "Secret", "ns/s"), gone: true, known: true, enqueued: []delayed{in(first, "ns/a", 0)}}, "run first:ns/a; survivors first:ns/a second:ns/a"},
		{"a namespace outside", false, observation{key: "ConfigMap/other/a", change: of(updated, "ConfigMap", "other/a"), enqueued: []delayed{in(first, "other/a", 0)}}, "decided the key=gone; outside first first second"},
		{"a namespace outside, of another object", false, observation{key: key, change: of(updated, "Pod", "ns/p"), known: true, enqueued: []delayed{in(first, "other/a", 0)}}, "decided the key=gone; outside first"},
	} {
		p.withClient = row.withClient
		if got := p.change(row.observation).describe(); got != row.want {
			t.Errorf("%s: %q, want %q", row.about, got, row.want)
		}
	}
}

// TestPlan_OfADueKey has a row for each rule about keys that are due, with and without
// the cause that a watching source names.
func TestPlan_OfADueKey(t *testing.T) {
	t.Parallel()
	first, second, mapper := planQueues()
	const cause = "v1/Secret/ns/s"
	for _, row := range []struct {
		key   string
		due   due
		cause string
		want  string
	}{
		{"ConfigMap/ns/a", due{}, "", "run first:ns/a second:ns/a"},
		{"first/ns/a", due{}, "", "run first:ns/a"},
		{"second/ns/a", due{}, "", "run second:ns/a"},
		{"any", due{Controller: "mapper", Namespace: "ns", Name: "a"}, "", "run mapper:ns/a"},
		{"any", due{Requests: []due{{Controller: "mapper", Namespace: "ns", Name: "a"}, {Controller: "first", Namespace: "ns", Name: "b"}}}, "", "run first:ns/b mapper:ns/a"},
		{"any", due{Requests: []due{{Controller: "mapper", Namespace: "other", Name: "a"}, {Controller: "first", Namespace: "ns", Name: "b"}}}, "", "run first:ns/b; outside mapper"},
		{"any", due{Requests: []due{{Controller: "mapper", Namespace: "ns", Name: "a", after: time.Minute}, {Controller: "first", Namespace: "ns", Name: "b"}}}, "", "run first:ns/b; decided mapper:ns/a=1m0s"},
		{"any", due{Controller: "mapper", Namespace: "ns", Name: "a", Failures: -1}, "", "run mapper:ns/a"},
		{"ConfigMap/ns/a", due{Controller: "former", Namespace: "ns", Name: "b"}, "", "run first:ns/a second:ns/a"},
		{"any", due{Controller: "former", Namespace: "ns", Name: "b"}, "", "this operator does not know the key"},
		{"ConfigMap/other/a", due{}, "", "this operator does not know the key"},
		{"ConfigMap/ns/", due{}, "", "this operator does not know the key"},
		{"a", due{}, "", "this operator does not know the key"},

		{"ConfigMap/ns/a", due{}, cause, "run first:ns/a second:ns/a"},
		{"ConfigMap//a", due{}, cause, "run first:/a second:/a"},
		{"mapper/ns/a", due{}, cause, "run mapper:ns/a"}, // of spec.watch.resources[].key
		{"ConfigMap/other/a", due{}, cause, "decided the key=gone; outside first second"},
		{"Pod/ns/a", due{}, cause, "this operator does not know the key"},
		{"Pod/other/a", due{}, cause, "this operator does not know the key"},
	} {
		is, err := planner{queues: []*queue{first, second, mapper}}.due(row.key, row.due, row.cause)
		got := is.describe()
		if err != nil {
			got = err.Error()
		}
		if got != row.want && !(errors.Is(err, errUnknownKey) && strings.HasPrefix(got, row.want)) {
			t.Errorf("%s %s of %q: %q, want %q", row.key, row.due.json(), row.cause, got, row.want)
		}
	}
}

// TestPlan_OfAHandler takes every kind and every key that names an object.
func TestPlan_OfAHandler(t *testing.T) {
	t.Parallel()
	q := newQueue("reschedule", nil)
	q.prefix = ""
	p := planner{queues: []*queue{q}}
	for key, want := range map[string]string{
		"Config/ns/a": "reschedule:ns/a", "ns/a": "reschedule:ns/a", "a": "reschedule:/a", "other/a": "reschedule:other/a", "Node//a": "reschedule:/a", "a/b/c/d": "", "a/": "", "//a": "",
	} {
		is, err := p.due(key, due{}, "")
		if got := is.describe(); got != strings.TrimSpace("run "+want) && want != "" || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", key, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), ": its keys are Kind/namespace/name, namespace/name, name") {
			t.Errorf("%s: %v", key, err)
		}
		if len(is.run) > 0 && is.run[0].key != key {
			t.Errorf("%s: its target has the key %s", key, is.run[0].key)
		}
	}
	is := p.change(observation{key: "k", change: &change{verb: deleted, gvk: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, name: requestOf("ns/p").NamespacedName}})
	if got := fmt.Sprint(is.describe(), " ", is.run[0].key); got != "run reschedule:ns/p k" {
		t.Errorf("a change is planned as %q", got)
	}
}
