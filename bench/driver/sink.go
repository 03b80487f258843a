package main

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
)

// sink is the receiver: it answers 202 to every event and stores the first
// arrival of each key. POST /reset?first=&n= sets the keys that it counts; GET
// returns the arrivals since then.
type sink struct {
	mu      sync.RWMutex // held to read by every event, to write by reset
	first   uint32
	arrived []atomic.Int64 // by index, in nanoseconds of the epoch; 0: not yet
	seen    atomic.Int64   // distinct keys
	repeats atomic.Int64
	others  atomic.Int64 // other keys
	sample  atomic.Pointer[http.Header]
}

// arrivals are the events at a sink.
type arrivals struct {
	Seen, Repeats, Others int64
	// FirstAt and LastAt are in nanoseconds of the epoch, 0 when nothing came.
	FirstAt, LastAt int64
	// At has the first arrival of each key, by index; only with ?arrivals=1.
	At []int64 `json:",omitempty"`
	// Header is the header of one of the events.
	Header map[string]string `json:",omitempty"`
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	switch {
	case r.Method == http.MethodGet:
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(s.arrivals(r.URL.Query().Get("arrivals") != ""))
		return
	case r.URL.Path == "/reset":
		first, _ := strconv.ParseUint(r.URL.Query().Get("first"), 10, 32)
		n, _ := strconv.ParseUint(r.URL.Query().Get("n"), 10, 32)
		s.reset(uint32(first), int(n))
		return
	}
	s.count(r.Header, now)
	io.Copy(io.Discard, r.Body)
	w.WriteHeader(http.StatusAccepted)
}

func (s *sink) count(h http.Header, now time.Time) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	index, ok := load.Index(h.Get("Ce-Reschedulekey"))
	if at := int64(index) - int64(s.first); ok && at >= 0 && at < int64(len(s.arrived)) {
		if s.arrived[at].CompareAndSwap(0, now.UnixNano()) {
			if s.seen.Add(1) == 1 {
				sample := maps.Clone(h)
				s.sample.Store(&sample)
			}
			return
		}
		s.repeats.Add(1)
		return
	}
	s.others.Add(1)
}

func (s *sink) reset(first uint32, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first, s.arrived = first, make([]atomic.Int64, n)
	s.seen.Store(0)
	s.repeats.Store(0)
	s.others.Store(0)
	s.sample.Store(nil)
}

func (s *sink) arrivals(all bool) arrivals {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := arrivals{Seen: s.seen.Load(), Repeats: s.repeats.Load(), Others: s.others.Load()}
	if !all {
		return t
	}
	for i := range s.arrived {
		at := s.arrived[i].Load()
		t.At = append(t.At, at)
		if at != 0 && (t.FirstAt == 0 || at < t.FirstAt) {
			t.FirstAt = at
		}
		t.LastAt = max(t.LastAt, at)
	}
	if h := s.sample.Load(); h != nil {
		t.Header = map[string]string{}
		for name, values := range *h {
			t.Header[name] = strings.Join(values, ", ")
		}
	}
	return t
}
