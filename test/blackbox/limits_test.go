package blackbox

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// No more than maxPerSecond deliveries start a second.
func TestLimits_MaxPerSecond(t *testing.T) {
	t.Parallel()
	for i := range 12 {
		throttled.put(t, fmt.Sprint(i), "")
	}
	var first, last time.Time
	for i := range 12 {
		d := throttled.next(t, fmt.Sprint(i))
		if first.IsZero() || d.At.Before(first) {
			first = d.At
		}
		if d.At.After(last) {
			last = d.At
		}
	}
	if took := last.Sub(first); took < time.Second {
		t.Errorf("12 deliveries at 5 a second in %s", took)
	}
}

// No more than maxInFlight are under way, and the oldest is first.
func TestLimits_MaxInFlightOldestFirst(t *testing.T) {
	t.Parallel()
	answer, release := hold()
	one.answer("", answer)
	one.put(t, "first", "")
	one.next(t, "first")
	now := time.Now().UTC()
	for i := 9; i >= 0; i-- { // put in the opposite order
		one.put(t, fmt.Sprint(i), `{"dueAt":"`+now.Add(time.Duration(i)*10*time.Millisecond).Add(time.Second).Format(time.RFC3339Nano)+`"}`)
	}
	eventually(t, "all are due", func() bool { return one.counts(t).Due == 10 })
	for range 11 {
		if c := one.counts(t); c.InFlight > 1 {
			t.Errorf("%+v", c)
		}
		release <- status(204)
	}
	eventually(t, "all are done", func() bool { c := one.counts(t); return c.Pending+c.InFlight == 0 })
	var order strings.Builder
	for _, d := range sink.Of("one", "") {
		order.WriteString(d.Key)
	}
	if order.String() != "first0123456789" {
		t.Errorf("order %s", &order)
	}
}
