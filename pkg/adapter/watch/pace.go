package watch

import (
	"sync"
	"time"
)

// Without a time to spread a resync over, the source's resyncs and first lists schedule a key every resyncEvery, so
// that few objects are one wake of the sink. What would come later than resyncMost is spread over that.
const (
	resyncEvery = 100 * time.Millisecond
	resyncMost  = 10 * time.Minute
)

// pace is when the next key of a resync is due.
type pace struct {
	mu   sync.Mutex
	last time.Time
}

// delay is the key's wait: its share of over, or without that the next turn.
func (p *pace) delay(key string, over *time.Duration) time.Duration {
	if over != nil {
		return spread(key, *over)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	wait := max(p.last.Sub(now), 0) + resyncEvery
	if wait > resyncMost {
		return spread(key, resyncMost)
	}
	p.last = now.Add(wait)
	return wait
}

// spread is the key's time within over.
func spread(key string, over time.Duration) time.Duration {
	return time.Duration(share(key) * float64(over))
}
