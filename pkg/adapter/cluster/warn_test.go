package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
)

var someSource = &schedule.Spec{UID: "a-1", Namespace: "ops", Name: "a", Targets: schedule.Targets{ServiceAccount: "a-oidc"}}

// A warning is an Event on the source.
func TestWarn_IsAnEventOnTheSource(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.connect().Warn(someSource, "EventDropped", "the event of key k is lost")
		synctest.Wait()
		list, err := r.kube.CoreV1().Events("ops").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("events are %v, %v", list, err)
		}
		e := list.Items[0]
		on := e.InvolvedObject
		expect(t, "object", "sources.reschedule.dev/v1alpha1 RescheduleSource ops/a a-1",
			fmt.Sprintf("%s %s %s/%s %s", on.APIVersion, on.Kind, on.Namespace, on.Name, on.UID))
		expect(t, "event", "Warning EventDropped reschedule-adapter the event of key k is lost",
			strings.Join([]string{e.Type, e.Reason, e.Source.Component, e.Message}, " "))
	})
}

// hostileText has a control character of ASCII, one beyond it, and a mark that reorders text.
const hostileText = "key \x1b[2J \u009b2J \u202e\nx"

// Neither an Event nor a condition has characters that a terminal obeys. They had the sink's answer as
// it was.
func TestMessages_HaveNoControlCharacters(t *testing.T) {
	t.Parallel()
	want := "key \ufffd[2J \ufffd2J \ufffd x"
	inCluster(t, func(r *env) {
		r.connect().Warn(someSource, "EventDropped", hostileText)
		synctest.Wait()
		list, err := r.kube.CoreV1().Events("ops").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("events are %v, %v", list, err)
		}
		expect(t, "event", want, list.Items[0].Message)
	})
	patch := string(statusPatch(&sources.Counts{Delivering: sources.Delivering{Message: hostileText}}, patchedVersion{}, promptPatch{}))
	if !strings.Contains(patch, want) {
		t.Errorf("the patch is %q", patch)
	}
}

// Repeated warnings are one Event with a count.
func TestWarn_CountsRepeats(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		c := r.connect()
		for range 5 {
			c.Warn(someSource, "EventDropped", "the same")
			synctest.Wait()
		}
		expect(t, "events", []string{"a Warning EventDropped 5"}, r.events())
		for i := range 1000 {
			c.Warn(someSource, "EventDropped", fmt.Sprint("another ", i))
			synctest.Wait()
		}
		if n := len(r.kube.Actions()); n > 100 {
			t.Errorf("%d calls for 1,000 warnings about one source", n)
		}
	})
}

// A long warning is cut between two characters.
func TestWarn_CutsALongMessage(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.connect().Warn(someSource, "InvalidSpec", strings.Repeat("ö", 2000))
		synctest.Wait()
		list, err := r.kube.CoreV1().Events("ops").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("events are %v, %v", list, err)
		}
		if m := list.Items[0].Message; len(m) > 1024 || len(m) < 1000 || !utf8.ValidString(m) || !strings.HasSuffix(m, "...") {
			t.Errorf("message of %d bytes: %q", len(m), m)
		}
	})
}

// Warnings on their way are written before Close returns.
func TestWarn_FlushesAtTheEnd(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.kube.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
			take(100 * time.Millisecond)
			return false, nil, nil
		})
		c := r.connect()
		r.end() // a failure during the shutdown is reported too
		for i := range 10 {
			c.Warn(&schedule.Spec{UID: "u", Namespace: "ops", Name: fmt.Sprint("a", i)}, "EventDropped", "lost")
		}
		start := time.Now()
		c.Close()
		expect(t, "events", 10, len(r.events()))
		expect(t, "time it took", time.Second, time.Since(start))
	})
}

// A warning never blocks, and Close waits a moment only.
func TestWarn_NeverBlocks(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		r.kube.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(kube.CallTimeout)
			return true, nil, errors.New("no answer")
		})
		c, start := r.connect(), time.Now()
		for i := range 5000 {
			c.Warn(&schedule.Spec{UID: "u", Namespace: "ops", Name: fmt.Sprint("a", i)}, "EventDropped", "lost")
		}
		if since := time.Since(start); since != 0 {
			t.Errorf("5,000 warnings took %v", since)
		}
		c.Close()
		c.Close()
		if since := time.Since(start); since > flushTimeout {
			t.Errorf("the end took %v", since)
		}
		c.Warn(someSource, "EventDropped", "after the end")
		time.Sleep(time.Hour) // for the call under way, and the few that client-go may begin although it ends
	})
}

// The mistakes of senders must not use up the Events about sinks.
func TestWarn_LimitsEachReason(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		c := r.connect()
		for range 1000 {
			c.Warn(someSource, reasonEventRefused, "refused")
			pass(time.Millisecond)
		}
		expect(t, "events", []string{"a Warning EventRefused 1"}, r.events())
		for i := range 30 { // the API server holds a source to 25 alike
			c.Warn(someSource, "InvalidSpec", fmt.Sprint("another ", i))
			pass(time.Millisecond)
		}
		c.Warn(someSource, "EventDropped", "lost")
		pass(time.Millisecond)
		if all := r.events(); !slices.Contains(all, "a Warning EventDropped 1") {
			t.Errorf("the events are %v", all)
		}
		other := &schedule.Spec{UID: "b-1", Namespace: "ops", Name: "b"}
		c.Warn(other, reasonEventRefused, "refused")
		pass(time.Millisecond)
		if all := r.events(); !slices.Contains(all, "b Warning EventRefused 1") {
			t.Errorf("the events are %v", all)
		}
		take(refusedInterval + time.Second)
		c.Warn(someSource, reasonEventRefused, "refused")
		pass(time.Millisecond)
		if all := r.events(); !slices.Contains(all, "a Warning EventRefused 2") {
			t.Errorf("five minutes later the events are %v", all)
		}
	})
}

// An event that was refused is a Warning when its sender had a token. The text is fixed: a sender must not choose what an
// Event says.
func TestEventsRefused_FixedText(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refusal error
		token   bool
		says    string
	}{
		"too large":       {schedule.Refuse(schedule.CodeTooLarge, "billboard"), true, "because it is too large"},
		"invalid":         {schedule.Refuse(schedule.CodeInvalid, "billboard"), true, "because it cannot be used"},
		"denied":          {schedule.Refuse(schedule.CodeDenied, "billboard"), true, ""},
		"without a token": {schedule.Refuse(schedule.CodeTooLarge, "billboard"), false, ""},
	} {
		inCluster(t, func(r *env) {
			src := *someSource
			src.Ingest.NeedsToken = c.token
			r.connect().EventsRefused(&src, c.refusal)
			synctest.Wait()
			list, err := r.kube.CoreV1().Events("ops").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != min(1, len(c.says)) {
				t.Fatalf("%s: events are %v, %v", name, list, err)
			}
			for _, e := range list.Items {
				if !strings.Contains(e.Message, c.says) || strings.Contains(e.Message, "billboard") {
					t.Errorf("%s: %s", name, e.Message)
				}
			}
		})
	}
}
