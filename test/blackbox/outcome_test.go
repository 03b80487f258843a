package blackbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

var (
	linear       = declare("linear", "delivery: {backoffPolicy: linear, backoffDelay: PT0.1S}")
	patient      = declare("patient", "delivery: {backoffDelay: PT0.3S, retryAfterMax: PT1S}")
	unheeding    = declare("unheeding", "delivery: {backoffDelay: PT0.01S, retryAfterMax: PT0S}")
	shortTimeout = declare("short-timeout", "delivery: {backoffDelay: PT0.01S, timeout: PT0.2S}")
	few          = declare("few", "delivery: {retry: 2, backoffDelay: PT0.01S}")
	fewAgain     = declare("few-again", "maxInterval: 1h\ndelivery: {retry: 1, backoffDelay: PT0.01S}")
	lettered     = declare("lettered", "ceOverrides: {extensions: {team: platform}}\ndelivery: {retry: 1, backoffDelay: PT0.01S, deadLetterSink: {uri: \"SINK/dead-letters\"}}")
	steady       = declare("steady", "maxInterval: 1h")
	throttled    = declare("throttled", "limits: {maxPerSecond: 5}")
	one          = declare("one", "limits: {maxInFlight: 1}")
	slow         = declare("slow", "delivery: {backoffDelay: PT15M}")
	unheard      = declare("unheard", "delivery: {backoffDelay: PT0.01S}")
)

// Every status of the sink has its outcome.
func TestOutcome_OfEveryStatus(t *testing.T) {
	t.Parallel()
	for code := 200; code <= 599; code++ {
		switch {
		case code < 210, code >= 300 && code < 310, code >= 400 && code < 432, code == 451, code >= 500 && code < 512, code == 299, code == 399, code == 499, code == 599:
		default:
			continue
		}
		key := fmt.Sprint("status/", code)
		fast.answer(key, script(status(code, "Location", sink.URL+"/fast"), status(204)))
		fast.put(t, key, "")
		d := fast.next(t, key)
		retried := code >= 500 || slices.Contains([]int{401, 403, 404, 408, 409, 421, 429}, code)
		if retried {
			r := fast.next(t, key)
			if r.Attr("id") != d.Attr("id") || r.Attempt != 1 || !r.DueAt.Equal(d.DueAt) || r.Revision != d.Revision {
				t.Errorf("%d: the retry is %v, the first was %v", code, r.Attributes, d.Attributes)
			}
		}
		fast.gone(t, key)
		if n := len(sink.Of("fast", key)); n > 2 || n == 2 && !retried {
			t.Errorf("%d: %d deliveries", code, n)
		}
	}
}

// A retry waits for the backoff and shows its attempt.
func TestRetry_WaitsAndShowsItsAttempt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s     *source
		waits []time.Duration
	}{
		{linear, []time.Duration{100, 200, 300}}, {fast, []time.Duration{10, 20, 40, 80}},
	} {
		const key = "retry"
		c.s.answer(key, script(append(make500(len(c.waits)), status(204))...))
		c.s.put(t, key, `{"event":{"type":"x"}}`)
		last := c.s.next(t, key)
		for i, wait := range c.waits {
			d := c.s.next(t, key)
			if gap := d.At.Sub(last.At); gap < wait*time.Millisecond {
				t.Errorf("%s: retry %d came after %s, want at least %s", c.s.name, i+1, gap, wait*time.Millisecond)
			}
			if d.Attempt != i+1 || d.Attr("id") != last.Attr("id") || d.Attr("time") != last.Attr("time") {
				t.Errorf("%s: retry %d: %v", c.s.name, i+1, d.Attributes)
			}
			last = d
		}
		c.s.gone(t, key)
	}
}

func make500(n int) (all []func(http.ResponseWriter)) {
	for range n {
		all = append(all, status(500))
	}
	return all
}

