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

// sink is the other end: it answers 202 to every event and remembers when each
// key came first. GET tells what came since the last POST /reset?first=&n=,
// which says which keys to look for.
type sink struct {
	mu      sync.RWMutex // held to read by every event, to write by reset
	first   uint32
	arrived []atomic.Int64 // by index, in nanoseconds of the epoch; 0 = not yet
	seen    atomic.Int64   // distinct keys among those
	repeats atomic.Int64
	others  atomic.Int64 // keys that are not looked for
	sample  atomic.Pointer[http.Header]
}

func newSink() *sink { return new(sink) }

// sunk is what a sink saw.
type sunk struct {
	Seen, Repeats, Others int64
	// FirstAt and LastAt are in nanoseconds of the epoch, 0 when nothing came.
	FirstAt, LastAt int64
	// Arrivals are those of the keys looked for, by index; only when asked for with ?arrivals=1.
	Arrivals []int64 `json:",omitempty"`
	// Header is that of one of the events.
	Header map[string]string `json:",omitempty"`
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	switch {
	case r.Method == http.MethodGet:
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(s.tell(r.URL.Query().Get("arrivals") != ""))
		return
	case r.URL.Path == "/reset":
		first, _ := strconv.ParseUint(r.URL.Query().Get("first"), 10, 32)
		n, _ := strconv.ParseUint(r.URL.Query().Get("n"), 10, 32)
		s.reset(uint32(first), int(n))
		return
	}
	s.take(r.Header, now)
	io.Copy(io.Discard, r.Body)
	w.WriteHeader(http.StatusAccepted)
}

func (s *sink) take(h http.Header, now time.Time) {
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

func (s *sink) tell(arrivals bool) sunk {
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := sunk{Seen: s.seen.Load(), Repeats: s.repeats.Load(), Others: s.others.Load()}
	if !arrivals {
		return t
	}
	for i := range s.arrived {
		at := s.arrived[i].Load()
		t.Arrivals = append(t.Arrivals, at)
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
