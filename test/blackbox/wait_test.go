package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// A Reschedule-After that cannot be read does not end the key: the attempt fails, and GET quotes the value.
func TestRescheduleAfter_UnreadableFailsTheAttempt(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"soon", "7x", "P1Y", "", "5 minutes", "Sat, 21 Nov 2026 09:00:00 GMT"} {
		key := "unreadable/" + value
		slow.answer(key, script(status(200, "Reschedule-After", value)))
		slow.put(t, key, "")
		slow.next(t, key)
		slow.settled(t, key)
		var v struct {
			Tries       int
			LastFailure struct {
				Status        int
				Error, Detail string
			}
		}
		if err := json.Unmarshal(slow.call(t, http.MethodGet, "/schedules/"+url.PathEscape(key), "").Body, &v); err != nil {
			t.Fatal(err)
		}
		if f := v.LastFailure; v.Tries != 1 || f.Status != 200 || f.Error != "bad_answer" || !strings.HasPrefix(f.Detail, fmt.Sprintf("Reschedule-After: %q ", value)) {
			t.Errorf("%q: %+v", value, v)
		}
	}
}

// A wait below zero means now, and one of more than 100 years 100 years.
func TestRescheduleAfter_BeyondItsEnds(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"-5", "-5m", "-1e-05"} {
		key := "negative/" + value
		fast.answer(key, script(status(200, "Reschedule-After", value), status(204)))
		fast.put(t, key, "")
		fast.next(t, key)
		fast.next(t, key)
		fast.gone(t, key)
	}
	for _, value := range []string{"1e3000", "99999999999999", "876601h"} {
		key := "long/" + value
		fast.answer(key, script(status(200, "Reschedule-After", value)))
		v := fast.put(t, key, "")
		fast.next(t, key)
		if g := fast.settled(t, key); g.DueAt.Sub(v.DueAt) < 36525*24*time.Hour {
			t.Errorf("%q: %+v", value, g)
		}
	}
}
