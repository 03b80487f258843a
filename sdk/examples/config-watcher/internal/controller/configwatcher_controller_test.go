package controller

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/reschedule-dev/reschedule/sdk/examples/config-watcher/api/v1"
)

// Pods are restarted once, the delay after a change.
func TestReconcile_RestartsAfterTheDelay(t *testing.T) {
	t.Parallel()
	var (
		all      = []string{"a", "b"}
		reported = []string{"Normal RestartedPods ConfigMap webapp-config has changed; pods restarted: 2"}
	)
	for name, c := range map[string]struct {
		act      func(*scene)
		after    time.Duration // what the last run asked for
		reason   string
		pods     []string // that are left
		restarts int64
		events   []string
	}{
		"seen for the first time": {
			act:    func(s *scene) { s.run() },
			reason: v1.UpToDate, pods: all,
		},
		"nothing has changed": {
			act:    func(s *scene) { s.run(); s.wait(time.Hour); s.run() },
			reason: v1.UpToDate, pods: all,
		},
		"changed": {
			act:   func(s *scene) { s.changed() },
			after: time.Minute, reason: v1.RestartPending, pods: all,
		},
		"woken before the time": {
			act:   func(s *scene) { s.changed(); s.wait(time.Minute - time.Millisecond); s.run() },
			after: time.Millisecond, reason: v1.RestartPending, pods: all,
		},
		"due": {
			act:    func(s *scene) { s.changed(); s.wait(time.Minute); s.run() },
			reason: v1.UpToDate, restarts: 1, events: reported,
		},
		"long overdue": {
			act:    func(s *scene) { s.changed(); s.wait(24 * time.Hour); s.run() },
			reason: v1.UpToDate, restarts: 1, events: reported,
		},
		"woken again after that": {
			act:    func(s *scene) { s.changed(); s.wait(time.Minute); s.run(); s.start("new", nil); s.run() },
			reason: v1.UpToDate, pods: []string{"new"}, restarts: 1, events: reported,
		},
		"changed again meanwhile": {
			act: func(s *scene) {
				s.changed()
				s.wait(40 * time.Second)
				s.write("Good morning")
				s.run()
			},
			after: 20 * time.Second, reason: v1.RestartPending, pods: all,
		},
		"changed again meanwhile, and due": {
			act: func(s *scene) {
				s.changed()
				s.wait(40 * time.Second)
				s.write("Good morning")
				s.run()
				s.wait(20 * time.Second)
				s.run()
				s.wait(40 * time.Second) // nothing is left of the second change
				s.run()
			},
			reason: v1.UpToDate, restarts: 1, events: reported,
		},
		"changed again, unseen": {
			act: func(s *scene) {
				s.changed()
				s.write("Good morning")
				s.wait(time.Minute)
				s.run()
				s.start("new", nil)
				s.wait(time.Hour)
				s.run()
			},
			reason: v1.UpToDate, pods: []string{"new"}, restarts: 1, events: reported,
		},
		"a change taken back, which pods may have": {
			act: func(s *scene) {
				s.changed()
				s.wait(10 * time.Second)
				s.start("between", nil)
				s.wait(10 * time.Second)
				s.write("Welcome")
				s.run()
				s.wait(40 * time.Second)
				s.run()
			},
			reason: v1.UpToDate, restarts: 1,
			events: []string{"Normal RestartedPods ConfigMap webapp-config has changed; pods restarted: 3"},
		},
		"binary data": {
			act: func(s *scene) {
				s.run()
				s.edit(func(c *corev1.ConfigMap) { c.BinaryData = map[string][]byte{"logo": {0}} })
				s.run()
			},
			after: time.Minute, reason: v1.RestartPending, pods: all,
		},
		"only its labels": {
			act: func(s *scene) {
				s.run()
				s.edit(func(c *corev1.ConfigMap) { c.Labels = map[string]string{"team": "a"} })
				s.run()
			},
			reason: v1.UpToDate, pods: all,
		},
		"without a delay": {
			act: func(s *scene) {
				s.respec(func(w *v1.ConfigWatcher) { w.Spec.RolloutDelay.Duration = 0 })
				s.changed()
			},
			reason: v1.UpToDate, restarts: 1, events: reported,
		},
		"another delay is for the next change": {
			act: func(s *scene) {
				s.changed()
				s.respec(func(w *v1.ConfigWatcher) { w.Spec.RolloutDelay.Duration = time.Hour })
				s.run()
			},
			after: time.Minute, reason: v1.RestartPending, pods: all,
		},
		"another ConfigMap is a change": {
			act: func(s *scene) {
				s.run()
				s.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
				s.respec(func(w *v1.ConfigWatcher) { w.Spec.ConfigMap = "other" })
				s.run()
			},
			after: time.Minute, reason: v1.RestartPending, pods: all,
		},
		"pods that have it already": {
			act: func(s *scene) {
				s.changed()
				s.wait(time.Second)
				s.start("new", nil)
				s.wait(time.Minute)
				s.run()
			},
			reason: v1.UpToDate, pods: []string{"new"}, restarts: 1, events: reported,
		},
		"only pods that have it already": {
			act: func(s *scene) {
				s.remove(&corev1.Pod{}, "a")
				s.remove(&corev1.Pod{}, "b")
				s.changed()
				s.wait(time.Second)
				s.start("new", nil)
				s.wait(time.Minute)
				s.run()
			},
			reason: v1.UpToDate, pods: []string{"new"},
		},
		"pods that are not ours, finished, being deleted, or without an owner": {
			act: func(s *scene) {
				s.start("c-elsewhere", func(p *corev1.Pod) { p.Namespace = "team-b" })
				s.start("c-other", func(p *corev1.Pod) { p.Labels["app"] = "database" })
				s.start("d-succeeded", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
				s.start("e-failed", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
				s.start("f-bare", func(p *corev1.Pod) { p.OwnerReferences = nil })
				s.start("g-going", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/slow"} })
				s.remove(&corev1.Pod{}, "g-going")
				s.wait(time.Second)
				s.changed()
				s.wait(time.Minute)
				s.run()
			},
			reason: v1.UpToDate, pods: []string{"c-other", "d-succeeded", "e-failed", "f-bare", "c-elsewhere"}, restarts: 1, events: reported,
		},
		"no ConfigMap": {
			act:    func(s *scene) { s.remove(&corev1.ConfigMap{}, "webapp-config"); s.run() },
			reason: v1.ConfigMapNotFound, pods: all,
		},
		"no ConfigMap until later": {
			act: func(s *scene) {
				s.remove(&corev1.ConfigMap{}, "webapp-config")
				s.run()
				s.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "webapp-config"}})
				s.run()
			},
			reason: v1.UpToDate, pods: all,
		},
		"deleted meanwhile": {
			act: func(s *scene) {
				s.changed()
				s.remove(&corev1.ConfigMap{}, "webapp-config")
				s.run()
				s.wait(time.Minute)
				s.run()
			},
			reason: v1.ConfigMapNotFound, pods: all,
		},
		"deleted meanwhile, and made anew": {
			act: func(s *scene) {
				s.changed()
				s.remove(&corev1.ConfigMap{}, "webapp-config")
				s.run()
				s.wait(time.Minute)
				s.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "webapp-config"}})
				s.run()
			},
			reason: v1.UpToDate, restarts: 1, events: reported,
		},
		"made anew as it was": {
			act: func(s *scene) {
				s.run()
				s.remove(&corev1.ConfigMap{}, "webapp-config")
				s.run()
				s.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "webapp-config"}, Data: map[string]string{"greeting": "Welcome"}})
				s.run()
			},
			reason: v1.UpToDate, pods: all,
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				c.act(s)
				if s.err != nil || s.result != (reconcile.Result{RequeueAfter: c.after}) {
					t.Errorf("the last run returned %+v, %v; want RequeueAfter %s", s.result, s.err, c.after)
				}
				if pods := s.pods(); !slices.Equal(pods, c.pods) {
					t.Errorf("pods %v are left, want %v", pods, c.pods)
				}
				w := s.watcher()
				ready := meta.FindStatusCondition(w.Status.Conditions, v1.Ready)
				if ready == nil || ready.Reason != c.reason || (ready.Status == metav1.ConditionTrue) != (c.reason == v1.UpToDate) {
					t.Errorf("the condition is %+v, want %s", ready, c.reason)
				}
				if w.Status.Restarts != c.restarts || (w.Status.LastRestart != nil) != (c.restarts > 0) {
					t.Errorf("the status has %d restarts, the last at %v; want %d", w.Status.Restarts, w.Status.LastRestart, c.restarts)
				}
				if w.Status.ObservedGeneration != w.Generation {
					t.Errorf("generation %d was observed, of %d", w.Status.ObservedGeneration, w.Generation)
				}
				if said := s.said(); !slices.Equal(said, c.events) {
					t.Errorf("Events %q, want %q", said, c.events)
				}
			})
		})
	}
}

