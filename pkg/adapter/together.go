package adapter

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// together gathers once at a time for all callers: those who come while it gathers share the next
// result. With 10,000 sources each scrape takes 0.7 s of a processor and 120 MB.
type together struct {
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

func newTogether(g prometheus.Gatherer) *together {
	return &together{Gatherer: g, running: make(chan struct{}, 1)}
}

// Gather implements prometheus.Gatherer. What it returns has begun after the call, and is shared.
func (t *together) Gather() ([]*dto.MetricFamily, error) {
	t.mu.Lock()
	g := t.next
	if g != nil {
		t.mu.Unlock()
		<-g.done
		return g.families, g.err
	}
	g = &gathering{done: make(chan struct{})}
	t.next = g
	t.mu.Unlock()
	t.running <- struct{}{}
	defer func() { // also after a panic, which the HTTP server survives
		<-t.running
		close(g.done)
	}()
	t.mu.Lock()
	t.next = nil
	t.mu.Unlock()
	g.families, g.err = t.Gatherer.Gather()
	return g.families, g.err
}