// Between two attempts a key is due and its dueAt stays.
func TestRetry_KeyIsDueAndDueAtStays(t *testing.T) {
	t.Parallel()
	plain.answer("between", status503(900))
	v := plain.put(t, "between", `{"event":{"type":"x"}}`)
	plain.next(t, "between")
	g := plain.settled(t, "between")
	if g.State != "due" || !g.DueAt.Equal(v.DueAt) || *g.Attempt != 1 || g.Revision != v.Revision {
		t.Errorf("%+v", g)
	}
	// PUT treats it as waiting.
	problem(t, plain.call(t, http.MethodPut, "/schedules/between", `{"policy":"fail"}`), http.StatusConflict, "already_exists")
	if k := plain.put(t, "between", `{"policy":"keep"}`); k.Result != "kept" || *k.Attempt != 1 {
		t.Errorf("%+v", k)
	}
	plain.answer("between", harness.Status(204))
	w := plain.put(t, "between", `{}`)
	if w.Result != "replaced" || *w.Attempt != 0 || !w.PreviousDueAt.Equal(v.DueAt) {
		t.Errorf("%+v", w)
	}
	if d := plain.next(t, "between"); d.Revision != w.Revision || d.Attempt != 0 || d.Attr("type") != "x" {
		t.Errorf("%v", d.Attributes)
	}
}

func status503(retryAfter int) harness.Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ *harness.Delivery) {
		status(503, "Retry-After", fmt.Sprint(retryAfter))(w)
	}
}

// Retry-After raises the wait up to its cap and never shortens it.
func TestRetryAfter_RaisesTheWaitUpToItsCap(t *testing.T) {
	t.Parallel()
	date := func(w http.ResponseWriter) {
		status(429, "Retry-After", time.Now().Add(1500*time.Millisecond).UTC().Format(http.TimeFormat))(w)
	}
	for _, c := range []struct {
		name    string
		s       *source
		answer  func(http.ResponseWriter)
		atLeast time.Duration
		atMost  time.Duration
	}{
		{"503 capped", patient, status(503, "Retry-After", "600"), time.Second, 5 * time.Second},
		{"429 capped", patient, status(429, "Retry-After", "600"), time.Second, 5 * time.Second},
		{"shorter", patient, status(503, "Retry-After", "0"), 300 * time.Millisecond, 5 * time.Second},
		{"not on 500", fast, status(500, "Retry-After", "600"), 10 * time.Millisecond, 5 * time.Second},
		{"seconds", fast, status(503, "Retry-After", "1"), time.Second, 5 * time.Second},
		{"date", fast, date, 400 * time.Millisecond, 5 * time.Second},
		{"nonsense", fast, status(503, "Retry-After", "soon"), 10 * time.Millisecond, 5 * time.Second},
		{"cap of zero", unheeding, status(429, "Retry-After", "600"), 10 * time.Millisecond, 5 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			key := "retry-after/" + c.name
			answered := make(chan time.Time, 1)
			c.s.answer(key, script(func(w http.ResponseWriter) { answered <- time.Now(); c.answer(w) }, status(204)))
			c.s.put(t, key, "")
			c.s.next(t, key)
			first := <-answered
			d := c.s.next(t, key)
			if gap := d.At.Sub(first); gap < c.atLeast || gap > c.atMost {
				t.Errorf("the retry came after %s", gap)
			}
		})
	}
}

// Without retryAfterMax the header is honoured.
func TestRetryAfter_HonouredWithoutMax(t *testing.T) {
	t.Parallel()
	fast.answer("retry-after/long", status503(100000))
	fast.put(t, "retry-after/long", "")
	fast.next(t, "retry-after/long")
	fast.settled(t, "retry-after/long")
	fast.passes(t, time.Now().Add(300*time.Millisecond))
	if n := len(sink.Of("fast", "retry-after/long")); n != 1 {
		t.Errorf("%d deliveries", n)
	}
}

// An attempt ends at its timeout and the sink sees its connection closed.
func TestTimeout_EndsTheAttempt(t *testing.T) {
	t.Parallel()
	ended := make(chan time.Duration, 1)
	shortTimeout.answer("hangs", func() harness.Answer {
		first := make(chan bool, 1)
		first <- true
		return func(_ http.ResponseWriter, r *http.Request, d *harness.Delivery) {
			select {
			case <-first:
				<-r.Context().Done()
				ended <- time.Since(d.At)
			default:
			}
		}
	}())
	shortTimeout.put(t, "hangs", "")
	shortTimeout.next(t, "hangs")
	select {
	case took := <-ended:
		if took < 190*time.Millisecond {
			t.Errorf("cut off after %s", took)
		}
	case <-time.After(harness.Patience):
		t.Fatal("the sink still holds the connection")
	}
	if d := shortTimeout.next(t, "hangs"); d.Attempt != 1 {
		t.Errorf("attempt %d", d.Attempt)
	}
	shortTimeout.gone(t, "hangs")
}