// A ConfigWatcher that is gone, or being deleted, restarts nothing.
func TestReconcile_IgnoresADeletedWatcher(t *testing.T) {
	t.Parallel()
	for name, finalizers := range map[string][]string{"gone": nil, "going": {"example.com/slow"}} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				s.respec(func(w *v1.ConfigWatcher) { w.Finalizers = finalizers })
				s.changed()
				s.remove(&v1.ConfigWatcher{}, "webapp")
				s.wait(time.Minute)
				s.run()
				if s.err != nil || !s.result.IsZero() || len(s.pods()) != 2 {
					t.Errorf("it returned %+v, %v, and pods %v are left", s.result, s.err, s.pods())
				}
			})
		})
	}
}

// Whatever fails when pods are due, the next run does what is left, and leaves
// alone what the Deployment has made anew.
// The run after a failed run does what is left.
func TestReconcile_GoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verb   string
		object client.Object // nil: any
		name   string        // "": any
		left   []string      // of the old pods, after the failure
	}{
		"reading the ConfigWatcher": {verb: "get", object: &v1.ConfigWatcher{}, left: []string{"a", "b"}},
		"reading the ConfigMap":     {verb: "get", object: &corev1.ConfigMap{}, left: []string{"a", "b"}},
		"listing the pods":          {verb: "list", left: []string{"a", "b"}},
		"deleting one":              {verb: "delete", name: "a", left: []string{"a"}},
		"writing the status":        {verb: "update"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				s.changed()
				s.wait(time.Minute)
				refused := errors.New("not now")
				s.fails = func(verb string, o client.Object) error {
					if verb != c.verb || c.name != "" && o.GetName() != c.name || c.object != nil && kindOf(s, o) != kindOf(s, c.object) {
						return nil
					}
					return refused
				}
				s.run()
				if !errors.Is(s.err, refused) {
					t.Errorf("it returned %+v, %v; want the error", s.result, s.err)
				}
				s.fails = nil
				if pods := s.pods(); !slices.Equal(pods, c.left) {
					t.Errorf("pods %v are left, want %v", pods, c.left)
				}
				if w := s.watcher(); w.Status.Pending == nil {
					t.Errorf("nothing is pending any more: %+v", w.Status)
				}

				s.wait(time.Second)
				s.start("new", nil)
				s.run()
				if s.err != nil || !s.result.IsZero() {
					t.Errorf("then it returned %+v, %v", s.result, s.err)
				}
				if pods := s.pods(); !slices.Equal(pods, []string{"new"}) {
					t.Errorf("then pods %v are left, want the new one", pods)
				}
				if w := s.watcher(); w.Status.Pending != nil {
					t.Errorf("then %+v is pending", w.Status.Pending)
				}
			})
		})
	}
}

