package sink

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// headersOf are the attributes and our own headers of a request.
func headersOf(r request) map[string]string {
	m := map[string]string{}
	for name, v := range r.Header {
		switch name {
		case "User-Agent", "Content-Length", "Accept-Encoding":
		default:
			m[name] = strings.Join(v, ",")
		}
	}
	return m
}

// The headers of a binary delivery.
func TestBinary_Headers(t *testing.T) {
	t.Parallel()
	base := map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": "store-7",
		"Ce-Source": "/apis/sources.reschedule.dev/v1alpha1/namespaces/ops/reschedulesources/git-repos",
		"Ce-Type":   "dev.reschedule.due", "Ce-Subject": "GitRepo/team-a/site", "Ce-Time": "2026-11-21T09:00:00.123Z",
		"Ce-Reschedulekey": "GitRepo/team-a/site", "Ce-Reschedulerevision": "9",
		"Ce-Rescheduledueat": "2026-11-21T09:00:00.123Z", "Ce-Rescheduleattempt": "2",
		"Kn-Namespace": "ops", "Prefer": "reply",
	}
	with := func(changes map[string]string) map[string]string {
		m := maps.Clone(base)
		for k, v := range changes {
			if m[k] = v; v == "-" {
				delete(m, k)
			}
		}
		return m
	}
	own := time.Date(2020, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	for name, tt := range map[string]struct {
		change func(*schedule.Attempt)
		want   map[string]string
		body   string
	}{
		"the default event": {func(*schedule.Attempt) {}, base, ""},
		"a scheduled event": {
			withEvent(&schedule.Event{Type: "t", Subject: "s", Data: []byte(`{"a":1}`), DataSchema: "http://schema",
				Extensions: map[string]any{"s": "x", "b": true, "n": int32(-5)}}),
			with(map[string]string{"Ce-Type": "t", "Ce-Subject": "s", "Content-Type": "application/json", "Ce-Dataschema": "http://schema",
				"Ce-S": "x", "Ce-B": "true", "Ce-N": "-5"}), `{"a":1}`,
		},
		"an ingested event": {
			func(a *schedule.Attempt) {
				a.ID = "own-id"
				a.Entry.Event = &schedule.Event{ID: "own-id", Source: "/own", Time: own, Type: "t", Subject: "s", DataContentType: "text/plain", Data: []byte("hi"),
					Extensions: map[string]any{"reschedulekey": "lies", "empty": ""}}
			},
			with(map[string]string{"Ce-Id": "own-id", "Ce-Source": "/own", "Ce-Time": "2020-01-02T02:04:05.000000006Z", "Ce-Type": "t", "Ce-Subject": "s",
				"Content-Type": "text/plain", "Ce-Empty": ""}), "hi",
		},
		"an ingested event without a time or a subject": {
			func(a *schedule.Attempt) {
				a.ID = "own-id"
				a.Entry.Event = &schedule.Event{ID: "own-id", Source: "/own", Type: "t"}
			},
			with(map[string]string{"Ce-Id": "own-id", "Ce-Source": "/own", "Ce-Time": "-", "Ce-Type": "t"}), "",
		},
		"a reply's event": {
			withEvent(&schedule.Event{Source: "/sink", Type: "t", Subject: "s"}),
			with(map[string]string{"Ce-Source": "/sink", "Ce-Type": "t", "Ce-Subject": "s"}), "",
		},
		"percent-encoding": {
			func(a *schedule.Attempt) {
				a.Key = `a b"c%dé€` + "\U0001f600\x7f"
				a.Entry.Event = &schedule.Event{DataContentType: `text/plain; x="a b"`, Data: []byte("x")}
			},
			with(map[string]string{"Ce-Subject": "a%20b%22c%25d%C3%A9%E2%82%AC%F0%9F%98%80%7F", "Ce-Reschedulekey": "a%20b%22c%25d%C3%A9%E2%82%AC%F0%9F%98%80%7F",
				"Content-Type": `text/plain; x="a b"`}), "x",
		},
		"ceOverrides come last": {
			func(a *schedule.Attempt) {
				a.Entry.Event = &schedule.Event{Extensions: map[string]any{"team": "theirs"}}
				a.Source.Extensions = map[string]string{"team": "plat form"}
			},
			with(map[string]string{"Ce-Team": "plat%20form"}), "",
		},
		"a dead letter": {
			func(a *schedule.Attempt) {
				a.Entry = &schedule.Entry{Revision: 50, DueAt: dueAt.Add(time.Hour), DeadLetter: &schedule.DeadLetter{
					Key: a.Key, Due: dueAt, ID: a.ID, Attempt: 2, Revision: 9,
					Failure: schedule.Failure{Dest: "http://sink/", Code: 422, Data: []byte(strings.Repeat("z", 1024))},
				}}
			},
			with(map[string]string{"Ce-Knativeerrordest": "http://sink/", "Ce-Knativeerrorcode": "422",
				"Ce-Knativeerrordata": base64.StdEncoding.EncodeToString([]byte(strings.Repeat("z", 768)))}), "",
		},
		"a dead letter of a sink that never answered": {
			func(a *schedule.Attempt) {
				a.Entry.DeadLetter = &schedule.DeadLetter{Key: a.Key, Due: dueAt, Attempt: 2, Revision: 9, Failure: schedule.Failure{Dest: "http://sink/"}}
			},
			with(map[string]string{"Ce-Knativeerrordest": "http://sink/", "Ce-Knativeerrorcode": "500", "Ce-Knativeerrordata": ""}), "",
		},
	} {
		url, seen := sinkOf(t, nil)
		s, _ := newSender(t)
		delivers(t, s, attempt(url, tt.change))
		got := <-seen
		if d := cmp.Diff(tt.want, headersOf(got)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if string(got.body) != tt.body || got.Method != http.MethodPost || got.ContentLength != int64(len(tt.body)) {
			t.Errorf("%s: %s with %q, length %d", name, got.Method, got.body, got.ContentLength)
		}
	}
}

// A binary and a structured delivery have the same content.
func TestStructured_SameAsBinary(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]*schedule.Event{
		"default":                       nil,
		"json":                          {Type: "t", DataContentType: "application/json", Data: []byte(`{ "a" : "<&>\u00e9" }`), Extensions: map[string]any{"b": true, "n": int32(7), "s": "t"}},
		"text":                          {Type: "t", DataContentType: "text/plain", Data: []byte("hello\n\"you\"")},
		"binary":                        {Type: "t", DataContentType: "application/octet-stream", Data: []byte{0, 255, 1}},
		"base64":                        {Type: "t", DataContentType: "application/json", Data: []byte(`{"a":1}`), DataBase64: true},
		"suffix":                        {Type: "t", DataContentType: "application/vnd.x+json", Data: []byte(`{"a":1}`)},
		"own":                           {ID: "i", Source: "HTTP://Ex.com/%7Ea?#", Time: dueAt, Type: "t", Subject: "é x", DataSchema: "http://s/é"},
		"not the JSON it is said to be": {Type: "t", DataContentType: "application/json", Data: []byte(`{"a":`)},
	} {
		var got [2]*schedule.Event
		for i, mode := range []func(*schedule.Attempt){func(*schedule.Attempt) {}, structuredMode} {
			url, seen := sinkOf(t, nil)
			s, _ := newSender(t)
			overrides := func(a *schedule.Attempt) { a.Source.Extensions = map[string]string{"s": "plat form"} }
			delivers(t, s, attempt(url, withEvent(e), mode, overrides))
			r := <-seen
			if want := []string{"", "application/cloudevents+json"}[i]; want != "" && r.Header.Get("Content-Type") != want {
				t.Errorf("%s: content type %q", name, r.Header.Get("Content-Type"))
			}
			if r.Header.Get("Kn-Namespace") != "ops" || r.Header.Get("Prefer") != "reply" {
				t.Errorf("%s: headers %v", name, r.Header)
			}
			events, err := cloudevent.Read(r.Header, r.body)
			must(t, err)
			if events[0].Extensions["s"] != "plat form" {
				t.Errorf("%s: ceOverrides do not come last: %v", name, events[0].Extensions)
			}
			// What only the JSON format tells apart.
			for k, v := range events[0].Extensions {
				if i == 0 {
					continue
				}
				b, _ := json.Marshal(v)
				events[0].Extensions[k] = strings.Trim(string(b), `"`)
			}
			events[0].DataBase64 = false
			got[i] = events[0]
		}
		if d := cmp.Diff(got[0], got[1]); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// An event that HTTP cannot carry is rejected.
func TestUnsendable_IsRejected(t *testing.T) {
	t.Parallel()
	url, _ := sinkOf(t, nil)
	s, _ := newSender(t)
	o := send(t, s, attempt(url, withEvent(&schedule.Event{DataContentType: "text/plain\r\nX: y", Data: []byte("x")})))
	if o.Kind != schedule.Rejected || len(o.Failure.Data) == 0 {
		t.Errorf("%+v", o)
	}
}

// Data that is an event goes structured, also behind a blank, so that it cannot forge the id of the delivery.
func TestData_ThatIsAnEventGoesStructured(t *testing.T) {
	t.Parallel()
	url, seen := sinkOf(t, nil)
	s, _ := newSender(t)
	for _, text := range []string{"Application/CloudEvents+json", " application/cloudevents+json", "\tApplication/CloudEvents ; a=b", " text/plain "} {
		send(t, s, attempt(url, withEvent(&schedule.Event{DataContentType: text, Data: []byte(`{"specversion":"1.0","id":"forged","source":"/f","type":"f"}`)})))
		r := <-seen
		events, err := cloudevent.Read(r.Header, r.body)
		if err != nil || events[0].ID != "store-7" || strings.TrimSpace(events[0].DataContentType) != strings.TrimSpace(text) {
			t.Errorf("%q: %v %+v", text, err, events)
		}
	}
}

// The trace is continued.
func TestTrace_IsContinued(t *testing.T) {
	t.Parallel()
	const parent, state = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b"
	traced := func(a *schedule.Attempt) { a.Entry.TraceParent, a.Entry.TraceState = parent, state }
	for name, tt := range map[string]struct {
		change func(*schedule.Attempt)
		tracer trace.Tracer
		want   string
	}{
		"as it was":      {traced, nil, parent},
		"no-op tracer":   {traced, noop.NewTracerProvider().Tracer(""), parent},
		"a span between": {traced, spanTracer{}, "00-0af7651916cd43dd8448eb211c80319c-0000000000000001-01"},
		"none":           {func(*schedule.Attempt) {}, nil, ""},
		"unreadable":     {func(a *schedule.Attempt) { a.Entry.TraceParent = "00-zz" }, nil, ""},
	} {
		url, seen := sinkOf(t, nil)
		s, _ := newSender(t, func(c *Config) { c.Tracer = tt.tracer })
		send(t, s, attempt(url, tt.change))
		r := <-seen
		if got := r.Header.Get("Traceparent"); got != tt.want {
			t.Errorf("%s: traceparent %q, want %q", name, got, tt.want)
		}
		if got := r.Header.Get("Tracestate"); (got == state) != (tt.want != "") {
			t.Errorf("%s: tracestate %q", name, got)
		}
	}
}

// spanTracer gives each span the id 1 in its parent's trace.
type spanTracer struct{ noop.Tracer }

func (spanTracer) Start(ctx context.Context, _ string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	sc := trace.SpanContextFromContext(ctx).WithSpanID(trace.SpanID{7: 1})
	return trace.ContextWithSpanContext(ctx, sc), noop.Span{}
}

// The certificates of a target are trusted.
func TestTrust_CertificatesOfATarget(t *testing.T) {
	t.Parallel()
	var proto string
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { proto = r.Proto }))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	s, _ := newSender(t)
	if o := send(t, s, attempt(srv.URL)); o.Kind != schedule.Failed {
		t.Errorf("an unknown authority: %+v", o)
	}
	trusted := func(a *schedule.Attempt) { a.Target.CACerts = string(ca) }
	if o := send(t, s, attempt(srv.URL, trusted)); o.Kind != schedule.Succeeded {
		t.Errorf("a trusted one: %+v %s", o, o.Failure.Data)
	}
	if proto != "HTTP/1.1" {
		t.Errorf("spoke %s", proto)
	}
	if o := send(t, s, attempt(srv.URL, func(a *schedule.Attempt) { a.Target.CACerts = "junk" })); o.Kind != schedule.Failed {
		t.Errorf("no certificate: %+v", o)
	}
}

