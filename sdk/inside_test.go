package sdk_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// eventually calls look until it is true.
func eventually(t *testing.T, what string, look func() bool) {
	t.Helper()
	deadline, tick := time.After(patience), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for !look() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not after %s: %s", patience, what)
		}
	}
}

// A key that waits is run at once, and keeps its event; an absent one is not found.
func TestAdapter_RunsAKey(t *testing.T) {
	t.Parallel()
	c, ctx := source(t, "demo"), t.Context()
	r := sdk.At(far)
	r.Event = &sdk.Event{Type: "com.example.run"}
	s, err := c.Schedule(ctx, "run/k", r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Run(ctx, "run/k", sdk.IfRevision(s.Revision+1)); !errors.Is(err, sdk.ErrConflict) {
		t.Errorf("another revision: %v", err)
	}
	got, err := c.Run(ctx, "run/k", sdk.IfRevision(s.Revision))
	if err != nil || time.Until(got.DueAt) > 0 {
		t.Fatalf("it is %s, %v", show(got), err)
	}
	if d := inbox.next(t, "run/k"); d.Type != "com.example.run" {
		t.Errorf("delivered %q, want its own type", d.Type)
	}
	if _, err := c.Run(ctx, "run/absent"); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("an absent key: %v", err)
	}
}

// The history of a key survives JSON, and has the outcome that the sink answered.
func TestAdapter_HistoryOfAKey(t *testing.T) {
	t.Parallel()
	c := source(t, "demo")
	if _, err := c.Schedule(t.Context(), "history/k", sdk.After(0)); err != nil {
		t.Fatal(err)
	}
	inbox.next(t, "history/k")
	var h *sdk.History
	eventually(t, "an outcome is known", func() (known bool) {
		var err error
		if h, err = c.History(t.Context(), "history/k"); err != nil {
			t.Fatal(err)
		}
		return len(h.Items) > 0
	})
	if o := h.Items[0]; o.Result != "delivered" || o.Status/100 != 2 || o.Duration <= 0 || o.At.IsZero() || h.Since.IsZero() {
		t.Errorf("it is %s", show(h))
	}
	var again sdk.History
	if err := json.Unmarshal([]byte(show(h)), &again); err != nil || show(again) != show(h) {
		t.Errorf("JSON lost something: %s, %v, want %s", show(again), err, show(h))
	}
}

// A list selects keys by state.
func TestAdapter_ListsByState(t *testing.T) {
	t.Parallel()
	c := source(t, "still")
	for key, r := range map[string]sdk.Request{"state/later": sdk.At(far), "state/now": sdk.After(0)} {
		if _, err := c.Schedule(t.Context(), key, r); err != nil {
			t.Fatal(err)
		}
	}
	for state, want := range map[sdk.State][]string{sdk.Waiting: {"state/later"}, sdk.Due: {"state/now"}, sdk.Retrying: nil, sdk.InFlight: nil, "": {"state/later", "state/now"}} {
		var got []string
		for s, err := range c.List(t.Context(), sdk.ListOptions{Prefix: "state/", State: state, PageSize: 1}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, s.Key)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", state, got, want)
		}
	}
	o := sdk.ListOptions{Prefix: "state/", PageSize: 1}
	for _, want := range []string{"state/later", "state/now"} {
		items, next, err := c.ListPage(t.Context(), o)
		if err != nil || len(items) != 1 || items[0].Key != want {
			t.Fatalf("a page has %s, %v, want %s", show(items), err, want)
		}
		o.Continue = next
	}
	if o.Continue != "" {
		t.Errorf("a third page begins at %q", o.Continue)
	}
}

