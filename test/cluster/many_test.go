package cluster

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// many is how many sources a busy cluster has; a race-instrumented run, which
// is many times slower, has fewer.
var many = func() int {
	if harness.RaceEnabled {
		return 100
	}
	return 1000
}()

// each calls f for each of many numbers, some at once.
func each(t *testing.T, f func(i int) error) {
	t.Helper()
	var workers sync.WaitGroup
	numbers := make(chan int)
	for range 16 {
		workers.Go(func() {
			for i := range numbers {
				if err := f(i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range many {
		if t.Failed() {
			break
		}
		numbers <- i
	}
	close(numbers)
	workers.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// It is alone, so that what it takes is its own.
func TestAdapter_ServesAThousandSources(t *testing.T) {
	p, sink := running(t), newSink(t)
	ns := namespace(t, "many")
	client, sources := typedSourcesIn(t, ns), server.Dynamic.Resource(resource).Namespace(ns)
	t.Cleanup(func() { // on a busy machine this takes longer than the minute after which the API server breaks it off, and goes on
		if err := client.DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Log(err)
		}
	})
	s := &source{programs: p, t: t, namespace: ns, client: client}
	s.tokenOf(ns, "caller")
	start := time.Now()
	each(t, func(i int) error {
		_, err := sources.Create(t.Context(), manifest(t, fmt.Sprint("s-", i), to(sink, fmt.Sprint("in-", i))), strict)
		return err
	})
	created := time.Since(start)
	for most, deadline := 0, time.Now().Add(kube.Patience); ; <-time.After(500 * time.Millisecond) {
		list, err := client.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ready := 0
		for i := range list.Items {
			if list.Items[i].Status.GetCondition(apis.ConditionReady).IsTrue() {
				ready++
			}
		}
		if ready == many {
			break
		}
		if ready > most { // a busy machine has longer, as long as it goes on
			most, deadline = ready, time.Now().Add(kube.Patience)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d sources are ready after %s", ready, many, time.Since(start))
		}
	}
	ready := time.Since(start)
	each(t, func(i int) error {
		name := fmt.Sprint("s-", i)
		token, err := server.Token(t.Context(), ns, "caller", "sources.reschedule.dev/reschedulesource/"+ns+"/"+name)
		if err != nil {
			return err
		}
		r, err := harness.Do(t.Context(), "PUT", p.adapter.URL+"/"+ns+"/"+name+"/schedules/a", `{"delay":"100ms"}`, "Authorization", "Bearer "+token)
		if err != nil || r.Status != 201 {
			return fmt.Errorf("%s: %+v: %w", name, r, err)
		}
		return nil
	})
	scheduled := time.Since(start)
	sink.Find(t, "one delivery of each source", func(all []*harness.Delivery) bool { return len(all) >= many })
	for i := range many {
		if n := len(sink.Of(fmt.Sprint("in-", i), "a")); n != 1 {
			t.Errorf("%d deliveries of source %d", n, i)
		}
	}
	t.Logf("created in %s, ready after %s, scheduled after %s, delivered after %s",
		created.Round(time.Millisecond), ready.Round(time.Millisecond), scheduled.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
}