// A token that the sink refuses with 401 is reported; other answers are not, nor deliveries without a token.
func TestToken_RefusedIsReported(t *testing.T) {
	t.Parallel()
	status := http.StatusUnauthorized
	url, _ := sinkOf(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	var refused []string
	s, _ := newSender(t, func(c *Config) {
		c.Token = func(context.Context, *schedule.Spec, schedule.Target) (string, error) {
			return "of an account that is gone", nil
		}
		c.TokenRefused = func(src *schedule.Spec, target schedule.Target) {
			refused = append(refused, src.UID+" "+target.Audience)
		}
	})
	withToken := func(a *schedule.Attempt) { a.Source.ServiceAccount, a.Target.Audience = "account", "ops" }
	if o := send(t, s, attempt(url, withToken)); o.Kind != schedule.Failed || !slices.Equal(refused, []string{"u1 ops"}) {
		t.Errorf("%+v: refused %q", o, refused)
	}
	send(t, s, attempt(url))
	status = http.StatusForbidden
	send(t, s, attempt(url, withToken))
	if len(refused) != 1 {
		t.Errorf("refused %q", refused)
	}
}

// The token goes to targets with an audience.
func TestToken_OnlyWithAnAudience(t *testing.T) {
	t.Parallel()
	url, seen := sinkOf(t, nil)
	var fail error
	s, _ := newSender(t, func(c *Config) {
		c.Token = func(_ context.Context, _ *schedule.Spec, target schedule.Target) (string, error) {
			return "for-" + target.Audience, fail
		}
	})
	for _, account := range []string{"", "me"} {
		send(t, s, attempt(url, func(a *schedule.Attempt) { a.Source.ServiceAccount = account }))
		if got := (<-seen).Header.Get("Authorization"); got != "" {
			t.Errorf("without an audience: %q", got)
		}
	}
	audience := func(a *schedule.Attempt) {
		src := *a.Source
		src.ServiceAccount = "me"
		a.Source, a.Target.Audience = &src, "ops"
	}
	send(t, s, attempt(url, func(a *schedule.Attempt) { a.Target.Audience = "ops" }))
	if got := (<-seen).Header.Get("Authorization"); got != "" {
		t.Errorf("of a source without a service account: %q", got)
	}
	send(t, s, attempt(url, audience))
	if got := (<-seen).Header.Get("Authorization"); got != "Bearer for-ops" {
		t.Errorf("with one: %q", got)
	}
	fail = errors.New("no token") // nothing is sent, and the sink is not to blame
	if o := send(t, s, attempt(url, audience)); o.Kind != schedule.Failed || !o.Unsent || len(seen) > 0 || !strings.Contains(string(o.Failure.Data), "no token") {
		t.Errorf("%+v", o)
	}
}

// Changed trust applies from the next delivery on.
func TestTrust_ChangesWithTheNextDelivery(t *testing.T) {
	t.Parallel()
	srv := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(srv.Close)
	s, _ := newSender(t)
	trusting := x509.NewCertPool()
	trusting.AddCert(srv.Certificate())
	for _, step := range []struct {
		roots *x509.CertPool
		want  schedule.OutcomeKind
	}{{nil, schedule.Failed}, {trusting, schedule.Succeeded}, {x509.NewCertPool(), schedule.Failed}} {
		s.Trust(step.roots)
		if o := send(t, s, attempt(srv.URL)); o.Kind != step.want {
			t.Errorf("%+v", o)
		}
	}
}

// The user of a URL is sent as basic authentication.
func TestURL_UserIsBasicAuthentication(t *testing.T) {
	t.Parallel()
	url, seen := sinkOf(t, nil)
	s, _ := newSender(t)
	send(t, s, attempt(strings.Replace(url, "http://", "http://me:secret@", 1)+"/path?q=1#frag"))
	r := <-seen
	user, password, _ := r.BasicAuth()
	if user != "me" || password != "secret" || r.URL.String() != "/path?q=1" {
		t.Errorf("%s %s %s", user, password, r.URL)
	}
}

// The largest event, with the longest names and a token, passes a server that takes 16 KiB of headers, as Node.js.
func TestHeaders_LargestEventPassesServers(t *testing.T) {
	t.Parallel()
	seen := make(chan http.Header, 1)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		w.WriteHeader(http.StatusNoContent)
	}))
	srv.Config.MaxHeaderBytes = 12 << 10 // and net/http adds 4 KiB
	srv.Start()
	defer srv.Close()
	e := &schedule.Event{Extensions: map[string]any{}}
	for i := 0; cloudevent.CheckSize("", e) == nil; i++ {
		e.Extensions["x"+strconv.Itoa(i)] = "é"
	}
	delete(e.Extensions, "x"+strconv.Itoa(len(e.Extensions)-1))
	s, _ := newSender(t, func(c *Config) {
		c.Token = func(context.Context, *schedule.Spec, schedule.Target) (string, error) {
			return strings.Repeat("t", 2<<10), nil
		}
	})
	o := send(t, s, attempt(srv.URL, func(a *schedule.Attempt) {
		a.Key = strings.Repeat("é", schedule.MaxKeyBytes/2)
		a.Source.Namespace, a.Source.Name = strings.Repeat("n", 63), strings.Repeat("s", 253)
		a.Source.ServiceAccount, a.Target.Audience = "account", "sink"
		a.Entry.Event, a.Entry.TraceState = e, strings.Repeat("a", 256)+"="+strings.Repeat("b", 256)
		a.Entry.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	}))
	if o.Kind != schedule.Succeeded {
		t.Fatalf("%+v", o)
	}
	if h := <-seen; h.Get("Ce-X0") != "%C3%A9" || len(h.Get("Ce-Reschedulekey")) != 3*schedule.MaxKeyBytes {
		t.Errorf("%v", h)
	}
}
