package schedule

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The deliveries that outcomes end: flyingKey's third attempt (due a minute
// ago, counter 7, two failures), and what may have happened meanwhile.
var (
	newerPut   = Entry{Revision: 6, Occurrence: 6, ScheduledAt: t0, DueAt: t0.Add(time.Minute), Attempt: 1, Event: newer} // a back-off
	newerEvent = Entry{Revision: 6, Occurrence: 6, ScheduledAt: t0, DueAt: t0.Add(time.Minute), UnfinishedAt: flyingKey.DueAt, Attempt: 7, Tries: 2, Event: newer}
	// With reschedulepolicy replace: the counter is the key's.
	replacingEvent = Entry{Revision: 6, Occurrence: 6, ScheduledAt: t0, DueAt: t0.Add(time.Minute), Attempt: 7, Event: newer}
)

var situations = map[string]struct {
	cur *Entry
	f   Flight
}{
	"alone":                    {&flyingKey, Flight{Entry: &flyingKey, Own: true}},
	"a PUT behind":             {&newerPut, Flight{Entry: &flyingKey, Superseded: true, OwnCounter: true}},
	"an event behind":          {&newerEvent, Flight{Entry: &flyingKey}},
	"an event replaced it":     {&replacingEvent, Flight{Entry: &flyingKey, Superseded: true}},
	"an event behind, expired": {nil, Flight{Entry: &flyingKey}},
	"a PUT behind, expired":    {nil, Flight{Entry: &flyingKey, Superseded: true, OwnCounter: true}},
	"deleted":                  {nil, Flight{Entry: &flyingKey, Cancelled: true}},
	"deleted and PUT anew":     {&newerPut, Flight{Entry: &flyingKey, Cancelled: true, Superseded: true, OwnCounter: true}},
}

var outcomes = map[string]Outcome{
	"aborted":        {},
	"2xx":            {Kind: Succeeded},
	"again in 30 s":  {Kind: Succeeded, Again: &RescheduleAfter{After: soon}},
	"again in 90 s":  {Kind: Succeeded, Again: &RescheduleAfter{After: late}},
	"again at":       {Kind: Succeeded, Again: &RescheduleAfter{At: t0.Add(soon)}},
	"again long ago": {Kind: Succeeded, Again: &RescheduleAfter{At: t0.Add(-time.Hour)}},
	"again at once":  {Kind: Succeeded, Again: &RescheduleAfter{}},
	"never":          {Kind: Succeeded, Never: true},
	"500":            {Kind: Failed},
	"503 in 60 s":    {Kind: Failed, RetryAfter: time.Minute},
	"500, in 30 s":   {Kind: Failed, Again: &RescheduleAfter{After: soon}},
	"503, at once":   {Kind: Failed, Again: &RescheduleAfter{}, RetryAfter: time.Minute},
	"400, at once":   {Kind: Rejected, Again: &RescheduleAfter{}},
	"400, in 30 s":   {Kind: Rejected, Again: &RescheduleAfter{After: soon}},
	"400, in 90 s":   {Kind: Rejected, Again: &RescheduleAfter{After: late}},
	"400":            {Kind: Rejected, Failure: Failure{Dest: "http://sink", Code: 400, Data: []byte("no")}},
}

