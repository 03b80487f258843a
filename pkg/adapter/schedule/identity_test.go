package schedule

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var ingestedEvent = &Event{ID: "their-id", Source: "their-source", Type: "theirs", Time: t0.Add(-time.Minute), Data: []byte("{}")}

// The id is constant over all attempts of an occurrence.
func TestEventID_ConstantOverAttempts(t *testing.T) {
	t.Parallel()
	src := &Spec{Delivery: Delivery{BackoffDelay: time.Second}}
	for name, ev := range map[string]*Event{"its own event": nil, "a given event": newer, "an ingested event": ingestedEvent} {
		r := put(0, Replace)
		r.Event, r.Ingested = ev, ev == ingestedEvent
		e := apply(t, r, nil, false, src).Entry
		want := e.EventID("store")
		switch {
		case ev == ingestedEvent && want != "their-id":
			t.Errorf("%s: id %q, want its own", name, want)
		case ev != ingestedEvent && want != "store-9":
			t.Errorf("%s: id %q, want the store's and the occurrence's", name, want)
		}
		now := t0
		for i := range 5 {
			f := Flight{Entry: e, Own: true}
			e = f.Finish(Inputs{Key: "k", Source: src, Revision: uint64(20 + i), StoreID: "store", Now: now}, e, Outcome{Kind: Failed}).Next
			now = e.At()
			if got := e.EventID("store"); got != want {
				t.Errorf("%s: id %q after %d failures, %q before", name, got, i+1, want)
			}
			if e.Revision != 9 {
				t.Errorf("%s: revision %d after a retry", name, e.Revision)
			}
			if e, _ = e.Recover(); e.EventID("store") != want {
				t.Errorf("%s: another id after a restart", name)
			}
		}
	}
}

// An occurrence made by an outcome has a new id.
func TestEventID_NewAfterAnOutcome(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Outcome{
		"Reschedule-After": {Kind: Succeeded, Again: &RescheduleAfter{After: soon}},
		"maxInterval":      {Kind: Succeeded},
		"used up":          {Kind: Failed},
	} {
		src := &Spec{MaxInterval: time.Hour, Delivery: Delivery{Retry: new(0)}}
		for _, ev := range []*Event{nil, newer, ingestedEvent} {
			e := flyingKey
			e.Event = ev
			n := end(src, &e, o).Next
			if got := n.EventID("store"); got != "store-9" {
				t.Errorf("%s of %+v: id %q, want a new one", name, ev, got)
			}
			if ev == nil {
				continue
			}
			want := *ev
			want.ID = ""
			if diff := cmp.Diff(&want, n.Event); diff != "" {
				t.Errorf("%s: the event is not the same otherwise:\n%s", name, diff)
			}
		}
		if ingestedEvent.ID == "" {
			t.Fatal("the stored event was changed")
		}
	}
}

// The event of a reply is the event of the new occurrence.
func TestReply_EventOfTheNewOccurrence(t *testing.T) {
	t.Parallel()
	reply := &Event{Type: "reply", Source: "operator", Data: []byte("again")}
	o := Outcome{Kind: Succeeded, Again: &RescheduleAfter{After: soon, Reply: reply}}
	if n := end(&Spec{}, &flyingKey, o).Next; n.Event != reply || n.EventID("store") != "store-9" {
		t.Errorf("%+v", n)
	}
	// Something newer waits: its event stays.
	f := Flight{Entry: &flyingKey, Superseded: true, OwnCounter: true}
	if n := f.Finish(inputs(&Spec{}), &newerPut, o).Next; n.Event != newer || !n.DueAt.Equal(t0.Add(soon)) {
		t.Errorf("%+v", n)
	}
}

