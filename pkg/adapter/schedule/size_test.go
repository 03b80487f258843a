package schedule

import (
	"strings"
	"testing"
	"time"
)

// A wait below the namespace's least is raised to it, a longer one stays, and a retry is not affected.
func TestMinDelay_RaisesEveryWaitButRetries(t *testing.T) {
	t.Parallel()
	const least = 10 * time.Second
	now := time.Unix(1_800_000_000, 0)
	src := &Spec{
		Policy: Replace, Ingest: Ingest{Policy: Earliest}, Ceilings: Ceilings{MinDelay: least}, MaxInterval: time.Second,
		Delivery: Delivery{BackoffDelay: time.Second},
	}
	short, long := time.Second, time.Minute
	for name, c := range map[string]struct {
		r    Request
		want time.Duration
	}{
		"no time":             {want: least},
		"a delay":             {r: Request{Delay: &short}, want: least},
		"a longer delay":      {r: Request{Delay: &long}, want: long},
		"exactly the least":   {r: Request{Delay: new(least)}, want: least},
		"an instant":          {r: Request{DueAt: now.Add(short)}, want: least},
		"an instant gone by":  {r: Request{DueAt: now.Add(-time.Hour)}, want: least},
		"a later instant":     {r: Request{DueAt: now.Add(long)}, want: long},
		"a back-off":          {r: Request{Backoff: &Backoff{Base: short, Factor: 2, Cap: MaxBackoff}}, want: least},
		"an event":            {r: Request{Ingested: true, Event: &Event{ID: "1"}}, want: least},
		"jitter comes on top": {r: Request{Delay: &short, Jitter: 1}, want: least + least/2},
	} {
		got, err := c.r.Apply(Inputs{Key: "k", Source: src, Revision: 1, Now: now, Random: .5}, nil, false)
		if err != nil || got.Entry.DueAt.Sub(now) != c.want {
			t.Errorf("%s: due after %s, want %s (%v)", name, got.Entry.DueAt.Sub(now), c.want, err)
		}
	}

	entry := &Entry{Revision: 1, Occurrence: 1, DueAt: now}
	for name, c := range map[string]struct {
		o    Outcome
		want time.Duration
	}{
		"Reschedule-After":            {o: Outcome{Again: &RescheduleAfter{After: short}}, want: least},
		"a longer Reschedule-After":   {o: Outcome{Again: &RescheduleAfter{After: long}}, want: long},
		"an instant":                  {o: Outcome{Again: &RescheduleAfter{At: now.Add(short)}}, want: least},
		"an instant gone by":          {o: Outcome{Again: &RescheduleAfter{At: now.Add(-long)}}, want: least},
		"maxInterval":                 {want: least},
		"a retry comes when it comes": {o: Outcome{Kind: Failed}, want: short},
	} {
		if c.o.Kind == Aborted {
			c.o.Kind = Succeeded
		}
		flight := Flight{Entry: entry, Own: true}
		if next := flight.Finish(Inputs{Key: "k", Source: src, Revision: 2, StoreID: "id", Now: now}, entry, c.o).Next; next == nil || next.At().Sub(now) != c.want {
			t.Errorf("%s: next is %+v, want after %s", name, next, c.want)
		}
	}
	waiting := &Entry{Revision: 2, Occurrence: 2, DueAt: now.Add(long)}
	flight := Flight{Entry: entry}
	if next := flight.Finish(Inputs{Key: "k", Source: src, Revision: 3, StoreID: "id", Now: now}, waiting, Outcome{Kind: Succeeded, Again: &RescheduleAfter{After: short}}).Next; next.DueAt.Sub(now) != least {
		t.Errorf("what waits is brought forward to %s, want %s", next.DueAt.Sub(now), least)
	}
}

// What callers choose counts byte by byte; attempts and the trace of a call do not.
func TestEntrySize_CountsWhatCallersChoose(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	e := &Entry{Revision: 1, DueAt: now}
	base := e.Size("key")
	if want := int64(entryBytes + 3); base != want {
		t.Errorf("a bare entry is %d bytes, want %d", base, want)
	}
	if got := (*Entry)(nil).Size("key"); got != 0 {
		t.Errorf("no entry is %d bytes", got)
	}
	text := strings.Repeat("x", 100)
	for name, c := range map[string]struct {
		change func(*Entry)
		want   int64
	}{
		"uid":    {func(e *Entry) { e.UID = text }, 100},
		"reason": {func(e *Entry) { e.Reason = text }, 100},
		"data":   {func(e *Entry) { e.Event = &Event{Data: []byte(text)} }, 100},
		"attributes": {func(e *Entry) {
			e.Event = &Event{Type: text, Subject: text, Source: text, DataContentType: text, DataSchema: text}
		}, 500},
		"extensions": {func(e *Entry) { e.Event = &Event{Extensions: map[string]any{"a": text, "bc": true, "d": int32(1)}} }, 101 + 10 + 9},
		"a dead letter": {func(e *Entry) {
			e.DeadLetter = &DeadLetter{Key: text, ID: text, Failure: Failure{Dest: text, Data: []byte(text)}}
		}, 400},
		"a long id and trace state": {func(e *Entry) { e.Event, e.TraceState = &Event{ID: text}, text }, 36 + 36},
		"what comes and goes": {func(e *Entry) {
			e.Event, e.TraceParent, e.TraceState = &Event{ID: text[:64]}, text[:55], text[:64]
			e.Attempt, e.Tries, e.Occurrence, e.RetryAt, e.UnfinishedAt, e.PreviousDueAt = 9, 9, 1<<60, now, now, now
		}, 0},
	} {
		e := *e
		c.change(&e)
		if got := e.Size("key") - base; got != c.want {
			t.Errorf("%s: %d bytes more, want %d", name, got, c.want)
		}
	}
}