// The wants are of a source without dead letter sink and maxInterval whose back-off after the third failure is 4 s, and
// in brackets what the key has then: due and retry in seconds, counter/failures, revision.occurrence.
var finishes = []struct{ situations, outcomes, want string }{
	{"alone | an event behind, expired", "aborted", "aborted, unchanged"},
	{"an event behind", "aborted", "aborted [due -60, 7/2, 6.6]"}, // as after a restart: it is owed later
	{"alone | an event behind, expired | a PUT behind, expired", "2xx | never", "delivered, gone"},
	{"alone | an event behind, expired | a PUT behind, expired", "again in 30 s | again at", "delivered [due 30, 0/0, 9.9]"},
	{"alone | an event behind, expired | a PUT behind, expired", "again in 90 s", "delivered [due 90, 0/0, 9.9]"},
	{"alone | an event behind, expired | a PUT behind, expired", "again long ago | again at once", "delivered [due 0.005, 0/0, 9.9]"},
	{"alone | an event behind, expired", "500", "retrying [due -60, retry 4, 8/3, 5.5]"},
	{"alone | an event behind, expired", "503 in 60 s", "retrying [due -60, retry 60, 8/3, 5.5]"},
	{"alone | an event behind, expired", "400", "dropped, gone"},
	{"alone | an event behind, expired", "500, in 30 s", "retrying [due -60, retry 30, 8/3, 5.5]"},
	{"alone | an event behind, expired", "503, at once", "retrying [due -60, retry 0.005, 8/3, 5.5]"},
	{"alone | an event behind, expired | a PUT behind, expired", "400, at once", "dropped [due 0.005, 0/0, 9.9]"},
	{"alone | an event behind, expired | a PUT behind, expired", "400, in 30 s", "dropped [due 30, 0/0, 9.9]"},
	{"alone | an event behind, expired | a PUT behind, expired", "400, in 90 s", "dropped [due 90, 0/0, 9.9]"},

	{"a PUT behind | a PUT behind, expired", "aborted | 500 | 503 in 60 s | 500, in 30 s | 503, at once", "superseded, unchanged"},
	{"a PUT behind", "2xx | again in 90 s | never", "delivered, unchanged"}, // its counter stays its own
	{"a PUT behind", "again in 30 s | again at", "delivered [due 30, 1/0, 9.6]"},
	{"a PUT behind", "again long ago | again at once", "delivered [due 0.005, 1/0, 9.6]"},
	{"a PUT behind", "400 | 400, in 90 s", "dropped, unchanged"},
	{"a PUT behind", "400, at once", "dropped [due 0.005, 1/0, 9.6]"},
	{"a PUT behind", "400, in 30 s", "dropped [due 30, 1/0, 9.6]"},

	{"an event behind | an event replaced it", "2xx | again in 90 s | never", "delivered [due 60, 0/0, 6.6]"}, // the run it merged into succeeded; the object came back
	{"an event behind | an event replaced it", "again in 30 s | again at", "delivered [due 30, 0/0, 9.6]"},
	{"an event behind | an event replaced it", "again long ago | again at once", "delivered [due 0.005, 0/0, 9.6]"},
	{"an event behind", "500", "retrying [due -60, retry 4, 8/0, 6.6]"}, // with retries of its own
	{"an event behind", "503 in 60 s", "retrying [due 60, 8/0, 6.6]"},   // an event is not postponed
	{"an event behind | an event replaced it", "400", "dropped [due 60, 8/0, 6.6]"},
	{"an event behind", "500, in 30 s", "retrying [due -60, retry 30, 8/0, 6.6]"},
	{"an event behind", "503, at once", "retrying [due -60, retry 0.005, 8/0, 6.6]"},
	{"an event behind | an event replaced it", "400, at once", "dropped [due 0.005, 0/0, 9.6]"},
	{"an event behind | an event replaced it", "400, in 30 s", "dropped [due 30, 0/0, 9.6]"},
	{"an event behind | an event replaced it", "400, in 90 s", "dropped [due 60, 0/0, 6.6]"},

	{"an event replaced it", "aborted", "superseded, unchanged"},
	{"an event replaced it", "500 | 503 in 60 s | 500, in 30 s | 503, at once", "superseded [due 60, 8/0, 6.6]"}, // not retried, and counted

	{"a PUT behind, expired", "400", "dropped, unchanged"},
}

