package queue

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Each quota is exact to the byte, and the refusal names it; what does not grow is never refused.
func TestQuota_RefusalNamesWhich(t *testing.T) {
	t.Parallel()
	one := bytesOf("a", sized(1000))
	for want, c := range map[string]struct {
		change func(*schedule.Spec)
		same   string // of another source of the namespace
	}{
		"quota_exceeded limits.maxBytes":                  {func(s *schedule.Spec) { s.MaxBytes = 2 * one }, ""},
		"quota_exceeded limits.maxPending":                {func(s *schedule.Spec) { s.MaxPending = 2 }, ""},
		"quota_exceeded max-bytes in config-reschedule":   {func(s *schedule.Spec) { s.Ceilings.MaxBytes = 2 * one }, "quota_exceeded max-bytes in config-reschedule"},
		"quota_exceeded max-pending in config-reschedule": {func(s *schedule.Spec) { s.Ceilings.MaxPending = 2 }, "quota_exceeded max-pending in config-reschedule"},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			mine, same, other := tenantSource("ns", "mine", schedule.Ceilings{}), tenantSource("ns", "same", schedule.Ceilings{}), tenantSource("other", "x", schedule.Ceilings{})
			for _, s := range []*schedule.Spec{mine, same, other} {
				c.change(s)
			}
			h := newFixture(t, mine, same, other)
			expect := func(what, want, got string) {
				t.Helper()
				if got != want {
					t.Errorf("%s: %q, want %q", what, got, want)
				}
			}
			expect("the first", "", h.put(0, "a", sized(1000)))
			expect("the second fills it", "", h.put(0, "b", sized(1000)))
			expect("the third", want, h.put(0, "c", sized(1000)))
			expect("a source of the same namespace", c.same, h.put(1, "a", sized(1000)))
			expect("another namespace", "", h.put(2, "a", sized(1000)))
			expect("in place, the same", "", h.put(0, "a", sized(1000)))
			expect("in place, smaller", "", h.put(0, "a", sized(900)))
			expect("in place, as large as before", "", h.put(0, "a", sized(1000)))
			grown := want
			if strings.Contains(want, "ending") {
				grown = ""
			}
			expect("in place, a byte larger", grown, h.put(0, "a", sized(1001)))
			h.check("after refusals")
			must(t, h.sources[0].Cancel("b", schedule.Conditions{}))
			expect("the quota is free again", "", h.put(0, "c", sized(900)))
			h.check("at the end")

			h.restart()
			h.check("after a restart")
			expect("after a restart", want, h.put(0, "d", sized(1000)))
		})
	}
}

// Callers that come at once never exceed a quota of bytes, and fill it.
func TestQuota_BytesAreExactAtOnce(t *testing.T) {
	t.Parallel()
	const fits = 50
	one := bytesOf("000/000", sized(200))
	c := schedule.Ceilings{MaxBytes: fits * one}
	h := newFixtureOn(t, yields, tenantSource("ns", "a", c), tenantSource("ns", "b", c))
	if accepted := atOnce(8, 40, func(caller, i int) bool {
		r := sized(200)
		_, err := h.sources[caller%2].Schedule(fmt.Sprintf("%03d/%03d", caller, i), &r, nil)
		return err == nil
	}); accepted != fits {
		t.Errorf("%d were accepted, want %d", accepted, fits)
	}
	h.check("at the end")
}

// Of several together none is stored when one is over the quota, and nothing stays reserved; in a bulk each is judged
// alone, and a key that shrinks and grows again in one call may have what it had.
func TestQuota_BulkKeepsTheReservations(t *testing.T) {
	t.Parallel()
	one := bytesOf("a", sized(100))
	h := newFixture(t, tenantSource("ns", "a", schedule.Ceilings{MaxBytes: 2 * one}))
	s := h.sources[0]
	if err := s.ScheduleTogether([]Item{{"a", sized(100)}, {"b", sized(100)}, {"c", sized(100)}}); refusal(t, err) != "quota_exceeded max-bytes in config-reschedule" {
		t.Error(err)
	}
	h.check("after none of three")
	drop := sized(100)
	drop.ExpiresAt = time.Now().Add(-time.Second)
	out, err := s.ScheduleAll([]Item{
		{"a", sized(100)}, {"b", drop}, {"b", sized(100)}, {"c", sized(100)}, {"a", sized(1)}, {"a", sized(100)}, {"a", sized(101)},
	}, nil)
	must(t, err)
	var got []string
	for _, o := range out {
		if o.Err != nil {
			got = append(got, string(o.Err.Code))
		} else {
			got = append(got, string(o.Result))
		}
	}
	if want := "[created created created quota_exceeded replaced replaced quota_exceeded]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
	h.check("at the end")
}

