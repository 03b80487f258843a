package adapter

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// sharedGatherer gathers once at a time for all callers: callers that come while it gathers share the next
// result. With 10,000 sources each scrape takes 0.7 s of a processor and 120 MB.
type sharedGatherer struct {
	prometheus.Gatherer
	running chan struct{} // has one element while it gathers

	mu   sync.Mutex
	next *gathering // that has not begun; nil: none
}

// gathering is one result.
type gathering struct {
	done     chan struct{}
	families []*dto.MetricFamily
	err      error
}

func newSharedGatherer(g prometheus.Gatherer) *sharedGatherer {
	return &sharedGatherer{Gatherer: g, running: make(chan struct{}, 1)}
}

// Gather implements prometheus.Gatherer. What it returns has begun after the call, and is shared.
func (s *sharedGatherer) Gather() ([]*dto.MetricFamily, error) {
	s.mu.Lock()
	g := s.next
	if g != nil {
		s.mu.Unlock()
		<-g.done
		return g.families, g.err
	}
	g = &gathering{done: make(chan struct{})}
	s.next = g
	s.mu.Unlock()
	s.running <- struct{}{}
	defer func() { // also after a panic, which the HTTP server survives
		<-s.running
		close(g.done)
	}()
	s.mu.Lock()
	s.next = nil
	s.mu.Unlock()
	g.families, g.err = s.Gatherer.Gather()
	return g.families, g.err
}
