package watch

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

func ownerOf(apiVersion, kind, name string) any {
	return map[string]any{"apiVersion": apiVersion, "kind": kind, "name": name, "uid": "uid-of-" + name}
}

func owns() *schedule.Spec {
	return sourceOf(schedule.WatchResource{Group: "apps", Version: "v1", Kind: "Deployment", OwnerGroup: "example.com", OwnerKind: "Website", Changes: schedule.ChangesAny})
}

// Owners of other kinds cost no calls to the API server, also while the kind of the
// owners that count does not exist: each object would be one call.
func TestOwner_OthersCostNoCall(t *testing.T) {
	run(t, owns, func(t *testing.T, w *env) {
		delete(w.api.kinds, "Website")
		for i := range 50 {
			w.api.put("Deployment", fmt.Sprintf("ops/d%d", i), true, func(o *object) { o.owners = []any{ownerOf("batch/v1", "CronJob", "a")} })
		}
		w.start()
		w.want("none of them counts", time.Minute)
		if w.api.resolves != 1 {
			t.Errorf("%d calls to find a kind", w.api.resolves)
		}
	})
}

// While the kind of owners is found, which waits for the limits of a namespace, lists and watches of
// other namespaces go on: a call held one of four turns, or the single turn of all lists, for 10 s.
func TestOwner_FoundWithoutATurn(t *testing.T) {
	for _, watched := range []bool{false, true} {
		t.Run(fmt.Sprintf("watched=%t", watched), func(t *testing.T) {
			run(t, owns, func(t *testing.T, w *env) {
				answer := make(chan struct{})
				w.api.finding = func(kind string) {
					if kind == "Website" {
						<-answer
					}
				}
				put := func() {
					w.api.put("Deployment", "ops/web", true, func(o *object) { o.owners = []any{ownerOf("example.com/v1", "Website", "a")} })
				}
				if !watched {
					put()
				}
				w.start()
				w.settle(time.Minute)
				if watched {
					put()
				}
				w.want("the kind is not known", time.Minute)
				ctx, end := context.WithTimeout(t.Context(), time.Second)
				defer end()
				for i, all := range []*budget.Budget{w.m.lists, w.m.reading, w.m.reading, w.m.reading, w.m.reading} {
					turn, err := all.Take(ctx, fmt.Sprint(i), "s")
					if err != nil {
						t.Errorf("turn %d: %v", i, err)
					}
					defer turn.Release()
				}
				close(answer)
				w.settle(0)
			})
		})
	}
}

func ownedByNodes() *schedule.Spec {
	return sourceOf(schedule.WatchResource{Group: "apps", Version: "v1", Kind: "Deployment", OwnerKind: "Node", Changes: schedule.ChangesAny})
}

// A kind of owners that is made later, and has no namespace, is found without a restart and without a change, and all
// its keys are woken: a list had no better keys for its objects. A restart meanwhile loses nothing.
func TestOwner_KindComesLater(t *testing.T) {
	for _, how := range []string{"by a change", "by itself", "after a restart", "watched, after a restart"} {
		t.Run(how, func(t *testing.T) {
			restart, watched := strings.HasSuffix(how, "restart"), strings.HasPrefix(how, "watched")
			run(t, ownedByNodes, func(t *testing.T, w *env) {
				delete(w.api.kinds, "Node")
				if watched {
					w.start()
					w.settle(time.Minute)
				}
				wrong, right := make([]string, 4), make([]string, 4)
				for i := range wrong { // two pages
					wrong[i], right[i] = "dev.reschedule.due Node/ops/n1", "dev.reschedule.due Node//n1"
					w.api.put("Deployment", fmt.Sprint("ops/", i), true, func(o *object) { o.owners = []any{ownerOf("v1", "Node", "n1")} })
				}
				if !watched {
					w.start()
				}
				w.want("it does not exist", time.Minute, wrong...)
				if !watched && w.api.lists != 2 {
					t.Errorf("%d lists, want one that needed to know the kind and one more", w.api.lists)
				}
				w.want("for hours", 6*time.Hour)
				if n := w.api.resolves; n > 120 {
					t.Errorf("%d calls to find the kind in 6 hours", n)
				}
				wait := 11 * time.Minute // at the end of the watch at the latest, and a list
				if restart {
					w.stop()
				}
				w.api.set(func() { w.api.kinds["Node"] = node })
				switch {
				case restart:
					w.start()
				case how == "by a change":
					w.api.put("Deployment", "ops/0", true)
					wait = time.Second
				}
				w.want("it exists", wait, append(wrong, right...)...)
				w.api.put("Deployment", "ops/0", true)
				w.want("a change", time.Second, right[0])
				lists := w.api.lists
				w.want("quiet", time.Hour)
				if w.api.lists != lists {
					t.Error("it still lists")
				}
			})
		})
	}
}

