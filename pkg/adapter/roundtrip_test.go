package adapter

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sink"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// world is the data plane, from the handler of the API to a sink.
type world struct {
	t      *testing.T
	dir    string
	offset atomic.Int64 // of the clock
	wake   chan struct{}
	a      *Adapter
	store  *store.DB
	queue  *queue.Queue
	edge   *httptest.Server

	specs   map[string]string // the rest of each source's spec, by the source's name
	sinkURL string
	mu      sync.Mutex
	got     []event.Event
	binary  bool // mode of the newest; data that claims to be an event is never sent in it
	answer  func(http.ResponseWriter)
}

// bothModes are two sources, one of each mode of delivery.
var bothModes = map[string]string{
	"json":   `"delay": "1h", "delivery": {"format": "json", "retry": 0}`,
	"binary": `"delay": "1h", "delivery": {"format": "binary", "retry": 0}`,
}

// source is the source with that rest of its spec.
func (w *world) source(name, spec string) (*schedule.Spec, error) {
	set, err := sources.Parse("test", fmt.Appendf(nil, `{"apiVersion": "sources.reschedule.dev/v1alpha1", "kind": "RescheduleSource",
		"metadata": {"name": %q, "namespace": "ns"}, "spec": {"sink": {"uri": %q}, %s}}`, name, w.sinkURL, spec), nil)
	if err != nil {
		return nil, err
	}
	return set[0], nil
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.offset.Load())) }

