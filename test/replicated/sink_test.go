package replicated

import (
	"net"
	"net/http"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// arrival is a delivery that the sink works on.
type arrival struct {
	overtaken bool // another delivery of its key has come
}

// deliver is the sink: it looks for deliveries that are early, or two at a time.
func (g *group) deliver(w http.ResponseWriter, r *http.Request, d *harness.Delivery) {
	now := time.Now()
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	g.mu.Lock()
	if now.Before(d.DueAt) {
		g.t.Errorf("%s came %s before its time", d.Key, d.DueAt.Sub(now))
	}
	if before := g.under[d.Key]; before != nil {
		before.overtaken = true
	}
	here := &arrival{}
	g.under[d.Key], g.last, g.from[from] = here, now, now
	close(g.delivered)
	g.delivered = make(chan struct{})
	g.mu.Unlock()
	isCut := false
	if g.hold > 0 {
		select {
		case <-time.After(g.hold):
		case <-r.Context().Done():
			isCut = true
		}
	}
	g.mu.Lock()
	if g.under[d.Key] == here {
		delete(g.under, d.Key)
	}
	overtaken := here.overtaken
	g.mu.Unlock()
	// The adapter cuts a delivery off before it makes it again. A busy machine may show the sink
	// the new request before the end of the old one.
	if overtaken && !isCut {
		select {
		case <-r.Context().Done():
			isCut = true
		case <-time.After(time.Second): // it was not cut off
			g.t.Errorf("%s is delivered twice at one time", d.Key)
		}
	}
	g.mu.Lock()
	if isCut {
		g.cutOff++
	} else {
		g.arrived[d.Key]++
	}
	g.mu.Unlock()
	if !isCut {
		w.WriteHeader(http.StatusNoContent)
	}
}
