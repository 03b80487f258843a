package schedule

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A key that is run is due now, and nothing else of it changes.
func TestRun_DueNowAndNothingElse(t *testing.T) {
	t.Parallel()
	interval := time.Hour
	for name, tc := range map[string]struct {
		cur     Entry
		own     bool
		result  Result
		again   time.Duration // UnfinishedAt
		expires bool
	}{
		"waiting":          {waitingKey, false, Replaced, 0, true},
		"due":              {dueKey, false, Replaced, 0, true},
		"between attempts": {betweenKey, false, Replaced, 0, true},
		"in flight":        {flyingKey, true, Created, -time.Minute, false},
		"behind":           {behindKey, false, Replaced, -time.Minute, true},
	} {
		cur := tc.cur
		cur.UID, cur.Reason, cur.MaxInterval, cur.ExpiresAt = "u", "r", &interval, t0.Add(time.Hour)
		cur.LastFailure = &LastFailure{Code: 503}
		r := RunNow(Conditions{})
		c := apply(t, &r, &cur, tc.own, &Spec{Policy: Fail, Ingest: Ingest{Policy: Keep}})
		want := &Entry{
			Revision: 9, Occurrence: 9, ScheduledAt: t0, DueAt: t0, Attempt: 7, Event: older, UID: "u", Cause: Cause{Reason: "r"}, MaxInterval: &interval,
		}
		if tc.again != 0 {
			want.UnfinishedAt = t0.Add(tc.again)
		}
		if !tc.own {
			want.PreviousDueAt = cur.DueAt
		}
		if tc.expires {
			want.ExpiresAt = cur.ExpiresAt
		}
		if diff := cmp.Diff(want, c.Entry); diff != "" || c.Result != tc.result || c.Supersedes {
			t.Errorf("%s: %s, supersedes %v\n%s", name, c.Result, c.Supersedes, diff)
		}
	}
	r := RunNow(Conditions{})
	if _, err := r.Apply(Inputs{Key: "k", Source: &Spec{}, Now: t0}, nil, false); code(err) != CodeNotFound {
		t.Errorf("absent: %v", err)
	}
	r = RunNow(Conditions{IfMatch: new(uint64(4))})
	if _, err := r.Apply(Inputs{Key: "k", Source: &Spec{}, Now: t0}, &waitingKey, false); code(err) != CodePrecondition {
		t.Errorf("If-Match: %v", err)
	}
}

// The administrator's least wait holds for a run, and does not postpone a key.
func TestRun_LeastWaitDoesNotPostpone(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cur         Entry
		least, want time.Duration
	}{
		"waiting for less":  {waitingKey, 100 * time.Hour, waitingKey.DueAt.Sub(t0)},
		"waiting for more":  {waitingKey, time.Second, time.Second},
		"due":               {dueKey, time.Hour, 0},
		"between attempts":  {betweenKey, time.Hour, betweenKey.RetryAt.Sub(t0)},
		"without the least": {waitingKey, 0, 0},
	} {
		r := RunNow(Conditions{})
		c := apply(t, &r, &tc.cur, false, &Spec{Ceilings: Ceilings{MinDelay: tc.least}})
		if got := c.Entry.At().Sub(t0); got != tc.want {
			t.Errorf("%s: due in %s, want %s", name, got, tc.want)
		}
	}
}

// A run is followed by one more, whatever the delivery under way comes to.
func TestRun_OnceMoreAfterADelivery(t *testing.T) {
	t.Parallel()
	r := RunNow(Conditions{})
	c := apply(t, &r, &flyingKey, true, &Spec{})
	for _, kind := range []OutcomeKind{Succeeded, Failed, Rejected} {
		f := Flight{Entry: &flyingKey, Own: true}
		f.Accept(c, r.Ingested)
		if s := f.Finish(inputs(&Spec{}), c.Entry, Outcome{Kind: kind}); s.Next == nil || s.Next.At().After(t0.Add(maxFloor)) {
			t.Errorf("after %d: %+v", kind, s.Next)
		}
	}
}