// A watch goes on that takes longer to be opened than a kind that does not exist is taken as one: it asked for
// the kind again and again, and read no event.
func TestOwner_WatchThatOpensSlowly(t *testing.T) {
	run(t, owns, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		w.api.set(func() {
			delete(w.api.kinds, "Website")
			w.api.onWatch = func() { pass(missingOwnerLife + time.Second) }
		})
		w.api.put("Deployment", "ops/web", true, func(o *object) { o.owners = []any{ownerOf("example.com/v1", "Website", "a")} })
		w.want("it does not exist", time.Minute, "dev.reschedule.due Website/ops/a")
		if n := w.api.resolves; n > 3 {
			t.Errorf("%d calls to find a kind", n)
		}
	})
}

// A change of an owned object schedules its owners of the group and kind. When they
// change, the old and the new ones are scheduled.
func TestOwner_OldAndNew(t *testing.T) {
	run(t, owns, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		owners := func(list ...any) func(*object) { return func(o *object) { o.owners = list } }
		w.api.put("Deployment", "ops/web", true, owners(
			ownerOf("example.com/v1beta1", "Website", "a"), ownerOf("other.com/v1", "Website", "x"), ownerOf("example.com/v1", "Site", "y")))
		made := w.want("made", time.Second, "dev.reschedule.due Website/ops/a")
		if made[0].uid != "uid-of-a" || made[0].cause != "apps/v1/Deployment/ops/web" {
			t.Errorf("wake %+v", made[0])
		}
		w.api.put("Deployment", "ops/web", false)
		w.want("its status changed, and changes is Any", time.Second, "dev.reschedule.due Website/ops/a")
		w.api.put("Deployment", "ops/web", true, owners(ownerOf("example.com/v1", "Website", "b"), ownerOf("example.com/v1", "Website", "c")))
		w.want("other owners", time.Second, "dev.reschedule.due Website/ops/a", "dev.reschedule.due Website/ops/b", "dev.reschedule.due Website/ops/c")
		w.api.put("Deployment", "ops/web", true, owners())
		w.want("no owner", time.Second, "dev.reschedule.due Website/ops/b", "dev.reschedule.due Website/ops/c")
		if marks := w.marks(); len(marks) != 0 {
			t.Errorf("objects without an owner have marks: %q", marks)
		}
		w.api.put("Deployment", "ops/web", true)
		w.want("a stranger changed", time.Second)
		w.api.put("Deployment", "ops/web", true, owners(ownerOf("example.com/v1", "Website", "d")))
		w.want("adopted", time.Second, "dev.reschedule.due Website/ops/d")
		w.stop()
		w.api.remove("Deployment", "ops/web")
		w.api.compact()
		w.start()
		w.want("deleted while down", time.Minute, "dev.reschedule.due Website/ops/d")
	})
}

// The uid of an owner is any text for the API server. One that a caller could not send is left out,
// and the owner is scheduled.
func TestOwner_UnusableUID(t *testing.T) {
	run(t, owns, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		for i, uid := range []string{strings.Repeat("u", 200<<10), "a\x1b[2Jb"} {
			w.api.put("Deployment", fmt.Sprint("ops/", i), true, func(o *object) {
				o.owners = []any{map[string]any{"apiVersion": "example.com/v1", "kind": "Website", "name": "a", "uid": uid}}
			})
			if wakes := w.want("made", time.Second, "dev.reschedule.due Website/ops/a"); wakes[0].uid != "" {
				t.Errorf("a uid of %d bytes", len(wakes[0].uid))
			}
		}
	})
}

// The key of an owner without a namespace has none.
func TestOwner_WithoutNamespace(t *testing.T) {
	run(t, ownedByNodes, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		w.api.put("Deployment", "ops/agent", true, func(o *object) { o.owners = []any{ownerOf("v1", "Node", "n1")} })
		w.want("made", time.Second, "dev.reschedule.due Node//n1")
	})
}

