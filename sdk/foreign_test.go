package sdk_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// JSON of another server is no answer: it read as a source where nothing waits.
func TestCall_JSONOfAnotherServer(t *testing.T) {
	t.Parallel()
	one := func(_ any, err error) error { return err }
	calls := map[string]func(context.Context, *sdk.Client) error{
		"Counts": func(ctx context.Context, c *sdk.Client) error { return one(c.Counts(ctx)) },
		"Get":    get, "Schedule": put(sdk.After(0)), "List": list, "Resync": resync,
		"ScheduleAll": many(sdk.Item{Key: "k"}),
		"Run":         func(ctx context.Context, c *sdk.Client) error { return one(c.Run(ctx, "k")) },
		"History":     func(ctx context.Context, c *sdk.Client) error { return one(c.History(ctx, "k")) },
		"DeadLetter":  func(ctx context.Context, c *sdk.Client) error { return one(c.DeadLetter(ctx, "k")) },
		"DeadLetters": func(ctx context.Context, c *sdk.Client) error {
			for _, err := range c.DeadLetters(ctx, sdk.ListOptions{}) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"CancelAll":  func(ctx context.Context, c *sdk.Client) error { return one(c.CancelAll(ctx)) },
		"DiscardAll": func(ctx context.Context, c *sdk.Client) error { return one(c.DiscardAll(ctx)) },
		"Redrive":    func(ctx context.Context, c *sdk.Client) error { return c.Redrive(ctx, "k", sdk.RedriveOptions{}) },
		"RedriveAll": func(ctx context.Context, c *sdk.Client) error { return one(c.RedriveAll(ctx, sdk.RedriveOptions{})) },
	}
	for name, call := range calls {
		for _, body := range []string{`{}`, `null`, `[]`, `"ok"`, `{"status":"UP"}`, `{"items":null}`, `{"items":[null]}`, `{"items":[{}]}`, `{"items":[{"key":"x"}]}`} {
			f := &fake{answers: []answer{{status: 200, body: body}}}
			if err := call(t.Context(), f.client(t)); !errors.Is(err, sdk.ErrForeign) || len(f.requests) != 1 {
				t.Errorf("%s, answered with %s: %v after %d requests", name, body, err, len(f.requests))
			}
		}
	}
}

// What a page of another server says is no stream: following it would connect for ever.
func TestFollow_AnotherServer(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<h1>Welcome</h1>")) }))
	defer server.Close()
	c, err := sdk.New(server.URL + "/ns/name")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, err = range c.Follow(ctx, "") {
		if err != nil {
			break
		}
	}
	if !errors.Is(err, sdk.ErrForeign) {
		t.Errorf("the error is %v", err)
	}
}

// The answer to a request does not say how many tries there were, so its JSON does not.
func TestSchedule_TriesAreOfGET(t *testing.T) {
	t.Parallel()
	for result, want := range map[sdk.Result]bool{"": true, sdk.Merged: false} {
		b, err := json.Marshal(sdk.Schedule{Key: "k", Result: result, DueAt: time.Now(), Tries: 3})
		var members map[string]any
		if err := errors.Join(err, json.Unmarshal(b, &members)); err != nil || (members["tries"] != nil) != want {
			t.Errorf("%q: %s, %v", result, b, err)
		}
	}
}