// A request that has expired is accepted and dropped, also where the quota allows no other key or byte.
func TestQuota_ExpiredIsAcceptedAndDropped(t *testing.T) {
	t.Parallel()
	h := newFixture(t, tenantSource("ns", "a", schedule.Ceilings{MaxPending: 1, MaxBytes: bytesOf("a", sized(100))}))
	if got := h.put(0, "a", sized(100)); got != "" {
		t.Fatal(got)
	}
	if got := h.put(0, "b", sized(100)); got != "quota_exceeded max-pending in config-reschedule" {
		t.Errorf("a new key: %q", got)
	}
	drop := sized(200)
	drop.ExpiresAt = time.Now().Add(-time.Second)
	if got := h.put(0, "b", drop); got != "" {
		t.Errorf("a new key that has expired: %q", got)
	}
	h.check("after a new key that has expired")
	if got := h.put(0, "a", drop); got != "" {
		t.Errorf("an expired request for the key: %q", got)
	}
	h.check("after an expired request for the key")
	if keys, bytes := h.scan("ns/a"); keys != 0 || bytes != 0 {
		t.Errorf("%d keys and %d bytes are left", keys, bytes)
	}
}

// An outcome is never refused: it may exceed the quota, and only growth by requests has to wait then.
func TestQuota_OutcomesMayExceed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		settings := tenantSource("ns", "a", schedule.Ceilings{MaxBytes: 1000, MaxPending: 1})
		settings.MaxBytes, settings.DeadLetter = 1000, &schedule.Target{URL: "http://dead"}
		h := newFixture(t, settings)
		s := h.sources[0]
		now := after(0)
		if refused := h.put(0, "a", now); refused != "" {
			t.Fatal(refused)
		}
		outcome := func(o schedule.Outcome) {
			t.Helper()
			must(t, errorOf(s.Finish(take(t, s), o)))
			h.check("after an outcome")
		}
		outcome(schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{Reply: &schedule.Event{Data: make([]byte, 5000)}}})
		if v, ok, err := s.Get("a"); !ok || err != nil || len(v.Event.Data) != 5000 {
			t.Fatal("the reply's event is not there", err)
		}
		if refused := h.put(0, "a", sized(5001)); refused != "quota_exceeded max-bytes in config-reschedule" {
			t.Errorf("growth is %q", refused)
		}
		if refused := h.put(0, "a", after(0)); refused != "" {
			t.Errorf("a replacement is %q", refused)
		}
		outcome(schedule.Outcome{Kind: schedule.Failed, Failure: schedule.Failure{Dest: "http://x", Code: 503, Data: make([]byte, 1000)}})
		if v, _, err := s.Get("a"); err != nil || v.LastFailure.Code != 503 || v.LastFailure.Data != nil {
			t.Errorf("what the sink answered is kept without space for it: %+v, %v", v.LastFailure, err)
		}
		time.Sleep(time.Second) // its back-off
		outcome(schedule.Outcome{Kind: schedule.Rejected, Failure: schedule.Failure{Dest: "http://x", Code: 400, Data: make([]byte, 1000)}})
		if s.usage.letters.Load() != 1 || s.usage.bytes.Load() < 6000 {
			t.Errorf("%d dead letters, %d bytes", s.usage.letters.Load(), s.usage.bytes.Load())
		}
		outcome(schedule.Outcome{Kind: schedule.Succeeded})
		if s.usage.bytes.Load() != 0 {
			t.Errorf("%d bytes are left", s.usage.bytes.Load())
		}
	})
}

