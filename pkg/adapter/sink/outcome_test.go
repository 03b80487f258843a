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

// Every status has one meaning.
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

// A redirect is not followed.
func TestRedirect_IsNotFollowed(t *testing.T) {
	t.Parallel()
	var followed atomic.Int32
	for _, code := range []int{300, 301, 302, 303, 304, 305, 307, 308} {
		url, _ := sinkOf(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/" {
				followed.Add(1)
				return
			}
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(code)
		})
		s, _ := newSender(t)
		o := send(t, s, attempt(url+"/"))
		if o.Kind != schedule.Rejected || o.Failure.Code != code || o.Failure.Dest != url+"/" {
			t.Errorf("%d: %+v", code, o)
		}
	}
	if followed.Load() != 0 {
		t.Errorf("%d redirects were followed", followed.Load())
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

// Retry-After applies to 429 and 503 only.
func TestRetryAfter_On429And503Only(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		code  int
		value string
		want  time.Duration
	}{
		{429, "120", 2 * time.Minute},
		{503, "120", 2 * time.Minute},
		{500, "120", 0},
		{404, "120", 0},
		{429, "1.5", 1500 * time.Millisecond},
		{429, "0", 0},
		{429, "-5", 0},
		{429, "soon", 0},
		{429, "1h", time.Hour},
		{503, now.Add(90 * time.Second).Format(http.TimeFormat), 90 * time.Second},
		{503, now.Add(-90 * time.Second).Format(http.TimeFormat), 0},
		{503, "99999999999999999999", schedule.MaxDuration},
	} {
		url, _ := sinkOf(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", tt.value)
			w.WriteHeader(tt.code)
		})
		s, _ := newSender(t, func(c *Config) { c.Now = func() time.Time { return now } })
		if o := send(t, s, attempt(url)); o.Kind != schedule.Failed || o.RetryAfter != tt.want {
			t.Errorf("%d, Retry-After %q: %+v, want %s", tt.code, tt.value, o, tt.want)
		}
	}
}

// Reschedule-After on a failing answer sets the next time. "never" and values that cannot be read are ignored.
func TestRescheduleAfter_OnFailingAnswers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code  int
		value string
		want  *schedule.RescheduleAfter
	}{
		{500, "5m", &schedule.RescheduleAfter{After: 5 * time.Minute}},
		{404, "90", &schedule.RescheduleAfter{After: 90 * time.Second}},
		{503, "0", &schedule.RescheduleAfter{}},
		{400, "PT1H", &schedule.RescheduleAfter{After: time.Hour}},
		{301, "1s", &schedule.RescheduleAfter{After: time.Second}},
		{500, "never", nil},
		{422, "never", nil},
		{500, "-5m", &schedule.RescheduleAfter{}},
		{500, "", nil},
		{409, "soon", nil},
	} {
		url, _ := sinkOf(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Reschedule-After", tt.value)
			w.WriteHeader(tt.code)
		})
		s, _ := newSender(t)
		if o := send(t, s, attempt(url)); o.Kind != kind(tt.code) || o.Never || o.Failure.Code != tt.code || !cmp.Equal(o.Again, tt.want) {
			t.Errorf("%d, Reschedule-After %q: %+v, want %+v", tt.code, tt.value, o, tt.want)
		}
	}
}

// The Reschedule-After header is read as documented. A value that cannot be read must not end the key: the attempt fails,
// and its detail quotes the value.
func TestRescheduleAfter_OnSuccess(t *testing.T) {
	t.Parallel()
	ok := func(d time.Duration) schedule.Outcome {
		return schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: d}}
	}
	bad := schedule.Outcome{Kind: schedule.Failed}
	for _, tt := range []struct {
		value string
		want  schedule.Outcome
	}{
		{"5m", ok(5 * time.Minute)},
		{"PT5M", ok(5 * time.Minute)},
		{"P1DT1H", ok(25 * time.Hour)},
		{"90", ok(90 * time.Second)},
		{"0.25", ok(250 * time.Millisecond)},
		{"0.0000000001", ok(1)},
		{"0", ok(0)},
		{"0s", ok(0)},
		{"never", schedule.Outcome{Kind: schedule.Succeeded, Never: true}},
		{"-1", ok(0)},
		{"-5m", ok(0)},
		{"1e3", ok(1000 * time.Second)},
		{"999999h", ok(schedule.MaxDuration)},
		{"3155760000", ok(schedule.MaxDuration)},
		{"3155760001", ok(schedule.MaxDuration)},
		{"NaN", bad},
		{"0x10", bad},
		{"soon", bad},
		{"", bad},
		{"7x", bad},
		{"2026-11-21T09:00:00Z", bad},
		{"Sat, 21 Nov 2026 09:00:00 GMT", bad},
	} {
		for _, code := range []int{200, 202, 204} {
			url, _ := sinkOf(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Reschedule-After", tt.value)
				w.WriteHeader(code)
			})
			s, _ := newSender(t)
			if tt.want.Kind == schedule.Failed {
				_, err := schedule.ParseWait("Reschedule-After", tt.value)
				tt.want.Failure = schedule.Failure{Dest: url, Code: code, Data: []byte(err.Error())}
			}
			if d := cmp.Diff(tt.want, send(t, s, attempt(url)), butStatus); d != "" {
				t.Errorf("%q on %d: %s", tt.value, code, d)
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
	for name, start := range map[string]func(http.ResponseWriter){
		"no answer": func(http.ResponseWriter) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			arrived, closed := make(chan struct{}, 8), make(chan struct{}, 8)
			url, _ := sinkOf(t, func(w http.ResponseWriter, r *http.Request) {
				arrived <- struct{}{}
				start(w)
				<-r.Context().Done()
				closed <- struct{}{}
			})
			s, _ := newSender(t)
			for timeout := 500 * time.Millisecond; len(arrived) == 0; timeout *= 2 { // on a busy machine
				o := send(t, s, attempt(url, withTimeout(timeout)))
				if o.Kind != schedule.Failed || o.Failure.Code != 0 || !strings.Contains(string(o.Failure.Data), errTimeout.Error()) {
					t.Errorf("%+v %s", o, o.Failure.Data)
				}
			}
			<-closed
		})
	}
}

