package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// The status has the counts of the source.
func TestStatus_HasTheCounts(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		due := time.Now().Add(time.Hour + time.Nanosecond)
		r.registry.count("a-1", 1204, due)
		r.registry.count("b-1", 0, time.Time{})
		r.run()
		pass(statusInterval)
		at := due.Truncate(time.Second).Add(time.Second).UTC().Format(time.RFC3339)
		expect(t, "patches", map[string]bool{
			`a {"status":{"pending":1204,"nextDueAt":"` + at + `","oldestDueAt":null,"inFlight":0,"retrying":0,"deliveries":{"message":"","reason":"","status":"Unknown"}}}`: true,
			`b {"status":{"pending":0,"nextDueAt":null,"oldestDueAt":null,"inFlight":0,"retrying":0,"deliveries":{"message":"","reason":"","status":"Unknown"}}}`:            true,
		}, set(r.patches()))
		o, err := r.cluster.sources.RescheduleSources("ops").Get("a")
		if err != nil {
			t.Fatal(err)
		}
		if *o.Status.Pending != 1204 || o.Status.NextDueAt.Before(&o.CreationTimestamp) || o.Status.SinkURI == nil {
			t.Errorf("status is %+v", o.Status)
		}
		// Two rounds: a report that had to wait for another in the first makes the next one a round later.
		r.sources.ClearActions()
		r.registry.count("a-1", 1204, due.Add(time.Minute))
		pass(2 * statusInterval)
		expect(t, "patches for the same number at another time", 1, len(r.patches()))
		r.registry.count("a-1", 0, time.Time{})
		r.sources.ClearActions()
		pass(2 * statusInterval)
		expect(t, "patches", []string{`a {"status":{"pending":0,"nextDueAt":null,"oldestDueAt":null,"inFlight":0,"retrying":0,"deliveries":{"message":"","reason":"","status":"Unknown"}}}`}, r.patches())
	}, object("a"), object("b"), object("c"))
}

func set(all []string) map[string]bool {
	m := map[string]bool{}
	for _, s := range all {
		m[s] = true
	}
	return m
}

// The next due time is rounded up, never down.
func TestStatus_RoundsTheNextDueTimeUp(t *testing.T) {
	t.Parallel()
	whole := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		at   time.Duration
		want time.Duration
	}{{0, 0}, {1, time.Second}, {time.Second - 1, time.Second}, {time.Second, time.Second}} {
		if got := nextDueAt(whole.Add(c.at)); !got.Time.Equal(whole.Add(c.want)) {
			t.Errorf("%v after the second: %v, want %v", c.at, got, whole.Add(c.want))
		}
	}
	if got := nextDueAt(time.Time{}); got != nil {
		t.Errorf("no instant: %v", got)
	}
}

// Counts that do not change are not reported.
func TestStatus_SkipsUnchangedCounts(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.registry.count("a-1", 3, time.Now().Add(time.Hour))
		r.run()
		pass(24 * time.Hour)
		expect(t, "patches", 1, len(r.patches()))
	}, object("a"))
}

// A failure whose answer has control characters is reported once: the status, which has none, was taken for
// another one, and written again and again.
func TestStatus_SkipsUnchangedControlCharacters(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.registry.count("a-1", 3, time.Time{})
		r.registry.mu.Lock()
		failing := r.registry.counts["a-1"]
		failing.Delivering = sources.Delivering{Status: "False", Message: hostileText}
		r.registry.counts["a-1"] = failing
		r.registry.mu.Unlock()
		r.run()
		pass(time.Hour)
		expect(t, "patches", 1, len(r.patches()))
	}, object("a"))
}

// No object is reported more often than every 30 seconds.
func TestStatus_IsReportedEvery30Seconds(t *testing.T) {
	t.Parallel()
	var objects []runtime.Object
	for i := range 20 {
		objects = append(objects, object(fmt.Sprintf("a%d", i)))
	}
	inCluster(t, func(r *env) {
		last := map[string]time.Time{}
		reports := 0
		r.sources.PrependReactor("patch", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			name, now := a.(clienttesting.PatchAction).GetName(), time.Now()
			if since := now.Sub(last[name]); since < 30*time.Second {
				t.Errorf("%s is reported again after %v", name, since)
			}
			last[name] = now
			reports++
			if reports%7 == 0 {
				take(9 * time.Second) // slow at times: phases are missed
			}
			return false, nil, nil
		})
		r.run()
		for i := range int64(1200) {
			for _, o := range objects {
				r.registry.count(string(o.(*v1alpha1.RescheduleSource).UID), i, time.Time{})
			}
			pass(time.Second)
		}
		if reports < 200 {
			t.Errorf("%d reports in 20 minutes of 20 objects that change all the time", reports)
		}
	}, objects...)
}