// The table of outcomes and their effects on a key.
func TestFinish_EffectOfEachOutcome(t *testing.T) {
	t.Parallel()
	src := &Spec{Delivery: Delivery{BackoffDelay: time.Second}}
	seen := map[[2]string]bool{}
	check := func(situation, outcome, want string) {
		seen[[2]string{situation, outcome}] = true
		at := situations[situation]
		flight, cur := *at.f.Entry, snapshot(at.cur)
		f := at.f
		s := f.Finish(inputs(src), at.cur, outcomes[outcome])
		if got := describe(s, at.cur); got != want {
			t.Errorf("%s, %s: %s, want %s", situation, outcome, got, want)
		}
		if diff := cmp.Diff(flight, *at.f.Entry) + cmp.Diff(cur, snapshot(at.cur)); diff != "" {
			t.Errorf("%s, %s: Finish changed a stored entry:\n%s", situation, outcome, diff)
		}
		if s.Next != nil && s.Changed && !s.Next.UnfinishedAt.IsZero() && s.Disposition != Unfinished {
			t.Errorf("%s, %s: still unfinished", situation, outcome)
		}
	}
	for _, tc := range finishes {
		for situation := range strings.SplitSeq(tc.situations, " | ") {
			for outcome := range strings.SplitSeq(tc.outcomes, " | ") {
				check(situation, outcome, tc.want)
			}
		}
	}
	// Nothing of an answer has an effect after a DELETE.
	for outcome, o := range outcomes {
		for _, situation := range []string{"deleted", "deleted and PUT anew"} {
			check(situation, outcome, map[OutcomeKind]string{Aborted: "superseded", Succeeded: "delivered", Failed: "superseded", Rejected: "superseded"}[o.Kind]+", unchanged")
		}
	}
	for situation := range situations {
		for outcome := range outcomes {
			if !seen[[2]string{situation, outcome}] {
				t.Errorf("%s, %s: no expectation", situation, outcome)
			}
		}
	}
}

func describe(s Step, cur *Entry) string {
	text := string(s.Disposition)
	switch n := s.Next; {
	case !s.Changed && n == cur:
		text += ", unchanged"
	case !s.Changed && n != nil && cur != nil && cmp.Equal(*n, *cur):
		text += ", unchanged"
	case !s.Changed:
		text += ", another entry without a change"
	case n == nil:
		text += ", gone"
	default:
		text += fmt.Sprintf(" [due %v", n.DueAt.Sub(t0).Seconds())
		if !n.RetryAt.IsZero() {
			text += fmt.Sprintf(", retry %v", n.RetryAt.Sub(t0).Seconds())
		}
		text += fmt.Sprintf(", %d/%d, %d.%d]", n.Attempt, n.Tries, n.Revision, n.Occurrence)
	}
	if s.Dead != nil {
		text += " and a dead letter"
	}
	return text
}

// maxInterval brings a key back.
func TestMaxInterval_BringsAKeyBack(t *testing.T) {
	t.Parallel()
	hour, off, zero := time.Hour, time.Duration(0), 0
	gone := func(e Entry) Entry {
		e.Event = &Event{ID: "i", Source: "s", Type: "dev.knative.apiserver.ref.delete"}
		return e
	}
	goneResource := func(e Entry) Entry {
		e.Event = &Event{ID: "i", Source: "s", Type: "dev.knative.apiserver.resource.delete"}
		return e
	}
	ownType := func(e Entry) Entry { e.Event = &Event{Type: "dev.knative.apiserver.ref.delete"}; return e }
	with := func(d *time.Duration) func(Entry) Entry { return func(e Entry) Entry { e.MaxInterval = d; return e } }
	same := func(e Entry) Entry { return e }
	expired := func(e Entry) Entry { e.ExpiresAt = t0; return e }
	for name, tc := range map[string]struct {
		key     func(Entry) Entry
		source  time.Duration
		outcome string
		retry   *int
		want    string
	}{
		"after a success":                         {same, hour, "2xx", nil, "delivered [due 3600, 0/0, 9.9]"},
		"the key's own over the source's":         {with(&hour), time.Minute, "2xx", nil, "delivered [due 3600, 0/0, 9.9]"},
		"the key's own off":                       {with(&off), hour, "2xx", nil, "delivered, gone"},
		"not where the answer names a time":       {same, hour, "again in 30 s", nil, "delivered [due 30, 0/0, 9.9]"},
		"not where the answer names a later time": {same, time.Second, "again in 90 s", nil, "delivered [due 90, 0/0, 9.9]"},
		"not after never":                         {same, hour, "never", nil, "delivered, gone"},
		"not when the object is gone":             {gone, hour, "2xx", nil, "delivered, gone"},
		"not when the resource is gone":           {goneResource, hour, "2xx", nil, "delivered, gone"},
		"but Reschedule-After does":               {gone, hour, "again in 30 s", nil, "delivered [due 30, 0/0, 9.9]"},
		"a scheduled event of that type":          {ownType, hour, "2xx", nil, "delivered [due 3600, 0/0, 9.9]"},
		"not between attempts":                    {same, hour, "500", nil, "retrying [due -60, retry 4, 8/3, 5.5]"},
		"when the retries are used up":            {same, hour, "500", &zero, "dropped [due 3600, 0/0, 9.9]"},
		"after a rejection":                       {same, hour, "400", nil, "dropped [due 3600, 0/0, 9.9]"},
		"a rejection that names a time":           {same, hour, "400, in 30 s", nil, "dropped [due 30, 0/0, 9.9]"},
		"not at once":                             {same, 1, "2xx", nil, "delivered [due 0.005, 0/0, 9.9]"},
		"not at once after a rejection":           {same, 1, "400", nil, "dropped [due 0.005, 0/0, 9.9]"},
		"not when it expired during a failure":    {expired, hour, "500", nil, "expired, gone"},
		"when it expired during a success":        {expired, hour, "2xx", nil, "delivered [due 3600, 0/0, 9.9]"},
	} {
		e := tc.key(flyingKey)
		src := &Spec{MaxInterval: tc.source, Delivery: Delivery{BackoffDelay: time.Second, Retry: tc.retry}}
		s := end(src, &e, outcomes[tc.outcome])
		if got := describe(s, &e); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
		if s.Next != nil && s.Next.Occurrence == 9 && !s.Next.ExpiresAt.IsZero() {
			t.Errorf("%s: the new occurrence has the old one's expiry", name)
		}
	}
}