// A connection that breaks is retried.
func TestRetry_AfterABrokenConnection(t *testing.T) {
	t.Parallel()
	unheard.answer("breaks", func(w http.ResponseWriter, _ *http.Request, d *harness.Delivery) {
		if d.Attempt < 2 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(204)
	})
	unheard.put(t, "breaks", "")
	// An attempt on a connection that was used before is repeated on another, and comes twice.
	for last := 0; last < 2; {
		d := unheard.next(t, "breaks")
		if d.Attempt != last && d.Attempt != last+1 {
			t.Fatalf("attempt %d after %d", d.Attempt, last)
		}
		last = d.Attempt
	}
	unheard.gone(t, "breaks")
}

// When retries are used up the event is dropped.
func TestRetriesUsedUp_EventIsDropped(t *testing.T) {
	t.Parallel()
	few.answer("k", harness.Status(500))
	few.put(t, "k", "")
	few.gone(t, "k")
	if n := len(sink.Of("few", "k")); n != 3 {
		t.Errorf("%d deliveries, want the first and 2 retries", n)
	}
}

// When retries are used up, maxInterval brings the key back.
func TestRetriesUsedUp_MaxIntervalBringsItBack(t *testing.T) {
	t.Parallel()
	fewAgain.answer("k", harness.Status(500))
	v := fewAgain.put(t, "k", "")
	var g harness.Schedule
	eventually(t, "the key waits for its interval", func() bool { g = fewAgain.get(t, "k"); return g.State == "waiting" })
	if g.DueAt.Sub(v.DueAt) < time.Hour || *g.Attempt != 0 || g.Revision <= v.Revision {
		t.Errorf("%+v", g)
	}
	if n := len(sink.Of("few-again", "k")); n != 2 {
		t.Errorf("%d deliveries", n)
	}
	// What is not retried comes back too.
	fewAgain.answer("refused", harness.Status(400))
	v = fewAgain.put(t, "refused", "")
	fewAgain.next(t, "refused")
	if g = fewAgain.settled(t, "refused"); g.State != "waiting" || g.DueAt.Sub(v.DueAt) < time.Hour || *g.Attempt != 0 || len(sink.Of("few-again", "refused")) != 1 {
		t.Errorf("%+v", g)
	}
}

// A dead letter carries the event and what went wrong.
func TestDeadLetter_HasTheEventAndTheFailure(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key  string
		code int
	}{{"refused", 400}, {"redirected", 302}, {"exhausted", 500}} {
		lettered.answer(c.key, func(w http.ResponseWriter, _ *http.Request, _ *harness.Delivery) {
			w.WriteHeader(c.code)
			_, _ = w.Write([]byte(strings.Repeat("why ", 1000)))
		})
		v := lettered.put(t, c.key, `{"event":{"type":"dev.example.sync","data":{"a":1}}}`)
		first := lettered.next(t, c.key)
		d := sink.Next(t, "dead-letters", c.key)
		if data := d.Attr("knativeerrordata"); data == "" || len(data) > 1400 {
			t.Errorf("%s: knativeerrordata of %d bytes", c.key, len(data))
		}
		for name, want := range map[string]string{
			"knativeerrordest": sink.URL + "/lettered", "knativeerrorcode": fmt.Sprint(c.code), "type": "dev.example.sync", "id": first.Attr("id"),
			"source": first.Attr("source"), "reschedulerevision": fmt.Sprint(v.Revision), "rescheduledueat": first.Attr("rescheduledueat"), "team": "platform",
		} {
			if d.Attr(name) != want {
				t.Errorf("%s: %s is %q, want %q", c.key, name, d.Attr(name), want)
			}
		}
		if d.Attr("rescheduleattempt") == "" || string(d.Body) != `{"a":1}` || d.Header.Get("Kn-Namespace") != "tests" {
			t.Errorf("%s: %v %s", c.key, d.Attributes, d.Body)
		}
		lettered.gone(t, c.key)
		want := 1
		if c.key == "exhausted" {
			want = 2
		}
		if n := len(sink.Of("lettered", c.key)); n != want {
			t.Errorf("%s: %d deliveries, want %d", c.key, n, want)
		}
	}
}

