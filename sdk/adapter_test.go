package sdk_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
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
		DueAt: far, Policy: sdk.Replace, Jitter: 0.5, Event: wholeEvent(), MaxInterval: new(90 * time.Minute),
		ExpiresAt: far.AddDate(1, 0, 0), UID: "3f1c", Reason: "<because>",
	}
}

// A request comes back from the adapter with every field that it had.
func TestAdapter_SchedulesWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	c := source(t, "still")
	for _, key := range []string{"a", "GitRepo/team-a/site", ".", "..", "...", "a b+c%2F?#&=é\"\\", "//", strings.Repeat("k", 512)} {
		r := wholeRequest()
		r.Jitter = 0
		got, err := c.Schedule(t.Context(), key, r)
		if err != nil {
			t.Fatal(err)
		}
		want := &sdk.Schedule{
			Key: key, Revision: got.Revision, Result: sdk.Created, State: sdk.Waiting, DueAt: far, ScheduledAt: got.ScheduledAt,
			UID: r.UID, Reason: r.Reason, MaxInterval: r.MaxInterval, ExpiresAt: r.ExpiresAt, Event: r.Event,
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

// Data is JSON, text or bytes, as its content type says.
func TestAdapter_KeepsDataByContentType(t *testing.T) {
	t.Parallel()
	c := source(t, "demo")
	for name, e := range map[string]sdk.Event{
		"none":               {Type: "t"},
		"JSON":               {Data: []byte("[ 1,\t\"<\u2028>\" ]")},
		"a JSON string":      {Data: []byte(`"a"`)},
		"JSON by its suffix": {Data: []byte(`{"a" : 1}`), DataContentType: "Application/X+JSON; charset=utf-8"},
		"a text":             {Data: []byte("<a>\n\"b\""), DataContentType: "text/plain"},
		"a text like JSON":   {Data: []byte(`{ "a":1}`), DataContentType: "text/plain"},
		"bytes":              {Data: []byte{0, 0xff}, DataContentType: "application/octet-stream"},
		"a large text":       {Data: []byte(strings.Repeat("<", 256<<10)), DataContentType: "text/plain"},
		"attributes":         {Type: "é t\"", Subject: "100% é", Extensions: map[string]any{"s": "a b", "b": false, "n": int32(0)}},
	} {
		key := "data/" + name
		s, err := c.Schedule(t.Context(), key, sdk.Request{Delay: new(time.Duration(0)), Event: &e})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !reflect.DeepEqual(s.Event, &e) {
			t.Errorf("%s: scheduled %s, want %s", name, show(s.Event), show(e))
		}
		d := inbox.next(t, key)
		if len(e.Data) > 0 && e.DataContentType == "" {
			e.DataContentType = "application/json"
		}
		if string(d.Data) != string(e.Data) || d.DataContentType != e.DataContentType {
			t.Errorf("%s: delivered %q of type %q, want %q of type %q", name, d.Data, d.DataContentType, e.Data, e.DataContentType)
		}
		for attribute, value := range e.Extensions {
			if got := d.Extensions[attribute]; got != fmt.Sprint(value) {
				t.Errorf("%s: %s is %q, want %v", name, attribute, got, value)
			}
		}
		if e.Subject != "" && (d.Subject != e.Subject || d.Type != e.Type) {
			t.Errorf("%s: delivered %q about %q, want %q about %q", name, d.Type, d.Subject, e.Type, e.Subject)
		}
	}
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

// The answer to a delivery decides what is next for its key.
func TestAdapter_FollowsTheAnswer(t *testing.T) {
	t.Parallel()
	c := source(t, "demo")
	for answer, next := range map[string]time.Duration{
		"done": time.Minute, "again": time.Hour, "never": 0, "retry": time.Minute, "reject": time.Minute, "reject-again": time.Hour,
	} {
		key := "answer/" + answer
		r := sdk.After(0)
		r.MaxInterval = new(time.Minute)
		if _, err := c.Schedule(t.Context(), key, r); err != nil {
			t.Fatal(err)
		}
		d := inbox.next(t, key)
		if answer == "retry" {
			if again := inbox.next(t, key); again.Attempt != 1 || again.ID != d.ID || again.DueAt != d.DueAt {
				t.Errorf("the second attempt is %+v, after %+v", again, d)
			}
		}
		deadline, look := time.After(patience), time.NewTicker(10*time.Millisecond)
		for {
			s, err := c.Get(t.Context(), key)
			if next == 0 && errors.Is(err, sdk.ErrNotFound) {
				break
			}
			if err == nil && next > 0 && s.State == sdk.Waiting && s.DueAt.Sub(s.ScheduledAt) == next {
				break
			}
			select {
			case <-look.C:
			case <-deadline:
				t.Fatalf("%s: it is %s, %v after %s", answer, show(s), err, patience)
			}
		}
		look.Stop()
	}
}

// A failure that names its time is retried then and not after the back-off.
func TestAdapter_RetriesAtTheTimeOfTheAnswer(t *testing.T) {
	t.Parallel()
	c := source(t, "demo")
	const key = "answer/retry-in"
	if _, err := c.Schedule(t.Context(), key, sdk.After(0)); err != nil {
		t.Fatal(err)
	}
	inbox.next(t, key)
	began, deadline, look := time.Now(), time.After(patience), time.NewTicker(10*time.Millisecond)
	defer look.Stop()
	for {
		s, err := c.Get(t.Context(), key)
		if err == nil && s.Attempt == 1 && !s.InFlight {
			if wait := s.NextAttemptAt.Sub(began); wait < time.Hour-patience || wait > time.Hour+patience {
				t.Errorf("the next attempt is at %s, %s after the answer", s.NextAttemptAt, wait)
			}
			return
		}
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("it is %s, %v after %s", show(s), err, patience)
		}
	}
}

// Conditions are checked before the policy decides.
func TestAdapter_ConditionsAndPolicies(t *testing.T) {
	t.Parallel()
	c, ctx := source(t, "still"), t.Context()
	first, err := c.Schedule(ctx, "c", sdk.Request{UID: "u"}, sdk.IfAbsent())
	if err != nil || first.DueAt.Sub(first.ScheduledAt) != time.Hour {
		t.Fatalf("a request of nothing: %s, %v", show(first), err)
	}
	second, err := c.Schedule(ctx, "c", sdk.Request{UID: "u", DueAt: far}, sdk.IfRevision(1, first.Revision))
	if err != nil || second.Result != sdk.Replaced || !second.PreviousDueAt.Equal(first.DueAt) {
		t.Fatalf("it is %s, %v", show(second), err)
	}
	schedule := func(r sdk.Request, conditions ...sdk.Condition) error {
		_, err := c.Schedule(ctx, "c", r, conditions...)
		return err
	}
	for name, p := range map[string]struct {
		err  error
		want sdk.Code
	}{
		"absent":                  {schedule(sdk.Request{}, sdk.IfAbsent()), sdk.ErrConflict},
		"an old revision":         {schedule(sdk.Request{}, sdk.IfRevision(first.Revision)), sdk.ErrConflict},
		"no revision":             {schedule(sdk.Request{}, sdk.IfRevision()), sdk.ErrInvalid},
		"a uid of a request":      {schedule(sdk.Request{}, sdk.IfUID("u")), sdk.ErrInvalid},
		"fail":                    {schedule(sdk.Request{Policy: sdk.Fail}), sdk.ErrExists},
		"two times":               {schedule(sdk.Request{DueAt: far, Delay: new(time.Duration(0))}), sdk.ErrInvalid},
		"cancel another uid":      {c.Cancel(ctx, "c", sdk.IfUID("v")), sdk.ErrConflict},
		"cancel an old revision":  {c.Cancel(ctx, "c", sdk.IfRevision(first.Revision)), sdk.ErrConflict},
		"cancel what is absent":   {c.Cancel(ctx, "none", sdk.IfPresent()), sdk.ErrConflict},
		"cancel if it is absent":  {c.Cancel(ctx, "c", sdk.IfAbsent()), sdk.ErrInvalid},
		"cancel without a uid":    {c.Cancel(ctx, "c", sdk.IfUID("")), sdk.ErrInvalid},
		"cancel without a key":    {c.Cancel(ctx, ""), sdk.ErrInvalid},
		"an event with an id":     {schedule(sdk.Request{Event: &sdk.Event{ID: "1"}}), sdk.ErrInvalid},
		"data that is no JSON":    {schedule(sdk.Request{Event: &sdk.Event{Data: []byte("hello")}}), sdk.ErrInvalid},
		"an extension of a float": {schedule(sdk.Request{Event: &sdk.Event{Extensions: map[string]any{"x": 1.5}}}), sdk.ErrInvalid},
		"an instant of no year":   {schedule(sdk.Request{DueAt: far.AddDate(9000, 0, 0)}), sdk.ErrInvalid},
		"too much data": {schedule(sdk.Request{Event: &sdk.Event{
			DataContentType: "text/plain", Data: make([]byte, 256<<10+1),
		}}), sdk.ErrTooLarge},
	} {
		if !errors.Is(p.err, p.want) {
			t.Errorf("%s: %v, want %s", name, p.err, p.want)
		}
	}
	var refused *sdk.Error
	if err := schedule(sdk.Request{Jitter: 2}); !errors.As(err, &refused) || refused.Field != "jitter" || refused.Status != http.StatusBadRequest {
		t.Errorf("the error is %#v", err)
	}
	for policy, want := range map[sdk.Policy]sdk.Result{sdk.Earliest: sdk.Merged, sdk.Keep: sdk.Kept} {
		if s, err := c.Schedule(ctx, "c", sdk.Request{DueAt: far.Add(1), Policy: policy}); err != nil || s.Result != want || !s.DueAt.Equal(far) {
			t.Errorf("%s: %s, %v", policy, show(s), err)
		}
	}
	if err := c.Cancel(ctx, "c", sdk.IfUID("u"), sdk.IfPresent()); err != nil {
		t.Error(err)
	}
}

// The source counts the attempts of a back-off.
func TestAdapter_CountsBackOffs(t *testing.T) {
	t.Parallel()
	c := source(t, "still")
	if _, err := c.CancelPrefix(t.Context(), "backoff/"); err != nil { // of a run before, with -count
		t.Fatal(err)
	}
	b := sdk.Backoff{Base: time.Minute, Factor: 3, Cap: 5 * time.Minute, MaxAttempts: 3}
	for i, wait := range []time.Duration{time.Minute, 3 * time.Minute, 5 * time.Minute} {
		s, err := c.BackOff(t.Context(), "backoff/counted", b)
		if err != nil || s.Attempt != i+1 || s.DueAt.Sub(s.ScheduledAt) != wait {
			t.Fatalf("back-off %d: %s, %v", i+1, show(s), err)
		}
	}
	if _, err := c.BackOff(t.Context(), "backoff/counted", b); !errors.Is(err, sdk.ErrExhausted) {
		t.Errorf("one too many: %v", err)
	}
	s, err := c.BackOff(t.Context(), "backoff/default", sdk.Backoff{})
	if err != nil || s.Attempt != 1 || s.DueAt.Sub(s.ScheduledAt) != time.Second {
		t.Errorf("the defaults: %s, %v", show(s), err)
	}
}

// Many keys are scheduled, listed and cancelled in few calls.
func TestAdapter_ManyKeysAtOnce(t *testing.T) {
	t.Parallel()
	c, ctx := source(t, "many"), t.Context()
	var items []sdk.Item
	for i := range 2500 {
		items = append(items, sdk.Item{Key: fmt.Sprintf("many/%04d", i), Request: sdk.At(far.Add(-time.Duration(i)))})
	}
	items[7].Jitter = -1
	items[1003].Event = &sdk.Event{Data: []byte("hello")}
	items[2004].Key = ""
	items[2005].Event = wholeEvent()
	outcomes, err := c.ScheduleAll(ctx, items...)
	if err != nil || len(outcomes) != len(items) {
		t.Fatal(len(outcomes), err)
	}
	for i, o := range outcomes {
		bad := i == 7 || i == 1003 || i == 2004
		switch {
		case o.Key != items[i].Key,
			bad && (o.Schedule != nil || !errors.Is(o.Err, sdk.ErrInvalid)),
			!bad && (o.Err != nil || o.Schedule.Key != o.Key || o.Schedule.Result != sdk.Created || !o.Schedule.DueAt.Equal(items[i].DueAt)):
			t.Errorf("item %d: %s: %s, %v", i, o.Key, show(o.Schedule), o.Err)
		}
	}
	if got := outcomes[2005].Schedule.Event; !reflect.DeepEqual(got, wholeEvent()) {
		t.Errorf("the event is %s", show(got))
	}
	if n, err := c.Counts(ctx); err != nil || *n != (sdk.Counts{Pending: 2497, NextDueAt: far.Add(-2499)}) {
		t.Errorf("the counts are %s, %v", show(n), err)
	}

	for name, o := range map[string]sdk.ListOptions{
		"by key": {}, "by instant": {Order: sdk.ByDue}, "with a prefix": {Prefix: "many/00"}, "in small pages": {Prefix: "many/000", PageSize: 3},
	} {
		var got, want []string
		for s, err := range c.List(ctx, o) {
			if err != nil {
				t.Fatal(name, err)
			}
			got = append(got, s.Key)
		}
		for i := range items {
			if strings.HasPrefix(items[i].Key, o.Prefix) && outcomes[i].Err == nil {
				want = append(want, items[i].Key)
			}
		}
		if o.Order == sdk.ByDue {
			slices.Reverse(want)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: listed %d, want %d: %q", name, len(got), len(want), got)
		}
	}
	for s, err := range c.List(ctx, sdk.ListOptions{}) {
		if s.Key != "many/0000" || err != nil {
			t.Errorf("began with %s, %v", show(s), err)
		}
		break
	}
	for s, err := range c.List(ctx, sdk.ListOptions{PageSize: 1001}) {
		if s != nil || !errors.Is(err, sdk.ErrInvalid) {
			t.Errorf("a page too large: %s, %v", show(s), err)
		}
	}
	if _, err := c.CancelPrefix(ctx, ""); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("an empty prefix: %v", err)
	}
	if n, err := c.CancelPrefix(ctx, "many/00"); err != nil || n != 99 {
		t.Errorf("cancelled %d, %v", n, err)
	}
	if n, err := c.CancelAll(ctx); err != nil || n != 2398 {
		t.Errorf("cancelled %d, %v", n, err)
	}
	if n, err := c.Counts(ctx); err != nil || *n != (sdk.Counts{}) {
		t.Errorf("the counts are %s, %v", show(n), err)
	}
	if outcomes, err := c.ScheduleAll(ctx); err != nil || len(outcomes) != 0 {
		t.Errorf("nothing: %v, %v", outcomes, err)
	}
}

// A source that is full, and a source that does not exist, are different errors.
func TestAdapter_FullOrAbsentSource(t *testing.T) {
	t.Parallel()
	c := source(t, "full", sdk.WithRetryBudget(0))
	if _, err := c.Schedule(t.Context(), "a", sdk.Request{}); err != nil {
		t.Fatal(err)
	}
	_, err := c.Schedule(t.Context(), "b", sdk.Request{})
	var refused *sdk.Error
	if !errors.Is(err, sdk.ErrFull) || !errors.As(err, &refused) || refused.RetryAfter != time.Second {
		t.Errorf("a key too many: %#v", err)
	}
	outcomes, err := c.ScheduleAll(t.Context(), sdk.Item{Key: "a"}, sdk.Item{Key: "b"})
	if err != nil || outcomes[0].Err != nil || !errors.Is(outcomes[1].Err, sdk.ErrFull) {
		t.Errorf("two items: %+v, %v", outcomes, err)
	}
	none := source(t, "none")
	if err := none.Cancel(t.Context(), "a"); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("no source: %v", err)
	}
	if _, err := none.Counts(t.Context()); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("no source: %v", err)
	}
}

// A token file is read for every try, because the kubelet renews it.
func TestAdapter_TokenFileIsReadAnew(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	c := source(t, "still", sdk.WithTokenFile(file))
	for _, step := range []struct {
		content string
		want    error
	}{
		{"", os.ErrNotExist}, {"old\n", sdk.ErrUnauthorized}, {token + "\n", nil}, {"old", sdk.ErrUnauthorized}, {token, nil},
	} {
		if step.content != "" {
			if err := os.WriteFile(file, []byte(step.content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Counts(t.Context()); !errors.Is(err, step.want) || (err != nil) != (step.want != nil) {
			t.Errorf("with %q: %v, want %v", step.content, err, step.want)
		}
	}
}