// A retried delivery expires.
func TestFinish_RetryExpires(t *testing.T) {
	t.Parallel()
	e := flyingKey
	e.ExpiresAt = t0.Add(1)
	for outcome, want := range map[string]string{
		"500": "retrying [due -60, retry 4, 8/3, 5.5]", "2xx": "delivered, gone", "aborted": "aborted, unchanged",
	} {
		s := end(&Spec{Delivery: Delivery{BackoffDelay: time.Second}}, &e, outcomes[outcome])
		if got := describe(s, &e); got != want {
			t.Errorf("before its expiry, %s: %s, want %s", outcome, got, want)
		}
	}
	if e.Expired(t0) || !e.Expired(t0.Add(1)) || (&Entry{}).Expired(t0) {
		t.Error("an entry expires at its expiresAt, and without one never")
	}
}

// An event behind an occurrence that has expired by the time of its retry is not brought forward.
func TestFinish_ExpiredBeforeAnEvent(t *testing.T) {
	t.Parallel()
	const retry, asked = 4 * time.Second, 30 * time.Second
	for _, tc := range []struct {
		outcome string
		expires time.Duration
		want    string
	}{
		{"500", 0, "superseded [due 60, 8/0, 6.6]"},
		{"500", retry, "superseded [due 60, 8/0, 6.6]"},
		{"500", retry + 1, "retrying [due -60, retry 4, 8/0, 6.6]"},
		{"500, in 30 s", asked, "superseded [due 60, 8/0, 6.6]"},
		{"500, in 30 s", asked + 1, "retrying [due -60, retry 30, 8/0, 6.6]"},
		{"2xx", 0, "delivered [due 60, 0/0, 6.6]"},
	} {
		e, cur := flyingKey, newerEvent
		e.ExpiresAt = t0.Add(tc.expires)
		f := Flight{Entry: &e}
		s := f.Finish(inputs(&Spec{Delivery: Delivery{BackoffDelay: time.Second}}), &cur, outcomes[tc.outcome])
		if got := describe(s, &cur); got != tc.want {
			t.Errorf("%s, and it expires after %s: %s, want %s", tc.outcome, tc.expires, got, tc.want)
		}
		if diff := cmp.Diff(newerEvent, cur); diff != "" || !s.Next.UnfinishedAt.IsZero() {
			t.Errorf("%s: unfinished since %s; the stored entry changed:\n%s", tc.outcome, s.Next.UnfinishedAt, diff)
		}
	}
}

