package replicated

import (
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// arrival is a delivery that the sink works on.
type arrival struct {
	overtaken bool // another delivery of its key has come
}

// deliveries are what the sink has seen.
type deliveries struct {
	t    testing.TB
	hold time.Duration // how long the sink works on a delivery, unless it is cut off

	mu        sync.Mutex // guards the rest, shortly: a delivery has a timeout
	arrived   map[string]int
	under     map[string]*arrival
	cutOff    int       // by the adapter
	last      time.Time // one
	delivered chan struct{}
	from      map[string]time.Time // address of a member → its last one
}

func newDeliveries(t testing.TB) *deliveries {
	return &deliveries{t: t, arrived: map[string]int{}, under: map[string]*arrival{}, delivered: make(chan struct{}), from: map[string]time.Time{}}
}

// deliver is the sink: it looks for deliveries that are early, or two at a time.
func (d *deliveries) deliver(w http.ResponseWriter, r *http.Request, what *harness.Delivery) {
	now := time.Now()
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	d.mu.Lock()
	if now.Before(what.DueAt) {
		d.t.Errorf("%s came %s before its time", what.Key, what.DueAt.Sub(now))
	}
	if before := d.under[what.Key]; before != nil {
		before.overtaken = true
	}
	here := &arrival{}
	d.under[what.Key], d.last, d.from[from] = here, now, now
	close(d.delivered)
	d.delivered = make(chan struct{})
	d.mu.Unlock()
	isCut := false
	if d.hold > 0 {
		select {
		case <-time.After(d.hold):
		case <-r.Context().Done():
			isCut = true
		}
	}
	d.mu.Lock()
	if d.under[what.Key] == here {
		delete(d.under, what.Key)
	}
	overtaken := here.overtaken
	d.mu.Unlock()
	// The adapter cuts a delivery off before it makes it again. A busy machine may show the sink
	// the new request before the end of the old one.
	if overtaken && !isCut {
		select {
		case <-r.Context().Done():
			isCut = true
		case <-time.After(time.Second): // it was not cut off
			d.t.Errorf("%s is delivered twice at one time", what.Key)
		}
	}
	d.mu.Lock()
	if isCut {
		d.cutOff++
	} else {
		d.arrived[what.Key]++
	}
	d.mu.Unlock()
	if !isCut {
		w.WriteHeader(http.StatusNoContent)
	}
}

// newest is when the last delivery came, and a channel that is closed when the next one does.
func (d *deliveries) newest() (time.Time, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last, d.delivered
}

// newestFrom is when the last delivery of the member came.
func (d *deliveries) newestFrom(host string) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.from[host]
}

// missing are the keys that did not arrive.
func (d *deliveries) missing(keys []string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(keys, func(key string) bool { return d.arrived[key] > 0 })
}

// pass waits until deliveries have gone on for so long.
func (d *deliveries) pass(lasting time.Duration) {
	end := time.After(lasting)
	for {
		_, delivered := d.newest()
		select {
		case <-end:
			return
		case <-delivered:
		}
	}
}
