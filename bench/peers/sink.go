package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/bench/peers/judge"
)

// sink is the receiver of all: it answers 200 to each POST, after as long as its key takes, and ends when the caller goes.
type sink struct {
	server *httptest.Server
	takes  func(key string) time.Duration

	mu   sync.Mutex
	open int
	runs map[string][]*judge.Run
}

func newSink(takes func(key string) time.Duration) *sink {
	s := &sink{takes: takes, runs: map[string][]*judge.Run{}}
	s.server = httptest.NewServer(s)
	return s
}

func (s *sink) addr() string { return s.server.Listener.Addr().String() }

func (s *sink) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	key, this := r.Header.Get(keyHeader), &judge.Run{Began: time.Now()}
	s.mu.Lock()
	s.open++
	s.runs[key] = append(s.runs[key], this)
	s.mu.Unlock()
	io.Copy(io.Discard, r.Body)
	answered := true
	if d := s.takes(key); d > 0 {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
			answered = false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	this.Ended, this.Answered = time.Now(), answered
}

// quiet waits until no delivery is under way: the deliveries of killed workers have ended.
func (s *sink) quiet() bool {
	return until(patience, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.open == 0
	})
}

// first returns when the first delivery of a key began.
func (s *sink) first(key string) (at time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if runs := s.runs[key]; len(runs) > 0 {
		return runs[0].Began, true
	}
	return at, false
}

// seen returns how many keys have come.
func (s *sink) seen() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runs)
}

// done says whether a delivery of a key that began at a time or later was answered: one that was cut off is none.
func (s *sink) done(key string, since time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.runs[key], func(r *judge.Run) bool { return r.Answered && !r.Began.Before(since) })
}
