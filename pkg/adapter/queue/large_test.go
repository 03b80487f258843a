package queue

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// still is a source whose clock stands, with keys of large events; three of them are in delivery.
func still(t *testing.T, keys int) *Source {
	t.Helper()
	return delivering(t, keys, min(keys, 3))
}

// delivering is still with so many keys in delivery.
func delivering(t *testing.T, keys, inFlight int) *Source {
	t.Helper()
	now := time.Unix(1_900_000_000, 0)
	s, _ := open(t, func(c *Config, _ *schedule.Spec) { c.Now = func() time.Time { return now } })
	for i := range keys {
		r := schedule.Request{DueAt: now.Add(time.Hour), UID: "u", Event: large(byte(i))}
		if i < inFlight {
			r.DueAt = now
		}
		must(t, errorOf(s.Schedule(fmt.Sprintf("k%02d", i), &r, nil)))
	}
	for taken := 0; taken < inFlight; {
		d, err := s.Take()
		must(t, err)
		if d != nil {
			taken++
		}
	}
	return s
}

func large(b byte) *schedule.Event {
	return &schedule.Event{DataContentType: "text/plain", Data: bytes.Repeat([]byte{'a' + b%26}, 100<<10)}
}

func shown(v schedule.View, err error) string {
	if v.Entry == nil {
		return fmt.Sprint(err)
	}
	e := *v.Entry
	at := e.ScheduledAt // of another source
	return fmt.Sprintln(v.Key, v.State, v.InFlight, e.Revision, e.Occurrence, e.DueAt.Sub(at), e.Attempt, e.UID, e.Reason, err)
}

// A bulk call that takes several pages has the same results, keys and counts as single requests.
func TestBulk_PagesAreJudgedAsOneByOne(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const keys = 16
	bulk, single := still(t, keys), still(t, keys)
	for round := range 4 {
		items := make([]Item, 60)
		for i := range items {
			r := &items[i].Request
			items[i].Key = fmt.Sprintf("k%02d", random.IntN(keys+2))
			r.DueAt = bulk.now().Add(time.Duration(random.IntN(100)) * time.Minute)
			r.Policy = []schedule.Policy{"", schedule.Replace, schedule.Earliest, schedule.Latest, schedule.Keep, schedule.Fail}[random.IntN(6)]
			r.Reason = fmt.Sprint(round, i)
			r.UID = []string{"u", "u", "u", "v"}[random.IntN(4)]
			switch random.IntN(8) {
			case 0:
				r.Event = large(byte(i))
			case 1:
				r.Event = &schedule.Event{Subject: "small"}
			case 2:
				r.ExpiresAt = bulk.now()
			}
		}
		asked := 0
		got, err := bulk.ScheduleAll(items, func(int64) error { asked++; return nil })
		if err != nil || asked > 1 {
			t.Fatal(err, asked)
		}
		for i := range items {
			want, err := single.Schedule(items[i].Key, &items[i].Request, nil)
			var refused *schedule.Error
			errors.As(err, &refused)
			if g, w := shown(got[i].View, got[i].Err), shown(want.View, refused); g != w || got[i].Result != want.Result {
				t.Fatalf("item %d of round %d: %s%s, one by one %s%s", i, round, got[i].Result, g, want.Result, w)
			}
		}
		for i := range keys + 2 {
			key := fmt.Sprintf("k%02d", i)
			g, _, err := bulk.Get(key)
			w, _, wantErr := single.Get(key)
			if err != nil || wantErr != nil || shown(g, nil) != shown(w, nil) || g.Entry != nil && !g.Event.Equal(w.Event) {
				t.Fatalf("%s after round %d: %s, one by one %s; %v %v", key, round, shown(g, nil), shown(w, nil), err, wantErr)
			}
		}
		if g, w := bulk.usage.bytes.Load(), single.usage.bytes.Load(); g != w || bulk.usage.keys.Load() != single.usage.keys.Load() {
			t.Fatalf("%d bytes of %d keys are counted, one by one %d of %d", g, bulk.usage.keys.Load(), w, single.usage.keys.Load())
		}
	}
}

// A bulk call claims memory before it changes anything.
func TestBulk_ClaimsMemoryBeforeItsFirstChange(t *testing.T) {
	t.Parallel()
	s := delivering(t, 7, 7)
	items := make([]Item, 600, 607)
	for i := range items {
		items[i] = Item{Key: fmt.Sprint("new", i), Request: schedule.Request{DueAt: s.now().Add(time.Hour), Policy: schedule.Fail}}
	}
	for i := range 7 {
		items = append(items, Item{Key: fmt.Sprintf("k%02d", i), Request: after(time.Minute)})
	}
	out, err := s.ScheduleAll(items, func(int64) error {
		if _, found, err := s.Get("new0"); found || err != nil {
			t.Error("it changed something before:", err)
		}
		return nil
	})
	must(t, err)
	for i := range out {
		if out[i].Err != nil {
			t.Fatalf("%s: %v", items[i].Key, out[i].Err)
		}
	}
}

