package group

import (
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
)

// callers knows when a caller last called this member, or waited for its answer.
type callers struct {
	mu       sync.Mutex // guards both, for a moment
	underWay int        // calls without an answer
	last     time.Time  // when one began or ended
}

// call notes that a call begins, and returns the function that notes its answer. A stream of events
// lasts for as long as its caller wants: only its begin counts.
func (c *callers) call(r *http.Request) (answered func()) {
	c.change(1)
	if strings.HasSuffix(r.URL.Path, "/events") {
		c.change(-1)
		return func() {}
	}
	return func() { c.change(-1) }
}

func (c *callers) change(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.underWay += n
	c.last = time.Now()
}

// latest is when a call was last under way: now, while one is.
func (c *callers) latest() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.underWay > 0 {
		return time.Now()
	}
	return c.last
}

// How long a member that ends goes on forwarding calls: at least, after the last call, and at most.
// Nodes and load balancers send new connections here until they have received that it ends: on a
// busy machine kube-proxy took up to 1.9 s. Where calls are few, that none comes proves nothing, nor
// where all callers wait for an answer.
const (
	forwardLeast = 5 * time.Second
	forwardQuiet = 2 * time.Second
	ForwardMost  = 10 * time.Second
)

// awaitQuiet waits until callers have moved to other members since then, for ForwardMost at most.
func (c *callers) awaitQuiet(begun time.Time, log *slog.Logger) {
	for {
		until := begun.Add(forwardLeast)
		if quiet := c.latest().Add(forwardQuiet); quiet.After(until) {
			until = quiet
		}
		if most := begun.Add(ForwardMost); until.After(most) {
			until = most
		}
		left := time.Until(until)
		if left <= 0 {
			break
		}
		<-time.After(left)
	}
	lastCall := max(c.latest().Sub(begun), 0)
	log.Info("calls were forwarded until callers had moved; this member ends now", "for", time.Since(begun), "lastCall", lastCall)
}
