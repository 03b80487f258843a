package store

import (
	"runtime"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// scheduler lets Pebble run as many compactions as it asks for, as its own
// default does, but without that one's ticker: an idle process does not wake
// up, and months of fake time pass quickly. While space is low it runs one at a time, and none
// beside a flush: each takes space before it frees any, and a flush frees a log.
type scheduler struct {
	db       pebble.DBForCompaction
	low      func() bool
	flushing func() bool

	mu      sync.Mutex
	running int
	refused bool // a compaction waits since grant looked last
	grants  sync.WaitGroup
	closed  bool
}

func (s *scheduler) Register(_ int, db pebble.DBForCompaction) { s.db = db }

// Unregister waits for calls to the engine that are under way.
func (s *scheduler) Unregister() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.grants.Wait()
}

func (s *scheduler) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ok := s.take()
	s.refused = s.refused || !ok
	return ok, s
}

func (s *scheduler) take() bool {
	most := s.db.GetAllowedWithoutPermission()
	if s.low() {
		most = min(most, 1)
		if s.flushing() {
			most = 0
		}
	}
	if s.closed || s.running >= most {
		return false
	}
	s.running++
	return true
}

// UpdateGetAllowedWithoutPermission is called under the engine's lock, which
// grant needs.
func (s *scheduler) UpdateGetAllowedWithoutPermission() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && s.running == 0 {
		s.grants.Go(s.grant)
	}
}

// Done is called when a compaction has ended: the next may start.
func (s *scheduler) Done() {
	s.mu.Lock()
	s.running--
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.grants.Add(1)
	s.mu.Unlock()
	defer s.grants.Done()
	s.grant()
}

// grant starts compactions while the engine has some and may run them. What
// the engine finds later it asks for by TrySchedule, which the slot that grant holds may
// refuse: then grant looks again.
func (s *scheduler) grant() {
	for {
		s.mu.Lock()
		s.refused = false
		ok := s.take()
		s.mu.Unlock()
		if !ok {
			return
		}
		if waiting, _ := s.db.GetWaitingCompaction(); waiting && s.db.Schedule(s) {
			continue
		}
		s.mu.Lock()
		s.running--
		again := s.refused
		s.mu.Unlock()
		if !again {
			return
		}
	}
}

// MeasureCPU is called by a compaction after some keys each time. It lets other
// goroutines go first: Go's scheduler would let the compaction run for 10 ms, and a
// delivery that is due would wait for as long.
func (s *scheduler) MeasureCPU(pebble.CompactionGoroutineKind) { runtime.Gosched() }

func (s *scheduler) Started()                                          {}
func (s *scheduler) CumulativeStats(pebble.CompactionGrantHandleStats) {}
