package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Every status has one meaning, and no redirect is followed.
func TestStatus_HasOneMeaning(t *testing.T) {
	t.Parallel()
	url, _ := sinkOf(t, func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.URL.Query().Get("code"))
		if code < 200 {
			// net/http has no way to end with a 1xx; write the bytes.
			c, buf, _ := w.(http.Hijacker).Hijack()
			fmt.Fprintf(buf, "HTTP/1.1 %d Odd\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", code)
			buf.Flush()
			c.Close()
			return
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(code)
	})
	s, _ := newSender(t)
	retried := map[int]bool{401: true, 403: true, 404: true, 408: true, 409: true, 421: true, 429: true}
	codes := []int{101}
	for code := 200; code <= 999; code++ {
		codes = append(codes, code)
	}
	for _, code := range codes {
		want := schedule.Rejected
		switch {
		case code >= 200 && code < 300:
			want = schedule.Succeeded
		case code >= 500 && code < 600 || retried[code]:
			want = schedule.Failed
		}
		o := send(t, s, attempt(url+"/?code="+strconv.Itoa(code)))
		if o.Kind != want {
			t.Errorf("status %d: kind %d, want %d", code, o.Kind, want)
		}
		if want != schedule.Succeeded && o.Failure.Code != code {
			t.Errorf("status %d: failure says %d", code, o.Failure.Code)
		}
		if o.Again != nil || o.Never || o.RetryAfter != 0 {
			t.Errorf("status %d: unasked-for %+v", code, o)
		}
	}
}

// A failure carries the start of the body.
func TestFailure_CarriesTheStartOfTheBody(t *testing.T) {
	t.Parallel()
	url, _ := sinkOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, strings.Repeat("x", 5000))
	})
	s, _ := newSender(t)
	withUser := strings.Replace(url, "http://", "http://me:secret@", 1)
	got := send(t, s, attempt(withUser))
	want := schedule.Outcome{Kind: schedule.Rejected, Failure: schedule.Failure{
		Dest: strings.Replace(url, "http://", "http://me:xxxxx@", 1), Code: 400, Data: []byte(strings.Repeat("x", 1024)),
	}}
	if d := cmp.Diff(want, got, butStatus); d != "" {
		t.Error(d)
	}
}

// The waits of an answer are read as documented, Retry-After on 429 and 503 only. A value that cannot be read must not
// end the key: a 2xx with it fails, and its detail quotes the value; of an answer that fails anyway the owner is told.
// An answer that can carry no wait, or says it twice, made a done run a failed one, again and again.
func TestAnswer_Waits(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	again := func(d time.Duration) schedule.Outcome {
		return schedule.Outcome{Again: &schedule.RescheduleAfter{After: d}}
	}
	retry := func(d time.Duration) schedule.Outcome { return schedule.Outcome{RetryAfter: d} }
	none, never := schedule.Outcome{}, schedule.Outcome{Never: true}
	unreadable := schedule.Outcome{Failure: schedule.Failure{Data: []byte(" is not a duration")}}
	const inAMinute, aMinuteAgo = "Sat, 21 Nov 2026 09:01:00 GMT", "Sat, 21 Nov 2026 08:59:00 GMT"
	for _, tt := range []struct {
		codes, header string
		values        string // one each, separated by |; of several lines
		want          schedule.Outcome
	}{
		{"200 202 204", "Reschedule-After", "5m|PT5M|300|5m\n5m|5m, 5m", again(5 * time.Minute)}, // a proxy may have joined lines
		{"200 202 204", "Reschedule-After", "P1DT1H", again(25 * time.Hour)},
		{"200 202 204", "Reschedule-After", "0.25", again(250 * time.Millisecond)},
		{"200 202 204", "Reschedule-After", "0.0000000001", again(1)},
		{"200 202 204", "Reschedule-After", "0|0s|-1|-5m", again(0)},
		{"200 202 204", "Reschedule-After", "1e3", again(1000 * time.Second)},
		{"200 202 204", "Reschedule-After", "999999h|3155760000|3155760001", again(schedule.MaxDuration)},
		{"200 202 204", "Reschedule-After", "never| NEVER|never\nnever", never},
		{"200 202 204", "Reschedule-After", "NaN|0x10|soon||7x|2026-11-21T09:00:00Z|" + inAMinute + "|5m\n6m", unreadable},
		{"200 202 204", "Ce-Rescheduleafter", "5m\n5m", again(5 * time.Minute)}, // of what is no event, which is told
		{"200 204", "Content-Type", "application/cloudevents+json", none},       // and a coding, see below

		{"500 404 503 400 301", "Reschedule-After", "5m", again(5 * time.Minute)},
		{"500 503", "Reschedule-After", "0|-5m", again(0)},
		{"500 422", "Reschedule-After", "never", none},
		{"500 409 503 422", "Reschedule-After", "7x|tomorrow|", unreadable},

		{"429 503", "Retry-After", "120|2m", retry(2 * time.Minute)},
		{"429", "Retry-After", "1.5", retry(1500 * time.Millisecond)},
		{"429 503", "Retry-After", inAMinute, retry(time.Minute)},
		{"503", "Retry-After", "99999999999999999999", retry(schedule.MaxDuration)},
		{"429", "Retry-After", "0|-5|" + aMinuteAgo, none},
		{"429", "Retry-After", "soon", unreadable},
		{"500 404", "Retry-After", "120|soon", none},
	} {
		for code := range strings.FieldsSeq(tt.codes) {
			code, _ := strconv.Atoi(code)
			for value := range strings.SplitSeq(tt.values, "|") {
				url, _ := sinkOf(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header()[tt.header] = strings.Split(value, "\n")
					if tt.header == "Content-Type" {
						w.Header().Set("Content-Encoding", "gzip")
					}
					w.WriteHeader(code)
				})
				s, l := newSender(t, func(c *Config) { c.Now = func() time.Time { return now } })
				got, want, unreadable := send(t, s, attempt(url)), tt.want, tt.want.Failure.Data != nil
				if want.Kind = kind(code); want.Kind == schedule.Succeeded && unreadable {
					want.Kind = schedule.Failed
					l.told = append(l.told, "GitRepo/team-a/site: "+string(got.Failure.Data))
				}
				if want.Failure = (schedule.Failure{}); want.Kind != schedule.Succeeded {
					want.Failure = schedule.Failure{Dest: url, Code: code, Data: got.Failure.Data}
				}
				if d := cmp.Diff(want, got, butStatus); d != "" {
					t.Errorf("%s %q on %d: %s", tt.header, value, code, d)
				}
				told := fmt.Sprintf("GitRepo/team-a/site: %s: %q is not a duration", tt.header, strings.ReplaceAll(value, "\n", ", "))
				if unreadable != (len(l.told) == 1) && tt.header != "Ce-Rescheduleafter" || unreadable && !strings.HasPrefix(l.told[0], told) {
					t.Errorf("%s %q on %d: told %q", tt.header, value, code, l.told)
				}
			}
		}
	}
}

