package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/reschedule-dev/reschedule/sdk"
)

// Following shows a key from its schedule to its outcome, and a source remembers it.
func TestAdapter_FollowsAKey(t *testing.T) {
	t.Parallel()
	c := source(t, "demo")
	_, last, err := c.Remembered(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Schedule(t.Context(), "follow/k", sdk.After(0)); err != nil {
		t.Fatal(err)
	}
	var kinds []sdk.LiveKind
	for e, err := range c.Follow(t.Context(), last) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Key != "follow/k" {
			continue
		}
		kinds, last = append(kinds, e.Kind), e.ID
		if e.At.IsZero() || e.Missed || e.Kind == sdk.KeyScheduled && (e.Revision == 0 || e.DueAt.IsZero()) || e.Kind == sdk.KeyOutcome && (e.Result != "delivered" || e.Status/100 != 2) {
			t.Errorf("event %s", show(e))
		}
		if e.Kind == sdk.KeyOutcome {
			break
		}
	}
	if want := []sdk.LiveKind{sdk.KeyScheduled, sdk.KeyStarted, sdk.KeyOutcome}; !slices.Equal(kinds, want) {
		t.Errorf("events are %q, want %q", kinds, want)
	}
	events, _, err := c.Remembered(t.Context())
	if err != nil || !slices.ContainsFunc(events, func(e *sdk.Live) bool { return e.ID == last }) {
		t.Errorf("remembered are %s, %v, want %s too", show(events), err, last)
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
