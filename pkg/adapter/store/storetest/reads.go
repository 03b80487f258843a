package storetest

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// same fails the test with the difference.
func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if d := gocmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("%s (-want +got):\n%s", what, d)
	}
}

// Full is an entry that has everything.
func Full(now time.Time, revision uint64) *schedule.Entry {
	never, slack := time.Duration(0), time.Minute
	return &schedule.Entry{
		Revision: revision, Occurrence: revision - 1,
		ScheduledAt: now, DueAt: now.Add(time.Second), RetryAt: now.Add(time.Minute + 1), ExpiresAt: now.Add(time.Hour),
		UnfinishedAt: now.Add(-time.Second), PreviousDueAt: now.Add(-time.Hour), Attempt: math.MaxUint32, Tries: 300, MaxInterval: &never, Priority: schedule.HighPriority,
		Timing: schedule.Timing{Slack: &slack, MayWait: true, OnSchedule: true, Calendar: &schedule.Calendar{
			Cron: "0 9 * * MON-FRI", TimeZone: "Europe/Berlin", Jitter: 0.1, Until: now.Add(time.Hour + 1),
		}},
		UID: "8c1f", Cause: schedule.Cause{Reason: "grüße, 世界", TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", TraceState: "a=b"},
		Event: &schedule.Event{
			ID: "1", Source: "/s", Time: time.Date(1, 2, 3, 4, 5, 6, 7, time.FixedZone("", -5*3600)),
			Type: "t", Subject: "x", DataContentType: "text/plain", DataSchema: "http://s",
			Extensions: map[string]any{"b": true, "c": false, "n": int32(math.MinInt32), "s": "", "u": "ü"},
			Data:       []byte{0, 1, 255}, DataBase64: true,
		},
		DeadLetter: &schedule.DeadLetter{
			Key: "k", Due: now, ID: "id", Attempt: 3, Revision: 4,
			Failure: schedule.Failure{Dest: "http://d", Code: 404, Data: []byte("no")},
		},
	}
}

// eventKept changes an entry with an event in each way, with what Get and what Outline
// returned before.
func eventKept(t *testing.T, f *fixture) {
	whole := &schedule.Event{ID: "i", Type: "t", Data: []byte("data")}
	without, empty := *whole, &schedule.Event{}
	without.ID = ""
	for _, get := range []func() *schedule.Entry{
		func() *schedule.Entry { return f.get("s", "k") },
		func() *schedule.Entry {
			e, err := f.Outline("s", "k", 0)
			if err != nil {
				t.Fatal(err)
			}
			return e
		},
	} {
		for step, event := range []*schedule.Event{nil, whole, whole, nil, empty, empty, &without, nil, nil} {
			old := get()
			e := with(f.entry(0), func(e *schedule.Entry) { e.Event = event })
			f.apply(step%2 == 0, store.Change{Source: "s", Key: "k", Old: old, New: e})
			same(t, "entry", e, f.get("s", "k"))
			if event != nil { // an outcome keeps the event, and may take its ID
				old = get()
				kept := *old.Event
				kept.ID = ""
				e = with(e, func(e *schedule.Entry) { c := *e.Event; c.ID = ""; e.Event, e.Tries = &c, 1 })
				f.apply(true, store.Change{Source: "s", Key: "k", Old: old, New: with(e, func(e *schedule.Entry) { e.Event = &kept })})
				same(t, "kept", e, f.get("s", "k"))
			}
			if step%3 == 2 {
				f.reopen(false)
				same(t, "entry of another start", e, f.get("s", "k"))
			}
		}
		f.apply(false, store.Change{Source: "s", Key: "k", Old: get()})
		same(t, "removed", (*schedule.Entry)(nil), f.get("s", "k"))
	}
}

func entryComesBack(t *testing.T, f *fixture) {
	same(t, "a key that is not there", (*schedule.Entry)(nil), f.get("s", "k"))
	entries := map[string]*schedule.Entry{
		"full":    Full(f.now, f.revision()),
		"bare":    f.entry(0),
		"no data": with(f.entry(0), func(e *schedule.Entry) { e.Event = &schedule.Event{} }),
		"empty":   with(f.entry(0), func(e *schedule.Entry) { e.Event = &schedule.Event{Data: []byte{}} }),
		"large":   with(f.entry(0), func(e *schedule.Entry) { e.Event = &schedule.Event{Data: make([]byte, schedule.MaxDataBytes)} }),
	}
	for key, e := range entries {
		f.put("s", key, e)
	}
	for _, kill := range []bool{false, true} {
		for key, want := range entries {
			got := f.get("s", key)
			if d := gocmp.Diff(want, got); d != "" {
				t.Fatalf("%s (-want +got):\n%s", key, d)
			}
		}
		f.reopen(kill)
	}
	f.put("s", "full", nil)
	same(t, "a removed key", (*schedule.Entry)(nil), f.get("s", "full"))
}

func visibleAtOnce(t *testing.T, f *fixture) {
	e := f.entry(0)
	c, err := f.Apply(false, store.Change{Source: "s", Key: "k", New: e})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "before Wait", e, f.get("s", "k"))
	same(t, "due before Wait", []string{"k"}, f.dueKeys("s"))
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
}