// A shutdown aborts, also an attempt whose wait is not read yet: it must not count as a failed one.
func TestShutdown_Aborts(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(http.ResponseWriter){
		"before an answer": func(http.ResponseWriter) {},
		"in a reply": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/cloudevents+json")
			io.WriteString(w, "{")
			w.(http.Flusher).Flush()
		},
	} {
		ctx, stop := context.WithCancelCause(context.Background())
		url, _ := sinkOf(t, func(w http.ResponseWriter, r *http.Request) {
			begin(w)
			stop(errors.New("stopping"))
			<-r.Context().Done()
		})
		s, _ := newSender(t)
		for _, when := range []string{name, "before it started"} {
			if d := cmp.Diff(schedule.Outcome{Kind: schedule.Aborted}, s.Send(ctx, attempt(url))); d != "" {
				t.Errorf("%s: %s", when, d)
			}
		}
	}
}

// No connection is a failure.
func TestConnection_NoneIsAFailure(t *testing.T) {
	t.Parallel()
	refused := httptest.NewServer(nil)
	refused.Close()
	s, _ := newSender(t)
	for name, url := range map[string]string{
		"refused":      refused.URL,
		"no host":      "http://",
		"not HTTP":     "ftp://example.com",
		"not a URL":    "http://[::1",
		"bad escaping": "http://x/%zz",
	} {
		o := send(t, s, attempt(url))
		if o.Kind != schedule.Failed || o.Failure.Code != 0 || !strings.HasPrefix(string(o.Failure.Data), "dispatch error: ") {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// A timeout fails and closes the connection.
func TestTimeout_FailsAndCloses(t *testing.T) {
	t.Parallel()
	arrived, closed := make(chan struct{}, 8), make(chan struct{}, 8)
	url, _ := sinkOf(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
		closed <- struct{}{}
	})
	s, _ := newSender(t)
	for timeout := 500 * time.Millisecond; len(arrived) == 0; timeout *= 2 { // on a busy machine
		o := send(t, s, attempt(url, withTimeout(timeout)))
		if o.Kind != schedule.Failed || !o.TimedOut || o.Failure.Code != 0 || !strings.Contains(string(o.Failure.Data), errTimeout.Error()) {
			t.Errorf("%+v %s", o, o.Failure.Data)
		}
	}
	<-closed
}

// A deadline of the caller is a timeout.
func TestDeadline_OfTheCallerIsATimeout(t *testing.T) {
	t.Parallel()
	url, _ := sinkOf(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	s, _ := newSender(t)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if o := s.Send(ctx, attempt(url)); o.Kind != schedule.Failed {
		t.Errorf("%+v", o)
	}
}

// An endless answer costs a bounded amount.
func TestAnswer_EndlessIsBounded(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]schedule.OutcomeKind{200: schedule.Succeeded, 400: schedule.Rejected, 500: schedule.Failed} {
		url, _ := sinkOf(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			chunk := make([]byte, 32<<10)
			for {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		})
		s, _ := newSender(t)
		if o := send(t, s, attempt(url)); o.Kind != want || len(o.Failure.Data) > schedule.MaxFailureData {
			t.Errorf("%d: kind %d with %d bytes", code, o.Kind, len(o.Failure.Data))
		}
	}
}

// Connections are used again, also after large requests, which are written while their answers are awaited.
func TestConnections_AreReused(t *testing.T) {
	t.Parallel()
	var opened atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, _ := io.Copy(io.Discard, r.Body); n != int64(len(r.URL.Path)%2*schedule.MaxDataBytes) {
			t.Errorf("a request of %d bytes", n)
		}
		w.WriteHeader([]int{200, 202, 204, 400, 500}[len(r.URL.Path)%5])
		if len(r.URL.Path)%5 != 2 {
			io.WriteString(w, strings.Repeat("x", 10_000))
		}
	}))
	srv.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	s, _ := newSender(t)
	for i := range 20 {
		send(t, s, attempt(srv.URL+"/"+strings.Repeat("p", i), []func(*schedule.Attempt){func(*schedule.Attempt) {}, large}[(i+1)%2]))
	}
	if opened.Load() != 1 {
		t.Errorf("%d connections for 20 attempts", opened.Load())
	}
}
