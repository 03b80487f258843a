package schedule

import (
	"testing"
	"time"
)

// A request lifts a key that waits, and never lowers it; behind a delivery it has its own priority.
func TestPriority_OfRequests(t *testing.T) {
	t.Parallel()
	run := RunNow(Conditions{})
	another := put(soon, Replace)
	another.UID = "other"
	for _, tc := range []struct {
		name           string
		r              *Request
		cur, asked     Priority
		waiting, under Priority // what it is then: while the key waits, while its delivery is under way
	}{
		{"lifted", put(soon, Replace), LowPriority, HighPriority, HighPriority, HighPriority},
		{"not lowered", put(soon, Replace), HighPriority, LowPriority, HighPriority, LowPriority},
		{"no priority is normal", put(soon, Replace), LowPriority, NormalPriority, NormalPriority, NormalPriority},
		{"lifted by a merge", put(late, Earliest), LowPriority, HighPriority, HighPriority, HighPriority},
		{"merged, not lowered", event(late, Earliest), NormalPriority, LowPriority, NormalPriority, LowPriority},
		{"kept", put(soon, Keep), LowPriority, HighPriority, LowPriority, HighPriority},
		{"another object", another, HighPriority, NormalPriority, HighPriority, NormalPriority},
		{"run", &run, LowPriority, NormalPriority, LowPriority, LowPriority},
		{"run of a high one", &run, HighPriority, NormalPriority, HighPriority, HighPriority},
	} {
		for _, own := range []bool{false, true} {
			cur, r, want := waitingKey, *tc.r, tc.waiting
			if own {
				want = tc.under
			}
			cur.UID, cur.Priority, r.Priority = "u", tc.cur, tc.asked
			if got := apply(t, &r, &cur, own, &Spec{}).Entry.Priority; got != want {
				t.Errorf("%s, under way %v: %s, want %s", tc.name, own, got, want)
			}
		}
	}
}

// What follows from a run keeps the priority, as controller-runtime's RequeueAfter does, unless the answer names
// another; what waits already is lifted and never lowered.
func TestPriority_OfOutcomes(t *testing.T) {
	t.Parallel()
	in := Inputs{Key: "k", Source: &Spec{MaxInterval: time.Hour, Delivery: Delivery{BackoffDelay: time.Second}}, Revision: 9, Now: t0}
	again := &RescheduleAfter{After: time.Minute}
	high, low := new(HighPriority), new(LowPriority)
	for _, tc := range []struct {
		name    string
		o       Outcome
		of      Priority
		waiting *Priority // nil: nothing was accepted meanwhile
		want    Priority
	}{
		{"again", Outcome{Kind: Succeeded, Again: again}, LowPriority, nil, LowPriority},
		{"again, another priority", Outcome{Kind: Succeeded, Again: again, Priority: high}, LowPriority, nil, HighPriority},
		{"again, lowered", Outcome{Kind: Succeeded, Again: again, Priority: low}, HighPriority, nil, LowPriority},
		{"maxInterval", Outcome{Kind: Succeeded}, HighPriority, nil, HighPriority},
		{"a retry", Outcome{Kind: Failed}, LowPriority, nil, LowPriority},
		{"a retry, another priority", Outcome{Kind: Failed, Priority: high}, LowPriority, nil, HighPriority},
		{"given up, maxInterval", Outcome{Kind: Rejected}, HighPriority, nil, HighPriority},
		{"not sent", Outcome{Kind: Failed, Unsent: true}, HighPriority, nil, HighPriority},
		{"again, something waits", Outcome{Kind: Succeeded, Again: again}, HighPriority, low, HighPriority},
		{"done, something waits", Outcome{Kind: Succeeded}, HighPriority, low, LowPriority},
		{"again, something higher waits", Outcome{Kind: Succeeded, Again: again, Priority: low}, LowPriority, high, HighPriority},
		{"a retry, something waits", Outcome{Kind: Failed}, HighPriority, low, HighPriority},
	} {
		e := betweenKey
		e.RetryAt, e.Priority = time.Time{}, tc.of
		f, cur := Flight{Entry: &e, Own: tc.waiting == nil}, (*Entry)(nil)
		if tc.waiting != nil {
			w := waitingKey
			w.Priority, cur = *tc.waiting, &w
		}
		if got := f.Finish(in, cur, tc.o).Next.Priority; got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	e := waitingKey
	e.Priority = LowPriority
	in.Source = &Spec{Letters: Letters{Keep: 1}}
	if dead := (&Flight{Entry: &e, Own: true}).Finish(in, &e, Outcome{Kind: Rejected}).Dead; dead.Rank() != HighPriority || dead.Priority != LowPriority {
		t.Errorf("the dead letter has rank %s and tells %s", dead.Rank(), dead.Priority)
	}
}
