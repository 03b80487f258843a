package queue

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// house is a queue with several sources over a store that can be opened again.
type house struct {
	t        *testing.T
	fs       *vfs.MemFS
	db       *store.DB
	q        *Queue
	settings []*schedule.Spec
	sources  []*Source
	yielding bool // calls that ask for space let others go first
}

// tenantSource is a source of a namespace, with the ceilings of that.
func tenantSource(namespace, name string, c schedule.Ceilings) *schedule.Spec {
	return &schedule.Spec{
		UID: namespace + "/" + name, Namespace: namespace, Name: name, Policy: schedule.Replace, Ingest: schedule.Ingest{Policy: schedule.Earliest},
		Delivery: schedule.Delivery{BackoffDelay: time.Second}, Limits: schedule.Limits{MaxInFlight: 100, MaxPending: 1_000_000}, Ceilings: c,
	}
}

func newHouse(t *testing.T, settings ...*schedule.Spec) *house {
	h := &house{t: t, fs: vfs.NewMem(), settings: settings}
	h.open()
	return h
}

func (h *house) open() {
	h.t.Helper()
	fatal := func(err error) { h.t.Errorf("fatal: %v", err) }
	var err error
	if h.db, err = store.Open(store.Options{Dir: "data", FS: h.fs, Fatal: fatal}); err != nil {
		h.t.Fatal(err)
	}
	var db store.Store = h.db
	if h.yielding {
		db = yields{h.db}
	}
	if h.q, err = Open(Config{Store: db, Fatal: fatal, Log: slog.New(slog.DiscardHandler), Random: func() float64 { return 0 }}); err != nil {
		h.t.Fatal(err)
	}
	h.sources = nil
	for _, s := range h.settings {
		h.set(s)
	}
}

func (h *house) set(settings *schedule.Spec) {
	h.t.Helper()
	s, err := h.q.Set(settings)
	if err != nil {
		h.t.Fatal(err)
	}
	h.sources = append(h.sources, s)
}

func (h *house) close() {
	h.t.Helper()
	h.q.Close()
	if err := h.db.Close(); err != nil {
		h.t.Error(err)
	}
}

// scan adds up the keys and bytes that the store holds of a source.
func (h *house) scan(uid string) (keys, bytes int64) {
	h.t.Helper()
	for _, list := range []func(after string) ([]store.Item, bool, error){
		func(after string) ([]store.Item, bool, error) { return h.db.List(uid, "", after, 100, true) },
		func(after string) ([]store.Item, bool, error) { return h.db.DeadLetters(uid, after, 100) },
	} {
		for after, more := "", true; more; {
			items, next, err := list(after)
			if err != nil {
				h.t.Fatal(err)
			}
			for _, i := range items {
				bytes += i.Entry.Size(i.Key)
				if !schedule.IsDeadLetterKey(i.Key) {
					keys++
				}
				after = i.Key
			}
			more = next
		}
	}
	return keys, bytes
}

// check holds what is counted against what the store holds.
func (h *house) check(when string) {
	h.t.Helper()
	type total struct{ keys, bytes int64 }
	namespaces := map[string]total{}
	for _, s := range h.sources {
		if s.Removed() {
			continue
		}
		keys, bytes := h.scan(s.uid)
		stored, err := h.db.Bytes(s.uid)
		if s.usage.keys.Load() != keys || s.usage.bytes.Load() != bytes || stored != bytes || err != nil {
			h.t.Fatalf("%s: source %s holds %d keys of %d bytes; counted are %d of %d, in the store %d (%v)",
				when, s.uid, keys, bytes, s.usage.keys.Load(), s.usage.bytes.Load(), stored, err)
		}
		marked := h.marked(s.uid)
		if got := s.Marks.Bytes(); got != marked {
			h.t.Fatalf("%s: source %s holds %d bytes of marks, counted are %d", when, s.uid, marked, got)
		}
		n := namespaces[s.Spec().Namespace]
		namespaces[s.Spec().Namespace] = total{n.keys + keys, n.bytes + bytes + marked}
	}
	if len(namespaces) != len(h.q.tenants) {
		h.t.Fatalf("%s: %d namespaces are counted, want %d", when, len(h.q.tenants), len(namespaces))
	}
	for name, want := range namespaces {
		if got := h.q.tenants[name]; got == nil || got.keys.Load() != want.keys || got.bytes.Load() != want.bytes {
			h.t.Fatalf("%s: namespace %s holds %+v, counted are %d and %d", when, name, want, got.keys.Load(), got.bytes.Load())
		}
	}
}

// sized is a request for an event with n bytes of data.
func sized(n int) schedule.Request {
	r := after(time.Hour)
	r.Event = &schedule.Event{Data: make([]byte, n)}
	return r
}

// bytesOf is what the request's entry counts.
func bytesOf(key string, r schedule.Request) int64 {
	return (&schedule.Entry{Event: r.Event, UID: r.UID, Reason: r.Reason}).Size(key)
}

// refusal is the code and the quota of a refusal, "" for none.
func refusal(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	var e *schedule.Error
	if !errors.As(err, &e) || e.RetryAfter <= 0 {
		t.Fatal(err)
	}
	what, _, _ := strings.Cut(e.Detail, ":")
	return string(e.Code) + " " + what
}

func (h *house) put(source int, key string, r schedule.Request) string {
	h.t.Helper()
	_, err := h.sources[source].Schedule(key, &r, nil)
	return refusal(h.t, err)
}

