package sink

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// A sink whose answers cannot be read does not fill the log.
func TestWarnings_OfOneSourceAreBounded(t *testing.T) {
	t.Parallel()
	url, _ := sinkOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Reschedule-After", "soon")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	s, log := newSender(t)
	src := attempt(url).Source
	begin := time.Now()
	for range 100 {
		send(t, s, attempt(url, func(a *schedule.Attempt) { a.Source = src }))
	}
	most := warningLines * (1 + int(time.Since(begin)/time.Second))
	if n := log.warnings(); n < warningLines || n > most {
		t.Errorf("%d lines, not %d to %d", n, warningLines, most)
	}
	send(t, s, attempt(url)) // another source
	if n := log.warnings(); n > most+1 {
		t.Errorf("%d lines", n)
	}
}

// impatient senders wait so long for what follows the headers of an answer.
const impatient = 100 * time.Millisecond

func impatientSender(t *testing.T, change ...func(*Config)) (*Sender, *logs) {
	s, l := newSender(t, change...)
	s.drainTimeout, s.replyTimeout = impatient, impatient
	return s, l
}

// half answers with what head says and half a body, and then with nothing more.
func half(head func(http.Header), code int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		head(w.Header())
		w.WriteHeader(code)
		io.WriteString(w, `{"specversion":`)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

var binaryReply = func(h http.Header) {
	for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "r", "Ce-Source": "/sink", "Ce-Type": "t", "Ce-Rescheduleafter": "5m"} {
		h.Set(name, value)
	}
}

// When the body of an answer does not end, status and headers decide the outcome, without a wait for delivery.timeout.
// An event in structured mode has its wait in the body: without it the attempt fails.
func TestAnswer_StatusDecidesWhenTheBodyHangs(t *testing.T) {
	t.Parallel()
	failure := func(code int) schedule.Failure { return schedule.Failure{Code: code, Data: []byte(`{"specversion":`)} }
	for name, tt := range map[string]struct {
		code     int
		head     func(http.Header)
		want     schedule.Outcome
		warnings int
	}{
		"2xx": {200, func(http.Header) {}, schedule.Outcome{Kind: schedule.Succeeded}, 0},
		"2xx with the header": {200, func(h http.Header) { h.Set("Reschedule-After", "7") },
			schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: 7 * time.Second}}, 0},
		"2xx that says never": {200, func(h http.Header) { binaryReply(h); h.Set("Reschedule-After", "never") },
			schedule.Outcome{Kind: schedule.Succeeded, Never: true}, 0},
		"2xx with a priority": {200, func(h http.Header) { h.Set("Reschedule-Priority", "low") },
			schedule.Outcome{Kind: schedule.Succeeded, Priority: new(schedule.LowPriority)}, 0},
		"2xx with a priority that is none": {200, func(h http.Header) { h.Set("Reschedule-Priority", "5") },
			schedule.Outcome{Kind: schedule.Succeeded}, 1},
		"503 with a priority": {503, func(h http.Header) { h.Set("Reschedule-Priority", "high") },
			schedule.Outcome{Kind: schedule.Failed, Priority: new(schedule.HighPriority), Failure: failure(503)}, 0},
		"half a structured event": {200, func(h http.Header) { h.Set("Content-Type", "application/cloudevents+json") },
			schedule.Outcome{Kind: schedule.Failed, Failure: schedule.Failure{Code: 200, Data: []byte("the reply did not come within 100ms")}}, 0},
		"half a structured event with the header": {200, func(h http.Header) {
			h.Set("Content-Type", "application/cloudevents+json")
			h.Set("Reschedule-After", "7")
		}, schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: 7 * time.Second}}, 1},
		"half of an event's data": {200, binaryReply, schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: 5 * time.Minute}}, 1},
		"503 with Retry-After": {503, func(h http.Header) { h.Set("Retry-After", "1") },
			schedule.Outcome{Kind: schedule.Failed, RetryAfter: time.Second, Failure: failure(503)}, 0},
		"400": {400, func(http.Header) {}, schedule.Outcome{Kind: schedule.Rejected, Failure: failure(400)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, _ := sinkOf(t, half(tt.head, tt.code))
			s, l := impatientSender(t)
			if tt.want.Failure.Code != 0 {
				tt.want.Failure.Dest = url
			}
			if d := cmp.Diff(tt.want, send(t, s, attempt(url, withTimeout(time.Hour))), butStatus); d != "" {
				t.Error(d)
			}
			if l.warnings() != tt.warnings {
				t.Errorf("%d warnings, want %d", l.warnings(), tt.warnings)
			}
		})
	}
}

// A reply that does not end was waited for longer than delivery.timeout.
func TestAnswer_EndsWithTheTimeout(t *testing.T) {
	t.Parallel()
	url, _ := sinkOf(t, half(func(h http.Header) { h.Set("Content-Type", "application/cloudevents+json") }, 200))
	s, _ := newSender(t) // its patience with a reply is half a minute
	timeout, start := impatient, time.Now()
	for send(t, s, attempt(url, withTimeout(timeout))).Failure.Code != 200 {
		// The status decides, which comes later on a busy machine.
		if timeout *= 2; timeout > replyTime/4 {
			t.Fatal("the status did not decide")
		}
		start = time.Now()
	}
	if took := time.Since(start); took > replyTime/2 {
		t.Errorf("the attempt took %s, with a timeout of %s", took, timeout)
	}
}

