package schedule

import (
	"math"
	"testing"
	"time"
)

// The counter's rules, over every state of a key that has one of 7.
func TestRequest_AttemptCounter(t *testing.T) {
	t.Parallel()
	backoff := func(p Policy) *Request {
		return &Request{Backoff: &Backoff{Base: time.Second, Factor: 2, Cap: time.Hour}, Policy: p}
	}
	newUID := put(soon, Earliest)
	newUID.UID = "other"
	newUIDBackoff := backoff(Replace)
	newUIDBackoff.UID = "other"
	keys := map[string]*Entry{"waiting": &waitingKey, "due": &dueKey, "between attempts": &betweenKey, "in flight": &flyingKey, "behind": &behindKey}
	for name, tc := range map[string]struct {
		r    *Request
		want uint32
	}{
		"a PUT with a delay":                {put(soon, Replace), 0},
		"a PUT with an instant":             {&Request{DueAt: t0.Add(soon), Policy: Replace}, 0},
		"a PUT with the default time":       {&Request{Policy: Replace}, 0},
		"a PUT that merges, earliest":       {put(late, Earliest), 0},
		"a PUT that may merge, latest":      {put(soon, Latest), 0},
		"a PUT that comes first":            {put(0, Earliest), 0},
		"a back-off":                        {backoff(Replace), 8},
		"a back-off that merges":            {backoff(Latest), 8},
		"an event that replaces":            {event(soon, Replace), 7},
		"an event that merges":              {event(late, Earliest), 7},
		"an event that postpones":           {event(late, Latest), 7},
		"a new uid":                         {newUID, 0},
		"a new uid, and a back-off on that": {newUIDBackoff, 1},
	} {
		for state, cur := range keys {
			e := *cur
			e.UID = "u"
			if c := apply(t, tc.r, &e, cur == &flyingKey, &Spec{}); c.Entry.Attempt != tc.want {
				t.Errorf("%s, %s: attempt %d, want %d", name, state, c.Entry.Attempt, tc.want)
			}
		}
	}
	for name, want := range map[string]uint32{"keep": 7} {
		r := backoff(Keep)
		if c := apply(t, r, &waitingKey, false, &Spec{}); c.Entry.Attempt != want {
			t.Errorf("%s: attempt %d, want %d", name, c.Entry.Attempt, want)
		}
	}
	if c := apply(t, backoff(Replace), nil, false, &Spec{}); c.Entry.Attempt != 1 {
		t.Errorf("a back-off of an absent key: attempt %d, want 1", c.Entry.Attempt)
	}
}

// Each backoff call waits longer.
func TestBackoff_EachCallWaitsLonger(t *testing.T) {
	t.Parallel()
	r := &Request{Backoff: &Backoff{Base: time.Second, Factor: 3, Cap: 20 * time.Second}}
	var cur *Entry
	for i, want := range []time.Duration{1, 3, 9, 20, 20} {
		cur = apply(t, r, cur, false, &Spec{Policy: Replace}).Entry
		if got := cur.DueAt.Sub(t0); got != want*time.Second || cur.Attempt != uint32(i+1) {
			t.Errorf("call %d: attempt %d in %v, want %d in %v", i+1, cur.Attempt, got, i+1, want*time.Second)
		}
	}
}

// The call after maxAttempts is refused.
func TestBackoff_RefusedAfterMaxAttempts(t *testing.T) {
	t.Parallel()
	hour, off := time.Hour, time.Duration(0)
	src := &Spec{Policy: Replace}
	r := Request{Backoff: &Backoff{Base: time.Second, Factor: 2, Cap: hour, MaxAttempts: 3}}
	var cur *Entry
	for range 3 {
		cur = apply(t, &r, cur, false, src).Entry
	}
	for name, own := range map[string]bool{"waiting": false, "in flight": true} {
		c, err := r.Apply(inputs(src), cur, own)
		if code(err) != CodeExhausted || c != (Change{}) {
			t.Errorf("%s: the fourth call got %+v, %v, want %s", name, c, err, CodeExhausted)
		}
	}

	// unless there is a maxInterval, which then sets the time
	withInterval := r
	withInterval.MaxInterval = &hour
	for name, c := range map[string]Change{
		"the request's": apply(t, &withInterval, cur, false, src),
		"the source's":  apply(t, &r, cur, false, &Spec{Policy: Replace, MaxInterval: hour}),
		"the key's": func() Change {
			e := *cur
			e.MaxInterval = &hour
			return apply(t, &Request{Backoff: r.Backoff, Policy: Latest}, &e, false, src)
		}(),
	} {
		if got := c.Entry.DueAt.Sub(t0); got != hour || c.Entry.Attempt != 0 {
			t.Errorf("%s maxInterval: attempt %d in %v, want 0 in %v", name, c.Entry.Attempt, got, hour)
		}
	}
	withInterval.MaxInterval = &off
	if _, err := withInterval.Apply(inputs(&Spec{Policy: Replace, MaxInterval: hour}), cur, false); code(err) != CodeExhausted {
		t.Errorf("a maxInterval of the request that is off overrides the source's: %v", err)
	}

	// what resets the counter opens the way again
	reset := apply(t, put(soon, Replace), cur, false, src).Entry
	if c := apply(t, &r, reset, false, src); c.Entry.Attempt != 1 {
		t.Errorf("after a PUT with a time: attempt %d, want 1", c.Entry.Attempt)
	}
	if c := apply(t, &r, nil, false, src); c.Entry.Attempt != 1 {
		t.Errorf("after a DELETE: attempt %d, want 1", c.Entry.Attempt)
	}
	e := *cur
	e.UID = "u"
	newUID := r
	newUID.UID = "other"
	if c := apply(t, &newUID, &e, false, src); c.Entry.Attempt != 1 {
		t.Errorf("for a new object: attempt %d, want 1", c.Entry.Attempt)
	}
}

// The counter stops at its largest value.
func TestCounter_StopsAtItsLargestValue(t *testing.T) {
	t.Parallel()
	e := waitingKey
	e.Attempt, e.Tries = math.MaxUint32, math.MaxUint32
	r := &Request{Backoff: &Backoff{Base: time.Second, Factor: 2, Cap: time.Hour}}
	if c := apply(t, r, &e, false, &Spec{Policy: Replace}); c.Entry.Attempt != math.MaxUint32 || c.Entry.DueAt.Sub(t0) != time.Hour {
		t.Errorf("attempt %d in %v", c.Entry.Attempt, c.Entry.DueAt.Sub(t0))
	}
	step := end(&Spec{Delivery: Delivery{BackoffDelay: time.Second}}, &e, Outcome{Kind: Failed})
	if n := step.Next; n.Attempt != math.MaxUint32 || n.Tries != math.MaxUint32 || n.RetryAt.Sub(t0) != MaxBackoff {
		t.Errorf("after a failure: attempt %d, tries %d, in %v", n.Attempt, n.Tries, n.RetryAt.Sub(t0))
	}
}
