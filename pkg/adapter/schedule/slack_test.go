package schedule

import (
	"testing"
	"time"
)

// Which requests make an occurrence that may wait for company.
func TestSlack_OfRequests(t *testing.T) {
	t.Parallel()
	patient, between := waitingKey, betweenKey
	patient.MayWait, between.MayWait = true, true
	used := patient
	used.Attempt = 9
	backoff := &Backoff{Base: time.Minute, Factor: 2, Cap: time.Hour}
	exhausted := &Backoff{Base: time.Minute, Factor: 2, Cap: time.Hour, MaxAttempts: 1}
	run := RunNow(Conditions{})
	for name, tc := range map[string]struct {
		r    *Request
		cur  *Entry
		want time.Duration
	}{
		"a time":                       {put(soon, Replace), nil, SourcesSlack},
		"an instant":                   {&Request{DueAt: t0.Add(1)}, nil, SourcesSlack},
		"a time and a slack":           {&Request{Delay: new(soon), Slack: new(time.Hour)}, nil, time.Hour},
		"a slack of 0":                 {&Request{Delay: new(soon), Slack: new(time.Duration)}, nil, 0},
		"an instant that has passed":   {&Request{DueAt: t0}, nil, 0},
		"no delay":                     {put(0, Replace), nil, 0},
		"no time":                      {&Request{Slack: new(time.Hour)}, nil, 0},
		"an event with a time":         {event(soon, Earliest), nil, SourcesSlack},
		"an event without":             {&Request{Ingested: true, Event: newer}, nil, 0},
		"a back-off":                   {&Request{Backoff: backoff}, nil, 0},
		"used up, maxInterval":         {&Request{Backoff: exhausted, MaxInterval: new(time.Hour)}, &used, SourcesSlack},
		"run":                          {&run, &patient, 0},
		"it could expire":              {&Request{Delay: new(soon), ExpiresAt: t0.Add(time.Hour)}, nil, 0},
		"sooner, both may":             {put(soon, Earliest), &patient, SourcesSlack},
		"sooner, the waiting may not":  {put(soon, Earliest), &waitingKey, 0},
		"later, merged":                {put(late, Earliest), &patient, SourcesSlack},
		"a change merges":              {event(0, Earliest), &patient, 0},
		"the latest is the waiting":    {put(soon, Latest), &patient, SourcesSlack},
		"the latest is the waiting's":  {put(soon, Latest), &waitingKey, 0},
		"the latest is the new":        {put(late, Latest), &waitingKey, SourcesSlack},
		"replaced":                     {put(soon, Replace), &waitingKey, SourcesSlack},
		"between attempts, merged":     {put(late, Earliest), &between, 0},
		"between attempts, then later": {put(late, Replace), &between, SourcesSlack},
	} {
		if got := apply(t, tc.r, tc.cur, false, &Spec{}).Entry.OwnSlack(); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// Which outcomes make an occurrence that may wait for company.
func TestSlack_OfOutcomes(t *testing.T) {
	t.Parallel()
	src := &Spec{MaxInterval: time.Hour, Delivery: Delivery{BackoffDelay: time.Second}}
	for outcome, want := range map[string]bool{
		"2xx": true, "again in 30 s": true, "again at": true, "again long ago": false, "again at once": false,
		"500": false, "500, in 30 s": false, "400": true, "400, in 30 s": true, "400, at once": false, "aborted": false,
	} {
		e := flyingKey
		e.MayWait = true
		if got := end(src, &e, outcomes[outcome]).Next.OwnSlack() != 0; got != want {
			t.Errorf("%s: %v, want %v", outcome, got, want)
		}
	}
	patient := newerPut
	patient.MayWait = true
	f := Flight{Entry: &flyingKey, Superseded: true, OwnCounter: true}
	for outcome, want := range map[string]bool{"2xx": true, "again in 30 s": true, "again at once": false, "again in 90 s": true} {
		if got := f.Finish(inputs(src), &patient, outcomes[outcome]).Next.MayWait; got != want {
			t.Errorf("%s, and something waits: %v, want %v", outcome, got, want)
		}
	}
	if n := f.Finish(inputs(src), &newerPut, outcomes["again in 30 s"]).Next; n.MayWait {
		t.Error("a key that may not wait is brought forward, and may")
	}
	owed := newerEvent
	owed.MayWait = true
	if e, changed := owed.Recover(); !changed || e.MayWait {
		t.Error("what a crash cut off waits")
	}
}

// The slack counts from the due time, and a key's own comes before the source's.
func TestSlack_EndsAfterTheDueTime(t *testing.T) {
	t.Parallel()
	e, src := waitingKey, &Spec{Waking: Waking{Slack: 10 * time.Minute}}
	e.MayWait = true
	if got := e.SlackEnd(src); !got.Equal(e.DueAt.Add(src.Slack)) {
		t.Errorf("the source's: %v", got)
	}
	e.Slack = new(time.Minute)
	if got := e.SlackEnd(src); !got.Equal(e.DueAt.Add(time.Minute)) {
		t.Errorf("its own: %v", got)
	}
	v := NewView("k", &e, false, false, e.DueAt)
	v.WaitFor(e.DueAt.Add(time.Second), src, e.DueAt)
	if !v.CompanyUntil.Equal(e.DueAt.Add(time.Second)) {
		t.Errorf("it waits until %v", v.CompanyUntil)
	}
	for name, wait := range map[string]func(*View){
		"none waits":         func(v *View) { v.WaitFor(time.Time{}, src, e.DueAt) },
		"its slack is over":  func(v *View) { v.WaitFor(e.DueAt.Add(time.Hour), src, e.DueAt.Add(time.Minute)) },
		"it is in flight":    func(v *View) { v.State = InFlight; v.WaitFor(e.DueAt.Add(time.Second), src, e.DueAt) },
		"an older one is":    func(v *View) { v.InFlight = true; v.WaitFor(e.DueAt.Add(time.Second), src, e.DueAt) },
		"it is not due yet":  func(v *View) { v.State = Waiting; v.WaitFor(e.DueAt.Add(time.Second), src, e.DueAt) },
		"it is between two":  func(v *View) { r := e; r.RetryAt = e.DueAt; v.Entry = &r; v.WaitFor(e.DueAt.Add(1), src, e.DueAt) },
		"it could expire so": func(v *View) { r := e; r.ExpiresAt = e.DueAt; v.Entry = &r; v.WaitFor(e.DueAt.Add(1), src, e.DueAt) },
	} {
		v := NewView("k", &e, false, false, e.DueAt)
		if wait(&v); !v.CompanyUntil.IsZero() {
			t.Errorf("%s: it waits until %v", name, v.CompanyUntil)
		}
	}
}