// The last failure stays with its occurrence.
func TestLastFailure_StaysWithItsOccurrence(t *testing.T) {
	t.Parallel()
	f := Flight{Entry: &flyingKey, Own: true}
	down := Outcome{Kind: Failed, Failure: Failure{Dest: "http://sink", Code: 503, Data: []byte("down")}}
	e := f.Finish(inputs(&Spec{}), &flyingKey, down).Next
	if diff := cmp.Diff(&LastFailure{At: t0, Code: 503, Data: []byte("down")}, e.LastFailure); diff != "" {
		t.Fatal(diff)
	}
	for name, tc := range map[string]struct {
		r    *Request
		kept bool
	}{
		"merged":                      {put(late, Earliest), true},
		"merged with another event":   {event(late, Earliest), false},
		"replaced":                    {put(soon, Replace), false},
		"brought forward before then": {put(0, Replace), false},
	} {
		if got := apply(t, tc.r, e, false, &Spec{}).Entry.LastFailure; (got != nil) != tc.kept {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if next := end(&Spec{MaxInterval: time.Hour}, e, Outcome{Kind: Succeeded}).Next; next.LastFailure != nil {
		t.Errorf("the next occurrence has %+v", next.LastFailure)
	}
}

// What is given up is kept, unless a dead letter sink takes it.
func TestGiveUp_KeepsTheEvent(t *testing.T) {
	t.Parallel()
	keeps := Letters{Keep: 1, MaxAge: time.Hour}
	sink := &Target{URL: "http://dead"}
	refused := Outcome{Kind: Rejected, Failure: Failure{Dest: "http://sink", Code: 400, Data: []byte("bad")}}
	for name, tc := range map[string]struct {
		src  *Spec
		o    Outcome
		what Disposition
	}{
		"refused":                          {&Spec{Letters: keeps}, refused, KeptLetter},
		"retries used up":                  {&Spec{Letters: keeps, Delivery: Delivery{Retry: new(0)}}, Outcome{Kind: Failed, Failure: refused.Failure}, KeptLetter},
		"refused, with a dead letter sink": {&Spec{Letters: keeps, Targets: Targets{DeadLetter: sink}}, refused, DeadLettered},
		"refused, and nothing is kept":     {&Spec{}, refused, Dropped},
	} {
		s := end(tc.src, &flyingKey, tc.o)
		if s.Disposition != tc.what || (s.Dead != nil) != (tc.what != Dropped) {
			t.Errorf("%s: %s, %+v", name, s.Disposition, s.Dead)
		}
		if tc.what != KeptLetter {
			continue
		}
		want := &Entry{
			Revision: 9, Occurrence: 9, ScheduledAt: t0, DueAt: t0.Add(keptFor), ExpiresAt: t0.Add(time.Hour), Event: older,
			DeadLetter: &DeadLetter{Key: "k", Due: flyingKey.DueAt, ID: "store-5", Attempt: 7, Tries: 3, Revision: 5, Failure: refused.Failure},
		}
		if diff := cmp.Diff(want, s.Dead); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// A dead letter that its sink refuses is kept with what it was given up for first.
func TestGiveUp_KeepsARefusedLetter(t *testing.T) {
	t.Parallel()
	src := &Spec{Letters: Letters{Keep: 1, MaxAge: time.Hour}, Targets: Targets{DeadLetter: &Target{URL: "http://dead"}}}
	letter := end(src, &flyingKey, Outcome{Kind: Rejected, Failure: Failure{Code: 400}}).Dead
	s := end(src, letter, Outcome{Kind: Rejected, Failure: Failure{Code: 410}})
	if s.Disposition != KeptLetter || s.Next != nil || s.Dead.DeadLetter.Failure.Code != 400 || s.Dead.DeadLetter.Tries != 3 || s.Dead.DueAt.Before(t0.Add(KeptAfter)) {
		t.Errorf("%s, %+v", s.Disposition, s.Dead)
	}
}

// A dead letter that is redriven is a new occurrence with an id of its own.
func TestRedrive_IsANewOccurrence(t *testing.T) {
	t.Parallel()
	ingested := &Event{ID: "theirs", Source: "/s", Type: "t"}
	letter := &Entry{Event: ingested, Cause: Cause{Reason: "r"}, UID: "u", DeadLetter: &DeadLetter{Key: "k", ID: "theirs"}}
	redrive := func(cur *Entry) *Entry {
		r, err := letter.Redrive(cur, true)
		must(t, err)
		return apply(t, &r, cur, false, &Spec{}).Entry
	}
	if e := redrive(nil); e.EventID("store") != "store-9" || e.Attempt != 0 || !e.DueAt.Equal(t0) || e.Reason != "r" || e.Event.Type != "t" || e.UID != "u" {
		t.Errorf("%+v", e)
	}
	if e := redrive(&dueKey); e.EventID("store") != "store-9" || !e.DueAt.Equal(dueKey.DueAt) || e.Event.Type != "t" || e.Attempt != 0 || e.UID != "" {
		t.Errorf("in the place of a key that is due: %+v", e)
	}
	letter.Event = nil
	if e := redrive(&dueKey); e.Event.Type != "" {
		t.Errorf("without an event: %+v", e.Event)
	}
}

// A redriven letter took the place of a newer event, which was acknowledged and never delivered.
func TestRedrive_LeavesANewerOccurrence(t *testing.T) {
	t.Parallel()
	letter := &Entry{Event: older, DeadLetter: &DeadLetter{Key: "k"}}
	for name, cur := range map[string]*Entry{"waiting": &waitingKey, "due": &dueKey, "between attempts": &betweenKey, "in flight": &flyingKey, "behind": &behindKey} {
		if _, err := letter.Redrive(cur, false); code(err) != CodeExists {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The source's jitter adds to the waits of outcomes and to maxInterval, never to the times of requests.
func TestJitter_AddsToWaitsOfOutcomes(t *testing.T) {
	t.Parallel()
	src := &Spec{Jitter: 0.5, MaxInterval: time.Minute, Delivery: Delivery{BackoffDelay: 10 * time.Second}}
	in := inputs(src)
	in.Random = 0.5
	for name, tc := range map[string]struct {
		o    Outcome
		want time.Duration
	}{
		"Reschedule-After":            {Outcome{Kind: Succeeded, Again: &RescheduleAfter{After: 40 * time.Second}}, 50 * time.Second},
		"a time in the reply":         {Outcome{Kind: Succeeded, Again: &RescheduleAfter{At: t0.Add(40 * time.Second)}}, 50 * time.Second},
		"maxInterval":                 {Outcome{Kind: Succeeded}, 75 * time.Second},
		"a retry":                     {Outcome{Kind: Failed}, 12500 * time.Millisecond},
		"a retry that the sink names": {Outcome{Kind: Failed, Again: &RescheduleAfter{After: 40 * time.Second}}, 50 * time.Second},
	} {
		cur := waitingKey
		f := Flight{Entry: &cur, Own: true}
		if got := f.Finish(in, &cur, tc.o).Next.At().Sub(t0); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
	if got := apply(t, put(time.Minute, Replace), nil, false, src).Entry.DueAt.Sub(t0); got != time.Minute {
		t.Errorf("a request: %s", got)
	}
	for own, want := range map[float64]time.Duration{0: 75 * time.Second, 1: 90 * time.Second} {
		r := Request{Backoff: &Backoff{Base: time.Second, Factor: 2, Cap: time.Hour, MaxAttempts: 1}, Jitter: own}
		cur := waitingKey
		cur.Attempt = 1
		c, err := r.Apply(in, &cur, false)
		if err != nil || c.Entry.DueAt.Sub(t0) != want {
			t.Errorf("maxInterval after the last attempt, with a jitter of %v: %+v (%v), want %s", own, c.Entry, err, want)
		}
	}
}
