package schedule

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The keys that requests meet. An attempt counter of 7 stands for "has one".
var (
	older = &Event{Type: "older"}
	newer = &Event{Type: "newer"}

	waitingKey = Entry{Revision: 5, Occurrence: 5, ScheduledAt: t0.Add(-time.Hour), DueAt: t0.Add(time.Minute), Attempt: 7, Event: older}
	dueKey     = Entry{Revision: 5, Occurrence: 5, ScheduledAt: t0.Add(-time.Hour), DueAt: t0.Add(-time.Minute), Attempt: 7, Event: older}
	// betweenKey failed twice and is tried again in a minute.
	betweenKey = Entry{
		Revision: 5, Occurrence: 5, ScheduledAt: t0.Add(-time.Hour), DueAt: t0.Add(-time.Minute), RetryAt: t0.Add(time.Minute),
		Attempt: 7, Tries: 2, Event: older,
	}
	// flyingKey is in its third attempt.
	flyingKey = Entry{
		Revision: 5, Occurrence: 5, ScheduledAt: t0.Add(-time.Hour), DueAt: t0.Add(-time.Minute), RetryAt: t0.Add(-time.Second),
		Attempt: 7, Tries: 2, Event: older,
	}
	// behindKey is an event that waits for an older delivery to end.
	behindKey = Entry{
		Revision: 5, Occurrence: 5, ScheduledAt: t0, DueAt: t0.Add(time.Minute), UnfinishedAt: t0.Add(-time.Minute),
		Attempt: 7, Tries: 2, Event: older,
	}
)

const (
	soon = 30 * time.Second // before the time of every waiting key
	late = 90 * time.Second // after it
)

func put(delay time.Duration, p Policy) *Request { return &Request{Delay: &delay, Policy: p} }

func event(delay time.Duration, p Policy) *Request {
	return &Request{Delay: &delay, Policy: p, Event: newer, Ingested: true}
}

// apply runs a request that must be accepted as revision 9 at t0.
func apply(t *testing.T, r *Request, cur *Entry, own bool, src *Spec) Change {
	t.Helper()
	before := snapshot(cur)
	c, err := r.Apply(Inputs{Key: "k", Source: src, Revision: 9, Now: t0, Random: 0.5}, cur, own)
	if err != nil {
		t.Fatalf("Apply: %v", err)
	}
	if diff := cmp.Diff(before, snapshot(cur)); diff != "" {
		t.Errorf("Apply changed the stored entry:\n%s", diff)
	}
	return c
}

func snapshot(e *Entry) Entry {
	if e == nil {
		return Entry{}
	}
	return *e
}

