package controller

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// fakeSource is a RescheduleSource in memory, with the part of docs/http-api.md that the
// tests need. It calls its sink without a network, so that it works under fake time.
type fakeSource struct {
	t       *testing.T
	sink    http.Handler
	backoff time.Duration

	suspended bool      // it delivers nothing
	previous  time.Time // of every key, when it was due before
	slots     int       // limits.maxInFlight, 0 is no limit

	mu    sync.Mutex
	used  int // of the slots
	dead  bool
	keys  map[string]*occurrence
	calls []string
}

type occurrence struct {
	waiting  bool
	inFlight bool
	dueAt    time.Time
	event    sdk.Event
	attempt  int // failed runs
	put      int // how often it was scheduled through the API
	tries    int // failed deliveries in a row
	timer    *time.Timer
	priority sdk.Priority // of what waits
}

// lift gives what is scheduled its priority, before it waits.
func (o *occurrence) lift(p sdk.Priority) {
	if o.waiting {
		p = max(p, o.priority)
	}
	o.priority = p
}

// called are the calls since the last time.
func (f *fakeSource) called() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := strings.Join(f.calls, ", ")
	f.calls = nil
	return calls
}

func newFakeSource(t *testing.T, backoff time.Duration) *fakeSource {
	return &fakeSource{t: t, backoff: backoff, keys: map[string]*occurrence{}}
}

// client calls it without a network.
func (f *fakeSource) client() *sdk.Client {
	c, err := sdk.New("http://source/ns/name", sdk.WithHTTPClient(&http.Client{Transport: f}), sdk.WithRetryBudget(time.Second))
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// RoundTrip implements http.RoundTripper.
func (f *fakeSource) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w.Result(), nil
}

