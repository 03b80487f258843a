package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// The examples run against a real adapter, which RESCHEDULE_URL is the address of.

func Example() {
	ctx := context.Background()
	c, err := sdk.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	// Once this returns, the process may end: the change is on stable storage.
	s, err := c.Schedule(ctx, "GitRepo/team-a/site", sdk.After(5*time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.Result, s.State, s.DueAt.Sub(s.ScheduledAt))
	// Output: created waiting 5m0s
}

// A handler of an operator that keeps no timers.
func ExampleReadDelivery() {
	reconcile := func(key string, attempt int) (again time.Duration, err error) {
		if attempt == 0 {
			return 0, errors.New("the database does not answer")
		}
		return 5 * time.Minute, nil
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, err := sdk.ReadDelivery(r)
		if err != nil {
			sdk.Retry(w, err)
			return
		}
		switch after, err := reconcile(d.Key, d.Attempt); {
		case err != nil:
			sdk.Retry(w, err)
		case after > 0:
			sdk.Again(w, after)
		default:
			sdk.Done(w)
		}
	})

	// What a RescheduleSource sends, twice.
	for attempt := range 2 {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Ce-Id", "1")
		r.Header.Set("Ce-Type", "dev.reschedule.due")
		r.Header.Set("Ce-Reschedulekey", "GitRepo/team-a/site")
		r.Header.Set("Ce-Rescheduleattempt", fmt.Sprint(attempt))
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		fmt.Printf("%d %q\n", w.Code, w.Header().Get("Reschedule-After"))
	}
	// Output:
	// 503 ""
	// 204 "5m0s"
}

// Sooner wins, and the delivery carries an event.
func ExampleClient_Schedule() {
	ctx := context.Background()
	c, err := sdk.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	for _, wait := range []time.Duration{time.Hour, 2 * time.Hour, time.Minute} {
		s, err := c.Schedule(ctx, "mail", sdk.Request{
			Delay:  new(wait),
			Policy: sdk.Earliest,
			Event:  &sdk.Event{Type: "com.example.mail", Data: []byte(`{"to":"ada@example.com"}`)},
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(s.Result)
	}
	// Output:
	// created
	// merged
	// replaced
}

// The first caller gets the key.
func ExampleIfAbsent() {
	ctx := context.Background()
	c, err := sdk.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		_, err := c.Schedule(ctx, "lock", sdk.After(time.Hour), sdk.IfAbsent())
		switch {
		case errors.Is(err, sdk.ErrConflict):
			fmt.Println("another caller has it")
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println("it is ours")
		}
	}
	// Output:
	// it is ours
	// another caller has it
}

// The source counts, also for an operator that was asleep meanwhile.
func ExampleClient_BackOff() {
	ctx := context.Background()
	c, err := sdk.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	for {
		s, err := c.BackOff(ctx, "flaky", sdk.Backoff{Base: time.Minute, Factor: 3, MaxAttempts: 2})
		if errors.Is(err, sdk.ErrExhausted) {
			fmt.Println("given up")
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(s.Attempt, s.DueAt.Sub(s.ScheduledAt))
	}
	// Output:
	// 1 1m0s
	// 2 3m0s
	// given up
}

// An object is gone, and with it what waits for it, unless a new object of the
// same name has scheduled itself already.
func ExampleClient_Cancel() {
	ctx := context.Background()
	c, err := sdk.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.Schedule(ctx, "GitRepo/team-a/docs", sdk.Request{UID: "new", Delay: new(time.Hour)}); err != nil {
		log.Fatal(err)
	}
	for _, uid := range []string{"old", "new"} {
		err := c.Cancel(ctx, "GitRepo/team-a/docs", sdk.IfUID(uid))
		fmt.Println(uid, errors.Is(err, sdk.ErrConflict), err == nil)
	}
	// Output:
	// old true false
	// new false true
}

func ExampleClient_ScheduleAll() {
	ctx := context.Background()
	c, err := sdk.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	outcomes, err := c.ScheduleAll(ctx,
		sdk.Item{Key: "resync/a", Request: sdk.After(time.Minute)},
		sdk.Item{Key: "resync/b", Request: sdk.Request{Delay: new(time.Minute), Jitter: 1}},
		sdk.Item{Key: "resync/c", Request: sdk.Request{Jitter: 2}},
	)
	if err != nil {
		log.Fatal(err)
	}
	for _, o := range outcomes {
		fmt.Println(o.Key, o.Err)
	}
	// Output:
	// resync/a <nil>
	// resync/b <nil>
	// resync/c 400 invalid_argument: jitter: 2 is not from 0 to 1
}

func ExampleClient_List() {
	ctx := context.Background()
	c, err := sdk.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	for i, key := range []string{"list/a", "list/b", "list/c"} {
		if _, err := c.Schedule(ctx, key, sdk.After(time.Hour-time.Duration(i)*time.Minute)); err != nil {
			log.Fatal(err)
		}
	}
	for s, err := range c.List(ctx, sdk.ListOptions{Prefix: "list/", Order: sdk.ByDue}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(s.Key)
	}
	n, err := c.CancelPrefix(ctx, "list/")
	fmt.Println(n, err)
	// Output:
	// list/c
	// list/b
	// list/a
	// 3 <nil>
}

func ExampleError() {
	c, err := sdk.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	_, err = c.Schedule(context.Background(), "k", sdk.Request{Reason: "two\nlines"})
	if refused, ok := errors.AsType[*sdk.Error](err); ok {
		fmt.Println(refused.Status, refused.Code, refused.Field)
	}
	fmt.Println(errors.Is(err, sdk.ErrInvalid))
	// Output:
	// 400 invalid_argument reason
	// true
}
