package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/recent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

var (
	refused = schedule.Outcome{Kind: schedule.Rejected, Status: 400, Failure: schedule.Failure{Dest: "http://sink", Code: 400, Data: []byte("bad")}}
	down    = schedule.Outcome{Kind: schedule.Failed, Status: 503, Failure: schedule.Failure{Dest: "http://sink", Code: 503, Data: []byte("down")}}
)

// keeping is a queue whose source keeps so many dead letters for an hour.
func keeping(t *testing.T, keep int) *Source {
	s, _ := open(t, func(_ *Config, s *schedule.Spec) { s.Letters = schedule.Letters{Keep: keep, MaxAge: time.Hour} })
	return s
}

// counted are the bytes of the source in the quota, which are the stored bytes.
func counted(t *testing.T, s *Source) int64 {
	t.Helper()
	stored, err := s.q.store.Bytes("s")
	if err != nil || stored != s.usage.bytes.Load() {
		t.Errorf("%d bytes are counted, %d are stored, %v", s.usage.bytes.Load(), stored, err)
	}
	return stored
}

// letterKeys are the keys of the dead letters that are kept.
func letterKeys(t *testing.T, s *Source, prefix string) string {
	t.Helper()
	var keys []string
	for token := ""; ; {
		letters, next, err := s.Letters.List(prefix, token, 2)
		must(t, err)
		for _, l := range letters {
			keys = append(keys, l.Key)
		}
		if token = next; token == "" {
			return strings.Join(keys, " ")
		}
	}
}

// The newest dead letters are kept, one of each key, and counted; no key waits for them.
func TestKept_NewestOneForEachKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := keeping(t, 3)
		for _, key := range []string{"c", "a", "b", "c", "d"} {
			if what := deliver(t, s, key, refused); what != schedule.KeptLetter {
				t.Errorf("%s: %s", key, what)
			}
			time.Sleep(time.Second)
		}
		if got := letterKeys(t, s, ""); got != "b c d" {
			t.Errorf("kept are %s", got)
		}
		if got := letterKeys(t, s, "c"); got != "c" {
			t.Errorf("with a prefix: %s", got)
		}
		l, ok, err := s.Letters.Get("c")
		if err != nil || !ok || l.DeadLetter.Failure.Code != 400 || l.DeadLetter.Tries != 1 || l.Event.Type != "t-c" || time.Since(l.ScheduledAt) != 2*time.Second {
			t.Errorf("%+v %v %v", l, ok, err)
		}
		c, err := s.Counts()
		if err != nil || c.Kept != 3 || c.DeadLetters != 0 || c.Pending != 0 || c.Due != 0 || !c.NextDueAt.IsZero() {
			t.Errorf("%+v %v", c, err)
		}
		views, _, err := s.List(ListOptions{Limit: 10, ByDue: true})
		if d, takeErr := s.Take(); len(views) > 0 || err != nil || d != nil || takeErr != nil {
			t.Errorf("they are keys: %+v %v, delivered %+v %v", views, err, d, takeErr)
		}
		if counted(t, s) == 0 {
			t.Error("no bytes are counted")
		}
	})
}

// A dead letter is gone within 5 s of its age, and stays over a restart until then.
func TestKept_UntilItsAge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		settings := tenantSource("ns", "s", schedule.Ceilings{})
		settings.Letters = schedule.Letters{Keep: 3, MaxAge: time.Hour}
		h := newFixture(t, settings)
		deliver(t, h.sources[0], "k", refused)
		time.Sleep(time.Hour - 10*time.Second)
		h.restart()
		again := h.sources[0]
		if got := letterKeys(t, again, ""); got != "k" || again.usage.kept.Load() != 1 {
			t.Errorf("after a restart: %q, %d", got, again.usage.kept.Load())
		}
		time.Sleep(15 * time.Second)
		c, err := again.Counts()
		if got := letterKeys(t, again, ""); got != "" || c.Kept != 0 || again.usage.bytes.Load() != 0 || again.expired.Load() != 0 || err != nil {
			t.Errorf("after its age: %q, %+v, %d bytes, %d expired, %v", got, c, again.usage.bytes.Load(), again.expired.Load(), err)
		}
	})
}

