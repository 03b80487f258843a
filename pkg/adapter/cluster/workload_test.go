package cluster

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// scaled is an object whose workload sleeps.
func scaled(name string, change ...func(*v1alpha1.RescheduleSource)) *v1alpha1.RescheduleSource {
	ref := v1alpha1.ScaleTarget{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	return object(name, append([]func(*v1alpha1.RescheduleSource){func(o *v1alpha1.RescheduleSource) {
		o.Finalizers, o.ResourceVersion = []string{v1alpha1.ScaleFinalizer}, "7"
		o.Spec.Scale = &v1alpha1.RescheduleSourceScale{TargetRef: ref, ServiceAccountName: "scaler"}
		o.Status.Scale = &v1alpha1.ScaleStatus{State: "Asleep", Starts: 3, AwakeSeconds: 9, ObservedSeconds: 90, LastStart: "1.5s",
			Held: &v1alpha1.HeldWorkload{ScaleTarget: ref, Replicas: 1, ServiceAccountName: "scaler"}}
	}}, change...)...)
}

// A workload may sleep once the status names it and the source has the finalizer. A source that is deleted delivers
// nothing and gives its workload back, also if its spec is not valid.
func TestWorkload_HeldByTheStatus(t *testing.T) {
	t.Parallel()
	held := schedule.Workload{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", Account: "scaler", Replicas: 1}
	ended := schedule.Scale{Held: held}
	for _, tt := range []struct {
		name   string
		change func(*v1alpha1.RescheduleSource)
		want   schedule.Scale
	}{
		{"recorded", nil, schedule.Scale{Workload: held, Mode: schedule.ScaleAuto, Cooldown: 10 * time.Second, StartTimeout: 2 * time.Minute, Held: held, Recorded: true}},
		{"without a finalizer", func(o *v1alpha1.RescheduleSource) { o.Finalizers = nil },
			schedule.Scale{Workload: held, Mode: schedule.ScaleAuto, Cooldown: 10 * time.Second, StartTimeout: 2 * time.Minute, Held: held}},
		{"removed", func(o *v1alpha1.RescheduleSource) { o.Spec.Scale = nil }, ended},
		{"deleted", func(o *v1alpha1.RescheduleSource) { o.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, ended},
		{"deleted and not valid", func(o *v1alpha1.RescheduleSource) {
			o.DeletionTimestamp, o.Spec.Delay = &metav1.Time{Time: time.Now()}, new("soon")
		}, ended},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := scaled("a")
			if tt.change != nil {
				tt.change(o)
			}
			inCluster(t, func(r *env) {
				r.registry.count("a-1", 0, time.Time{})
				r.registry.scales("a-1", schedule.ScaleStatus{Held: held})
				r.run()
				pass(time.Second)
				got := r.registry.has["a-1"]
				if got == nil {
					t.Fatal("the source is not in force")
				}
				expect(t, "workload", tt.want, got.Scale)
				expect(t, "suspended", o.DeletionTimestamp != nil, got.Suspend)
			}, o)
		})
	}
}

// What others wait for is in the status within two seconds; a state waits for the next round, and an adapter
// that has just started keeps what is known.
func TestWorkload_IsReported(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.registry.count("a-1", 0, time.Time{})
		held := schedule.Workload{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", Account: "scaler", Replicas: 1}
		r.registry.scales("a-1", schedule.ScaleStatus{Held: held})
		r.run()
		pass(2 * statusInterval)
		saved := r.cluster.WorkloadSaved(&schedule.Spec{UID: "a-1", Namespace: "ops", Name: "a"})
		expect(t, "saved", schedule.ScaleStatus{Starts: 3, Awake: 9 * time.Second, Observed: 90 * time.Second, LastStart: 1500 * time.Millisecond}, saved)
		report := func(s schedule.ScaleStatus, within time.Duration, want string) {
			t.Helper()
			r.sources.ClearActions()
			r.registry.scales("a-1", s)
			r.cluster.WorkloadChanged(&schedule.Spec{Namespace: "ops", Name: "a"})
			pass(within)
			got := ""
			for _, patch := range r.patches() {
				if before, scale, ok := strings.Cut(patch, `"scale":`); ok {
					got = strings.TrimSuffix(scale, "}}")
					// What is held may have changed meanwhile.
					if strings.Contains(before, `{"metadata":{"resourceVersion":"`) != (s.Held != held) {
						t.Errorf("with a version, or without: %s", patch)
					}
				}
			}
			expect(t, "report", want, got)
		}
		s := schedule.ScaleStatus{State: "Awake", Since: time.Unix(60, 0), Starts: 4, Awake: 10 * time.Second, Observed: 100 * time.Second, Held: held}
		report(s, 2*time.Second, "")
		name := `{"apiVersion":"apps/v1","kind":"Deployment","name":"web","replicas":1,"serviceAccountName":"scaler"}`
		report(s, statusRound, `{"awakeSeconds":10,"held":`+name+`,"lastStart":"","message":"","observedSeconds":100,"quietEverySeconds":0,"quietRuns":0,"reason":"","requeues":0,"since":"1970-01-01T00:01:00Z","starts":4,"state":"Awake"}`)
		s.Reason, s.Message = "Forbidden", "no\nright"
		report(s, 2*time.Second, `{"awakeSeconds":10,"held":`+name+`,"lastStart":"","message":"no right","observedSeconds":100,"quietEverySeconds":0,"quietRuns":0,"reason":"Forbidden","requeues":0,"since":"1970-01-01T00:01:00Z","starts":4,"state":"Awake"}`)
		report(schedule.ScaleStatus{}, 2*time.Second, `{"awakeSeconds":10,"held":null,"lastStart":"","message":"no right","observedSeconds":100,"quietEverySeconds":0,"quietRuns":0,"reason":"Forbidden","requeues":0,"since":"1970-01-01T00:01:00Z","starts":4,"state":"Awake"}`)
	}, scaled("a"))
}