// On a full disk only what grows is refused. A namespace that has filled it leaves space for another one.
func TestFullDisk_OnlyGrowthIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := newFixture(t, tenantSource("full", "a", schedule.Ceilings{}), tenantSource("small", "a", schedule.Ceilings{}))
		const total = diskBytes
		expect := func(what string, full bool, refused string) {
			t.Helper()
			if got := refused == "storage_full the adapter's disk is full"; got != full {
				t.Errorf("%s: %q", what, refused)
			}
		}
		for i := range 20 {
			expect("at first", false, h.put(0, fmt.Sprint("k", i), sized(200_000)))
		}
		expect("due", false, h.put(0, "due", after(0)))

		h.free(total/10 + 2<<20) // what is scarce: 4 MB are more than is free, a small one is not
		expect("who holds much", true, h.put(0, "new", after(0)))
		expect("who holds little", false, h.put(1, "new", sized(1000)))
		expect("who would hold much", true, h.put(1, "more", sized(3<<20)))

		h.free(total / 10)
		expect("who holds little, at the reserve", false, h.put(1, "newer", after(0)))
		expect("who would hold more, at the reserve", true, h.put(1, "more", sized(2<<20)))
		h.free(total/20 - 1)
		expect("who holds little, in the second half of the reserve", true, h.put(1, "newest", after(0)))
		h.free(total/40 + 2<<20)
		expect("in place, who holds much, in the second half of the reserve", true, h.put(0, "k1", sized(200_000)))
		expect("in place, who holds little, there", false, h.put(1, "new", sized(1000)))
		h.free(total / 10)
		expect("in place", false, h.put(1, "new", sized(1000)))
		expect("in place, who holds much", false, h.put(0, "k1", sized(200_000)))
		expect("in place, larger", true, h.put(0, "k1", sized(200_001)))
		r := sized(1)
		out, err := h.sources[0].ScheduleAll([]Item{{"k2", r}, {"newest", r}}, nil)
		if err != nil || out[0].Err != nil || out[1].Err == nil || out[1].Err.Code != schedule.CodeStorageFull {
			t.Errorf("a bulk: %+v %v", out, err)
		}
		_, err = h.sources[0].ScheduleAll([]Item{{"newest", r}, {"newer", r}}, nil)
		expect("a bulk that only grows", true, refusal(t, err))
		if err := h.sources[0].Cancel("k3", schedule.Conditions{}); err != nil {
			t.Error("a DELETE:", err)
		}
		if _, err := h.sources[0].Finish(take(t, h.sources[0]), schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: time.Hour, Reply: &schedule.Event{Data: make([]byte, 5000)}}}); err != nil {
			t.Error("an outcome:", err)
		}
		h.check("at the end")
	})
}

// A source that leaves takes its bytes with it, and one that a file gives another namespace takes them there.
func TestQuota_FollowsSourcesThatGoAndMove(t *testing.T) {
	t.Parallel()
	h := newFixture(t, tenantSource("a", "x", schedule.Ceilings{}), tenantSource("a", "y", schedule.Ceilings{}))
	for i := range h.sources {
		if refused := h.put(i, "k", sized(100)); refused != "" {
			t.Fatal(refused)
		}
	}
	moved := *h.settings[1]
	moved.Namespace = "b"
	must(t, errorOf(h.q.Set(&moved)))
	h.check("after a move")
	for range 2 { // removing what is removed changes nothing
		must(t, h.q.Remove(h.settings[0].UID))
		h.check("after a removal")
	}
	h.set(h.settings[0])
	h.check("after it came back")
}

// Whatever happens, what is counted is what a scan of the store finds, and no report exceeds the ceiling.
func TestQuota_CountsAgreeWithTheStore(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	if s := os.Getenv("QUOTA_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		if t.Failed() {
			t.Logf("QUOTA_SEED=%d", seed)
		}
	}()
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	synctest.Test(t, func(t *testing.T) { randomly(t, rand.New(rand.NewPCG(seed, seed)), rounds) })
}