// A change counts as seen when it is in the status: a run that could not write the status
// does not begin to wait.
func TestReconcile_SeesAnUnwrittenChangeAgain(t *testing.T) {
	play(t, func(s *scene) {
		s.run()
		s.write("Hello")
		s.fails = func(verb string, _ client.Object) error {
			if verb == "update" {
				return errors.New("not now")
			}
			return nil
		}
		if s.run(); s.err == nil {
			t.Errorf("it returned %+v", s.result)
		}
		s.fails = nil
		s.wait(10 * time.Second)
		if s.run(); s.err != nil || s.result.RequeueAfter != time.Minute {
			t.Errorf("then it returned %+v, %v", s.result, s.err)
		}
	})
}

// A pod that is already gone is not a failure.
func TestReconcile_AcceptsAPodThatIsGone(t *testing.T) {
	t.Parallel()
	pods := corev1.Resource("pods")
	for name, said := range map[string]error{
		"gone":                     apierrors.NewNotFound(pods, "a"),
		"another one of that name": apierrors.NewConflict(pods, "a", errors.New("the uid is another")),
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				s.changed()
				s.wait(time.Minute)
				s.fails = func(verb string, o client.Object) error {
					if verb == "delete" && o.GetName() == "a" {
						return said
					}
					return nil
				}
				if s.run(); s.err != nil {
					t.Error(s.err)
				}
				if said := s.said(); !slices.Equal(said, []string{"Normal RestartedPods ConfigMap webapp-config has changed; pods restarted: 1"}) {
					t.Errorf("Events %q", said)
				}
			})
		})
	}
}

// The API server refuses it; but if it did not, the namespace would be emptied.
// An empty selector selects no pods.
func TestReconcile_EmptySelector(t *testing.T) {
	play(t, func(s *scene) {
		s.respec(func(w *v1.ConfigWatcher) { w.Spec.PodSelector = nil })
		s.changed()
		s.wait(time.Minute)
		s.run()
		if !errors.Is(s.err, reconcile.TerminalError(nil)) || len(s.pods()) != 2 {
			t.Errorf("it returned %v, and pods %v are left", s.err, s.pods())
		}
	})
}

// An event of a ConfigMap leads to its ConfigWatchers.
func TestWatchersOf_AConfigMap(t *testing.T) {
	play(t, func(s *scene) {
		for _, w := range []struct{ namespace, name, configMap string }{
			{namespace, "another", "webapp-config"}, {namespace, "other", "database"}, {"team-b", "webapp", "webapp-config"},
		} {
			s.must(s.Create(t.Context(), &v1.ConfigWatcher{
				ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: w.name}, Spec: v1.ConfigWatcherSpec{ConfigMap: w.configMap},
			}))
		}
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "webapp-config"}}
		var names []string
		for _, r := range s.watchersOf(t.Context(), configMap) {
			names = append(names, r.String())
		}
		if want := []string{"team-a/another", "team-a/webapp"}; !slices.Equal(names, want) {
			t.Errorf("it leads to %v, want %v", names, want)
		}
		s.fails = func(string, client.Object) error { return errors.New("not now") }
		if requests := s.watchersOf(t.Context(), configMap); requests != nil {
			t.Errorf("what cannot be listed is %v", requests)
		}
	})
}