// A 2xx answer whose connection breaks is a success when its headers have the wait.
func TestAnswer_BreaksOffAndIsDoneAllTheSame(t *testing.T) {
	t.Parallel()
	url, _ := sinkOf(t, func(w http.ResponseWriter, _ *http.Request) {
		binaryReply(w.Header())
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "short")
	})
	s, l := newSender(t)
	want := schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: 5 * time.Minute}}
	if d := cmp.Diff(want, send(t, s, attempt(url)), butStatus); d != "" {
		t.Error(d)
	}
	if l.warnings() != 1 {
		t.Errorf("%d warnings", l.warnings())
	}
}

// A large reply for which there is no memory is not read, but its time counts. A small reply needs none.
func TestReply_ThatFindsNoMemoryKeepsItsTime(t *testing.T) {
	t.Parallel()
	for size, whole := range map[int]bool{1000: true, freeReply - 1: true, freeReply + 1: false} {
		url, _ := sinkOf(t, func(w http.ResponseWriter, _ *http.Request) {
			binaryReply(w.Header())
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, strings.Repeat("x", size))
		})
		s, l := impatientSender(t, func(c *Config) { c.ReplyBytes = replyCopies * freeReply })
		o := send(t, s, attempt(url))
		if o.Again == nil || o.Again.After != 5*time.Minute || (o.Again.Reply != nil) != whole || (l.warnings() == 0) != whole {
			t.Errorf("%d bytes: %+v, %d warnings", size, o, l.warnings())
		}
		if n := s.replies.Used(); n != 0 {
			t.Errorf("%d bytes: %d of the memory are still held", size, n)
		}
	}
}

// Large replies share buffers, but later ones change nothing of an earlier event.
func TestReply_KeepsItsDataWhileOthersCome(t *testing.T) {
	t.Parallel()
	data := func(i int) string { return strings.Repeat(string(rune('a'+i%26)), freeReply/8<<(i%7)) }
	var calls atomic.Int32
	url, _ := sinkOf(t, func(w http.ResponseWriter, _ *http.Request) {
		i := int(calls.Add(1)) - 1
		switch i % 3 {
		case 0:
			binaryReply(w.Header())
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, data(i))
		case 1:
			w.Header().Set("Content-Type", "application/cloudevents+json")
			fmt.Fprintf(w, `{"specversion":"1.0","id":"r","source":"/sink","type":"t","rescheduleafter":"5m","datacontenttype":"text/plain","data":%q}`, data(i))
		default: // an event that does not ask for the key
			w.Header().Set("Content-Type", "application/cloudevents+json")
			fmt.Fprintf(w, `{"specversion":"1.0","id":"r","source":"/sink","type":"t","data":%q}`, strings.Repeat("-", freeReply<<5))
		}
	})
	s, _ := newSender(t)
	var kept []*schedule.Event
	for i := range 60 {
		o := send(t, s, attempt(url))
		if (o.Again != nil && o.Again.Reply != nil) != (i%3 < 2) {
			t.Fatalf("reply %d: %+v", i, o)
		}
		if i%3 < 2 {
			kept = append(kept, o.Again.Reply)
		}
	}
	for n, e := range kept {
		if i := n/2*3 + n%2; string(e.Data) != data(i) {
			t.Errorf("reply %d has %d bytes that begin with %.3q, want %d of %.1q", i, len(e.Data), e.Data, len(data(i)), data(i))
		}
	}
}

// A letter has no next time: the status alone decides, whatever wait its answer has.
func TestDeadLetter_TakenOnceWhateverIsReplied(t *testing.T) {
	t.Parallel()
	for name, head := range map[string]func(http.Header){
		"a header that is no wait": func(h http.Header) { h.Set("Reschedule-After", "7x") },
		"a wait":                   func(h http.Header) { h.Set("Reschedule-After", "5m") },
		"never":                    func(h http.Header) { h.Set("Reschedule-After", "never") },
		"an event with a wait":     binaryReply,
		"half a structured event":  func(h http.Header) { h.Set("Content-Type", "application/cloudevents+json") },
	} {
		url, _ := sinkOf(t, half(head, http.StatusAccepted))
		s, l := impatientSender(t)
		letter := attempt(url, withTimeout(time.Hour), func(a *schedule.Attempt) { a.Entry.DeadLetter = &schedule.DeadLetter{Key: a.Key} })
		want := schedule.Outcome{Kind: schedule.Succeeded, Status: http.StatusAccepted}
		if d := cmp.Diff(want, send(t, s, letter)); d != "" || l.warnings() > 0 {
			t.Errorf("%s: %d warnings, %s", name, l.warnings(), d)
		}
	}
}