func code(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// The policy decides about the time of a waiting occurrence. The newest accepted event is its event.
func TestApply_PolicyDecidesTheTime(t *testing.T) {
	t.Parallel()
	const due, retry = -time.Minute, time.Minute // of betweenKey
	type row struct {
		name    string
		cur     *Entry
		own     bool
		policy  Policy
		delay   time.Duration
		result  Result // "" = already_exists
		dueIn   time.Duration
		retryIn time.Duration // 0 = none
	}
	rows := []row{
		{"waiting, replace with a sooner time", &waitingKey, false, Replace, soon, Replaced, soon, 0},
		{"waiting, replace with a later time", &waitingKey, false, Replace, late, Replaced, late, 0},
		{"waiting, replace with the same time", &waitingKey, false, Replace, time.Minute, Replaced, time.Minute, 0},
		{"waiting, earliest with a sooner time", &waitingKey, false, Earliest, soon, Replaced, soon, 0},
		{"waiting, earliest with a later time", &waitingKey, false, Earliest, late, Merged, time.Minute, 0},
		{"waiting, earliest with the same time", &waitingKey, false, Earliest, time.Minute, Merged, time.Minute, 0},
		{"waiting, latest with a sooner time", &waitingKey, false, Latest, soon, Merged, time.Minute, 0},
		{"waiting, latest with a later time", &waitingKey, false, Latest, late, Replaced, late, 0},
		{"waiting, latest with the same time", &waitingKey, false, Latest, time.Minute, Merged, time.Minute, 0},
		{"waiting, keep", &waitingKey, false, Keep, soon, Kept, time.Minute, 0},
		{"waiting, fail", &waitingKey, false, Fail, soon, "", 0, 0},

		{"due, replace", &dueKey, false, Replace, soon, Replaced, soon, 0},
		{"due, replace with now", &dueKey, false, Replace, 0, Replaced, 0, 0},
		{"due, earliest", &dueKey, false, Earliest, soon, Merged, due, 0},
		{"due, earliest with now", &dueKey, false, Earliest, 0, Merged, due, 0},
		{"due, latest", &dueKey, false, Latest, soon, Replaced, soon, 0},
		{"due, keep", &dueKey, false, Keep, soon, Kept, due, 0},
		{"due, fail", &dueKey, false, Fail, soon, "", 0, 0},

		{"between attempts, replace", &betweenKey, false, Replace, soon, Replaced, soon, 0},
		{"between attempts, earliest before the next", &betweenKey, false, Earliest, soon, Merged, due, soon},
		{"between attempts, earliest after the next", &betweenKey, false, Earliest, late, Merged, due, retry},
		{"between attempts, latest before the next", &betweenKey, false, Latest, soon, Merged, due, retry},
		{"between attempts, latest after the next", &betweenKey, false, Latest, late, Replaced, late, 0},
		{"between attempts, keep", &betweenKey, false, Keep, soon, Kept, due, retry},
		{"between attempts, fail", &betweenKey, false, Fail, soon, "", 0, 0},

		{"behind, replace", &behindKey, false, Replace, soon, Replaced, soon, 0},
		{"behind, earliest with a sooner time", &behindKey, false, Earliest, soon, Replaced, soon, 0},
		{"behind, earliest with a later time", &behindKey, false, Earliest, late, Merged, time.Minute, 0},
		{"behind, latest with a sooner time", &behindKey, false, Latest, soon, Merged, time.Minute, 0},
		{"behind, latest with a later time", &behindKey, false, Latest, late, Replaced, late, 0},
		{"behind, keep", &behindKey, false, Keep, soon, Kept, time.Minute, 0},
		{"behind, fail", &behindKey, false, Fail, soon, "", 0, 0},
	}
	for _, p := range policies {
		rows = append(rows, row{"absent, " + string(p), nil, false, p, soon, Created, soon, 0}, row{"in flight, " + string(p), &flyingKey, true, p, soon, Created, soon, 0})
	}
	for _, tc := range rows {
		for _, ingested := range []bool{false, true} {
			name := tc.name + ", PUT"
			r := put(tc.delay, tc.policy)
			if ingested {
				name, r = tc.name+", event", event(tc.delay, tc.policy)
			}
			if tc.result == "" {
				c, err := r.Apply(inputs(&Spec{}), tc.cur, tc.own)
				if code(err) != CodeExists || c != (Change{}) {
					t.Errorf("%s: %+v, %v, want %s", name, c, err, CodeExists)
				}
				continue
			}
			c := apply(t, r, tc.cur, tc.own, &Spec{})
			want := [3]time.Time{t0.Add(tc.dueIn)} // due, retry, previously due
			if tc.retryIn != 0 {
				want[1] = t0.Add(tc.retryIn)
			}
			if tc.result == Replaced || tc.result == Merged { // only an occurrence that waited has one
				want[2] = tc.cur.DueAt
			}
			if got := [3]time.Time{c.Entry.DueAt, c.Entry.RetryAt, c.Entry.PreviousDueAt}; c.Result != tc.result || !cmp.Equal(want, got) {
				t.Errorf("%s: %s %v, want %s %v", name, c.Result, got, tc.result, want)
			}
			if tc.result == Kept {
				if c.Entry != tc.cur || c.Supersedes || c.NewObject {
					t.Errorf("%s: kept, but something changed: %+v", name, c)
				}
				continue
			}
			wantEvent := newer // the newest accepted one
			if !ingested {
				wantEvent = snapshot(tc.cur).Event
			}
			if c.Entry.Event != wantEvent || c.Entry.Revision != 9 || !c.Entry.ScheduledAt.Equal(t0) {
				t.Errorf("%s: event %v, revision %d of %v", name, c.Entry.Event, c.Entry.Revision, c.Entry.ScheduledAt)
			}
		}
	}
}

// What was due before stays known: a run and another object move a waiting occurrence as a PUT does, a retry and a
// restart are no changes, and a new occurrence has no time before.
func TestPreviousDueAt_LastsUntilTheNextChange(t *testing.T) {
	t.Parallel()
	before := t0.Add(-2 * time.Minute)
	flying, newer := flyingKey, newerEvent
	flying.PreviousDueAt, newer.PreviousDueAt = before, before
	waiting := waitingKey
	waiting.UID = "old"
	run, another := RunNow(Conditions{}), put(soon, Keep)
	another.UID = "new"
	finish := func(cur *Entry, f Flight, o Outcome) *Entry {
		src := &Spec{MaxInterval: time.Hour, Delivery: Delivery{BackoffDelay: time.Second}}
		return f.Finish(inputs(src), cur, o).Next
	}
	restarted, _ := newer.Recover()
	soonAgain := Outcome{Kind: Succeeded, Again: &RescheduleAfter{After: soon}}
	for name, tc := range map[string]struct {
		e    *Entry
		want time.Time
	}{
		"a run":                         {apply(t, &run, &waiting, false, &Spec{}).Entry, waiting.DueAt},
		"a run of what is in flight":    {apply(t, &run, &flying, true, &Spec{}).Entry, time.Time{}},
		"another object":                {apply(t, another, &waiting, false, &Spec{}).Entry, waiting.DueAt},
		"kept":                          {apply(t, put(soon, Keep), &newer, false, &Spec{}).Entry, before},
		"a retry":                       {finish(&flying, Flight{Entry: &flying, Own: true}, Outcome{Kind: Failed}), before},
		"a retry that an event awaits":  {finish(&newer, Flight{Entry: &flying}, Outcome{Kind: Failed}), before},
		"a restart":                     {restarted, before},
		"maxInterval":                   {finish(&flying, Flight{Entry: &flying, Own: true}, Outcome{Kind: Succeeded}), time.Time{}},
		"Reschedule-After":              {finish(&flying, Flight{Entry: &flying, Own: true}, soonAgain), time.Time{}},
		"Reschedule-After, sooner":      {finish(&newer, Flight{Entry: &flying}, soonAgain), newer.DueAt},
		"a success before what waits":   {finish(&newer, Flight{Entry: &flying}, Outcome{Kind: Succeeded}), before},
		"a dead letter that is kept":    {flying.keep(inputs(&Spec{}), Failure{}), time.Time{}},
		"a dead letter to be delivered": {flying.deadLetter(inputs(&Spec{}), Failure{}), time.Time{}},
	} {
		if !tc.e.PreviousDueAt.Equal(tc.want) {
			t.Errorf("%s: previously due %v, want %v", name, tc.e.PreviousDueAt, tc.want)
		}
	}
}

// The source's policy applies if the request names none.
func TestApply_PolicyOfTheSource(t *testing.T) {
	t.Parallel()
	src := &Spec{Policy: Latest, Ingest: Ingest{Policy: Earliest}}
	if c := apply(t, put(soon, ""), &waitingKey, false, src); c.Result != Merged {
		t.Errorf("PUT: %s, want the source's latest to merge", c.Result)
	}
	if c := apply(t, event(soon, ""), &waitingKey, false, src); c.Result != Replaced {
		t.Errorf("event: %s, want the source's earliest to bring it forward", c.Result)
	}
	if c := apply(t, put(soon, Replace), &waitingKey, false, src); c.Result != Replaced {
		t.Errorf("PUT with a policy: %s", c.Result)
	}
}

// The time of a request.
func TestApply_TimeOfARequest(t *testing.T) {
	t.Parallel()
	hour := time.Hour
	src := &Spec{Delay: 5 * time.Second}
	for name, tc := range map[string]struct {
		r    Request
		want time.Duration
	}{
		"a delay":                              {Request{Delay: &hour}, time.Hour},
		"no delay at all":                      {Request{Delay: new(time.Duration)}, 0},
		"an instant":                           {Request{DueAt: t0.Add(time.Hour)}, time.Hour},
		"an instant to the nanosecond":         {Request{DueAt: t0.Add(1)}, 1},
		"an instant in the past means now":     {Request{DueAt: t0.Add(-time.Hour)}, 0},
		"an instant long past means now":       {Request{DueAt: earliest}, 0},
		"neither: the source's delay":          {Request{}, 5 * time.Second},
		"a century":                            {Request{DueAt: t0.Add(MaxDuration)}, MaxDuration},
		"jitter adds a share of the delay":     {Request{Delay: &hour, Jitter: 0.5}, time.Hour + 15*time.Minute},
		"jitter of an instant":                 {Request{DueAt: t0.Add(time.Hour), Jitter: 1}, time.Hour + 30*time.Minute},
		"jitter of the source's delay":         {Request{Jitter: 1}, 7500 * time.Millisecond},
		"jitter of a back-off":                 {Request{Backoff: &Backoff{Base: time.Second, Factor: 2, Cap: time.Hour}, Jitter: 1}, 1500 * time.Millisecond},
		"jitter of nothing is nothing":         {Request{Delay: new(time.Duration), Jitter: 1}, 0},
		"jitter of an instant past is nothing": {Request{DueAt: t0.Add(-time.Hour), Jitter: 1}, 0},
	} {
		c := apply(t, &tc.r, nil, false, src)
		if got := c.Entry.DueAt.Sub(t0); got != tc.want {
			t.Errorf("%s: due in %v, want %v", name, got, tc.want)
		}
	}
}

// Jitter never makes anything early.
func TestJitter_NeverEarly(t *testing.T) {
	t.Parallel()
	for _, delay := range []time.Duration{0, 1, time.Second, MaxDuration} {
		for _, jitter := range []float64{0, 1e-18, 0.1, 0.999, 1} {
			for _, random := range []float64{0, 1e-18, 0.5, 1 - 1e-16} {
				r := &Request{Delay: &delay, Jitter: jitter}
				c, err := r.Apply(Inputs{Key: "k", Source: &Spec{}, Revision: 9, Now: t0, Random: random}, nil, false)
				must(t, err)
				// Of 100 years a float64 knows the nanoseconds by the 512.
				most := min(delay+time.Duration(float64(delay)*jitter)+512, MaxDuration)
				if got := c.Entry.DueAt.Sub(t0); got < delay || got > most {
					t.Errorf("delay %v, jitter %v, random %v: due in %v", delay, jitter, random, got)
				}
			}
		}
	}
}

// With replace the body is the whole occurrence, except the event.
func TestReplace_KeepsOnlyTheEvent(t *testing.T) {
	t.Parallel()
	full := waitingKey
	full.ExpiresAt, full.MaxInterval, full.Slack, full.UID, full.Reason = t0.Add(time.Hour), new(time.Hour), new(time.Hour), "u", "because"
	full.TraceParent, full.TraceState = "parent", "state"
	for _, own := range []bool{false, true} {
		c := apply(t, put(soon, Replace), &full, own, &Spec{})
		want := &Entry{Revision: 9, Occurrence: 9, ScheduledAt: t0, DueAt: t0.Add(soon), Timing: Timing{MayWait: true}, Event: older}
		if !own {
			want.PreviousDueAt = full.DueAt
		}
		if diff := cmp.Diff(want, c.Entry); diff != "" {
			t.Errorf("own %v:\n%s", own, diff)
		}
	}
	minute := time.Minute
	everything := Request{
		Delay: &minute, Policy: Replace, Event: newer, MaxInterval: &minute, Slack: &minute, ExpiresAt: t0.Add(time.Minute), UID: "u", Reason: "other",
		TraceParent: "p", TraceState: "s",
	}
	c := apply(t, &everything, &full, false, &Spec{})
	want := &Entry{
		Revision: 9, Occurrence: 9, ScheduledAt: t0, DueAt: t0.Add(time.Minute), PreviousDueAt: full.DueAt, Event: newer, MaxInterval: &minute, Timing: Timing{Slack: &minute, MayWait: true},
		ExpiresAt: t0.Add(time.Minute), UID: "u", Cause: Cause{Reason: "other", TraceParent: "p", TraceState: "s"},
	}
	if diff := cmp.Diff(want, c.Entry); diff != "" {
		t.Error(diff)
	}
}

// With the other policies every absent field stays.
func TestPolicies_AbsentFieldsStay(t *testing.T) {
	t.Parallel()
	hour, minute := time.Hour, time.Minute
	full := waitingKey
	full.ExpiresAt, full.MaxInterval, full.Slack, full.UID, full.Reason = t0.Add(time.Hour), &hour, &minute, "u", "because"
	full.TraceParent, full.TraceState = "parent", "state"
	for _, p := range []Policy{Earliest, Latest} {
		for _, delay := range []time.Duration{soon, late} {
			c := apply(t, put(delay, p), &full, false, &Spec{})
			got := *c.Entry
			got.Revision, got.Occurrence, got.ScheduledAt, got.DueAt, got.PreviousDueAt, got.Attempt, got.MayWait = full.Revision, full.Occurrence, full.ScheduledAt, full.DueAt, time.Time{}, full.Attempt, full.MayWait
			if diff := cmp.Diff(full, got); diff != "" {
				t.Errorf("%s in %v:\n%s", p, delay, diff)
			}

			r := &Request{Delay: &delay, Policy: p, Event: newer, MaxInterval: &minute, Slack: &hour, ExpiresAt: t0.Add(minute), UID: "u", Reason: "other", TraceParent: "p"}
			e := apply(t, r, &full, false, &Spec{}).Entry
			if e.Event != newer || *e.MaxInterval != minute || *e.Slack != hour || !e.ExpiresAt.Equal(t0.Add(minute)) || e.Reason != "other" || e.TraceParent != "p" || e.TraceState != "" {
				t.Errorf("%s in %v: not everything given is there: %+v", p, delay, e)
			}
		}
	}
}

// What another object says about a key's object fills in a uid that is missing, and makes no new object of it.
func TestApply_HearsayOfAUID(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	said := func() *Request {
		r := event(0, Earliest)
		r.UID, r.UIDIfNone = "said", true
		return r
	}
	for _, own := range []bool{false, true} {
		cur := waitingKey
		cur.UID, cur.MaxInterval, cur.ExpiresAt, cur.Reason = "real", &day, t0.Add(time.Hour), "set"
		c := apply(t, said(), &cur, own, &Spec{})
		if e := c.Entry; e.UID != "real" || e.MaxInterval != &day || e.Reason != "set" || e.Attempt != 7 || c.NewObject || c.Supersedes {
			t.Errorf("own %t: %+v of %+v", own, c, e)
		}
	}
	cur := waitingKey
	if c := apply(t, said(), &cur, false, &Spec{}); c.Entry.UID != "said" || c.NewObject {
		t.Errorf("a key without a uid: %+v", c.Entry)
	}
	if c := apply(t, said(), nil, false, &Spec{}); c.Entry.UID != "said" {
		t.Errorf("no key: %+v", c.Entry)
	}
}

// An event that is final ends a key which has nothing else: it must not end a schedule.
func TestApply_FinalEventEndsNoSchedule(t *testing.T) {
	t.Parallel()
	final := &Event{Type: DefaultEventType, Extensions: map[string]any{FinalAttribute: true, CauseAttribute: "a"}}
	gone := &Event{Source: "s", Type: "dev.knative.apiserver.ref.delete"}
	for name, c := range map[string]struct {
		cur  *Entry
		own  bool
		ends bool
	}{
		"no key":                          {nil, false, true},
		"a deletion waits":                {&Entry{Revision: 5, DueAt: t0, Event: gone}, false, true},
		"a deletion is in flight":         {&Entry{Revision: 5, DueAt: t0, Event: gone}, true, true},
		"another final event waits":       {&Entry{Revision: 5, DueAt: t0, Event: final}, false, true},
		"a schedule waits":                {&Entry{Revision: 5, DueAt: t0, Event: older}, false, false},
		"a schedule without an event":     {&Entry{Revision: 5, DueAt: t0}, false, false},
		"the run of a schedule is flying": {&Entry{Revision: 5, DueAt: t0, Event: older}, true, false},
	} {
		r := event(0, Earliest)
		r.Event = final
		e := apply(t, r, c.cur, c.own, &Spec{}).Entry
		if e.Event.Ends() != c.ends || e.Event.Extensions[CauseAttribute] != "a" {
			t.Errorf("%s: %+v", name, e.Event)
		}
	}
	if (&Event{Source: "a caller", Extensions: final.Extensions}).Ends() {
		t.Error("an ingested event that says so ends its key")
	}
}

// An event that is no news takes the place of no other: a key that has an occurrence keeps its event, or none.
func TestApply_EventThatIsNoNews(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cur  *Entry
		own  bool
		want *Event
	}{
		"no key":                      {nil, false, newer},
		"an event waits":              {&Entry{Revision: 5, DueAt: t0, Event: older}, false, older},
		"an event is in flight":       {&Entry{Revision: 5, DueAt: t0, Event: older}, true, older},
		"a schedule without an event": {&Entry{Revision: 5, DueAt: t0}, false, nil},
	} {
		r := event(0, Earliest)
		r.Event, r.EventIfNone = newer, true
		if e := apply(t, r, c.cur, c.own, &Spec{}).Entry; !e.Event.Equal(c.want) {
			t.Errorf("%s: %+v", name, e.Event)
		}
	}
}

// must ends the test with an error of its own steps.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