// Reschedule-After makes the key due again.
func TestRescheduleAfter_MakesItDueAgain(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{
		"5m": 5 * time.Minute, "300": 5 * time.Minute, "PT5M": 5 * time.Minute, "1h30m": 90 * time.Minute, "90.5": 90*time.Second + 500*time.Millisecond, "P1D": 24 * time.Hour,
		" 60 ": time.Minute,
	} {
		key := "again/" + value
		steady.answer(key, script(status(200, "Reschedule-After", value), status(200, "Reschedule-After", "never")))
		v := steady.put(t, key, `{"event":{"type":"dev.example.sync","data":[1]},"reason":"r","uid":"u"}`)
		d := steady.next(t, key)
		g := steady.settled(t, key)
		if after := g.DueAt.Sub(d.At); after < want || after > want+harness.Patience || g.Revision <= v.Revision || *g.Attempt != 0 || g.State != "waiting" {
			t.Errorf("%q: due again after %s: %+v", value, after, g)
		}
		if g.Event["type"] != "dev.example.sync" || g.UID != "u" {
			t.Errorf("%q: with the same event: %+v", value, g)
		}
		// The occurrence is a new one, under a new id.
		steady.put(t, key, `{"policy":"earliest"}`)
		e := steady.next(t, key)
		if e.Attr("id") == d.Attr("id") || e.Attr("type") != "dev.example.sync" || string(e.Body) != "[1]" {
			t.Errorf("%q: %v", value, e.Attributes)
		}
		steady.gone(t, key) // never: maxInterval does not bring it back
	}
}

// Reschedule-After on a failing answer replaces the back-off, whether shorter or longer, and the attempt counts.
func TestFailingAnswer_SetsTheTimeOfTheRetry(t *testing.T) {
	t.Parallel()
	plain.answer("failing", script(status(503, "Reschedule-After", "1h", "Retry-After", "1")))
	v := plain.put(t, "failing", "")
	plain.next(t, "failing")
	if g := plain.settled(t, "failing"); g.State != "due" || !g.DueAt.Equal(v.DueAt) || *g.Attempt != 1 || g.Revision != v.Revision {
		t.Errorf("%+v", g)
	}
	slow.answer("failing", script(status(500, "Reschedule-After", "0"), status(204)))
	slow.put(t, "failing", "")
	first, d := slow.next(t, "failing"), slow.next(t, "failing")
	if d.Attempt != 1 || d.Attr("id") != first.Attr("id") {
		t.Errorf("the retry is %v, the first was %v", d.Attributes, first.Attributes)
	}
	few.answer("failing", script(status(500, "Reschedule-After", "0")))
	few.put(t, "failing", "")
	for range 3 {
		few.next(t, "failing")
	}
	few.gone(t, "failing")
}

// A rejection with Reschedule-After sends a dead letter and makes the key due again, as a new occurrence.
func TestRejection_WithATimeBringsTheKeyBack(t *testing.T) {
	t.Parallel()
	const key = "rejected-again"
	lettered.answer(key, script(status(500), status(422, "Reschedule-After", "1h")))
	v := lettered.put(t, key, `{"event":{"type":"x","data":1}}`)
	lettered.next(t, key)
	lettered.next(t, key)
	if d := sink.Next(t, "dead-letters", key); d.Attr("knativeerrorcode") != "422" || d.Attempt != 1 {
		t.Errorf("%v", d.Attributes)
	}
	g := lettered.settled(t, key)
	if wait := g.DueAt.Sub(v.DueAt); g.State != "waiting" || *g.Attempt != 0 || g.Revision <= v.Revision || wait < time.Hour || wait > time.Hour+time.Minute {
		t.Errorf("%+v", g)
	}
}