// Dead letters are listed, read, redriven and discarded.
func TestAdapter_DeadLetters(t *testing.T) {
	t.Parallel()
	c, ctx := source(t, "demo"), t.Context()
	keys := []string{"letter/1/reject", "letter/2/reject", "letter/3/reject", "letter/4/reject"}
	for _, key := range keys {
		if _, err := c.Schedule(ctx, key, sdk.Request{Delay: new(time.Duration(0)), Event: &sdk.Event{Type: "com.example.letter"}}); err != nil {
			t.Fatal(err)
		}
	}
	list := func() (kept []string) {
		for l, err := range c.DeadLetters(ctx, sdk.ListOptions{Prefix: "letter/", PageSize: 3}) {
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, l.Key)
		}
		return kept
	}
	all := func() bool { return slices.Equal(list(), keys) }
	eventually(t, "all are kept", all)
	l, err := c.DeadLetter(ctx, keys[0])
	if err != nil || l.Attempts != 1 || l.Status != http.StatusUnprocessableEntity || l.Event.Type != "com.example.letter" || l.Detail == "" {
		t.Errorf("it is %s, %v", show(l), err)
	}
	if err := c.Redrive(ctx, keys[0], sdk.RedriveOptions{}); err != nil {
		t.Error(err)
	}
	for range 2 {
		inbox.next(t, keys[0])
	}
	eventually(t, "the redriven one is given up again", all)
	if n, err := c.RedrivePrefix(ctx, "letter/2", sdk.RedriveOptions{}); n != 1 || err != nil {
		t.Errorf("%d redriven, %v", n, err)
	}
	eventually(t, "that one is given up again", all)
	if _, err := c.Schedule(ctx, keys[3], sdk.Request{Delay: new(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if err := c.Redrive(ctx, keys[3], sdk.RedriveOptions{}); !errors.Is(err, sdk.ErrExists) {
		t.Errorf("redriving in the place of something newer: %v", err)
	}
	if n, err := c.RedrivePrefix(ctx, "letter/4", sdk.RedriveOptions{}); n != 0 || err != nil {
		t.Errorf("%d redriven in the place of something newer, %v", n, err)
	}
	if err := c.Redrive(ctx, keys[3], sdk.RedriveOptions{Replace: true}); err != nil {
		t.Error(err)
	}
	eventually(t, "the one that replaced is given up again", all)
	for range 2 {
		if err := c.Discard(ctx, keys[0]); err != nil {
			t.Error(err)
		}
	}
	if err := c.Redrive(ctx, keys[0], sdk.RedriveOptions{}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("redriving a discarded one: %v", err)
	}
	if _, err := c.DeadLetter(ctx, keys[0]); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("reading a discarded one: %v", err)
	}
	if n, err := c.DiscardPrefix(ctx, "letter/"); n != 3 || err != nil {
		t.Errorf("%d discarded, %v", n, err)
	}
}

// Following shows a key from its schedule to its outcome.
func TestAdapter_FollowsAKey(t *testing.T) {
	t.Parallel()
	c := source(t, "demo")
	var kinds []sdk.LiveKind
	scheduled := false
	// The first event of another test's key shows that the stream is there; without one, a
	// key of its own.
	go func() {
		for n := range 100 {
			if _, err := c.Schedule(t.Context(), fmt.Sprintf("follow/start/%d", n), sdk.After(0)); err != nil {
				return
			}
			select {
			case <-t.Context().Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	for e, err := range c.Follow(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if !scheduled {
			scheduled = true
			if _, err := c.Schedule(t.Context(), "follow/k", sdk.After(0)); err != nil {
				t.Fatal(err)
			}
		}
		if e.Key != "follow/k" {
			continue
		}
		kinds = append(kinds, e.Kind)
		if e.ID == "" || e.At.IsZero() || e.Missed {
			t.Errorf("event %s", show(e))
		}
		if e.Kind == sdk.KeyScheduled && (e.Revision == 0 || e.DueAt.IsZero()) || e.Kind == sdk.KeyOutcome && (e.Result != "delivered" || e.Status/100 != 2) {
			t.Errorf("event %s", show(e))
		}
		if e.Kind == sdk.KeyOutcome {
			break
		}
	}
	if want := []sdk.LiveKind{sdk.KeyScheduled, sdk.KeyStarted, sdk.KeyOutcome}; !slices.Equal(kinds, want) {
		t.Errorf("events are %q, want %q", kinds, want)
	}
	events, last, err := c.Remembered(t.Context())
	ended := slices.ContainsFunc(events, func(e *sdk.Live) bool { return e.Key == "follow/k" && e.Kind == sdk.KeyOutcome })
	if err != nil || !ended || events[len(events)-1].ID != last {
		t.Errorf("remembered are %s up to %s, %v", show(events), last, err)
	}
}

// A stream that breaks off is resumed behind its last event, and a gap is marked.
func TestFollow_ResumesAndMarksAGap(t *testing.T) {
	t.Parallel()
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("Last-Event-ID"))
		w.Header().Set("Content-Type", "text/event-stream")
		switch len(asked) {
		case 1:
			fmt.Fprint(w, ": following\nid: e-1\n\nid: e-2\nevent: started\ndata: {\"key\":\"a\",\"attempt\":1}\n\nid: e-3\nevent: outc")
		case 2:
			fmt.Fprint(w, ": some events since the last one are not known any more\n\nid: e-9\nevent: outcome\ndata: {\"key\":\"b\"}\n\n")
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	}))
	defer server.Close()
	c, err := sdk.New(server.URL + "/ns/name")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for e, err := range c.Follow(t.Context(), "") {
		if err != nil {
			if !errors.Is(err, sdk.ErrForbidden) {
				t.Error(err)
			}
			break
		}
		got = append(got, fmt.Sprintln(e.ID, e.Kind, e.Key, e.Attempt, e.Missed))
	}
	if want := []string{"e-2 started a 1 false\n", "e-9 outcome b 0 true\n"}; !slices.Equal(got, want) {
		t.Errorf("events are %q, want %q", got, want)
	}
	if want := []string{"", "e-2", "e-9"}; !slices.Equal(asked, want) {
		t.Errorf("asked behind %q, want %q", asked, want)
	}
}