// The flight records the changes accepted meanwhile.
func TestFlight_RecordsChanges(t *testing.T) {
	t.Parallel()
	type step struct {
		c        Change
		ingested bool
	}
	putStep, eventStep, keptStep := step{Change{Result: Created, Supersedes: true}, false}, step{Change{Result: Merged}, true}, step{Change{Result: Kept}, false}
	replacing := step{Change{Result: Replaced, Supersedes: true}, true}
	newObject := step{Change{Result: Created, Supersedes: true, NewObject: true}, false}
	for name, tc := range map[string]struct {
		steps []step
		want  Flight
	}{
		"nothing":              {nil, Flight{Own: true}},
		"kept":                 {[]step{keptStep}, Flight{Own: true}},
		"a PUT":                {[]step{putStep}, Flight{Superseded: true, OwnCounter: true}},
		"an event":             {[]step{eventStep}, Flight{}},
		"an event replaces it": {[]step{replacing}, Flight{Superseded: true}},
		"an event, then a PUT": {[]step{eventStep, putStep}, Flight{Superseded: true, OwnCounter: true}},
		"a PUT, then an event": {[]step{putStep, eventStep}, Flight{Superseded: true, OwnCounter: true}},
		"a new object":         {[]step{newObject}, Flight{Superseded: true, OwnCounter: true, Cancelled: true}},
	} {
		f := Flight{Own: true}
		for _, s := range tc.steps {
			f.Accept(s.c, s.ingested)
		}
		if f != tc.want {
			t.Errorf("%s: %+v, want %+v", name, f, tc.want)
		}
		f.Cancel()
		if f.Own || !f.Cancelled {
			t.Errorf("%s, then a DELETE: %+v", name, f)
		}
	}
}

// A rejection is a dead letter even when a newer occurrence replaced it.
func TestDeadLetter_OfARejectedSupersededOne(t *testing.T) {
	t.Parallel()
	src := &Spec{Targets: Targets{DeadLetter: &Target{URL: "http://dead"}}, MaxInterval: time.Hour, Delivery: Delivery{Retry: new(1), BackoffDelay: time.Second}}
	for _, outcome := range []string{"400", "500"} { // the retry is used up after two failures
		at := situations["a PUT behind"]
		s := at.f.Finish(inputs(src), at.cur, outcomes[outcome])
		if s.Dead == nil || s.Disposition != DeadLettered || s.Changed || s.Next != at.cur {
			t.Errorf("%s: %+v, want a dead letter and the newer occurrence unchanged", outcome, s)
		}
		at = situations["deleted"]
		if s := at.f.Finish(inputs(src), at.cur, outcomes[outcome]); s.Dead != nil || s.Changed {
			t.Errorf("%s after a DELETE: %+v, want no effect", outcome, s)
		}
	}
}

// An event does not vanish with the expiry of the key that it merges into, nor of a delivery under way. A PUT that
// merges keeps the expiry, and so does a run.
func TestEvent_VanishesNotWithAnExpiry(t *testing.T) {
	t.Parallel()
	e := flyingKey
	e.ExpiresAt = t0.Add(time.Second)
	event := Request{Ingested: true, Event: &Event{ID: "1", Source: "/s"}}
	for name, tc := range map[string]struct {
		r    Request
		own  bool
		want time.Time
	}{
		"an event behind a delivery": {event, true, time.Time{}},
		"an event":                   {event, false, time.Time{}},
		"a PUT":                      {*put(soon, Earliest), false, e.ExpiresAt},
		"a run":                      {RunNow(Conditions{}), false, e.ExpiresAt},
	} {
		c, err := tc.r.Apply(inputs(&Spec{Policy: Replace, Ingest: Ingest{Policy: Earliest}}), &e, tc.own)
		if err != nil || !c.Entry.ExpiresAt.Equal(tc.want) {
			t.Errorf("%s: expires at %v (%v), want %v", name, c.Entry.ExpiresAt, err, tc.want)
		}
	}
}