func changesInOrder(t *testing.T, f *fixture) {
	a, b, c := f.entry(3), f.entry(2), f.entry(1)
	f.apply(false,
		store.Change{Source: "s", Key: "k", New: a},
		store.Change{Source: "s", Key: "other", New: c},
		store.Change{Source: "s", Key: "k", Old: a},
		store.Change{Source: "s", Key: "k", New: b},
		store.Change{Source: "z", Key: "k", New: b},
		store.Change{Source: "z", Key: "k", Old: b},
	)
	same(t, "the last one's", b, f.get("s", "k"))
	same(t, "due", []string{"other", "k"}, f.dueKeys("s"))
	keys, dead, err := f.Count("s")
	if keys != 2 || dead != 0 || err != nil {
		t.Fatal(keys, dead, err)
	}
	if keys, dead, err := f.Count("z"); keys != 0 || dead != 0 || err != nil {
		t.Fatal(keys, dead, err)
	}
}

func namesDoNotMix(t *testing.T, f *fixture) {
	for _, source := range []string{"s", "s ", "ss", "s/x", "r"} {
		for _, key := range []string{"k", "k ", "kk", "k/x", "é", "世界", "\U0010ffff"} {
			f.put(source, key, f.entry(0))
		}
	}
	same(t, "due, in key order", []string{"k", "k ", "k/x", "kk", "é", "世界", "\U0010ffff"}, f.dueKeys("s"))
	items, more, err := f.List("s", "k", "", 100, true)
	if err != nil || more {
		t.Fatal(more, err)
	}
	same(t, "with the prefix", []string{"k", "k ", "k/x", "kk"}, keysOf(items))
	items, more, err = f.List("s", "", "k ", 2, true)
	if err != nil || !more {
		t.Fatal(more, err)
	}
	same(t, "after a key", []string{"k/x", "kk"}, keysOf(items))
	sources, err := f.Sources()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "sources", []string{"r", "s", "s ", "s/x", "ss"}, sources)
}

func deadLetters(t *testing.T, f *fixture) {
	dead := schedule.DeadLetterKey(f.revision())
	f.put("s", "k", f.entry(2))
	f.put("s", dead, with(f.entry(1), func(e *schedule.Entry) { e.DeadLetter = &schedule.DeadLetter{Key: "k", ID: "i"} }))
	same(t, "due", []string{dead, "k"}, f.dueKeys("s"))
	items, _, err := f.List("s", "", "", 10, true)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "listed", []string{"k"}, keysOf(items))
	items, _, err = f.ListDue("s", "", store.Position{}, 10, 10)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "listed by time", []string{"k"}, keysOf(items))
	if items, _, err = f.Letters("s", "k", "", 10, true); err != nil || len(items) > 0 {
		t.Fatal("a key is no dead letter", keysOf(items), err)
	}
	if items, _, err = f.Letters("s", dead, "", 10, true); err != nil {
		t.Fatal(err)
	}
	same(t, "the dead letters", []string{dead}, keysOf(items))
	if keys, letters, err := f.Count("s"); keys != 1 || letters != 1 || err != nil {
		t.Fatal(keys, letters, err)
	}
	b, err := f.Backlog("s", f.now.Add(time.Hour), 0, 10, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := store.Backlog{Due: 1, OldestAt: f.now.Add(2), OldestUntriedAt: f.now.Add(2)}
	want.Bands[schedule.NormalPriority.Band()] = store.Band{Due: 1, OldestUntriedAt: f.now.Add(2)}
	same(t, "backlog", want, b)
}

func positions(t *testing.T, f *fixture) {
	for _, key := range []string{"a", "ab", "b"} {
		f.put("s", key, f.entry(5))
	}
	f.put("s", "a", with(f.get("s", "a"), func(e *schedule.Entry) { e.Revision = f.revision() }))
	after := store.Position{At: f.now.Add(5), Key: "a"}
	rows, more, err := f.Due([]store.Row{{Revision: 1}}, "s", schedule.NormalPriority, after, 1)
	if err != nil || !more {
		t.Fatal(more, err)
	}
	want := []store.Row{{Revision: 1}, {Position: store.Position{At: f.now.Add(5), Key: "ab"}, Revision: f.get("s", "ab").Revision}}
	same(t, "appended", want, rows)
}