// New settings hold for the dead letters that are there.
func TestKept_FollowsItsSettings(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := keeping(t, 5)
		for _, key := range []string{"a", "b", "c"} {
			deliver(t, s, key, refused)
			time.Sleep(time.Minute)
		}
		set := func(keep int, age time.Duration) {
			n := *s.Spec()
			n.Letters = schedule.Letters{Keep: keep, MaxAge: age}
			must(t, errorOf(s.q.Set(&n)))
			synctest.Wait()
		}
		if set(2, time.Hour); letterKeys(t, s, "") != "b c" {
			t.Errorf("two of them: %s", letterKeys(t, s, ""))
		}
		if set(2, 90*time.Second); letterKeys(t, s, "") != "c" {
			t.Errorf("younger ones: %s", letterKeys(t, s, ""))
		}
		if set(0, time.Hour); letterKeys(t, s, "") != "" || s.usage.kept.Load() != 0 || s.usage.bytes.Load() != 0 {
			t.Errorf("none: %s, %d bytes", letterKeys(t, s, ""), s.usage.bytes.Load())
		}
		if what := deliver(t, s, "d", refused); what != schedule.Dropped {
			t.Errorf("then an event is %s", what)
		}
	})
}

// A dead letter for which there is no space is dropped.
func TestKept_WithinTheQuota(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, _ := open(t, func(_ *Config, s *schedule.Spec) {
			s.Letters, s.MaxInterval = schedule.Letters{Keep: 3, MaxAge: time.Hour}, time.Hour
			s.MaxBytes = 600
			s.Delivery.Retry = new(int)
		})
		if what := deliver(t, s, "k", down); what != schedule.KeptLetter {
			t.Errorf("within the quota it is %s", what)
		}
		if what := deliver(t, s, strings.Repeat("l", 20), down); what != schedule.Dropped || s.usage.bytes.Load() > 600 {
			t.Errorf("beyond it it is %s, with %d bytes", what, s.usage.bytes.Load())
		}
	})
}

// Dead letters are discarded and redriven, one and many.
func TestKept_DiscardAndRedrive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := keeping(t, 500)
		for i := range 200 {
			deliver(t, s, fmt.Sprintf("k%03d", i), refused)
		}
		for range 2 { // idempotent
			must(t, s.Letters.Discard("k000"))
		}
		if there, err := s.Letters.Redrive("k000", false, nil); there || err != nil {
			t.Errorf("an absent one: %v %v", there, err)
		}
		if there, err := s.Letters.Redrive("k001", false, nil); !there || err != nil {
			t.Fatal(there, err)
		}
		v, ok, err := s.Get("k001")
		if err != nil || !ok || v.State != schedule.Due || v.Attempt != 0 || v.Event.Type != "t-k001" {
			t.Errorf("%+v %v %v", v, ok, err)
		}
		if n, err := s.Letters.DiscardAll(context.Background(), "k1"); n != 100 || err != nil {
			t.Errorf("discarded %d, %v", n, err)
		}
		if n, skipped, err := s.Letters.RedriveAll(context.Background(), "", false, func(int64) error { return nil }); n != 98 || skipped != 0 || err != nil {
			t.Errorf("redriven %d, skipped %d, %v", n, skipped, err)
		}
		c, err := s.Counts()
		if err != nil || c.Kept != 0 || c.Due != 99 || letterKeys(t, s, "") != "" {
			t.Errorf("%+v %v", c, err)
		}
		counted(t, s)
	})
}

// A redrive leaves what is newer and its dead letter, in flight too: the newer event was acknowledged, and lost.
func TestRedrive_SkipsWhatHasSomethingNewer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := keeping(t, 500)
		for _, key := range []string{"flies", "free", "waits"} {
			deliver(t, s, key, refused)
		}
		newer := schedule.Request{Event: &schedule.Event{Type: "newer"}}
		must(t, errorOf(s.Schedule("flies", &newer, nil)))
		d := take(t, s)
		newer.Delay = new(time.Hour)
		must(t, errorOf(s.Schedule("waits", &newer, nil)))
		for _, key := range []string{"flies", "waits"} {
			if there, err := s.Letters.Redrive(key, false, nil); there || !is(err, schedule.CodeExists) {
				t.Errorf("%s: %v %v", key, there, err)
			}
		}
		if n, skipped, err := s.Letters.RedriveAll(t.Context(), "", false, nil); n != 1 || skipped != 2 || err != nil || letterKeys(t, s, "") != "flies waits" {
			t.Errorf("redriven %d, skipped %d, %v", n, skipped, err)
		}
		must(t, errorOf(s.Finish(d, down)))
		for _, key := range []string{"flies", "waits"} {
			if v, ok, err := s.Get(key); !ok || err != nil || v.Event.Type != "newer" {
				t.Errorf("%s: %+v %v", key, v.Event, err)
			}
		}
		if n, skipped, err := s.Letters.RedriveAll(t.Context(), "", true, nil); n != 2 || skipped != 0 || err != nil {
			t.Errorf("replacing: redriven %d, skipped %d, %v", n, skipped, err)
		}
		if v, ok, err := s.Get("waits"); !ok || err != nil || v.Event.Type != "t-waits" || v.State != schedule.Due {
			t.Errorf("%+v %v", v, err)
		}
		counted(t, s)
	})
}