// open starts the data plane on what is in the directory.
func (w *world) open() {
	w.t.Helper()
	var err error
	w.store, err = store.Open(store.Options{Dir: w.dir, Log: slog.New(slog.DiscardHandler), Fatal: func(err error) { panic(err) }})
	if err != nil {
		w.t.Fatal(err)
	}
	w.queue, err = queue.Open(queue.Config{Store: w.store, Now: w.now, Wake: func(*queue.Source) {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.a = &Adapter{host: &alone{DB: w.store, queue: w.queue}, events: new(ingest.Receiver)}
	for name, spec := range w.specs {
		src, err := w.source(name, spec)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := (registry{w.a}).SetSource(src); err != nil {
			w.t.Fatal(err)
		}
	}
	w.edge = httptest.NewServer(api.New(api.Config{Lookup: w.queue.Lookup, Ingest: w.a.events, Log: slog.New(slog.DiscardHandler), Now: w.now}))
}

func (w *world) close() {
	w.edge.Close()
	w.queue.Close()
	if err := w.store.Close(); err != nil {
		w.t.Error(err)
	}
}

// call sends a request and says whether it was accepted. A refusal must name
// what it is about.
func (w *world) call(method, path string, h http.Header, body []byte) bool {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.edge.URL+path, bytes.NewReader(body))
	if err != nil {
		return false
	}
	req.Header = h
	resp, err := w.edge.Client().Do(req)
	if err != nil {
		return false // net/http refuses to send it
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	if resp.StatusCode < 300 {
		return true
	}
	var problem struct{ Code, Field string }
	if err := json.Unmarshal(answer, &problem); err != nil || resp.StatusCode >= 500 ||
		problem.Code == string(schedule.CodeInvalid) && problem.Field == "" {
		w.t.Errorf("%s %s %q %.300q: %d %s: a refusal that names nothing", method, path, h, body, resp.StatusCode, answer)
	}
	return false
}

// receive is the sink: the SDK reads what comes.
func (w *world) receive(rw http.ResponseWriter, req *http.Request) {
	e, err := binding.ToEvent(req.Context(), cehttp.NewMessageFromHttpRequest(req))
	if err == nil {
		err = e.Validate()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.t.Errorf("the SDK cannot read a delivery: %v: %q", err, req.Header)
		rw.WriteHeader(http.StatusInternalServerError)
		return
	}
	size := 0
	for name, values := range req.Header {
		size += len(name) + len(": \r\n") + len(values[0])
	}
	if size > 14<<10 {
		w.t.Errorf("a delivery has %d bytes of headers", size)
	}
	w.got, w.binary = append(w.got, *e), req.Header.Get("Ce-Specversion") != ""
	w.answer(rw)
}

// expectation is what is to come of a key.
type expectation struct {
	supply   supply
	ingested bool
	stored   func(*schedule.Entry) bool // nil: any
	entry    *schedule.Entry
}

// same compares a delivery with what was supplied. Headers are percent-encoded,
// which the SDK leaves to its users.
func (x *expectation) same(got *event.Event, binary bool) string {
	value := func(v any) string {
		s, err := types.Format(v)
		if err != nil {
			return err.Error()
		}
		if binary {
			if s, err = cloudevent.DecodeHeader(s); err != nil {
				return err.Error()
			}
		}
		return s
	}
	uri := func(s string) string {
		u := types.ParseURIRef(s)
		if u == nil {
			return s
		}
		return u.String()
	}
	have := got.Extensions()
	for name, v := range x.supply.attributes {
		want, _ := types.Format(v)
		var is string
		switch lower := strings.ToLower(name); lower {
		case "specversion", "rescheduleafter", "reschedulekey", "rescheduleattempt", "rescheduledueat", "reschedulerevision":
			continue
		case "id":
			if is = value(got.ID()); !x.ingested {
				want = is
			}
		case "source":
			is, want = uri(value(got.Source())), uri(want)
		case "type":
			is = value(got.Type())
		case "subject":
			if is = value(got.Subject()); want == "" {
				want = is // the key
			}
		case "dataschema":
			is, want = uri(value(got.DataSchema())), uri(want)
		case "datacontenttype":
			if is, want = got.DataContentType(), strings.TrimSpace(want); want == "" {
				want = is
			}
		case "time":
			at, _ := schedule.ParseTime("time", want)
			if is = got.Time().UTC().String(); x.ingested && want != "" {
				want = at.UTC().String()
			} else {
				want = is
			}
		default:
			if e, ok := have[lower]; ok {
				is = value(e)
			}
		}
		if is != want {
			return fmt.Sprintf("%s is %q, want %q", name, is, want)
		}
	}
	if x.ingested && x.supply.contentType() == "" && got.DataContentType() != "application/octet-stream" && len(x.supply.data) > 0 && !json.Valid(x.supply.data) {
		return fmt.Sprintf("the type of %q is %q", x.supply.data, got.DataContentType())
	}
	if !sameData(got, x.supply.data) {
		return fmt.Sprintf("the data is %.100q, want %.100q", got.Data(), x.supply.data)
	}
	return ""
}

// sameData compares data; in the JSON format space around a JSON value is lost,
// and null is no data.
func sameData(got *event.Event, want []byte) bool {
	if is := (&schedule.Event{DataContentType: got.DataContentType()}); is.IsJSON() && json.Valid(want) {
		if want = bytes.TrimSpace(want); string(want) == "null" && len(got.Data()) == 0 {
			return true
		}
		return bytes.Equal(bytes.TrimSpace(got.Data()), want)
	}
	return bytes.Equal(got.Data(), want)
}

// check reads what is stored, and holds it against what was.
func (w *world) check(source string, expected map[string]*expectation) {
	w.t.Helper()
	s, _ := w.queue.Lookup("ns", source)
	for key, x := range expected {
		v, ok, err := s.Get(key)
		switch {
		case err != nil || !ok:
			w.t.Errorf("%s, key %q, %+v: accepted, and not there: %v", source, key, x.supply.attributes, err)
		case x.stored != nil && !x.stored(v.Entry):
			w.t.Errorf("%s, key %q: what was accepted beside the event is not stored: %+v", source, key, v.Entry)
		case x.entry == nil:
			x.entry = v.Entry
		case !x.entry.Event.Equal(v.Event):
			w.t.Errorf("%s, key %q: the event is another after a restart: %+v, was %+v", source, key, v.Event, x.entry.Event)
		default:
			was, is := *x.entry, *v.Entry
			was.Event, is.Event = nil, nil
			if d := cmp.Diff(was, is); d != "" {
				w.t.Errorf("%s, key %q: another entry after a restart: %s", source, key, d)
			}
		}
	}
}

// deliver sends all that is expected, and returns what the replies ask for.
func (w *world) deliver(r *rand.Rand, name string, expected map[string]*expectation) map[string]*expectation {
	w.t.Helper()
	s, _ := w.queue.Lookup("ns", name)
	sender := sink.New(sink.Config{Log: slog.New(slog.DiscardHandler), Now: w.now})
	defer sender.Close()
	next := map[string]*expectation{}
	for left := len(expected); left > 0; {
		d, err := s.Take()
		if err != nil {
			w.t.Fatal(err)
		}
		if d == nil {
			select {
			case <-w.wake:
				continue
			case <-time.After(30 * time.Second):
				w.t.Fatalf("%s: %d keys are not delivered", name, left)
			}
		}
		left--
		x := expected[d.Key]
		var reply supply
		h, body := http.Header{"": nil}, []byte(nil)
		for !isHTTP(h) { // what no server of HTTP would answer
			reply = newSupply(r)
			reply.attributes["rescheduleafter"] = "1h"
			h, body = reply.message(r)
		}
		w.got, w.answer = nil, func(rw http.ResponseWriter) {
			maps.Copy(rw.Header(), h)
			_, _ = rw.Write(body)
		}
		o := sender.Send(context.Background(), d.Attempt)
		switch {
		case x == nil:
			w.t.Errorf("%s: a delivery of key %q, which was never scheduled", name, d.Key)
		case o.Kind == schedule.Failed && len(w.got) == 1 && cloudevent.IsMedia(h.Get("Content-Type")) && strings.HasPrefix(string(o.Failure.Data), "the reply is not a CloudEvent: "):
			// The wait of an event that is refused is not lost.
		case o.Kind != schedule.Succeeded || len(w.got) != 1:
			w.t.Errorf("%s, key %q, %+v: not delivered: %d %q", name, d.Key, x.supply.attributes, o.Kind, o.Failure.Data)
		default:
			if wrong := x.same(&w.got[0], w.binary); wrong != "" {
				w.t.Errorf("%s, key %q: %s", name, d.Key, wrong)
			}
		}
		switch {
		case o.Again != nil && o.Again.Reply != nil:
			next[d.Key] = &expectation{supply: reply}
		case o.Again != nil && x != nil: // the reply's event was refused
			next[d.Key] = &expectation{supply: x.supply}
		}
		if _, err := s.Finish(d, o); err != nil {
			w.t.Fatal(err)
		}
	}
	return next
}

// randomFields returns what a request asks for beside its event: the start of a JSON object, and what must be stored
// of it. It is due within an hour; it expires, and maxInterval brings it back, after the test.
func (w *world) randomFields(r *rand.Rand) (fields []byte, stored func(*schedule.Entry) bool) {
	ask := map[string]any{}
	for _, name := range []string{"reason", "uid"} {
		if r.IntN(2) == 0 {
			ask[name] = text(r)
		}
	}
	if r.IntN(2) == 0 {
		ask["maxInterval"] = pick(r, "1000h", "PT2000H", "0s", "-1s", "soon")
	}
	if r.IntN(2) == 0 {
		ask["policy"] = pick(r, "replace", "earliest", "latest", "keep", "fail", text(r))
	}
	if r.IntN(2) == 0 {
		ask["jitter"] = pick[any](r, 0, 0.5, 1, 1.5, -1, text(r))
	}
	if r.IntN(2) == 0 {
		ask["expiresAt"] = pick(r, w.now().Add(365*24*time.Hour).Format(time.RFC3339Nano), text(r))
	}
	switch r.IntN(4) {
	case 0:
		ask["delay"] = pick[any](r, "30m", 1800, 0.5, "PT1M", -1, text(r))
	case 1:
		ask["dueAt"] = pick(r, w.now().Add(time.Minute).Format(time.RFC3339Nano), text(r))
	case 2:
		ask["backoff"] = map[string]any{"base": pick(r, "1s", text(r)), "factor": pick[any](r, 1, 2.5, 0, text(r)), "cap": "1h"}
	}
	var b bytes.Buffer
	for name, value := range ask {
		raw, _ := json.Marshal(value) // texts and numbers
		fmt.Fprintf(&b, "%q:%s,", name, raw)
	}
	return b.Bytes(), func(e *schedule.Entry) bool {
		uid, _ := ask["uid"].(string)
		reason, _ := ask["reason"].(string)
		_, expires := ask["expiresAt"]
		_, interval := ask["maxInterval"]
		return e.UID == uid && e.Reason == reason && e.ExpiresAt.IsZero() == !expires && (e.MaxInterval != nil) == interval
	}
}

// Each accepted request, event and reply is unchanged after a restart and at the sink. A refusal names its field.
func TestAccepted_IsStoredReadBackAndSent(t *testing.T) {
	r := seeded(t)
	w := &world{t: t, dir: t.TempDir(), wake: make(chan struct{}, 1), specs: bothModes}
	srv := httptest.NewServer(http.HandlerFunc(w.receive))
	defer srv.Close()
	w.sinkURL = srv.URL
	w.open()
	n := 300
	if testing.Short() {
		n = 60
	}
	expected := map[string]map[string]*expectation{"json": {}, "binary": {}}
	for i := range n {
		s := newSupply(r)
		key := fmt.Sprint("k", i, "/", text(r))
		if r.IntN(2) == 0 {
			s.attributes["reschedulekey"] = key
			s.attributes["rescheduleafter"] = "1h"
			h, body := s.message(r)
			key = fmt.Sprint(s.attributes["reschedulekey"]) // as it is meant
			for source, of := range expected {
				if w.call(http.MethodPost, "/ns/"+source+pick(r, "", "/"), h.Clone(), body) {
					of[key] = &expectation{supply: s, ingested: true}
				}
			}
			continue
		}
		s.asRequest()
		event := s.object(r, all)
		fields, stored := w.randomFields(r)
		json := http.Header{"Content-Type": {"application/json"}}
		for source, of := range expected {
			accepted := false
			if i%2 == 0 {
				accepted = w.call(http.MethodPut, "/ns/"+source+"/schedules/"+url.PathEscape(key), json.Clone(), fmt.Appendf(nil, `{%s"event":%s}`, fields, event))
			} else {
				name := jsonText(key)
				w.call(http.MethodPost, "/ns/"+source+"/schedules", json.Clone(), fmt.Appendf(nil, `{"items":[{%s"key":%s,"event":%s}]}`, fields, name, event))
				found, _ := w.queue.Lookup("ns", source)
				_, accepted, _ = found.Get(key)
			}
			if accepted {
				of[key] = &expectation{supply: s, stored: stored}
			}
		}
	}
	for round := range 2 {
		for source, of := range expected {
			if min := n / 8; len(of) < min/(round+1) {
				t.Errorf("round %d: only %d of %d were accepted", round, len(of), n)
			}
			w.check(source, of)
		}
		w.close()
		w.open()
		for source, of := range expected {
			w.check(source, of)
		}
		w.offset.Add(int64(2 * time.Hour))
		w.close()
		w.open() // so that all is due
		for source, of := range expected {
			expected[source] = w.deliver(r, source, of)
		}
	}
	w.close()
}

func jsonText(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return b
}
