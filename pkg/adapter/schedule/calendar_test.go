package schedule

import (
	"math"
	"testing"
	"time"
)

var (
	hourly  = &Calendar{Cron: "30 * * * *"}
	monthly = &Calendar{Cron: "0 0 1 * *", TimeZone: "Europe/Berlin"}

	hourlySource = &Spec{Ingest: Ingest{Policy: Earliest}, Policy: Replace, Waking: Waking{Calendar: hourly}}
)

// at is an instant of the day of t0, which is 09:00 of November 21.
func at(t *testing.T, clock string) time.Time {
	t.Helper()
	i, err := time.Parse(time.RFC3339, "2026-11-21T"+clock+"Z")
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// on is a key with a calendar whose occurrence is due at 09:30.
func on(c *Calendar) *Entry {
	return &Entry{Revision: 5, Occurrence: 5, ScheduledAt: t0, DueAt: t0.Add(30 * time.Minute), Event: older, Timing: Timing{MayWait: true, Calendar: c, OnSchedule: c == nil}}
}

// A request with a calendar asks for its next instant, and one without keeps the calendar, unless it replaces the key.
func TestCalendar_Requests(t *testing.T) {
	t.Parallel()
	hour, none := time.Hour, &Spec{Policy: Replace, Ingest: Ingest{Policy: Earliest}}
	ends := t0.Add(2 * time.Hour)
	for name, c := range map[string]struct {
		cur    *Entry
		own    bool
		r      *Request
		src    *Spec
		due    string
		cron   string // of the key's own
		source bool   // the time is the source's
	}{
		"a new key":                        {nil, false, &Request{Calendar: hourly}, none, "09:30:00", "30 * * * *", false},
		"replaced":                         {&waitingKey, false, &Request{Calendar: hourly}, none, "09:30:00", "30 * * * *", false},
		"another one":                      {on(monthly), false, &Request{Calendar: hourly}, none, "09:30:00", "30 * * * *", false},
		"another one, but sooner":          {on(monthly), false, &Request{Calendar: &Calendar{Cron: "45 * * * *"}, Policy: Earliest}, none, "09:30:00", "45 * * * *", false},
		"another one, but later":           {on(hourly), false, &Request{Calendar: &Calendar{Cron: "15 * * * *"}, Policy: Latest}, none, "09:30:00", "15 * * * *", false},
		"keep":                             {on(hourly), false, &Request{Calendar: monthly, Policy: Keep}, none, "09:30:00", "30 * * * *", false},
		"a delay ends it":                  {on(hourly), false, put(hour, Replace), none, "10:00:00", "", false},
		"no time ends it":                  {on(hourly), false, &Request{}, none, "09:00:00", "", false},
		"a new object ends it":             {&Entry{UID: "a", DueAt: t0, Timing: Timing{Calendar: hourly}}, false, &Request{UID: "b", Policy: Earliest, Delay: &hour}, none, "10:00:00", "", false},
		"earliest keeps it":                {on(hourly), false, put(hour, Earliest), none, "09:30:00", "30 * * * *", false},
		"earliest comes before":            {on(hourly), false, put(soon, Earliest), none, "09:00:30", "30 * * * *", false},
		"latest keeps it":                  {on(hourly), false, put(hour, Latest), none, "10:00:00", "30 * * * *", false},
		"an event that replaces keeps it":  {on(hourly), false, event(hour, Replace), none, "10:00:00", "30 * * * *", false},
		"in delivery, a replacing event":   {on(hourly), true, event(5*hour, Replace), none, "14:00:00", "30 * * * *", false},
		"an event of a new object ends it": {&Entry{UID: "a", DueAt: t0, Timing: Timing{Calendar: hourly}}, false, &Request{Ingested: true, Event: newer, UID: "b", Policy: Earliest, Delay: &hour}, none, "10:00:00", "", false},
		"an event keeps it":                {on(hourly), false, event(0, Earliest), none, "09:00:00", "30 * * * *", false},
		"run keeps it":                     {on(hourly), false, new(RunNow(Conditions{})), none, "09:00:00", "30 * * * *", false},
		"in delivery, an event":            {on(hourly), true, event(5*hour, Earliest), none, "09:30:00", "30 * * * *", false},
		"in delivery, a sooner event":      {on(hourly), true, event(soon, Earliest), none, "09:00:30", "30 * * * *", false},
		"in delivery, fail":                {on(hourly), true, put(5*hour, Fail), none, "09:30:00", "30 * * * *", false},
		"in delivery, latest":              {on(hourly), true, put(5*hour, Latest), none, "14:00:00", "30 * * * *", false},
		"in delivery, replaced":            {on(hourly), true, put(5*hour, Replace), none, "14:00:00", "", false},
		"in delivery, outlasted":           {on(&Calendar{Cron: "*/5 * * * *"}), true, event(hour, Earliest), none, "09:00:00", "*/5 * * * *", false},
		"the source's":                     {nil, false, &Request{}, hourlySource, "09:30:00", "", true},
		"the source's, with jitter":        {nil, false, &Request{Jitter: 0.5}, hourlySource, "09:45:00", "", true},
		"the source's, an event":           {nil, false, &Request{Ingested: true, Event: newer}, hourlySource, "09:30:00", "", true},
		"the source's, and a delay":        {nil, false, put(0, Replace), hourlySource, "09:00:00", "", false},
		"the source's, and a calendar":     {nil, false, &Request{Calendar: &Calendar{Cron: "@hourly"}}, hourlySource, "10:00:00", "@hourly", false},
		"the source's, merged":             {on(nil), false, &Request{Policy: Earliest}, hourlySource, "09:30:00", "", true},
		"the source's, not postponed":      {on(nil), false, put(soon, Latest), hourlySource, "09:30:00", "", true},
		"the source's, postponed":          {on(nil), false, put(hour, Latest), hourlySource, "10:00:00", "", false},
		"the source's, in delivery":        {on(nil), true, &Request{Policy: Earliest}, hourlySource, "09:30:00", "", true},
		"the source's, attempts used up":   {&waitingKey, false, &Request{Backoff: &Backoff{MaxAttempts: 1}}, hourlySource, "09:30:00", "", true},
		"with expiresAt":                   {nil, false, &Request{Calendar: hourly, ExpiresAt: ends}, none, "09:30:00", "30 * * * *", false},
		"jitter":                           {nil, false, &Request{Calendar: hourly, Jitter: 0.5}, none, "09:45:00", "30 * * * *", false},
		"jitter of the source":             {nil, false, &Request{Calendar: hourly}, &Spec{Policy: Replace, Jitter: 0.25}, "09:37:30", "30 * * * *", false},
		"all jitter is before the next":    {nil, false, &Request{Calendar: hourly, Jitter: 1}, none, "10:00:00", "30 * * * *", false},
		"the least delay of the namespace": {nil, false, &Request{Calendar: hourly}, &Spec{Policy: Replace, Ceilings: Ceilings{MinDelay: 2 * hour}}, "11:00:00", "30 * * * *", false},
	} {
		in := Inputs{Key: "k", Source: c.src, Revision: 9, Now: t0, Random: 0.5, Started: t0.Add(-7 * time.Minute)}
		change, err := c.r.Apply(in, c.cur, c.own)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		e, cron := change.Entry, ""
		if e.Calendar != nil {
			cron = e.Calendar.Cron
			if change.Result != Kept && c.r.Calendar != nil && (e.Calendar.Jitter != c.r.Jitter || !e.Calendar.Until.Equal(c.r.ExpiresAt)) {
				t.Errorf("%s: %+v", name, e.Calendar)
			}
		}
		if !e.DueAt.Equal(at(t, c.due)) || cron != c.cron || e.OnSchedule != c.source {
			t.Errorf("%s: due %s, calendar %q, the source's %v; want %s, %q, %v", name, e.DueAt.Format(time.TimeOnly), cron, e.OnSchedule, c.due, c.cron, c.source)
		}
	}
	in := Inputs{Key: "k", Source: none, Revision: 9, Now: t0, Random: math.Nextafter(1, 0)}
	if c, err := (&Request{Calendar: hourly, Jitter: 1}).Apply(in, nil, false); err != nil || !c.Entry.DueAt.Before(at(t, "10:30:00")) {
		t.Errorf("the most jitter: %v, %v", c.Entry, err)
	}
	if _, err := (&Request{Calendar: hourly, Policy: Fail}).Apply(in, &waitingKey, false); err == nil {
		t.Error("the policy fail took a calendar")
	}
}

// A calendar continues after each occurrence, from the start of its last attempt, until something ends it.
func TestCalendar_Outcomes(t *testing.T) {
	t.Parallel()
	hour, final := time.Hour, &Event{Extensions: map[string]any{FinalAttribute: true}}
	none, often := &Spec{}, &Spec{MaxInterval: 10 * time.Minute}
	dropping := &Spec{Delivery: Delivery{Retry: new(0)}}
	twice := *on(hourly)
	twice.UnfinishedAt = t0.Add(5 * hour) // an event that a restart cut off
	until := func(clock string) *Entry {
		c := *hourly
		c.Until = at(t, clock)
		e := on(&c)
		e.ExpiresAt = c.Until
		return e
	}
	failedRun := Outcome{Kind: Failed}
	for name, c := range map[string]struct {
		e            *Entry
		src          *Spec
		started, now string
		o            Outcome
		due          string // "": the key has ended
		source       bool
	}{
		"delivered":                     {on(hourly), none, "09:30:00", "09:31:00", Outcome{Kind: Succeeded}, "10:30:00", false},
		"rejected":                      {on(hourly), none, "09:30:00", "09:31:00", Outcome{Kind: Rejected}, "10:30:00", false},
		"given up":                      {on(hourly), dropping, "09:30:00", "09:31:00", failedRun, "10:30:00", false},
		"late by hours":                 {on(hourly), none, "13:45:00", "13:46:00", Outcome{Kind: Succeeded}, "14:30:00", false},
		"a run that outlasts one":       {on(hourly), none, "09:30:00", "10:40:00", Outcome{Kind: Succeeded}, "10:40:00", false},
		"a run that outlasts many":      {on(hourly), none, "09:30:00", "15:40:00", Outcome{Kind: Succeeded}, "15:40:00", false},
		"begun at an instant":           {on(hourly), none, "10:30:00", "10:30:01", Outcome{Kind: Succeeded}, "11:30:00", false},
		"sooner by Reschedule-After":    {on(hourly), none, "09:30:00", "09:31:00", Outcome{Kind: Succeeded, Again: &RescheduleAfter{After: soon}}, "09:31:30", false},
		"later Reschedule-After":        {on(hourly), none, "09:30:00", "09:31:00", Outcome{Kind: Succeeded, Again: &RescheduleAfter{After: 5 * hour}}, "10:30:00", false},
		"rejected, Reschedule-After":    {on(hourly), none, "09:30:00", "09:31:00", Outcome{Kind: Rejected, Again: &RescheduleAfter{After: soon}}, "09:31:30", false},
		"sooner by maxInterval":         {on(hourly), often, "09:30:00", "09:31:00", Outcome{Kind: Succeeded}, "09:41:00", false},
		"sooner than maxInterval":       {on(hourly), often, "09:30:00", "10:25:00", Outcome{Kind: Succeeded}, "10:30:00", false},
		"never":                         {on(hourly), often, "09:30:00", "09:31:00", Outcome{Kind: Succeeded, Never: true}, "", false},
		"owed after a restart":          {&twice, none, "09:30:00", "09:31:00", Outcome{Kind: Succeeded}, "10:30:00", false},
		"before it expires":             {until("10:30:01"), none, "09:30:00", "09:31:00", Outcome{Kind: Succeeded}, "10:30:00", false},
		"when it expires":               {until("10:30:00"), often, "09:30:00", "09:31:00", Outcome{Kind: Succeeded}, "", false},
		"the least delay":               {on(hourly), &Spec{Ceilings: Ceilings{MinDelay: 2 * hour}}, "09:30:00", "09:31:00", Outcome{Kind: Succeeded}, "11:31:00", false},
		"jitter of the source":          {on(hourly), &Spec{Jitter: 0.5}, "09:30:00", "09:31:00", Outcome{Kind: Succeeded}, "10:45:00", false},
		"of its own":                    {on(&Calendar{Cron: "30 * * * *", Jitter: 1}), &Spec{Jitter: 0.5}, "09:30:00", "09:31:00", Outcome{Kind: Succeeded}, "11:00:00", false},
		"the source's":                  {on(nil), hourlySource, "09:30:00", "09:31:00", Outcome{Kind: Succeeded}, "10:30:00", true},
		"the source's, after its own":   {&flyingKey, hourlySource, "09:00:00", "09:31:00", Outcome{Kind: Succeeded}, "09:31:00", true},
		"the source's, given up":        {on(nil), hourlySource, "09:30:00", "09:31:00", Outcome{Kind: Rejected}, "10:30:00", true},
		"the source's, and sooner":      {on(nil), hourlySource, "09:30:00", "09:31:00", Outcome{Kind: Succeeded, Again: &RescheduleAfter{After: soon}}, "09:31:30", false},
		"the source's, and the key's":   {on(monthly), hourlySource, "09:30:00", "09:31:00", Outcome{Kind: Succeeded}, "", false},
		"the source's, never":           {on(nil), hourlySource, "09:30:00", "09:31:00", Outcome{Kind: Succeeded, Never: true}, "", false},
		"the source has none any more":  {on(nil), often, "09:30:00", "09:31:00", Outcome{Kind: Succeeded}, "09:41:00", false},
		"the source has no other times": {on(nil), none, "09:30:00", "09:31:00", Outcome{Kind: Succeeded}, "", false},
	} {
		in := Inputs{Key: "k", Source: c.src, Revision: 9, Now: at(t, c.now), Random: 0.5}
		f := Flight{Entry: c.e, Own: true, Started: at(t, c.started)}
		n := f.Finish(in, c.e, c.o).Next
		if c.e.Calendar != nil && c.e.Calendar.Cron == monthly.Cron { // in another month
			if n == nil || !n.DueAt.Equal(time.Date(2026, 11, 30, 23, 0, 0, 0, time.UTC)) {
				t.Errorf("%s: %+v", name, n)
			}
			continue
		}
		if n == nil || c.due == "" {
			if n != nil || c.due != "" {
				t.Errorf("%s: %+v, want due %s", name, n, c.due)
			}
			continue
		}
		late := n.DueAt.Sub(at(t, c.due))
		if late != 0 && late != MinWait || n.OnSchedule != c.source || n.Calendar != c.e.Calendar || !n.ExpiresAt.Equal(c.e.ExpiresAt) || n.Revision != 9 || n.Occurrence != 9 {
			t.Errorf("%s: %+v, want due %s, the source's %v", name, n, c.due, c.source)
		}
	}
	e := on(hourly)
	e.Event = final
	f := Flight{Entry: e, Own: true, Started: t0}
	if n := f.Finish(inputs(none), e, Outcome{Kind: Succeeded}).Next; n != nil {
		t.Errorf("the object is gone, but its calendar continues: %+v", n)
	}
	if n := f.Finish(inputs(none), e, Outcome{Kind: Succeeded, Again: &RescheduleAfter{After: soon}}).Next; n == nil || n.Calendar != nil {
		t.Errorf("the object is gone, but its calendar continues: %+v", n)
	}
	// A newer request ended the calendar, and has expired.
	f = Flight{Entry: on(hourly), Superseded: true, Started: t0}
	if n := f.Finish(inputs(often), nil, Outcome{Kind: Succeeded}).Next; n != nil {
		t.Errorf("the newer occurrence expired, but the older one continues: %+v", n)
	}
	dead := &Spec{Delivery: Delivery{Retry: new(0)}, Targets: Targets{DeadLetter: &Target{URL: "http://dead"}}}
	f = Flight{Entry: on(hourly), Own: true, Started: t0}
	if s := f.Finish(inputs(dead), f.Entry, failedRun); s.Dead == nil || s.Dead.Calendar != nil || s.Next == nil {
		t.Errorf("%+v", s)
	}
	s := f.Finish(inputs(none), f.Entry, failedRun)
	if s.Disposition != Retrying || s.Next.Calendar != hourly || !s.Next.DueAt.Equal(f.Entry.DueAt) {
		t.Errorf("a retry: %+v", s.Next)
	}
}

// A request that does not replace the key keeps what it does not name of the calendar, also during a delivery.
func TestCalendar_AbsentFieldsStay(t *testing.T) {
	t.Parallel()
	ends := t0.Add(5 * time.Hour)
	e := on(&Calendar{Cron: "@daily", TimeZone: "Europe/Berlin", Jitter: 0.5, Until: ends})
	e.ExpiresAt = ends
	for _, own := range []bool{false, true} {
		r := &Request{Calendar: hourly, Policy: Earliest}
		if n := apply(t, r, e, own, &Spec{}).Entry; *n.Calendar != (Calendar{Cron: hourly.Cron, Jitter: 0.5, Until: ends}) || !n.ExpiresAt.Equal(ends) {
			t.Errorf("another expression: %+v", n)
		}
		r = put(soon, Earliest)
		if n := apply(t, r, e, own, &Spec{}).Entry; n.Calendar != e.Calendar || !n.ExpiresAt.Equal(ends) {
			t.Errorf("a delay: %+v", n)
		}
		r.ExpiresAt = t0.Add(time.Hour)
		if n := apply(t, r, e, own, &Spec{}).Entry; n.Calendar.Cron != "@daily" || !n.Calendar.Until.Equal(r.ExpiresAt) || !n.ExpiresAt.Equal(r.ExpiresAt) {
			t.Errorf("another expiry: %+v", n)
		}
	}
	if n := apply(t, event(soon, Earliest), e, true, &Spec{}).Entry; n.Calendar != e.Calendar || !n.ExpiresAt.IsZero() {
		t.Errorf("an event: %+v", n)
	}
	if n := apply(t, &Request{Calendar: hourly, Policy: Replace}, e, false, &Spec{}).Entry; *n.Calendar != *hourly || !n.ExpiresAt.IsZero() {
		t.Errorf("replaced: %+v", n)
	}
}

// An event that merges into a calendar has no expiry, and the calendar still ends at its own.
func TestCalendar_ExpiryOverEvents(t *testing.T) {
	t.Parallel()
	src := &Spec{Ingest: Ingest{Policy: Earliest}}
	e := apply(t, &Request{Calendar: hourly, ExpiresAt: t0.Add(2 * time.Hour), Policy: Replace}, nil, false, src).Entry
	e = apply(t, event(soon, Earliest), e, false, src).Entry
	if !e.ExpiresAt.IsZero() {
		t.Fatalf("the event would vanish at %s", e.ExpiresAt)
	}
	for _, want := range []string{"09:30:00", "10:30:00", ""} {
		f := Flight{Entry: e, Own: true, Started: e.DueAt}
		e = f.Finish(Inputs{Key: "k", Source: src, Revision: 9, Now: e.DueAt}, e, Outcome{Kind: Succeeded}).Next
		if e == nil || want == "" {
			if e != nil || want != "" {
				t.Fatalf("%+v, want %q", e, want)
			}
			return
		}
		if !e.DueAt.Equal(at(t, want)) || !e.ExpiresAt.Equal(t0.Add(2*time.Hour)) {
			t.Fatalf("%+v, want due %s", e, want)
		}
	}
}

// An event that comes in during the last run of a calendar is due at its own time, not at an instant at which the
// calendar has ended.
func TestCalendar_EventAfterTheLastRun(t *testing.T) {
	t.Parallel()
	c := *hourly
	c.Until = t0.Add(time.Hour)
	e, in := on(&c), inputs(&Spec{Ingest: Ingest{Policy: Earliest}})
	in.Started = at(t, "09:30:00")
	for until, due := range map[string]string{"10:00:00": "14:00:00", "10:30:00": "14:00:00", "10:30:01": "10:30:00"} {
		c.Until = at(t, until)
		change, err := event(5*time.Hour, Earliest).Apply(in, e, true)
		if err != nil || !change.Entry.DueAt.Equal(at(t, due)) {
			t.Errorf("until %s: due %s, %v; want %s", until, change.Entry.DueAt, err, due)
		}
	}
}

// When the source's schedule changes, the keys that wait for an instant of it move, and no others.
func TestMoved_OnlyKeysOfTheSchedule(t *testing.T) {
	t.Parallel()
	in := Inputs{Key: "k", Source: &Spec{Waking: Waking{Calendar: &Calendar{Cron: "15 * * * *"}}}, Revision: 9, Now: t0}
	n := on(nil).Moved(in)
	if n == nil || !n.DueAt.Equal(at(t, "09:15:00")) || !n.PreviousDueAt.Equal(at(t, "09:30:00")) || n.Revision != 9 || n.Occurrence != 5 || !n.OnSchedule || n.Event != older {
		t.Errorf("%+v", n)
	}
	between, due, there := on(nil), on(nil), on(nil)
	between.RetryAt, due.DueAt, there.DueAt = t0.Add(time.Hour), t0, at(t, "09:15:00")
	for name, e := range map[string]*Entry{"its own": on(hourly), "a delay": &waitingKey, "due": due, "between attempts": between, "there already": there} {
		if n := e.Moved(in); n != nil {
			t.Errorf("%s: moved to %s", name, n.DueAt)
		}
	}
	in.Source = &Spec{}
	if n := on(nil).Moved(in); n != nil {
		t.Errorf("the schedule was removed, but the key moved to %s", n.DueAt)
	}
}

// A text of a calendar counts in quotas.
func TestCalendar_CountsInSize(t *testing.T) {
	t.Parallel()
	if more := on(monthly).Size("k") - on(nil).Size("k"); more != int64(len("0 0 1 * *")+len("Europe/Berlin")) {
		t.Errorf("a calendar counts as %d bytes", more)
	}
}

// A zone that this program does not know, of a newer one's data, loses no key.
func TestCalendar_UnknownZoneLosesNothing(t *testing.T) {
	t.Parallel()
	e := on(&Calendar{Cron: "30 * * * *", TimeZone: "Mars/Olympus"})
	f := Flight{Entry: e, Own: true, Started: t0}
	if n := f.Finish(inputs(&Spec{}), e, Outcome{Kind: Succeeded}).Next; n == nil || !n.DueAt.Equal(at(t, "09:30:00")) {
		t.Errorf("%+v", n)
	}
}

// A key that has got a calendar of its own does not move with the schedule of its source, also while it waits for one
// of its instants: it would lose its own.
func TestMoved_OwnCalendarLosesNoInstant(t *testing.T) {
	t.Parallel()
	yearly := &Spec{Waking: Waking{Calendar: &Calendar{Cron: "@yearly"}}}
	for name, c := range map[string]struct {
		r   *Request
		cur *Entry
	}{
		"a calendar that merges":    {&Request{Calendar: &Calendar{Cron: "45 * * * *"}, Policy: Earliest}, on(nil)},
		"no time beside a calendar": {&Request{Policy: Earliest}, on(&Calendar{Cron: "30 * * * *"})},
		"no time, and sooner":       {&Request{Policy: Earliest}, &Entry{DueAt: at(t, "12:00:00"), Timing: Timing{Calendar: &Calendar{Cron: "0 12 * * *"}}}},
	} {
		e := apply(t, c.r, c.cur, false, hourlySource).Entry
		if n := e.Moved(inputs(yearly)); n != nil {
			t.Errorf("%s: it moved from %s to %s", name, e.DueAt, n.DueAt)
		}
	}
}

// What asked for a time of its own, and merged with an instant of the source's schedule that is sooner, is delivered at
// that instant, also if the schedule changes: it would wait for the next one instead.
func TestMoved_LosesNoTimeOfItsOwn(t *testing.T) {
	t.Parallel()
	yearly := inputs(&Spec{Waking: Waking{Calendar: &Calendar{Cron: "@yearly"}}})
	hour, in := time.Hour, inputs(hourlySource)
	in.Started = t0
	during, err := event(hour, Earliest).Apply(in, on(nil), true)
	if err != nil {
		t.Fatal(err)
	}
	again := Outcome{Kind: Succeeded, Again: &RescheduleAfter{After: hour}}
	f, often := Flight{Entry: on(nil), Own: true, Started: t0}, Flight{Entry: on(nil), Own: true, Started: t0}
	often.Entry.MaxInterval = &hour
	for name, e := range map[string]*Entry{
		"an event that merges":     apply(t, event(hour, Earliest), on(nil), false, hourlySource).Entry,
		"an event in delivery":     during.Entry,
		"a PUT before no time":     apply(t, &Request{Policy: Earliest}, &Entry{DueAt: t0.Add(hour)}, false, hourlySource).Entry,
		"an answer":                f.Finish(inputs(hourlySource), f.Entry, again).Next,
		"the maxInterval of a key": often.Finish(inputs(hourlySource), often.Entry, Outcome{Kind: Succeeded}).Next,
	} {
		if n := e.Moved(yearly); n != nil || !e.DueAt.Equal(at(t, "09:30:00")) {
			t.Errorf("%s: due %s, moved to %+v", name, e.DueAt, n)
		}
	}
}

// A PUT with a calendar can be repeated at any time with the policy earliest: the instant that has passed during a run
// is delivered after it, as if there had been no PUT.
func TestCalendar_RepeatedPutLosesNoInstant(t *testing.T) {
	t.Parallel()
	e := on(hourly)
	in := inputs(&Spec{})
	in.Started, in.Now = at(t, "09:29:00"), at(t, "09:40:00")
	r := &Request{Calendar: &Calendar{Cron: hourly.Cron}, Policy: Earliest}
	c, err := r.Apply(in, e, true)
	if err != nil || c.Entry.DueAt.After(in.Now.Add(MinWait)) {
		t.Errorf("due %s, %v: the instant at 09:30 is lost", c.Entry.DueAt, err)
	}
}