// Each quota is exact to the byte, and the refusal names it; what does not grow
// is never refused.
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
			h := newHouse(t, mine, same, other)
			defer h.close()
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

			h.close()
			h.open()
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
	h := newHouse(t, tenantSource("ns", "a", c), tenantSource("ns", "b", c))
	defer h.close()
	var all sync.WaitGroup
	var mu sync.Mutex
	accepted := 0
	for caller := range 8 {
		all.Go(func() {
			for i := range 40 {
				r := sized(200)
				_, err := h.sources[caller%2].Schedule(fmt.Sprintf("%03d/%03d", caller, i), &r, nil)
				if err == nil {
					mu.Lock()
					accepted++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	if accepted != fits {
		t.Errorf("%d were accepted, want %d", accepted, fits)
	}
	h.check("at the end")
}

// Of several together none is stored when one is over the quota, and nothing
// stays reserved; in a bulk each is judged alone, and a key that shrinks and
// grows again in one call may have what it had.
func TestQuota_BulkKeepsTheReservations(t *testing.T) {
	t.Parallel()
	one := bytesOf("a", sized(100))
	h := newHouse(t, tenantSource("ns", "a", schedule.Ceilings{MaxBytes: 2 * one}))
	defer h.close()
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

// A request that has expired is accepted and dropped, also where the quota
// allows no other key or byte.
func TestQuota_ExpiredIsAcceptedAndDropped(t *testing.T) {
	t.Parallel()
	h := newHouse(t, tenantSource("ns", "a", schedule.Ceilings{MaxPending: 1, MaxBytes: bytesOf("a", sized(100))}))
	defer h.close()
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

// An outcome is never refused: the answer to a delivery may make the source
// exceed its quota, and only growth by requests has to wait then.
func TestQuota_OutcomesMayExceed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		settings := tenantSource("ns", "a", schedule.Ceilings{MaxBytes: 1000, MaxPending: 1})
		settings.MaxBytes, settings.DeadLetter = 1000, &schedule.Target{URL: "http://dead"}
		h := newHouse(t, settings)
		defer h.close()
		s := h.sources[0]
		now := after(0)
		if refused := h.put(0, "a", now); refused != "" {
			t.Fatal(refused)
		}
		outcome := func(o schedule.Outcome) {
			t.Helper()
			synctest.Wait() // the page is loaded
			d, err := s.Take()
			if d == nil || err != nil {
				t.Fatal("nothing is due", err)
			}
			must(t, errorOf(s.Finish(d, o)))
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

// On a full disk what grows is refused, and a replacement that does not grow, a
// DELETE and a delivery work. A namespace that has filled the disk leaves space
// for another one.
func TestFullDisk_OnlyGrowthIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &house{t: t, fs: vfs.NewMem(), settings: []*schedule.Spec{tenantSource("full", "a", schedule.Ceilings{}), tenantSource("small", "a", schedule.Ceilings{})}}
		const total, reserve = 1 << 30, 100 << 20
		free := func(n uint64) {
			h.fs.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: n, TotalBytes: total})
			time.Sleep(time.Second) // fake: the answer is kept for a moment
		}
		free(total)
		h.open()
		defer h.close()
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

		free(total/10 + 2<<20) // what is scarce: 4 MB are more than is free, a small one is not
		expect("who holds much", true, h.put(0, "new", after(0)))
		expect("who holds little", false, h.put(1, "new", sized(1000)))
		expect("who would hold much", true, h.put(1, "more", sized(3<<20)))

		free(total / 10)
		expect("who holds little, at the reserve", false, h.put(1, "newer", after(0)))
		expect("who would hold more, at the reserve", true, h.put(1, "more", sized(2<<20)))
		free(total/20 - 1)
		expect("who holds little, in the second half of the reserve", true, h.put(1, "newest", after(0)))
		free(total/40 + 2<<20)
		expect("in place, who holds much, in the second half of the reserve", true, h.put(0, "k1", sized(200_000)))
		expect("in place, who holds little, there", false, h.put(1, "new", sized(1000)))
		free(total / 10)
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
		d, err := h.sources[0].Take()
		if d == nil || err != nil {
			t.Fatal("nothing is delivered", err)
		}
		if _, err := h.sources[0].Finish(d, schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: time.Hour, Reply: &schedule.Event{Data: make([]byte, 5000)}}}); err != nil {
			t.Error("an outcome:", err)
		}
		h.check("at the end")
	})
}

// A source that leaves takes its bytes with it, and one that a file gives
// another namespace takes them there.
func TestQuota_FollowsSourcesThatGoAndMove(t *testing.T) {
	t.Parallel()
	h := newHouse(t, tenantSource("a", "x", schedule.Ceilings{}), tenantSource("a", "y", schedule.Ceilings{}))
	defer h.close()
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

// Whatever happens, what is counted of a source and of a namespace is what a scan
// of the store finds.
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
	h := newHouse(t, dead, tenantSource("one", "plain", c), again)
	defer h.close()
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
	var refused int
	for round := range rounds {
		s := h.sources[r.IntN(len(h.sources))]
		switch n := r.IntN(20); {
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
			for i, settings := range h.settings {
				if settings.UID == s.uid {
					var err error
					if h.sources[i], err = h.q.Set(settings); err != nil {
						t.Fatal(err)
					}
				}
			}
		case r.IntN(4) == 0:
			h.close()
			h.open()
			under = nil
		}
		synctest.Wait()
		h.check(fmt.Sprint("round ", round))
	}
	if refused == 0 {
		t.Error("nothing was refused: the quotas were not tried")
	}
}

// must ends the test with an error of its own steps.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errorOf is the error of a step whose value is not needed.
func errorOf[T any](_ T, err error) error { return err }