// The periodic occurrence that the outcome left when it gave the event up is nothing newer than the letter.
func TestRedrive_WorksWithMaxInterval(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sink  bool             // of dead letters, which refuses
		o     schedule.Outcome // of the run
		then  func(*Source) error
		newer bool
	}{
		"a periodic occurrence waits":     {false, refused, nil, false},
		"which a refused letter did":      {true, refused, nil, false},
		"the sink asked for another time": {false, schedule.Outcome{Kind: schedule.Rejected, Again: &schedule.RescheduleAfter{After: time.Minute}}, nil, false},
		"a call came since": {false, refused, func(s *Source) error {
			_, err := s.Schedule("k", &schedule.Request{Policy: schedule.Latest}, nil)
			return err
		}, true},
		"the period came, and its run succeeded": {false, refused, func(s *Source) error {
			time.Sleep(time.Hour)
			d, err := s.Take()
			if d == nil || err != nil {
				return errors.Join(err, errors.New("nothing is due"))
			}
			_, err = s.Finish(d, schedule.Outcome{Kind: schedule.Succeeded})
			return err
		}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, _ := open(t, func(_ *Config, sp *schedule.Spec) {
				sp.MaxInterval, sp.Letters = time.Hour, schedule.Letters{Keep: 5, MaxAge: 24 * time.Hour}
				if c.sink {
					sp.DeadLetter = &schedule.Target{URL: "http://letters"}
				}
			})
			deliver(t, s, "k", c.o)
			if c.sink {
				d := take(t, s)
				must(t, errorOf(s.Finish(d, refused)))
			}
			if c.then != nil {
				must(t, c.then(s))
			}
			there, err := s.Letters.Redrive("k", false, nil)
			if there == c.newer || is(err, schedule.CodeExists) != c.newer {
				t.Fatal(name, there, err)
			}
			if v, _, err := s.Get("k"); err != nil || (v.State == schedule.Due) == c.newer || v.Event.Type != "t-k" {
				t.Errorf("%s: %+v %v", name, v, err)
			}
		})
	}
}

func is(err error, code schedule.Code) bool {
	refused, ok := errors.AsType[*schedule.Error](err)
	return ok && refused.Code == code
}

// A list selects the keys by where they stand, in both orders, page by page.
func TestList_SelectsByState(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, _ := open(t, func(_ *Config, s *schedule.Spec) { s.Delivery.BackoffDelay = time.Hour })
		for _, key := range []string{"r2", "r1"} {
			deliver(t, s, key, down)
		}
		var flying []*Delivery
		for _, key := range []string{"f2", "f1", "f3"} {
			must(t, errorOf(s.Schedule(key, &schedule.Request{}, nil)))
			d := take(t, s)
			flying = append(flying, d)
			time.Sleep(time.Second)
		}
		r := after(time.Minute)
		for _, key := range []string{"w2", "w1", "f3"} { // behind f3
			must(t, errorOf(s.Schedule(key, &r, nil)))
		}
		r = after(0)
		must(t, errorOf(s.Schedule("d1", &r, nil)))
		list := func(state State, byDue bool, prefix string) string {
			var keys []string
			o := ListOptions{Limit: 1, ByDue: byDue, State: state, Prefix: prefix}
			for range 100 {
				views, next, err := s.List(o)
				must(t, err)
				for _, v := range views {
					keys = append(keys, v.Key)
				}
				if o.Continue = next; next == "" {
					break
				}
			}
			return strings.Join(keys, " ")
		}
		for _, tc := range []struct {
			state        State
			byKey, byDue string
		}{
			{"", "d1 f1 f2 f3 r1 r2 w1 w2", "r2 r1 f2 f1 d1 f3 w1 w2"},
			{Waiting, "f3 w1 w2", "f3 w1 w2"}, {Due, "d1 r1 r2", "r1 r2 d1"}, {Retrying, "r1 r2", "r1 r2"}, {InFlight, "f1 f2", "f2 f1"},
		} {
			if got := list(tc.state, false, ""); got != tc.byKey {
				t.Errorf("%s by key: %s", tc.state, got)
			}
			if got := list(tc.state, true, ""); got != tc.byDue && tc.state != "" {
				t.Errorf("%s by due: %s, want %s", tc.state, got, tc.byDue)
			}
		}
		for _, byDue := range []bool{false, true} { // a token holds in the order that it came from
			_, token, err := s.List(ListOptions{Limit: 1, ByDue: byDue})
			must(t, err)
			if _, _, err := s.List(ListOptions{Limit: 1, ByDue: !byDue, Continue: token}); !is(err, schedule.CodeInvalid) {
				t.Errorf("a token of the other order: %v", err)
			}
		}
		if got := list(InFlight, true, "f1"); got != "f1" {
			t.Errorf("in flight with a prefix: %s", got)
		}
		v, _, err := s.Get("r1")
		if err != nil || v.Attempts() != 1 || !v.Retrying() || v.LastFailure.Code != 503 || string(v.LastFailure.Data) != "down" {
			t.Errorf("%+v %v", v, err)
		}
		if v, _, _ = s.Get("f1"); v.Attempts() != 1 || v.Retrying() {
			t.Errorf("in flight: %d attempts", v.Attempts())
		}
		for _, d := range flying {
			must(t, errorOf(s.Finish(d, schedule.Outcome{Kind: schedule.Succeeded})))
		}
	})
}

