package sdk_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

var yearly = sdk.Every("0 3 1 1 *", "Europe/Berlin")

// newYear is the next instant of yearly, in the winter of Berlin.
func newYear() time.Time {
	at := time.Date(time.Now().UTC().Year(), 1, 1, 2, 0, 0, 0, time.UTC)
	if !at.After(time.Now()) {
		at = at.AddDate(1, 0, 0)
	}
	return at
}

// answerYearly gives the key of a delivery a calendar, after what its last segment says.
func answerYearly(w http.ResponseWriter, r *http.Request, d *sdk.Delivery) {
	c, err := sdk.New(adapterURL+"/default/demo", sdk.WithToken(token))
	if err != nil {
		panic(err)
	}
	request := yearly
	switch {
	case strings.HasSuffix(d.Key, "/cancelled"):
		err = c.Cancel(r.Context(), d.Key)
	case strings.HasSuffix(d.Key, "/changed") && d.Type != "changed":
		_, err = c.Schedule(r.Context(), d.Key, sdk.Request{Delay: new(time.Duration(0)), Policy: sdk.Earliest, Event: &sdk.Event{Type: "changed"}})
	case strings.HasSuffix(d.Key, "/changed"): // it has the calendar
		sdk.Done(w)
		return
	case strings.HasSuffix(d.Key, "/wrong"):
		request.TimeZone = "Nowhere"
	}
	if err != nil {
		panic(err)
	}
	sdk.AgainWith(r.Context(), w, d, c, request)
}

// A calendar is in the request, and in what the source says about the key.
func TestAdapter_HasCalendars(t *testing.T) {
	t.Parallel()
	c, ctx := source(t, "still"), t.Context()
	r := yearly
	r.Jitter = 0.5
	s, err := c.Schedule(ctx, "calendar", r)
	if err != nil || s.Cron != r.Cron || s.TimeZone != r.TimeZone || s.Jitter != r.Jitter || s.DueAt.Before(newYear()) {
		t.Errorf("%s, %v", show(s), err)
	}
	for field, r := range map[string]sdk.Request{"cron": sdk.Every("0 3 30 2 *", ""), "timeZone": sdk.Every("@daily", "Local")} {
		var refused *sdk.Error
		if _, err := c.Schedule(ctx, "calendar", r); !errors.Is(err, sdk.ErrInvalid) || !errors.As(err, &refused) || refused.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// AgainWith gives the key a calendar, keeps what it has, does not lose a change, and does not bring back what was
// cancelled. If the source refuses, the delivery comes again.
func TestAdapter_AnswersWithCalendars(t *testing.T) {
	t.Parallel()
	c, ctx := source(t, "demo"), t.Context()
	const plain, changed, cancelled, wrong = "yearly/plain", "yearly/changed", "yearly/cancelled", "yearly/wrong"
	for _, key := range []string{plain, changed, cancelled, wrong} {
		r := sdk.Request{Delay: new(time.Duration(0)), Priority: sdk.HighPriority, MaxInterval: new(1000 * time.Hour), UID: "u", Event: &sdk.Event{Type: "first"}}
		if _, err := c.Schedule(ctx, key, r); err != nil {
			t.Fatal(err)
		}
		inbox.next(t, key)
	}
	if d := inbox.next(t, changed); d.Type != "changed" {
		t.Errorf("the change is delivered as %+v", d)
	}
	for key, event := range map[string]string{plain: "first", changed: "changed"} {
		eventually(t, key+" in a year", func() (bool, string) {
			s, err := c.Get(ctx, key)
			if err != nil || s.State != sdk.Waiting {
				return false, fmt.Sprint(show(s), err)
			}
			want := &sdk.Schedule{
				Key: key, Revision: s.Revision, State: sdk.Waiting, DueAt: newYear(), ScheduledAt: s.ScheduledAt,
				Terms: sdk.Terms{Priority: sdk.HighPriority, Cron: yearly.Cron, TimeZone: yearly.TimeZone}, MaxInterval: new(1000 * time.Hour), UID: "u", Event: &sdk.Event{Type: event},
			}
			return reflect.DeepEqual(s, want), show(s) + " want " + show(want)
		})
	}
	eventually(t, "the refusal", func() (bool, string) {
		s, err := c.Get(ctx, wrong)
		return err == nil && s.Attempt > 0 && s.Cron == "" && strings.Contains(s.LastFailure.Detail, "Nowhere"), fmt.Sprint(show(s), err)
	})
	eventually(t, "the history of the cancelled key", func() (bool, string) {
		h, err := c.History(ctx, cancelled)
		return err == nil && len(h.Items) > 0 && h.Items[0].Status == http.StatusServiceUnavailable, fmt.Sprint(show(h), err)
	})
	if s, err := c.Get(ctx, cancelled); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("it was cancelled: %s, %v", show(s), err)
	}
}

// If the client cannot make the request of AgainWith, the delivery fails.
func TestAgainWith_FailsWithItsRequest(t *testing.T) {
	t.Parallel()
	d := &sdk.Delivery{Key: "k", Priority: sdk.HighPriority}
	for name, c := range map[string]struct {
		answer
		status int
	}{
		"made":       {created, http.StatusNoContent},
		"refused":    {refused(400, sdk.ErrInvalid), http.StatusServiceUnavailable},
		"cancelled":  {refused(412, sdk.ErrConflict), http.StatusServiceUnavailable},
		"not now":    {refused(503, sdk.ErrUnavailable), http.StatusServiceUnavailable},
		"no answer":  {answer{err: errors.New("it broke")}, http.StatusServiceUnavailable},
		"of another": {answer{status: 200, body: "{}"}, http.StatusServiceUnavailable},
	} {
		f := &fake{answers: []answer{c.answer}}
		w := httptest.NewRecorder()
		sdk.AgainWith(t.Context(), w, d, f.client(t, sdk.WithRetryBudget(0)), yearly)
		if want := `{"cron":"0 3 1 1 *","timeZone":"Europe/Berlin","policy":"earliest","priority":"high"}`; f.bodies[0] != want || f.requests[0].Header.Get("If-Match") != "*" {
			t.Errorf("%s: requested %s, if %q", name, f.bodies[0], f.requests[0].Header.Get("If-Match"))
		}
		if w.Code != c.status || (w.Body.Len() > 0) != (w.Code >= 300) || w.Header().Get("Reschedule-After") != "" {
			t.Errorf("%s: answered with %d %q", name, w.Code, w.Body)
		}
	}
}