// A shutdown aborts.
func TestShutdown_Aborts(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	url, _ := sinkOf(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	s, _ := newSender(t)
	ctx, stop := context.WithCancelCause(context.Background())
	go func() {
		<-arrived
		stop(errors.New("stopping"))
	}()
	if d := cmp.Diff(schedule.Outcome{Kind: schedule.Aborted}, s.Send(ctx, attempt(url))); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(schedule.Outcome{Kind: schedule.Aborted}, s.Send(ctx, attempt(url))); d != "" {
		t.Errorf("one that never started: %s", d)
	}
}

// A shutdown aborts an attempt whose wait is not read yet: it must not count as a failed one.
func TestShutdown_AbortsHalfAReply(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancelCause(context.Background())
	url, _ := sinkOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/cloudevents+json")
		io.WriteString(w, "{")
		w.(http.Flusher).Flush()
		stop(errors.New("stopping"))
		<-r.Context().Done()
	})
	s, _ := newSender(t)
	if d := cmp.Diff(schedule.Outcome{Kind: schedule.Aborted}, s.Send(ctx, attempt(url))); d != "" {
		t.Error(d)
	}
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

// Endless headers are a failure.
func TestHeaders_EndlessAreAFailure(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	written := make(chan int, 1)
	go func() {
		n := 0
		defer func() { written <- n }()
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		for n < 64<<20 {
			k, err := io.WriteString(c, "X-Junk: "+strings.Repeat("j", 4000)+"\r\n")
			if n += k; err != nil {
				return
			}
		}
	}()
	s, _ := newSender(t)
	if o := send(t, s, attempt("http://"+l.Addr().String())); o.Kind != schedule.Failed {
		t.Errorf("%+v", o)
	}
	if n := <-written; n > 16<<20 { // most of it fills socket buffers
		t.Errorf("%d bytes of headers were taken", n)
	}
}

// Connections are used again.
func TestConnections_AreReused(t *testing.T) {
	t.Parallel()
	var opened atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		send(t, s, attempt(srv.URL+"/"+strings.Repeat("p", i)))
	}
	if opened.Load() != 1 {
		t.Errorf("%d connections for 20 attempts", opened.Load())
	}
}

// The owner of a source learns of a wait that cannot be read in an answer that fails anyway.
func TestFailure_UnreadableWaitIsTold(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status        int
		header, value string
		told          string
	}{
		"retried":             {503, "Reschedule-After", "7x", `GitRepo/team-a/site: Reschedule-After: "7x" is not a duration`},
		"not retried":         {422, "Reschedule-After", "tomorrow", `GitRepo/team-a/site: Reschedule-After: "tomorrow" is not a duration`},
		"Retry-After":         {429, "Retry-After", "soon", `GitRepo/team-a/site: Retry-After: "soon" is not a duration`},
		"Retry-After as date": {429, "Retry-After", "Sat, 21 Nov 2026 09:00:00 GMT", ""},
		"of another status":   {500, "Retry-After", "soon", ""},
	} {
		url, _ := sinkOf(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(tt.header, tt.value)
			w.WriteHeader(tt.status)
		})
		s, l := newSender(t)
		if o := send(t, s, attempt(url)); o.Again != nil || o.RetryAfter != 0 {
			t.Errorf("%s: %+v", name, o)
		}
		if got := strings.Join(l.told, ", "); !strings.HasPrefix(got, tt.told) || tt.told == "" && got != "" {
			t.Errorf("%s: told %q, want %q", name, got, tt.told)
		}
	}
}