// An expression yields keys; an error schedules nothing and warns at most once a
// minute.
func TestKey_Expression(t *testing.T) {
	run(t, func() *schedule.Spec {
		return sourceOf(schedule.WatchResource{Version: "v1", Kind: "Node", Changes: schedule.ChangesAny,
			Key: "object.metadata.labels['sites'].split(',').map(s, s == '' ? '' : object.kind + 'Site/' + s)"})
	}, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		if s := w.status(); s.Reason == schedule.WatchInvalidKey {
			w.change(func(src *schedule.Spec) {
				src.Watch.Resources[0].Key = "'sites' in object.metadata.labels ? ['NodeSite/' + object.metadata.labels['sites']] : ['']"
			})
			w.settle(time.Minute)
		}
		label := func(sites string) func(*object) {
			return func(o *object) { o.labels = map[string]any{"sites": sites} }
		}
		w.api.put("Node", "n1", true, label("a"))
		made := w.want("made", time.Second, "dev.reschedule.due NodeSite/a")
		if made[0].cause != "v1/Node//n1" || made[0].uid != "" {
			t.Errorf("wake %+v", made[0])
		}
		w.api.put("Node", "n1", true, label("b"))
		w.want("moved", time.Second, "dev.reschedule.due NodeSite/a", "dev.reschedule.due NodeSite/b")
		for range 10 {
			w.api.put("Node", "n1", true, func(o *object) { o.labels = nil })
			w.want("an error", 5*time.Second)
		}
		if n := len(w.warned); n != 1 || !strings.Contains(w.warned[0], "n1") {
			t.Errorf("%d warnings: %q", n, w.warned)
		}
		w.api.put("Node", "n1", true, label("c"))
		w.want("valid again", time.Second, "dev.reschedule.due NodeSite/b", "dev.reschedule.due NodeSite/c")
	})
}

// A key that does not compile is reported, and the other resources are watched.
func TestKey_DoesNotCompile(t *testing.T) {
	run(t, func() *schedule.Spec {
		src := own()
		src.Watch.Resources = append(src.Watch.Resources, schedule.WatchResource{Version: "v1", Kind: "Node", Key: "object.("})
		return src
	}, func(t *testing.T, w *env) {
		w.start()
		w.settle(time.Minute)
		w.api.put("Website", "ops/a", true)
		w.want("the other resource", time.Second, "add Website/ops/a")
		if s := w.status(); s.Reason != schedule.WatchInvalidKey || s.Status != schedule.WatchFalse {
			t.Errorf("status %+v", s)
		}
	})
}

// What counts by changes.
func TestChanges_WhatCounts(t *testing.T) {
	for changes, want := range map[schedule.Changes][3]bool{ // spec, labels, status
		schedule.ChangesSpec: {true, false, false}, schedule.ChangesMetadata: {true, true, false}, schedule.ChangesAny: {true, true, true},
	} {
		before := object{kind: "Website", namespace: "ops", name: "a", uid: "u", version: 1, generation: 1}
		print := func(f func(*object)) uint64 {
			o := before
			f(&o)
			return fingerprint(o.read(), changes)
		}
		was := print(func(*object) {})
		got := [3]bool{
			print(func(o *object) { o.generation++; o.version++ }) != was,
			print(func(o *object) { o.labels = map[string]any{"a": "b"}; o.version++ }) != was,
			print(func(o *object) { o.version++ }) != was,
		}
		if got != want {
			t.Errorf("%s: spec, labels and status count: %v, want %v", changes, got, want)
		}
		secret := object{kind: "Secret", name: "s", uid: "u", version: 1}
		again := secret
		again.version++
		if fingerprint(secret.read(), changes) == fingerprint(again.read(), changes) {
			t.Errorf("%s: a change of an object without a generation does not count", changes)
		}
		if managed := print(func(o *object) { o.metadata = map[string]any{"managedFields": []any{"x"}} }); managed != was {
			t.Errorf("%s: managedFields count", changes)
		}
	}
}

