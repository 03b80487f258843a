package sdk_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

var far = time.Date(2090, 1, 2, 3, 4, 5, 6, time.UTC)

// wholeEvent and wholeRequest have every field that can be asked for.
func wholeEvent() *sdk.Event {
	return &sdk.Event{
		Type: "com.example.mail", Subject: "<welcome>", DataSchema: "http://example.com/mail",
		DataContentType: "application/json", Data: []byte("{ \"to\": [1, 2.50, \"<é>\"],\n \"n\": 12345678901234567890 }"),
		Extensions: map[string]any{"team": "platform", "urgent": true, "size": int32(-7)},
	}
}

func wholeRequest() sdk.Request {
	return sdk.Request{
		DueAt: far, Policy: sdk.Replace, Jitter: 0.5, Event: wholeEvent(), MaxInterval: new(90 * time.Minute), Slack: new(10 * time.Minute),
		ExpiresAt: far.AddDate(1, 0, 0), UID: "3f1c", Reason: "<because>", Priority: sdk.HighPriority,
	}
}

// A request comes back from the adapter with every field that it had.
func TestAdapter_SchedulesWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	c := source(t, "still")
	for _, key := range []string{"GitRepo/team-a/site", ".", "..", "a b+c%2F?#&=é\"\\", "//", strings.Repeat("k", 512)} {
		r := wholeRequest()
		r.Jitter = 0
		got, err := c.Schedule(t.Context(), key, r)
		if err != nil {
			t.Fatal(err)
		}
		want := &sdk.Schedule{
			Key: key, Revision: got.Revision, Result: sdk.Created, State: sdk.Waiting, DueAt: far, ScheduledAt: got.ScheduledAt,
			UID: r.UID, Reason: r.Reason, MaxInterval: r.MaxInterval, Slack: r.Slack, ExpiresAt: r.ExpiresAt, Event: r.Event, Terms: sdk.Terms{Priority: r.Priority},
		}
		if age := time.Since(got.ScheduledAt); got.Revision == 0 || age < 0 || age > patience || !reflect.DeepEqual(got, want) {
			t.Errorf("scheduled %s, want %s", show(got), show(want))
		}
		want.Result = ""
		if got, err := c.Get(t.Context(), key); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %s, %v, want %s", show(got), err, show(want))
		}
		if err := c.Cancel(t.Context(), key); err != nil {
			t.Error(err)
		}
		if _, err := c.Get(t.Context(), key); !errors.Is(err, sdk.ErrNotFound) {
			t.Errorf("a cancelled key: %v", err)
		}
		if err := c.Cancel(t.Context(), key); err != nil {
			t.Errorf("a key that is not there: %v", err)
		}
	}
}

func show(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// A delivery is read in the binary and in the structured mode.
func TestAdapter_DeliversInBothModes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"demo", "structured"} {
		key := "GitRepo/é%/" + name
		s, err := source(t, name).Schedule(t.Context(), key, sdk.Request{Delay: new(time.Duration(0)), Event: wholeEvent()})
		if err != nil {
			t.Fatal(err)
		}
		got := inbox.next(t, key)
		e := wholeEvent()
		want := &sdk.Delivery{
			Key: key, Revision: s.Revision, DueAt: s.DueAt, Namespace: "default",
			ID: got.ID, Source: "/apis/sources.reschedule.dev/v1alpha1/namespaces/default/reschedulesources/" + name,
			Type: e.Type, Subject: e.Subject, Time: s.DueAt, DataContentType: e.DataContentType, DataSchema: e.DataSchema, Data: e.Data,
			Extensions: map[string]string{"team": "platform", "urgent": "true", "size": "-7"},
		}
		if got.ID == "" || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: delivered\n%+v, want\n%+v", name, got, want)
		}
	}
}

// eventually calls look until it is true.
func eventually(t *testing.T, what string, look func() (done bool, seen string)) {
	t.Helper()
	deadline, tick := time.After(patience), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for {
		done, seen := look()
		if done {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not after %s: %s: %s", patience, what, seen)
		}
	}
}

// The answer to a delivery decides what is next for its key: another run, a retry at its time, or a dead letter.
func TestAdapter_FollowsTheAnswer(t *testing.T) {
	t.Parallel()
	c, ctx := source(t, "demo"), t.Context()
	const again, retry, reject, low, raised = "answer/again", "answer/retry-in", "answer/reject", "answer/low/again", "answer/raised/again"
	for _, key := range []string{again, retry, reject} {
		if _, err := c.Schedule(ctx, key, sdk.After(0)); err != nil {
			t.Fatal(err)
		}
		inbox.next(t, key)
	}
	inAnHour := func(at time.Time) bool { return (time.Until(at) - time.Hour).Abs() < patience }
	eventually(t, "again in an hour", func() (bool, string) {
		s, err := c.Get(ctx, again)
		return err == nil && s.State == sdk.Waiting && inAnHour(s.DueAt), fmt.Sprint(show(s), err)
	})
	eventually(t, "a retry in an hour", func() (bool, string) {
		s, err := c.Get(ctx, retry)
		return err == nil && s.Attempt == 1 && inAnHour(s.NextAttemptAt), fmt.Sprint(show(s), err)
	})
	for key, want := range map[string]sdk.Priority{low: sdk.LowPriority, raised: sdk.HighPriority} {
		if _, err := c.Schedule(ctx, key, sdk.Request{Delay: new(time.Duration(0)), Priority: sdk.LowPriority}); err != nil {
			t.Fatal(err)
		}
		if d := inbox.next(t, key); d.Priority != sdk.LowPriority || len(d.Extensions) > 0 {
			t.Errorf("%s is delivered with priority %s, extensions %q", key, d.Priority, d.Extensions)
		}
		eventually(t, key+" in an hour", func() (bool, string) {
			s, err := c.Get(ctx, key)
			if err != nil || s.State != sdk.Waiting || s.Priority != want {
				return false, fmt.Sprint(show(s), err)
			}
			n, err := c.Counts(ctx)
			return err == nil && n.Priorities[want].Pending > 0, fmt.Sprint(show(n), err)
		})
	}
	for range 2 {
		eventually(t, "a dead letter", func() (bool, string) {
			l, err := c.DeadLetter(ctx, reject)
			return err == nil && l.Status == http.StatusUnprocessableEntity && l.Detail == "no\n", fmt.Sprint(show(l), err)
		})
		if err := c.Redrive(ctx, reject, sdk.RedriveOptions{}); err != nil {
			t.Error(err)
		}
		inbox.next(t, reject)
	}
	eventually(t, "its history", func() (bool, string) {
		h, err := c.History(ctx, reject)
		return err == nil && len(h.Items) == 3 && h.Items[0].Result == "kept" && h.Items[0].Duration > 0, fmt.Sprint(show(h), err)
	})
	if n, err := c.DiscardPrefix(ctx, reject); n != 1 || err != nil {
		t.Errorf("%d discarded, %v", n, err)
	}
}