// The reports of many objects are spread over time.
func TestStatus_SpreadsReportsOverTime(t *testing.T) {
	t.Parallel()
	var objects []runtime.Object
	const many = 3000
	for i := range many {
		objects = append(objects, object(fmt.Sprintf("a%d", i)))
	}
	inCluster(t, func(r *env) {
		for i := range many {
			r.registry.count(fmt.Sprintf("a%d-1", i), 1, time.Time{})
		}
		reports, perSecond, most := 0, map[int64]int{}, 0
		r.sources.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			reports++
			perSecond[time.Now().Unix()]++
			most = max(most, perSecond[time.Now().Unix()])
			return false, nil, nil
		})
		r.run()
		pass(many/kube.StatusPerSecond*time.Second + statusInterval)
		if reports != many || most > kube.StatusPerSecond+1 {
			t.Errorf("%d reports, at most %d a second; want %d and %d", reports, most, many, kube.StatusPerSecond)
		}
	}, objects...)
}

// An object that was deleted meanwhile is no error.
func TestStatus_IgnoresADeletedObject(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.sources.PrependReactor("patch", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewNotFound(v1alpha1.Resource("reschedulesources"), "a")
		})
		r.registry.count("a-1", 1, time.Time{})
		r.run()
		pass(time.Hour)
		expect(t, "lines", 0, r.log.count("status"))
	}, object("a"))
}

// An API server that does not answer is asked once per round.
func TestStatus_TriesAMissingServerOnceARound(t *testing.T) {
	t.Parallel()
	var objects []runtime.Object
	for i := range 100 {
		objects = append(objects, object(fmt.Sprintf("a%d", i)))
	}
	inCluster(t, func(r *env) {
		for i := range 100 {
			r.registry.count(fmt.Sprintf("a%d-1", i), 1, time.Time{})
		}
		var down atomic.Bool
		down.Store(true)
		r.sources.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down.Load(), nil, errors.New("connection refused")
		})
		r.run()
		pass(10 * time.Minute)
		if n, lines := len(r.patches()), r.log.count("was not reported"); n > 22 || lines > 22 || lines < 10 {
			t.Errorf("%d patches and %d lines in 20 rounds, want one each", n, lines)
		}
		down.Store(false)
		r.sources.ClearActions()
		pass(2 * statusInterval)
		expect(t, "patches", 100, len(r.patches()))
	}, objects...)
}

// An object whose status the API server refuses does not delay the reports of
// the other objects.
func TestReporter_ObjectRefuses(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		for _, uid := range []string{"a-1", "b-1", "c-1"} {
			r.registry.count(uid, 1, time.Time{})
		}
		refused := map[string]bool{}
		r.sources.PrependReactor("patch", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			name := a.(clienttesting.PatchAction).GetName()
			if name == "c" {
				return false, nil, nil
			}
			refused[name] = true
			return true, nil, apierrors.NewForbidden(v1alpha1.Resource("reschedulesources"), name, nil)
		})
		r.run()
		// The last phase begins a second earlier. When two of the objects share
		// it, the limit of reports per second makes the second one wait.
		pass(statusInterval)
		expect(t, "refused", map[string]bool{"a": true, "b": true}, refused)
		expect(t, "patches", 3, len(r.patches()))
		expect(t, "lines", 1, r.log.count("and 1 more"))
	}, object("a"), object("b"), object("c"))
}

// The patches of one namespace hang in a webhook. The first of them ended the round, each time, and a change of a
// watch waited for all of them.
func TestStatus_NamespaceThatHangs(t *testing.T) {
	t.Parallel()
	var all []runtime.Object
	for i := range 20 {
		all = append(all, object(fmt.Sprint("good-", i)), object(fmt.Sprint("hung-", i), func(o *v1alpha1.RescheduleSource) { o.Namespace = "hung" }))
	}
	inCluster(t, func(r *env) {
		for _, o := range all {
			uid := string(o.(*v1alpha1.RescheduleSource).UID)
			r.registry.count(uid, 1, time.Time{})
			r.registry.watches(uid, schedule.WatchStatus{Generation: 1, Status: schedule.WatchTrue})
		}
		var hangs atomic.Bool
		hangs.Store(true)
		r.patching = func(ctx context.Context, source cache.ObjectName) error {
			if source.Namespace == "hung" && hangs.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		r.run()
		for _, o := range all {
			r.cluster.WatchChanged(&schedule.Spec{Namespace: o.(*v1alpha1.RescheduleSource).Namespace, Name: o.(*v1alpha1.RescheduleSource).Name})
		}
		pass(2*statusInterval + kube.CallTimeout)
		good := map[string]bool{}
		for _, p := range r.patches() {
			if name, patch, _ := strings.Cut(p, " "); strings.Contains(patch, `"pending":1`) {
				good[name] = true
			}
		}
		expect(t, "sources of the other namespace", 20, len(good))
		hangs.Store(false)
		r.sources.ClearActions()
		pass(hungPause + 2*statusInterval)
		expect(t, "patches once it hangs no more", 20, len(r.patches()))
	}, all...)
}
