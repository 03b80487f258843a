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

	running sync.Mutex
	mu      sync.Mutex
	next    *gathering // that has not begun; nil: none
}

// gathering is one result.
type gathering struct {
	once     sync.Once
	families []*dto.MetricFamily
	err      error
}

// Gather implements prometheus.Gatherer. What it returns has begun after the call, and is shared.
func (t *together) Gather() ([]*dto.MetricFamily, error) {
	t.mu.Lock()
	if t.next == nil {
		t.next = &gathering{}
	}
	g := t.next
	t.mu.Unlock()
	g.once.Do(func() {
		t.running.Lock()
		defer t.running.Unlock()
		t.mu.Lock()
		t.next = nil
		t.mu.Unlock()
		g.families, g.err = t.Gatherer.Gather()
	})
	return g.families, g.err
}