func randomly(t *testing.T, r *rand.Rand, rounds int) {
	c := schedule.Ceilings{MaxBytes: 20_000, MaxPending: 30}
	dead := tenantSource("one", "dead", c)
	dead.DeadLetter, dead.MaxBytes = &schedule.Target{URL: "http://dead"}, 12_000
	again := tenantSource("two", "again", c)
	again.MaxInterval, again.MaxPending = time.Minute, 10
	h := newFixture(t, dead, tenantSource("one", "plain", c), again)
	var under []struct {
		s *Source
		d *Delivery
	}
	event := func() *schedule.Event {
		e := &schedule.Event{ID: "id", Source: "s", Data: make([]byte, r.IntN(2000)), Extensions: map[string]any{}}
		for i := range r.IntN(3) {
			e.Extensions[fmt.Sprint("x", i)] = strings.Repeat("v", r.IntN(50))
		}
		return e
	}
	request := func() schedule.Request {
		req := after(time.Duration(r.IntN(100)) * time.Second)
		req.Policy = []schedule.Policy{schedule.Replace, schedule.Earliest, schedule.Latest, schedule.Keep, schedule.Fail, ""}[r.IntN(6)]
		if r.IntN(2) == 0 {
			req.Event = event()
		}
		if r.IntN(4) == 0 {
			req.ExpiresAt = time.Now().Add(time.Duration(r.IntN(60)-5) * time.Second)
		}
		req.Ingested, req.Reason, req.UID = r.IntN(3) == 0, strings.Repeat("r", r.IntN(20)), strings.Repeat("u", r.IntN(3))
		return req
	}
	key := func() string { return fmt.Sprint("k", r.IntN(25)) }
	watches := map[string]*marking{}
	of := func(s *Source, watch uint64) *marking {
		name := fmt.Sprintf("%s %d", s.uid, watch)
		if watches[name] == nil {
			watches[name] = &marking{watch: watch, sizes: map[string]int64{}}
		}
		watches[name].s = s
		return watches[name]
	}
	var refused, reported, reportsRefused int
	// Seeds differ in how much is refused, so a walk goes on until both have happened often enough.
	for round := 0; round < rounds || reported < rounds/60 || reportsRefused < rounds/60; round++ {
		if round == 10*rounds {
			t.Fatalf("%d reports were accepted and %d refused: the walk proves little", reported, reportsRefused)
		}
		source := r.IntN(len(h.sources))
		s := h.sources[source]
		m, before := of(s, uint64(1+r.IntN(3))), s.usage.tenant.bytes.Load()
		switch n := r.IntN(30); {
		case n >= 22:
			changes := map[string]store.MarkChange{}
			for range 1 + r.IntN(3) {
				object := strconv.Itoa(r.IntN(20))
				if keys := r.IntN(1500) - 500; keys >= 0 || m.sizes[object] > 0 {
					changes[object] = m.change(object, keys)
				}
			}
			var items []Item
			for range r.IntN(3) {
				items = append(items, Item{key(), sized(r.IntN(300))})
			}
			if err := m.report(items, slices.Collect(maps.Values(changes))...); err == nil {
				reported++
			} else if refusal(t, err) == "quota_exceeded max-bytes in config-reschedule" {
				reportsRefused++
			}
			if now := s.usage.tenant.bytes.Load(); now > before && now > c.MaxBytes {
				t.Fatalf("round %d: the namespace grew from %d to %d bytes, its ceiling is %d", round, before, now, c.MaxBytes)
			}
		case n == 21 && r.IntN(2) == 0:
			m.end(t)
		case n == 21:
			recount(t, s, m.watch)
		case n == 20 && r.IntN(3) == 0:
			moved := *h.settings[source]
			moved.Namespace = []string{"one", "two"}[r.IntN(2)]
			h.settings[source] = &moved
			must(t, errorOf(h.q.Set(&moved)))
		case n < 8:
			req := request()
			if _, err := s.Schedule(key(), &req, nil); err != nil {
				refused++
			}
		case n < 10:
			items := make([]Item, r.IntN(8)+1)
			for i := range items {
				items[i] = Item{key(), request()}
			}
			if n == 8 {
				_ = s.ScheduleTogether(items) // a refusal is one of the outcomes
			} else if _, err := s.ScheduleAll(items, nil); err != nil {
				t.Fatal(err)
			}
		case n < 11:
			must(t, s.Cancel(key(), schedule.Conditions{}))
		case n < 15:
			d, err := s.Take()
			must(t, err)
			if d != nil {
				under = append(under, struct {
					s *Source
					d *Delivery
				}{s, d})
			}
		case n < 18 && len(under) > 0:
			i := r.IntN(len(under))
			o := schedule.Outcome{Kind: schedule.OutcomeKind(r.IntN(4))}
			if o.Kind == schedule.Succeeded && r.IntN(2) == 0 {
				o.Again = &schedule.RescheduleAfter{After: time.Duration(r.IntN(50)) * time.Second}
				if r.IntN(2) == 0 {
					o.Again.Reply = event()
				}
			}
			o.Failure = schedule.Failure{Dest: "http://x", Data: make([]byte, r.IntN(100))}
			must(t, errorOf(under[i].s.Finish(under[i].d, o)))
			under = append(under[:i], under[i+1:]...)
		case n < 19:
			time.Sleep(time.Duration(r.IntN(30)) * time.Second)
			synctest.Wait()
		case r.IntN(10) == 0:
			must(t, errorOf(s.CancelAll(t.Context(), []string{"", "k1"}[r.IntN(2)])))
		case r.IntN(10) == 0:
			must(t, h.q.Remove(s.uid))
			var err error
			h.sources[source], err = h.q.Set(h.settings[source])
			must(t, err)
			for watch := range uint64(3) {
				of(s, watch+1).sizes = map[string]int64{}
			}
		case r.IntN(4) == 0:
			h.restart()
			under = nil
		}
		synctest.Wait()
		h.check(fmt.Sprint("round ", round))
	}
	if refused == 0 {
		t.Error("nothing was refused: the quotas were not tried")
	}
}
