package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Delivery is a request that a sink got.
type Delivery struct {
	At     time.Time // when its head was there
	Inbox  string    // the last segment of its path
	Header http.Header
	Body   []byte

	// Attributes are the event's, in either mode, without its data.
	Attributes map[string]string
	Key        string
	Revision   uint64
	Attempt    int
	DueAt      time.Time
}

// Attr is an attribute of the event.
func (d *Delivery) Attr(name string) string { return d.Attributes[name] }

func newDelivery(r *http.Request) (*Delivery, error) {
	d := &Delivery{At: time.Now().Round(0), Header: r.Header, Attributes: map[string]string{}}
	d.Inbox = r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	var err error
	if d.Body, err = io.ReadAll(r.Body); err != nil {
		return nil, err
	}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/cloudevents+json") {
		var attributes map[string]any
		if err := json.Unmarshal(d.Body, &attributes); err != nil {
			return nil, fmt.Errorf("a structured event: %w", err)
		}
		for name, value := range attributes {
			if name != "data" && name != "data_base64" {
				d.Attributes[name] = fmt.Sprint(value)
			}
		}
	} else {
		for name, values := range r.Header {
			if attribute, ok := strings.CutPrefix(name, "Ce-"); ok {
				value, err := url.PathUnescape(values[0])
				if err != nil || len(values) != 1 {
					return nil, fmt.Errorf("header %s: %q: %w", name, values, err)
				}
				d.Attributes[strings.ToLower(attribute)] = value
			}
		}
	}
	d.Key = d.Attr("reschedulekey")
	if d.Revision, err = strconv.ParseUint(d.Attr("reschedulerevision"), 10, 64); err != nil {
		return nil, fmt.Errorf("reschedulerevision: %w", err)
	}
	if d.Attempt, err = strconv.Atoi(d.Attr("rescheduleattempt")); err != nil {
		return nil, fmt.Errorf("rescheduleattempt: %w", err)
	}
	d.DueAt, err = time.Parse(time.RFC3339Nano, d.Attr("rescheduledueat"))
	return d, err
}

// Answer answers a delivery.
type Answer func(w http.ResponseWriter, r *http.Request, d *Delivery)

// Status answers with a status.
func Status(code int) Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ *Delivery) { w.WriteHeader(code) }
}

// Sink receives deliveries in inboxes, one for each path. It answers 204 where
// nothing else was said.
type Sink struct {
	URL    string
	server *httptest.Server

	mu      sync.Mutex
	all     []*Delivery
	bad     []error
	taken   map[*Delivery]bool
	warmUps map[string]int       // by inbox
	answers map[[2]string]Answer // by inbox and key, "" = every key
	changed chan struct{}
}

// NewSink starts a sink.
func NewSink() *Sink {
	s := &Sink{taken: map[*Delivery]bool{}, answers: map[[2]string]Answer{}, warmUps: map[string]int{}, changed: make(chan struct{})}
	s.server = httptest.NewServer(s)
	s.URL = s.server.URL
	return s
}

// Close ends the sink, cutting off what hangs.
func (s *Sink) Close() {
	s.server.CloseClientConnections()
	s.server.Close()
}

// Answer says how deliveries to an inbox are answered, of one key or, with "",
// of every other.
func (s *Sink) Answer(inbox, key string, a Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[[2]string{inbox, key}] = a
}

// ServeHTTP implements http.Handler.
func (s *Sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && r.Header.Get("Reschedule-Warm-Up") == "1" {
		s.mu.Lock()
		s.warmUps[strings.Trim(r.URL.Path, "/")]++
		s.mu.Unlock()
		return
	}
	d, err := newDelivery(r)
	s.mu.Lock()
	answer := Status(http.StatusNoContent)
	if err != nil {
		s.bad = append(s.bad, fmt.Errorf("%s: %w", r.URL.Path, err))
	} else {
		s.all = append(s.all, d)
		for _, key := range []string{"", d.Key} {
			if a := s.answers[[2]string{d.Inbox, key}]; a != nil {
				answer = a
			}
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	answer(w, r, d)
}

// Find waits until the deliveries so far satisfy enough.
func (s *Sink) Find(t testing.TB, what string, enough func(all []*Delivery) bool) {
	t.Helper()
	deadline := time.After(Patience)
	for {
		s.mu.Lock()
		all, bad, changed := slices.Clone(s.all), s.bad, s.changed
		s.mu.Unlock()
		if len(bad) > 0 {
			t.Fatalf("the sink got what is no event: %v", bad[0])
		}
		if enough(all) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%s: not delivered in %s", what, Patience)
		}
	}
}

// Next waits for the next delivery of a key to an inbox.
func (s *Sink) Next(t testing.TB, inbox, key string) *Delivery {
	t.Helper()
	var next *Delivery
	s.Find(t, inbox+": "+key, func(all []*Delivery) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, d := range all {
			if d.Inbox == inbox && d.Key == key && !s.taken[d] {
				next, s.taken[d] = d, true
				return true
			}
		}
		return false
	})
	return next
}

// WarmUps is how often the sink of an inbox was woken.
func (s *Sink) WarmUps(inbox string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.warmUps[inbox]
}

// Of is what came to an inbox so far of a key, or with "" of all.
func (s *Sink) Of(inbox, key string) []*Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	var of []*Delivery
	for _, d := range s.all {
		if d.Inbox == inbox && (key == "" || d.Key == key) {
			of = append(of, d)
		}
	}
	return of
}