func (f *fakeSource) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	switch key, one := strings.CutPrefix(r.URL.Path, "/ns/name/schedules/"); {
	case one && r.Method == http.MethodGet && !f.previous.IsZero():
		f.must(json.NewEncoder(w).Encode(sdk.Schedule{Key: key, Revision: 1, State: sdk.InFlight, DueAt: time.Now(), PreviousDueAt: f.previous}))
	case one && r.Method == http.MethodGet:
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		f.must(json.NewEncoder(w).Encode(map[string]any{"status": http.StatusNotFound, "code": sdk.ErrNotFound}))
	case r.Method+r.URL.Path == "POST/ns/name/schedules":
		var body struct{ Items []sdk.Item }
		f.must(json.NewDecoder(r.Body).Decode(&body))
		var answer bytes.Buffer
		for i, it := range body.Items {
			b, err := json.Marshal(f.put(it.Key, it.Request))
			f.must(err)
			fmt.Fprintf(&answer, "%s{\"status\":200,%s", strings.Repeat(",", min(i, 1)), b[1:])
		}
		fmt.Fprintf(w, `{"items":[%s]}`, &answer)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (f *fakeSource) must(err error) {
	if err != nil {
		f.t.Error(err)
	}
}

// put is a PUT, under the lock.
func (f *fakeSource) put(key string, r sdk.Request) *sdk.Schedule {
	o := f.of(key)
	o.tries = 0
	o.put++
	o.attempt = 0
	call := fmt.Sprintf("%s %s %s", r.Policy, key, *r.Delay)
	if r.Priority != sdk.NormalPriority {
		call += " " + r.Priority.String()
	}
	f.calls = append(f.calls, call)
	o.lift(r.Priority)
	if r.Event != nil {
		o.event = *r.Event
	}
	f.wait(key, time.Now().Add(*r.Delay), r.Policy == sdk.Earliest)
	return &sdk.Schedule{Key: key, Revision: uint64(o.put), State: sdk.Waiting, DueAt: o.dueAt}
}

func (f *fakeSource) of(key string) *occurrence {
	if f.keys[key] == nil {
		f.keys[key] = &occurrence{}
	}
	return f.keys[key]
}

// wait makes the key due at an instant, or sooner.
func (f *fakeSource) wait(key string, at time.Time, earliest bool) {
	o := f.of(key)
	if o.waiting && earliest && o.dueAt.Before(at) {
		at = o.dueAt
	}
	o.stop()
	o.waiting, o.dueAt = true, at
	if !o.inFlight && !f.suspended {
		o.timer = time.AfterFunc(time.Until(at), func() {
			if f.slots == 0 {
				f.deliver(key, o)
				return
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.deliverNext()
		})
	}
}

func (o *occurrence) stop() {
	if o.timer != nil {
		o.timer.Stop()
	}
	o.waiting = false
}

// ingest takes an event of an ApiServerSource.
func (f *fakeSource) ingest(key string, e sdk.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of(key).event = e
	f.of(key).lift(sdk.NormalPriority)
	f.wait(key, time.Now(), true)
}

// deliver makes one attempt.
func (f *fakeSource) deliver(key string, o *occurrence) {
	f.mu.Lock()
	if !o.waiting || o.inFlight || f.keys[key] != o || f.slots > 0 && f.used == f.slots {
		f.mu.Unlock()
		return
	}
	o.waiting, o.inFlight = false, true
	f.used++
	event, put, priority := o.event, o.put, o.priority
	r := request(key, event)
	if priority != sdk.NormalPriority {
		r.Header.Set("Ce-Reschedulepriority", priority.String())
	}
	r.Header.Set("Ce-Rescheduleattempt", strconv.Itoa(o.attempt))
	r.Header.Set("Ce-Rescheduledueat", o.dueAt.Format(time.RFC3339Nano))
	f.mu.Unlock()
	w := httptest.NewRecorder()
	f.sink.ServeHTTP(w, r)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.used--
	defer f.deliverNext()
	if f.keys[key] != o {
		return // cancelled
	}
	o.inFlight = false
	newer := o.waiting
	if is := w.Header().Get("Reschedule-Priority"); is != "" {
		f.must(priority.UnmarshalText([]byte(is)))
	}
	switch after := w.Header().Get("Reschedule-After"); {
	case w.Code >= 500 && o.put != put: // a newer occurrence decides
	case w.Code >= 500:
		o.attempt++
		o.tries++
		o.lift(priority)
		f.wait(key, time.Now().Add(f.backoff<<(o.tries-1)), true)
		return
	case w.Code >= 300:
		f.t.Errorf("%s was answered with %d %s", key, w.Code, w.Body)
	case after != "" && after != "never":
		d, err := time.ParseDuration(after)
		f.must(err)
		if !newer {
			o.attempt, o.tries = 0, 0
			if typ := w.Header().Get("Ce-Type"); typ != "" {
				o.event = sdk.Event{Type: typ, Data: w.Body.Bytes()}
			}
		}
		o.lift(priority)
		f.wait(key, time.Now().Add(d), true)
	case !newer:
		delete(f.keys, key)
		return
	}
	if o.waiting {
		f.wait(key, o.dueAt, false)
	}
}

// deliverNext uses a slot for the due key of the highest priority, and of these for the oldest.
func (f *fakeSource) deliverNext() {
	var key string
	var next *occurrence
	for k, o := range f.keys {
		if o.waiting && !o.inFlight && !o.dueAt.After(time.Now()) && (next == nil || o.priority > next.priority || o.priority == next.priority && o.dueAt.Before(next.dueAt)) {
			key, next = k, o
		}
	}
	if next != nil && f.slots > 0 {
		go f.deliver(key, next)
	}
}

// request is an event over HTTP, a delivery if there is a key.
func request(key string, e sdk.Event) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(e.Data))
	r.Header.Set("Content-Type", "application/json")
	for name, value := range map[string]string{"specversion": "1.0", "id": "1", "source": "test", "type": e.Type, "subject": e.Subject, "reschedulekey": key} {
		if value != "" {
			r.Header.Set("Ce-"+name, value)
		}
	}
	return r
}

// close ends all timers.
func (f *fakeSource) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.keys {
		o.stop()
	}
}