// The subject guesses the resource as ApiServerSource does.
func TestEvent_Plural(t *testing.T) {
	for kind, want := range map[string]string{"Website": "websites", "Ingress": "ingresses", "NetworkPolicy": "networkpolicies", "Endpoints": "endpoints"} {
		if got := plural(kind); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
}

// An event of the object itself is as ApiServerSource sends it, with uid and version.
func TestEvent_IsOfApiServerSource(t *testing.T) {
	src := sourceOf()
	s := &observed{path: "ops/a", uid: "u", version: "7"}
	e := ownEvent(src, website, s, updated)
	if e.Type != "dev.knative.apiserver.ref.update" || e.Subject != "/apis/example.com/v1/namespaces/ops/websites/a" ||
		e.Source != "/apis/sources.reschedule.dev/v1alpha1/namespaces/ops/reschedulesources/websites" ||
		string(e.Data) != `{"kind":"Website","namespace":"ops","name":"a","uid":"u","apiVersion":"example.com/v1","resourceVersion":"7"}` ||
		fmt.Sprint(e.Extensions) != "map[apiversion:example.com/v1 kind:Website name:a namespace:ops]" {
		t.Errorf("%+v %s", e, e.Data)
	}
	if e := ownEvent(src, node, &observed{path: "n"}, added); e.Subject != "/apis/v1/namespaces//nodes/n" || e.Extensions["namespace"] != "" {
		t.Errorf("%+v", e)
	}
}

// A workload without a sink, its ReplicaSet and its pods wake nothing: each start and end changes them. Others do.
func TestOfWorkload_ByNameAndOwner(t *testing.T) {
	t.Parallel()
	src := &schedule.Spec{Namespace: "ops", Scale: schedule.Scale{Sinkless: true, Workload: schedule.Workload{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}}
	deployment, set, pod := objects.Resource{Group: "apps", Version: "v1", Kind: "Deployment"}, objects.Resource{Group: "apps", Version: "v1", Kind: "ReplicaSet"}, objects.Resource{Version: "v1", Kind: "Pod"}
	labels := map[string]any{"pod-template-hash": "abc"}
	owner := func(kind, name string) []objects.Owner {
		return []objects.Owner{{APIVersion: "apps/v1", Kind: kind, Name: name}}
	}
	for name, c := range map[string]struct {
		kind   objects.Resource
		object objects.Object
		want   bool
	}{
		"itself":                   {deployment, objects.Object{Namespace: "ops", Name: "web"}, true},
		"elsewhere":                {deployment, objects.Object{Namespace: "dev", Name: "web"}, false},
		"another":                  {deployment, objects.Object{Namespace: "ops", Name: "web-abc"}, false},
		"a Service of its name":    {objects.Resource{Version: "v1", Kind: "Service"}, objects.Object{Namespace: "ops", Name: "web"}, false},
		"its ReplicaSet":           {set, objects.Object{Namespace: "ops", Name: "web-abc", Labels: labels, Owners: owner("Deployment", "web")}, true},
		"a ReplicaSet of another":  {set, objects.Object{Namespace: "ops", Name: "web-abc", Owners: owner("Deployment", "other")}, false},
		"its pod":                  {pod, objects.Object{Namespace: "ops", Name: "web-abc-1", Labels: labels, Owners: owner("ReplicaSet", "web-abc")}, true},
		"a pod of web-abc":         {pod, objects.Object{Namespace: "ops", Name: "web-abc-d-1", Labels: map[string]any{"pod-template-hash": "d"}, Owners: owner("ReplicaSet", "web-abc-d")}, false},
		"a pod of no Deployment":   {pod, objects.Object{Namespace: "ops", Name: "web-1"}, false},
		"a pod of a StatefulSet":   {pod, objects.Object{Namespace: "ops", Name: "web-0", Owners: owner("StatefulSet", "web")}, false},
		"a pod that another makes": {pod, objects.Object{Namespace: "ops", Name: "x", Owners: []objects.Owner{{APIVersion: "example.com/v1", Kind: "Deployment", Name: "web"}}}, false},
	} {
		if got := ofWorkload(&c.object, c.kind, src); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	src.Scale.APIVersion, src.Scale.Kind = "argoproj.io/v1alpha1", "Rollout"
	if !ofWorkload(&objects.Object{Namespace: "ops", Name: "web-abc-1", Labels: map[string]any{"rollouts-pod-template-hash": "abc"}, Owners: owner("ReplicaSet", "web-abc")}, pod, src) {
		t.Error("a pod of a Rollout wakes it")
	}
	src.Scale.Sinkless = false
	if ofWorkload(&objects.Object{Namespace: "ops", Name: "web"}, deployment, src) {
		t.Error("with a sink its owner may watch it")
	}
}