// An occurrence made by an outcome keeps the fields of the key.
func TestFinish_NextKeepsFieldsOfTheKey(t *testing.T) {
	t.Parallel()
	hour := time.Hour
	e := flyingKey
	e.MaxInterval, e.Slack, e.UID, e.Reason, e.TraceParent, e.TraceState, e.ExpiresAt = &hour, &hour, "u", "because", "p", "s", t0.Add(hour)
	got := end(&Spec{}, &e, Outcome{Kind: Succeeded}).Next
	want := &Entry{
		Revision: 9, Occurrence: 9, ScheduledAt: t0, DueAt: t0.Add(hour), Event: older,
		MaxInterval: &hour, Timing: Timing{Slack: &hour, MayWait: true}, UID: "u", Cause: Cause{Reason: "because", TraceParent: "p", TraceState: "s"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The requests that keep the id of an ingested event, and the requests that do not.
func TestEventID_KeptByRequests(t *testing.T) {
	t.Parallel()
	waiting, tried, flying := waitingKey, betweenKey, flyingKey
	due := waitingKey
	due.DueAt = t0
	waiting.Event, tried.Event, flying.Event, due.Event = ingestedEvent, ingestedEvent, ingestedEvent, ingestedEvent
	for name, tc := range map[string]struct {
		cur  *Entry
		r    *Request
		want string
	}{
		"not delivered yet: the event's own":           {&waiting, put(soon, Replace), "their-id"},
		"not delivered yet, merged: the event's own":   {&waiting, put(late, Earliest), "their-id"},
		"tried, merged: the same occurrence goes on":   {&tried, put(late, Earliest), "their-id"},
		"tried, replaced: a new occurrence":            {&tried, put(soon, Replace), "store-9"},
		"tried, postponed: a new occurrence":           {&tried, put(late, Latest), "store-9"},
		"due, cut off by a crash perhaps: a new one":   {&due, put(soon, Replace), "store-9"},
		"due, merged: the same occurrence goes on":     {&due, put(late, Earliest), "their-id"},
		"in delivery: a new occurrence":                {&flying, put(soon, Replace), "store-9"},
		"in delivery, earliest: a new occurrence, too": {&flying, put(soon, Earliest), "store-9"},
	} {
		if got := apply(t, tc.r, tc.cur, tc.cur == &flying, &Spec{}).Entry.EventID("store"); got != tc.want {
			t.Errorf("%s: id %q, want %q", name, got, tc.want)
		}
	}
	if got := apply(t, put(late, Earliest), &waitingKey, false, &Spec{}).Entry.EventID("store"); got != "store-5" {
		t.Errorf("merged without a new event: id %q, want the occurrence's", got)
	}
	r := put(late, Earliest)
	r.Event = newer
	if got := apply(t, r, &waitingKey, false, &Spec{}).Entry.EventID("store"); got != "store-9" {
		t.Errorf("merged with a new event: id %q, want a new one", got)
	}
}

// A dead letter carries the last attempt.
func TestDeadLetter_CarriesTheLastAttempt(t *testing.T) {
	t.Parallel()
	dead := Target{URL: "http://dead"}
	src := &Spec{Targets: Targets{Sink: Target{URL: "http://sink"}, DeadLetter: &dead}, MaxInterval: time.Hour, Delivery: Delivery{Retry: new(0)}}
	failure := Failure{Dest: "http://sink", Code: 503, Data: []byte("no")}
	for name, tc := range map[string]struct {
		kind    OutcomeKind
		waiting *Entry
		want    string
	}{
		"rejected":                   {Rejected, nil, "dead_lettered [due 3600, 0/0, 9.9] and a dead letter"},
		"used up":                    {Failed, nil, "dead_lettered [due 3600, 0/0, 9.9] and a dead letter"},
		"rejected, an event behind":  {Rejected, &newerEvent, "dead_lettered [due 60, 8/0, 6.6] and a dead letter"},
		"used up, and event behind":  {Failed, &newerEvent, "dead_lettered [due 60, 8/0, 6.6] and a dead letter"},
		"rejected, its own id stays": {Rejected, nil, "dead_lettered [due 3600, 0/0, 9.9] and a dead letter"},
	} {
		e := flyingKey
		e.TraceParent, e.UID = "p", "u"
		wantID := "store-5"
		if name == "rejected, its own id stays" {
			e.Event, wantID = ingestedEvent, "their-id"
		}
		f, cur := Flight{Entry: &e, Own: tc.waiting == nil}, &e
		if tc.waiting != nil {
			cur = tc.waiting
		}
		s := f.Finish(inputs(src), cur, Outcome{Kind: tc.kind, Failure: failure})
		if got := describe(s, cur); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
		want := &Entry{
			Revision: 9, Occurrence: 9, ScheduledAt: t0, DueAt: t0, UID: "u", Event: e.Event, Cause: Cause{TraceParent: "p"},
			DeadLetter: &DeadLetter{Key: "k", Due: e.DueAt, ID: wantID, Attempt: 7, Tries: 3, Failure: failure, Revision: 5},
		}
		if diff := cmp.Diff(want, s.Dead); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
		a, ok := NewAttempt(src, DeadLetterKey(9), s.Dead, "store")
		if !ok || a.Key != "k" || a.Target != dead || a.ID != wantID || a.Revision() != 5 || a.Number() != 7 || !a.DueAt().Equal(e.DueAt) {
			t.Errorf("%s: the attempt is %+v of revision %d, number %d, due %v", name, a, a.Revision(), a.Number(), a.DueAt())
		}
		if _, ok := NewAttempt(&Spec{}, DeadLetterKey(9), s.Dead, "store"); ok {
			t.Errorf("%s: an attempt without a dead letter sink", name)
		}
	}
}

// A dead letter is retried, then dropped, and never comes back.
func TestDeadLetter_RetriedThenDropped(t *testing.T) {
	t.Parallel()
	src := &Spec{Targets: Targets{DeadLetter: &Target{URL: "http://dead"}}, MaxInterval: time.Hour, Delivery: Delivery{Retry: new(1), BackoffDelay: time.Second}}
	e := flyingKey.deadLetter(inputs(nil), Failure{})
	for outcome, want := range map[string]string{
		"2xx": "delivered, gone", "again in 30 s": "delivered, gone", "never": "delivered, gone",
		"500": "retrying [due 0, retry 1, 1/1, 9.9]", "400": "dropped, gone", "aborted": "aborted, unchanged",
	} {
		f := Flight{Entry: e, Own: true}
		if got := describe(f.Finish(Inputs{Key: DeadLetterKey(9), Source: src, Revision: 10, StoreID: "store", Now: t0}, e, outcomes[outcome]), e); got != want {
			t.Errorf("%s: %s, want %s", outcome, got, want)
		}
	}
	tried := *e
	tried.Tries = 1
	f := Flight{Entry: &tried, Own: true}
	if got := describe(f.Finish(Inputs{Key: DeadLetterKey(9), Source: src, Revision: 10, StoreID: "store", Now: t0}, &tried, outcomes["500"]), &tried); got != "dropped, gone" {
		t.Errorf("used up: %s", got)
	}
}

// A restart brings back the occurrence behind which an event was accepted.
func TestRecover_BringsBackTheOlderOccurrence(t *testing.T) {
	t.Parallel()
	if e, changed := waitingKey.Recover(); changed || *e != waitingKey {
		t.Errorf("nothing was unfinished: %+v", e)
	}
	e, changed := newerEvent.Recover()
	if !changed || !e.DueAt.Equal(flyingKey.DueAt) || !e.UnfinishedAt.Equal(newerEvent.DueAt) || e.Event != newer || e.Attempt != 7 || e.Tries != 2 || e.Revision != 6 {
		t.Errorf("the older occurrence's time and the newer event: %+v", e)
	}
	same := newerEvent
	same.DueAt = flyingKey.DueAt
	if e, _ := same.Recover(); !e.DueAt.Equal(same.DueAt) || !e.UnfinishedAt.IsZero() {
		t.Errorf("both are due at one time: %+v", e)
	}
	if again, changed := e.Recover(); changed || again != e {
		t.Error("a second restart finds something")
	}
}

// The state of a key as callers see it.
func TestView_State(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		e             *Entry
		inFlight, own bool
		want          State
	}{
		"its time is ahead":                    {&waitingKey, false, false, Waiting},
		"its time has come":                    {&dueKey, false, false, Due},
		"between two attempts":                 {&betweenKey, false, false, Due},
		"being delivered":                      {&flyingKey, true, true, InFlight},
		"waiting behind an older delivery":     {&newerPut, true, false, Waiting},
		"due to the nanosecond":                {&Entry{DueAt: t0}, false, false, Due},
		"a nanosecond before its time":         {&Entry{DueAt: t0.Add(1)}, false, false, Waiting},
		"due and waiting behind an older one":  {&dueKey, true, false, Due},
		"being delivered while its time is up": {&dueKey, true, true, InFlight},
	} {
		if v := NewView("k", tc.e, tc.inFlight, tc.own, t0); v.State != tc.want || v.InFlight != tc.inFlight || v.Entry != tc.e || v.Key != "k" {
			t.Errorf("%s: %s, want %s", name, v.State, tc.want)
		}
	}
	if at := betweenKey.At(); !at.Equal(betweenKey.RetryAt) {
		t.Errorf("between attempts the next one is at %v", at)
	}
	if at := waitingKey.At(); !at.Equal(waitingKey.DueAt) {
		t.Errorf("the first attempt is at %v", at)
	}
}

// Events are equal when every attribute is.
func TestEvent_Equal(t *testing.T) {
	t.Parallel()
	full := func() *Event {
		return &Event{
			ID: "i", Source: "s", Time: t0, Type: "t", Subject: "u", DataContentType: "c", DataSchema: "d",
			Extensions: map[string]any{"a": "x", "b": int32(1), "c": true}, Data: []byte("{}"), DataBase64: true,
		}
	}
	if !full().Equal(full()) || full().Equal(nil) || (*Event)(nil).Equal(full()) || !(*Event)(nil).Equal(nil) {
		t.Error("equal events differ")
	}
	for name, change := range map[string]func(*Event){
		"id": func(e *Event) { e.ID = "" }, "source": func(e *Event) { e.Source = "" }, "time": func(e *Event) { e.Time = t0.Add(1) },
		"type": func(e *Event) { e.Type = "" }, "subject": func(e *Event) { e.Subject = "" }, "content type": func(e *Event) { e.DataContentType = "" },
		"schema": func(e *Event) { e.DataSchema = "" }, "data": func(e *Event) { e.Data = []byte("[]") }, "base64": func(e *Event) { e.DataBase64 = false },
		"no data":      func(e *Event) { e.Data = nil },
		"extension":    func(e *Event) { e.Extensions["a"] = "y" },
		"of its type":  func(e *Event) { e.Extensions["b"] = "1" },
		"one too many": func(e *Event) { e.Extensions["d"] = "x" },
	} {
		e := full()
		change(e)
		if e.Equal(full()) {
			t.Errorf("another %s goes unnoticed", name)
		}
	}
	empty, none := &Event{Data: []byte{}}, &Event{}
	if empty.Equal(none) {
		t.Error("no data and empty data are the same")
	}
}