// A key with Reschedule-After is delivered again under a new id.
func TestRescheduleAfter_HasANewID(t *testing.T) {
	t.Parallel()
	const key = "again/ids"
	fast.answer(key, script(status(200, "Reschedule-After", "0.02"), status(202, "Reschedule-After", "0"), status(204, "Reschedule-After", "20ms"), status(204)))
	fast.put(t, key, "")
	ids := map[string]bool{}
	var last *harness.Delivery
	for range 4 {
		d := fast.next(t, key)
		if ids[d.Attr("id")] || last != nil && (d.Revision <= last.Revision || d.DueAt.Before(last.At)) {
			t.Errorf("%v", d.Attributes)
		}
		ids[d.Attr("id")], last = true, d
	}
	fast.gone(t, key)
}

// maxInterval brings a successful key back.
func TestMaxInterval_BringsASuccessBack(t *testing.T) {
	t.Parallel()
	v := steady.put(t, "interval", `{"event":{"type":"x"}}`)
	d := steady.next(t, "interval")
	g := steady.settled(t, "interval")
	if g.DueAt.Sub(d.At) < time.Hour || g.Revision <= v.Revision || g.Event["type"] != "x" || g.MaxInterval != "" {
		t.Errorf("%+v", g)
	}
	steady.put(t, "interval/own", `{"maxInterval":"20ms"}`)
	first := steady.next(t, "interval/own")
	second := steady.next(t, "interval/own")
	if second.At.Sub(first.At) < 20*time.Millisecond || second.Attr("id") == first.Attr("id") {
		t.Errorf("%s later, %v", second.At.Sub(first.At), second.Attributes)
	}
	steady.cancel(t, "interval/own")
	steady.put(t, "interval/off", `{"maxInterval":"0s"}`)
	steady.next(t, "interval/off")
	steady.gone(t, "interval/off")
}

// An event in the answer sets the time and the next event.
func TestReply_SetsTimeAndEvent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		ext     map[string]any
		header  string
		again   bool
		atLeast time.Duration
	}{
		{"after", map[string]any{"rescheduleafter": "5m"}, "", true, 5 * time.Minute},
		{"at", map[string]any{"rescheduleat": time.Now().Add(time.Hour)}, "", true, 50 * time.Minute},
		{"neither", map[string]any{}, "", false, 0},
		{"header decides", map[string]any{"rescheduleafter": "5m"}, "2h", true, 2 * time.Hour},
		{"never", map[string]any{"rescheduleafter": "5m"}, "never", false, 0},
		{"seconds", map[string]any{"rescheduleafter": 300}, "", true, 5 * time.Minute},
	} {
		key := "reply/" + c.name
		answer, got := received(t, func(cloudevents.Event) (*cloudevents.Event, cloudevents.Result) {
			e := cloudevents.NewEvent()
			e.SetID("reply")
			e.SetSource("/replier")
			e.SetType("dev.example.next")
			e.SetSubject("next")
			e.SetExtension("team", "b")
			e.SetExtension("reschedulekey", "ignored")
			for name, value := range c.ext {
				e.SetExtension(name, value)
			}
			return &e, e.SetData("application/json", []int{2})
		})
		plain.answer(key, func(w http.ResponseWriter, r *http.Request, d *harness.Delivery) {
			if c.header != "" {
				w.Header().Set("Reschedule-After", c.header)
			}
			answer(w, r, d)
		})
		plain.put(t, key, `{"event":{"type":"first","ext":"e"}}`)
		d := plain.next(t, key)
		<-got
		if !c.again {
			plain.gone(t, key)
			continue
		}
		g := plain.settled(t, key)
		data, _ := json.Marshal(g.Event["data"])
		if g.DueAt.Sub(d.At) < c.atLeast || g.DueAt.Sub(d.At) > c.atLeast+15*time.Minute || g.Event["type"] != "dev.example.next" || g.Event["subject"] != "next" || g.Event["team"] != "b" || string(data) != "[2]" || g.Event["ext"] != nil {
			t.Errorf("%s: after %s %+v", c.name, g.DueAt.Sub(d.At), g)
		}
		plain.answer(key, harness.Status(204))
		plain.put(t, key, "")
		if e := plain.next(t, key); e.Attr("source") != "/replier" || e.Attr("type") != "dev.example.next" || string(e.Body) != "[2]" || e.Key != key || e.Attr("id") == "reply" {
			t.Errorf("%s: delivered %v %s", c.name, e.Attributes, e.Body)
		}
	}
	if _, ok := plain.look(t, "ignored"); ok {
		t.Error("a key in the reply is ignored")
	}
}