// An event that comes to a failing key keeps a distance to the failure that grows up to a second.
func TestEvent_KeepsItsDistanceToAFailure(t *testing.T) {
	t.Parallel()
	storm := func(r *Request, attempt uint32, retry time.Duration) time.Duration {
		cur := betweenKey
		cur.Attempt, cur.RetryAt = attempt, t0.Add(retry)
		return apply(t, r, &cur, false, &Spec{}).Entry.At().Sub(t0)
	}
	for name, tc := range map[string]struct {
		r       *Request
		attempt uint32
		retry   time.Duration
		want    time.Duration
	}{
		"after one failure":            {event(0, Earliest), 1, time.Minute, 5 * time.Millisecond},
		"after four":                   {event(0, Earliest), 4, time.Minute, 40 * time.Millisecond},
		"after many":                   {event(0, Earliest), 40, time.Minute, time.Second},
		"the next attempt is sooner":   {event(0, Earliest), 40, time.Millisecond, time.Millisecond},
		"the next attempt is past due": {event(0, Earliest), 40, -time.Second, -time.Second},
		"one that replaces":            {event(0, Replace), 40, time.Minute, time.Second},
		"one that is later":            {event(soon, Replace), 40, time.Minute, soon},
		"a PUT":                        {put(0, Earliest), 40, time.Minute, 0},
	} {
		if got := storm(tc.r, tc.attempt, tc.retry); got != tc.want {
			t.Errorf("%s: in %s, want %s", name, got, tc.want)
		}
	}
	for outcome, want := range map[string]time.Duration{"500": 640 * time.Millisecond, "400": 640 * time.Millisecond, "2xx": 0} {
		waiting := newerEvent
		waiting.DueAt = t0
		f := Flight{Entry: &flyingKey}
		if s := f.Finish(inputs(&Spec{Delivery: Delivery{BackoffDelay: time.Minute}}), &waiting, outcomes[outcome]); s.Next.At().Sub(t0) != want {
			t.Errorf("behind a delivery that ends with %s: in %s, want %s", outcome, s.Next.At().Sub(t0), want)
		}
	}
}

// A refusal after the expiry is still a refusal.
func TestFinish_RefusalAfterTheExpiry(t *testing.T) {
	t.Parallel()
	e := flyingKey
	e.ExpiresAt = t0.Add(-time.Second)
	src := &Spec{Targets: Targets{DeadLetter: &Target{URL: "http://dead"}}, MaxInterval: time.Hour, Delivery: Delivery{Retry: new(0)}}
	f := Flight{Entry: &e, Own: true}
	if s := f.Finish(inputs(src), &e, outcomes["400"]); s.Dead == nil {
		t.Errorf("400: %+v, want a dead letter", s)
	}
	if s := f.Finish(inputs(src), &e, outcomes["500"]); s.Dead == nil || s.Next == nil {
		t.Errorf("500 with no retry left: %+v, want a dead letter and maxInterval", s)
	}
}

// inputs are the inputs of a decision about the key "k" at t0.
func inputs(src *Spec) Inputs {
	return Inputs{Key: "k", Source: src, Revision: 9, StoreID: "store", Now: t0}
}

// end ends the delivery of an entry behind which nothing came.
func end(src *Spec, e *Entry, o Outcome) Step {
	f := Flight{Entry: e, Own: true}
	return f.Finish(inputs(src), e, o)
}

// An attempt that was called off, because the workload was asleep still, is made again at once, also if an event for a
// later time came in meanwhile: the event would postpone it. The event is due at its own time too.
func TestFinish_AbortedIsNotPostponed(t *testing.T) {
	t.Parallel()
	e := apply(t, event(time.Hour, Earliest), &flyingKey, true, &Spec{}).Entry
	f := Flight{Entry: &flyingKey}
	s := f.Finish(inputs(&Spec{}), e, Outcome{Kind: Aborted})
	if s.Disposition != Unfinished || !s.Changed || !s.Next.At().Equal(flyingKey.DueAt) || !s.Next.dueAgainAt().Equal(e.DueAt) {
		t.Errorf("%+v", s.Next)
	}
}