// The history and the events of a source follow its keys.
func TestSource_HistoryAndEvents(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, _ := open(t, nil)
		f, _, err := s.Follow(0, false)
		must(t, err)
		defer f.Close()
		deliver(t, s, "k", down)
		time.Sleep(time.Second)
		d := take(t, s)
		time.Sleep(time.Minute)
		must(t, errorOf(s.Finish(d, schedule.Outcome{Kind: schedule.Succeeded, Status: 204, Again: &schedule.RescheduleAfter{After: time.Hour}})))
		events, _, _, _ := f.Next(nil, 10)
		var got []string
		for _, e := range events {
			got = append(got, fmt.Sprint(e.Kind, " ", e.Key, " ", e.Attempt, " ", e.Result, " ", e.Status))
		}
		want := "scheduled k 0  0, started k 0  0, outcome k 0 retrying 503, started k 1  0, outcome k 1 delivered 204, scheduled k 0  0"
		if strings.Join(got, ", ") != want {
			t.Errorf("%s", strings.Join(got, ", "))
		}
		if last := events[len(events)-1]; last.Revision == 0 || time.Until(last.DueAt) != time.Hour {
			t.Errorf("%+v", last)
		}
		items, _, err := s.History("k")
		if err != nil || len(items) != 2 || items[0].Result != "delivered" || items[0].Status != 204 || items[0].Attempt != 1 || items[0].Duration != time.Minute ||
			items[1] != (recent.Outcome{At: items[1].At, Result: "retrying", Status: 503}) {
			t.Errorf("%+v %v", items, err)
		}
		must(t, s.q.Remove("s"))
		if _, _, _, ended := f.Next(nil, 1); !ended {
			t.Error("the events of a removed source go on")
		}
	})
}

// A key that ends without an attempt is in the history too: it expired, or was cancelled.
func TestSource_HistoryOfEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, _ := open(t, nil)
		f, _, err := s.Follow(0, false)
		must(t, err)
		defer f.Close()
		in := schedule.Request{Delay: new(time.Hour)}
		expires := in
		expires.ExpiresAt = time.Now().Add(time.Minute)
		for key, r := range map[string]schedule.Request{"old": expires, "gone": in} {
			must(t, errorOf(s.Schedule(key, &r, nil)))
		}
		past := schedule.Request{ExpiresAt: time.Now().Add(-time.Second)}
		must(t, errorOf(s.Schedule("past", &past, nil)))
		for range 2 { // the second one finds nothing
			must(t, s.Cancel("gone", schedule.Conditions{}))
		}
		time.Sleep(2 * time.Minute)
		for key, want := range map[string]string{"old": "expired", "past": "expired", "gone": "deleted"} {
			items, _, err := s.History(key)
			if err != nil || len(items) != 1 || items[0].Result != want || items[0].Status != 0 {
				t.Errorf("%s: %+v %v, want %s", key, items, err, want)
			}
		}
		events, _, _, _ := f.Next(nil, 10)
		if last := events[len(events)-1]; last.Kind != recent.Ended || last.Key != "old" || last.Result != "expired" {
			t.Errorf("the last event is %+v", last)
		}
	})
}
