package schedule

import (
	"testing"
	"time"
)

// After a crash the older occurrence is repeated, and a later event behind it is still due at its own time.
func TestRecover_KeepsTheTimeOfALaterEvent(t *testing.T) {
	t.Parallel()
	hour := t0.Add(time.Hour)
	c := apply(t, event(time.Hour, Earliest), &flyingKey, true, &Spec{})
	e, changed := c.Entry.Recover()
	if !changed || !e.DueAt.Equal(flyingKey.DueAt) || !e.At().Before(t0) {
		t.Fatalf("the older occurrence is not repeated: %+v", e)
	}
	if again, changed := e.Recover(); changed || again != e {
		t.Errorf("a second crash changes it to %+v", again)
	}
	for name, tc := range map[string]struct {
		o    Outcome
		want time.Time
	}{
		"done":                          {outcomes["2xx"], hour},
		"done, again sooner":            {outcomes["again in 30 s"], t0.Add(soon)},
		"done, again later":             {Outcome{Kind: Succeeded, Again: &RescheduleAfter{After: 2 * time.Hour}}, hour},
		"done, never again":             {outcomes["never"], hour},
		"rejected":                      {outcomes["400"], hour},
		"rejected, again sooner":        {outcomes["400, in 30 s"], t0.Add(soon)},
		"used up":                       {outcomes["500"], hour},
		"used up, whatever it asks for": {outcomes["500, in 30 s"], hour},
	} {
		f := Flight{Entry: e, Own: true}
		src := &Spec{MaxInterval: time.Minute, Delivery: Delivery{Retry: new(0)}}
		n := f.Finish(Inputs{Key: "k", Source: src, Revision: 20, StoreID: "store", Now: t0}, e, tc.o).Next
		if n == nil || !n.At().Equal(tc.want) || n.Occurrence != 20 || !n.UnfinishedAt.IsZero() {
			t.Errorf("%s: %+v, want an occurrence of its own at %v", name, n, tc.want)
		}
	}
	f := Flight{Entry: e, Own: true}
	retried := f.Finish(Inputs{Key: "k", Source: &Spec{}, Revision: 20, StoreID: "store", Now: t0}, e, outcomes["500"]).Next
	if !retried.DueAt.Equal(flyingKey.DueAt) || !retried.dueAgainAt().Equal(hour) {
		t.Errorf("a retry forgets it: %+v", retried)
	}
	late := e.dueAgainAt().Add(time.Minute)
	if n := f.Finish(Inputs{Key: "k", Source: &Spec{}, Revision: 20, StoreID: "store", Now: late}, e, outcomes["2xx"]).Next; !n.DueAt.Equal(late) {
		t.Errorf("its time has come meanwhile: due %v, want %v", n.DueAt, late)
	}
}

// The time that Recover keeps for a later event survives a merge, and ends when a request replaces the occurrence.
func TestRecover_LaterEventMeetsOtherRequests(t *testing.T) {
	t.Parallel()
	hour := t0.Add(time.Hour)
	c := apply(t, event(time.Hour, Earliest), &flyingKey, true, &Spec{})
	e, _ := c.Entry.Recover()
	for name, tc := range map[string]struct {
		r         *Request
		own       bool
		due, owed time.Time
	}{
		"an event merges":                 {event(soon, Earliest), false, e.DueAt, hour},
		"an event behind, sooner":         {event(soon, Earliest), true, t0.Add(soon), time.Time{}},
		"an event behind, later":          {event(2*time.Hour, Earliest), true, hour, time.Time{}},
		"an event that replaces":          {event(soon, Replace), false, t0.Add(soon), time.Time{}},
		"a PUT":                           {put(soon, Replace), false, t0.Add(soon), time.Time{}},
		"a PUT during the delivery":       {put(late, Earliest), true, t0.Add(late), time.Time{}},
		"an event that postpones, behind": {event(2*time.Hour, Latest), true, t0.Add(2 * time.Hour), time.Time{}},
	} {
		if n := apply(t, tc.r, e, tc.own, &Spec{}).Entry; !n.DueAt.Equal(tc.due) || !n.dueAgainAt().Equal(tc.owed) {
			t.Errorf("%s: due %v and owed %v, want %v and %v", name, n.DueAt, n.dueAgainAt(), tc.due, tc.owed)
		}
	}
	// The clock went back, so that the event is due before what is delivered.
	early := flyingKey
	early.DueAt = hour
	if n := apply(t, event(soon, Earliest), &early, true, &Spec{}).Entry; !n.UnfinishedAt.IsZero() {
		t.Errorf("an event that is due before the older occurrence: unfinished %v", n.UnfinishedAt)
	}
}