func listDueResumes(t *testing.T, f *fixture) {
	var want []string
	for i := range 30 {
		key := string(rune('a' + i%2))
		key += string(rune('A' + i))
		e := f.entry(time.Duration(i))
		if i%3 == 0 {
			e.RetryAt = f.now.Add(time.Hour)
		}
		f.put("s", key, e)
		if key[0] == 'a' {
			want = append(want, key)
		}
	}
	for _, limit := range []int{1, 4, 100} {
		for _, scan := range []int{1, 5, 1000} {
			var got []string
			var after store.Position
			for round := 0; ; round++ {
				items, next, err := f.ListDue("s", "a", after, limit, scan)
				if err != nil || len(items) > limit || round > 100 {
					t.Fatal(len(items), round, err)
				}
				got = append(got, keysOf(items)...)
				if next == (store.Position{}) {
					break
				}
				if !after.Before(next) && after != (store.Position{}) {
					t.Fatalf("limit %d, scan %d: from %v back to %v", limit, scan, after, next)
				}
				after = next
			}
			same(t, "all pages", want, got)
		}
	}
}

func backlog(t *testing.T, f *fixture) {
	f.put("s", "retry", with(f.entry(-3*time.Second), func(e *schedule.Entry) { e.RetryAt = f.now.Add(time.Hour) }))
	f.put("s", "due", f.entry(-time.Second))
	f.put("s", "just", with(f.entry(0), func(e *schedule.Entry) { e.Priority = schedule.HighPriority }))
	f.put("s", "next", f.entry(time.Second))
	f.put("s", "flying", f.entry(-time.Hour))
	flying := func(key string, revision uint64) bool {
		return key == "flying" && revision == f.get("s", key).Revision
	}
	b, err := f.Backlog("s", f.now, 0, 3, flying)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "all", store.Backlog{
		Due: 3, Retrying: 1, OldestAt: f.now.Add(-3 * time.Second), OldestUntriedAt: f.now.Add(-time.Second), NextAt: f.now.Add(time.Second),
		Bands: [schedule.Bands]store.Band{{Due: 1, OldestUntriedAt: f.now}, {Due: 2, OldestUntriedAt: f.now.Add(-time.Second)}},
	}, b)
	b, err = f.Backlog("s", f.now, 0, 2, flying)
	if err != nil || b.Due != 2 || !b.Partial || !b.OldestAt.Equal(f.now.Add(-3*time.Second)) {
		t.Fatalf("up to a limit: %+v, %v", b, err)
	}
}

func instants(t *testing.T, f *fixture) {
	year := func(y int) time.Time { return time.Date(y, 1, 1, 0, 0, 0, 1, time.UTC) }
	for _, key := range []string{"2130", "1969", "1970", "2000", "1960"} {
		at, err := time.Parse("2006", key)
		if err != nil {
			t.Fatal(err)
		}
		f.put("s", key, with(f.entry(0), func(e *schedule.Entry) { e.DueAt = year(at.Year()) }))
	}
	same(t, "due", []string{"1960", "1969", "1970", "2000", "2130"}, f.dueKeys("s"))
	same(t, "due at", year(1960), f.get("s", "1960").DueAt)
}

func purge(t *testing.T, f *fixture) {
	for _, source := range []string{"s", "s2", "a"} {
		f.put(source, "k", Full(f.now, f.revision()))
		f.put(source, schedule.DeadLetterKey(f.revision()), Full(f.now, f.revision()))
	}
	if err := f.Purge("s"); err != nil {
		t.Fatal(err)
	}
	for _, kill := range []bool{true, false} {
		f.reopen(kill)
		synctest.Wait() // what goes in the background
		sources, err := f.Sources()
		if err != nil {
			t.Fatal(err)
		}
		same(t, "sources", []string{"a", "s2"}, sources)
		if keys, dead, err := f.Count("s"); keys != 0 || dead != 0 || err != nil {
			t.Fatal(keys, dead, err)
		}
		if keys, dead, err := f.Count("s2"); keys != 1 || dead != 1 || err != nil {
			t.Fatal(keys, dead, err)
		}
		same(t, "due", []string{}, f.dueKeys("s"))
		expired, _, err := f.Expired(f.now.Add(24*time.Hour), store.SourceRow{}, 100)
		if err != nil || len(expired) != 4 {
			t.Fatal(expired, err)
		}
		unfinished, err := f.Unfinished()
		if err != nil || len(unfinished) != 4 {
			t.Fatal(unfinished, err)
		}
	}
	f.put("s", "k", f.entry(0)) // the name may come back
	same(t, "due", []string{"k"}, f.dueKeys("s"))
}
