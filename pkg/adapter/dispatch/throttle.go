package dispatch

import "time"

// limit is what a lane with a due key waits for.
type limit uint8

const (
	byMaxInFlight limit = iota
	byMaxPerSecond
	byNamespace
	byNamespaceRate
	byAdapter
	byWorkload
	limits
)

// limitNames name the limits in metrics: the fields of a source, the keys of
// config-reschedule, the adapter, whose slots and memory all sources share, or scale, the start of
// the workload.
var limitNames = [limits]string{"limits.maxInFlight", "limits.maxPerSecond", "max-in-flight", "max-per-second", "adapter", "scale"}

// throttle sums up how long a lane waits for each limit. It changes under the
// Dispatcher's lock.
type throttle struct {
	took  [limits]time.Duration
	by    limit
	since time.Time // zero: it does not wait
}

// begin notes that the lane waits for a limit from now on.
func (t *throttle) begin(by limit, now time.Time) {
	t.add(now)
	t.by, t.since = by, now
}

// end notes that the lane waits for no limit.
func (t *throttle) end() {
	if !t.since.IsZero() {
		t.add(time.Now())
		t.since = time.Time{}
	}
}

func (t *throttle) add(now time.Time) {
	if !t.since.IsZero() {
		t.took[t.by] += now.Sub(t.since)
	}
}

// throttled returns how long the lane has waited for each limit, up to now.
func (d *Dispatcher) throttled(l *lane) [limits]time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := l.throttle
	t.add(time.Now())
	return t.took
}
