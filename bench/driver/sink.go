package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
)

// sink is the receiver: it answers 202 to every event and stores the first
// arrival of each key. GET /reset?first=&n= sets the keys that it counts, GET
// /seen returns how many of them arrived, GET /arrivals returns all of it.
type sink struct {
	mu    sync.Mutex
	first uint32
	arrivals
}

// arrivals are the events at a sink.
type arrivals struct {
	Seen    int64 // distinct keys
	Repeats int64
	At      []int64     // by index, in nanoseconds of the epoch; 0: not yet
	Header  http.Header // of one of the events
}

func sinkServer(ctx context.Context, c serverConfig) (any, error) { return c.serve(ctx, new(sink)) }

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now().UnixNano()
	io.Copy(io.Discard, r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Method != http.MethodGet:
		s.count(r.Header, now)
		w.WriteHeader(http.StatusAccepted)
	case r.URL.Path == "/reset":
		first, _ := strconv.ParseUint(r.URL.Query().Get("first"), 10, 32)
		n, _ := strconv.ParseUint(r.URL.Query().Get("n"), 10, 32)
		s.first, s.arrivals = uint32(first), arrivals{At: make([]int64, n)}
		json.NewEncoder(w).Encode(n)
	case r.URL.Path == "/seen":
		json.NewEncoder(w).Encode(s.Seen)
	default:
		json.NewEncoder(w).Encode(s.arrivals)
	}
}

func (s *sink) count(h http.Header, now int64) {
	index, ok := load.Index(h.Get("Ce-Reschedulekey"))
	at := int64(index) - int64(s.first)
	switch {
	case !ok || at < 0 || at >= int64(len(s.At)): // of an earlier round
	case s.At[at] != 0:
		s.Repeats++
	default:
		s.At[at] = now
		s.Seen++
		if s.Header == nil {
			s.Header = h.Clone()
		}
	}
}

// resetSink sets the keys that the sink counts.
func resetSink(addr string, first uint32, n int) error {
	var count int
	return getJSON(addr, fmt.Sprintf("/reset?first=%d&n=%d", first, n), &count)
}

// awaitSink waits until the sink has seen n distinct keys, at most for the limit, and returns the arrivals.
func awaitSink(ctx context.Context, addr string, n int64, every, limit time.Duration) (got arrivals, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for seen := int64(0); seen < n; {
		if err := getJSON(addr, "/seen", &seen); err != nil {
			return got, err
		}
		if seen < n && sleep(ctx, every) != nil {
			return got, fmt.Errorf("%d of %d events had come to the sink after %s", seen, n, limit)
		}
	}
	err = getJSON(addr, "/arrivals", &got)
	return got, err
}