// If a newer occurrence waits, the sooner time wins and the newer event stays.
func TestReply_SoonerTimeNewerEvent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, delay, answer string
		due                 time.Duration
	}{{"sooner answer", "2h", "1h", time.Hour}, {"later answer", "30m", "1h", 30 * time.Minute}} {
		key := "newer/" + c.name
		answer, release := hold()
		plain.answer(key, answer)
		plain.put(t, key, `{"event":{"type":"old"}}`)
		d := plain.next(t, key)
		v := plain.put(t, key, `{"event":{"type":"new"},"delay":"`+c.delay+`"}`)
		release <- status(200, "Reschedule-After", c.answer)
		g := plain.settled(t, key)
		if g.Event["type"] != "new" || g.DueAt.Sub(d.At) < c.due || g.DueAt.Sub(d.At) > c.due+10*time.Minute || (g.Revision > v.Revision) != (c.name == "sooner answer") {
			t.Errorf("%s: %+v", c.name, g)
		}
	}
}

// The attempt counter counts failed runs in a row.
func TestAttempt_CountsFailuresInARow(t *testing.T) {
	t.Parallel()
	attempt := func(key string, want int) {
		t.Helper()
		if v := fast.settled(t, key); *v.Attempt != want {
			t.Errorf("%s: attempt %d, want %d", key, *v.Attempt, want)
		}
	}
	const long = `{"backoff":{"base":"300s"}}`
	failed := func(key string) {
		fast.answer(key, status503(900))
		fast.put(t, key, "")
		fast.next(t, key)
		attempt(key, 1)
	}
	failed("counter/backoff")
	fast.put(t, "counter/backoff", long)
	attempt("counter/backoff", 2)
	failed("counter/merge")
	fast.put(t, "counter/merge", `{"policy":"earliest","delay":"1h"}`)
	attempt("counter/merge", 0)
	failed("counter/keep")
	fast.put(t, "counter/keep", `{"policy":"keep","delay":"1h"}`)
	attempt("counter/keep", 1)
	failed("counter/delete")
	fast.cancel(t, "counter/delete")
	fast.put(t, "counter/delete", long)
	attempt("counter/delete", 1)
	failed("counter/event")
	fast.ingest(t, "Ce-Reschedulekey", "counter/event", "Ce-Rescheduleafter", "1h")
	attempt("counter/event", 1)
	failed("counter/event replaces")
	fast.ingest(t, "Ce-Reschedulekey", "counter/event replaces", "Ce-Rescheduleafter", "1h", "Ce-Reschedulepolicy", "replace")
	attempt("counter/event replaces", 1)
	failed("counter/uid")
	fast.put(t, "counter/uid", `{"uid":"a","delay":"1h"}`)
	fast.put(t, "counter/uid", `{"uid":"a","backoff":{"base":"1h"}}`)
	fast.put(t, "counter/uid", `{"uid":"b","backoff":{"base":"1h"}}`)
	attempt("counter/uid", 1)

	// A 2xx sets it to 0, but not the attempt of an occurrence that was scheduled meanwhile.
	answer, release := hold()
	fast.answer("counter/during", answer)
	fast.put(t, "counter/during", "")
	fast.next(t, "counter/during")
	fast.put(t, "counter/during", long)
	release <- status(204)
	attempt("counter/during", 1)
	fast.answer("counter/during", script(status(200, "Reschedule-After", "1h")))
	fast.put(t, "counter/during", `{"policy":"earliest","backoff":{"base":"1ms"}}`)
	if d := fast.next(t, "counter/during"); d.Attempt != 2 {
		t.Errorf("attempt %d in the event", d.Attempt)
	}
	attempt("counter/during", 0)
}

// A run that ends with success after failures forgets them.
func TestAttempt_SuccessForgetsFailures(t *testing.T) {
	t.Parallel()
	fast.answer("forgets", script(status(500), status(500), status(200, "Reschedule-After", "0"), status(204)))
	fast.put(t, "forgets", "")
	for _, want := range []int{0, 1, 2, 0} {
		if d := fast.next(t, "forgets"); d.Attempt != want {
			t.Errorf("attempt %d, want %d", d.Attempt, want)
		}
	}
}