// A bulk answer has at most 1 MiB of events that the call did not bring, so that a small call has no huge answer.
func TestBulk_ShowsAMiBOfEventsItDidNotBring(t *testing.T) {
	t.Parallel()
	s := still(t, 20)
	items := make([]Item, 21)
	for i := range items {
		items[i] = Item{Key: fmt.Sprintf("k%02d", i), Request: schedule.Request{DueAt: s.now().Add(time.Hour)}}
	}
	items[20].Request.Event = large(0)
	out, err := s.ScheduleAll(items, nil)
	must(t, err)
	answerBytes := 0
	for i, o := range out[:20] {
		if o.View.Event != nil {
			answerBytes++
		}
		if v, _, err := s.Get(items[i].Key); err != nil || !v.Event.Equal(large(byte(i))) {
			t.Errorf("%s has lost its event: %v", items[i].Key, err)
		}
	}
	if answerBytes != 10 {
		t.Errorf("%d events of 100 KiB are in the answer, want 10", answerBytes)
	}
	if out[20].View.Event != items[20].Request.Event {
		t.Error("the event that came in is not in the answer")
	}
}

// A bulk call with large events is applied in pages, because the log of a group keeps each change in memory.
func TestBulk_OfLargeEventsIsManyChanges(t *testing.T) {
	t.Parallel()
	s, seen := watched(t)
	items := make([]Item, 40)
	for i := range items {
		items[i] = Item{Key: fmt.Sprintf("k%02d", i), Request: schedule.Request{Event: large(byte(i))}}
	}
	asked := 0
	out, err := s.ScheduleAll(items, func(int64) error { asked++; return nil })
	if err != nil || asked != 1 {
		t.Fatalf("%v, and memory was claimed %d times", err, asked)
	}
	for i := range items {
		if v, _, err := s.Get(items[i].Key); err != nil || out[i].Err != nil || !v.Event.Equal(large(byte(i))) {
			t.Errorf("%s: %v %v", items[i].Key, err, out[i].Err)
		}
	}
	want := slices.Repeat([]string{"6 changes 0 marks"}, 6) // 600 KiB: the sixth event exceeds a page
	if got, want := seen(), append(want, "4 changes 0 marks"); !slices.Equal(got, want) {
		t.Errorf("the call made %q", got)
	}
}

// A request claims memory before it reads a large entry, and changes nothing when it gets none.
func TestLargeEntries_AreReadIfMemoryIsFree(t *testing.T) {
	t.Parallel()
	s := still(t, 8)
	full := errors.New("full")
	asked, needs := 0, int64(0)
	claim := func(n int64) error { asked++; needs = n; return full }
	r := after(time.Minute)
	for _, key := range []string{"k00", "k05"} { // in delivery, and waiting
		before, _, _ := s.Get(key)
		if _, err := s.Schedule(key, &r, claim); !errors.Is(err, full) {
			t.Errorf("a request for %s: %v", key, err)
		}
		if needs < 400<<10 || needs > 1<<20 {
			t.Errorf("it asked for %d bytes", needs)
		}
		if _, err := s.ScheduleAll([]Item{{"new", r}, {key, r}}, claim); !errors.Is(err, full) {
			t.Errorf("a bulk call for %s: %v", key, err)
		}
		if v, _, err := s.Get(key); err != nil || v.Revision != before.Revision {
			t.Errorf("%s has changed: %v", key, err)
		}
	}
	if _, found, _ := s.Get("new"); found || asked != 4 {
		t.Errorf("half a call was made, or the calls asked %d times", asked)
	}
	for range 2 {
		if _, err := s.ScheduleAll([]Item{{"new", r}, {"newer", r}}, claim); err != nil {
			t.Errorf("small entries: %v", err)
		}
	}
	ingested := schedule.Request{Ingested: true, Policy: schedule.Earliest, Event: &schedule.Event{ID: "1", Source: "/s", Type: "t"}}
	must(t, s.ScheduleTogether([]Item{{"k05", ingested}, {"k06", ingested}}))
	must(t, s.ScheduleTogether([]Item{{"k07", r}}))
	if v, _, err := s.Get("k07"); err != nil || !v.Event.Equal(large(7)) {
		t.Errorf("a request without an event has taken the key's away: %v", err)
	}
	if v, _, err := s.Get("k06"); err != nil || !v.Event.Equal(ingested.Event) {
		t.Errorf("%+v %v", v.Entry, err)
	}
	must(t, s.Cancel("k05", schedule.Conditions{}))
	if n, err := s.CancelAll(t.Context(), ""); err != nil || n != 6 {
		t.Errorf("%d cancelled, want k03, k04, k06, k07, new and newer: %v", n, err)
	}
	if n := s.usage.bytes.Load(); n != 0 {
		t.Errorf("%d bytes are counted of nothing", n)
	}
}

// At a start each key with an unfinished delivery is brought forward, also when large events take several pages.
func TestRecovery_OfLargeEventsGoesPageByPage(t *testing.T) {
	t.Parallel()
	fatal := func(err error) { t.Errorf("fatal: %v", err) }
	db, err := store.Open(store.Options{Dir: "data", FS: vfs.NewMem(), Fatal: fatal})
	must(t, err)
	defer db.Close()
	at := time.Unix(1_900_000_000, 0)
	const keys = 20
	for i := range keys {
		e := &schedule.Entry{Revision: uint64(i + 1), Occurrence: uint64(i + 1), ScheduledAt: at, DueAt: at.Add(time.Hour), UnfinishedAt: at, Event: large(byte(i))}
		must(t, errorOf(db.Apply(false, store.Change{Source: "s", Key: fmt.Sprintf("k%02d", i), New: e})))
	}
	q, err := Open(Config{Store: db, Fatal: fatal})
	must(t, err)
	defer q.Close()
	for i := range keys {
		e, err := db.Get("s", fmt.Sprintf("k%02d", i))
		if err != nil || !e.At().Equal(at) || !e.Event.Equal(large(byte(i))) {
			t.Errorf("key %d is due at %s: %v", i, e.At(), err)
		}
	}
}
