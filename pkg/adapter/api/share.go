package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// What the edge holds at most, with the default limits. A source, or a caller
// without a name, has a quarter of a budget at most, a namespace a half.
//
//	requests under way   32 MiB   about 1,900, 480 of one peer (Config.Requests)
//	requests that wait   24 MiB   1,024 without large headers, for 5 s
//	bodies and answers  128 MiB   with what decoding them takes (Config.Budget)
const (
	// requestBytes are a request's stacks and buffers, its first bytes of body
	// and an answer that is not large; headers count twice, as text and as map.
	requestBytes = 16 << 10
	// waitBytes is the largest request that may wait for its share: what waits is
	// not counted.
	waitBytes = requestBytes + 8<<10
	// smallBody and smallAnswer are part of requestBytes.
	smallBody, smallAnswer = 4 << 10, 4 << 10
	// entryBytes is what reading a key takes: an event of 256 KiB, twice, with
	// its attributes. It is held until the size is known.
	entryBytes = 1 << 20
	// itemBytes is what an item of a bulk call takes beside its text, which has
	// at least itemText bytes: the request, the entry, the answer's view.
	itemBytes, itemText = 1 << 10, 10
	// refusalTime is how long a caller who was not let in may take to read so.
	refusalTime = 5 * time.Second
)

// unauthenticatedNamespace is the namespace of callers that are not authenticated; each
// peer counts as a source of it. No namespace of a cluster is named so.
const unauthenticatedNamespace = ""

// Peer is the address of the other side without the port.
func Peer(r *http.Request) string {
	if i := strings.LastIndexByte(r.RemoteAddr, ':'); i >= 0 {
		return r.RemoteAddr[:i]
	}
	return r.RemoteAddr
}

// enter takes the request's share of what all requests under way may hold.
// Peers are distinguished: nothing else is known yet.
func (c *call) enter() error {
	size := int64(requestBytes)
	for name, values := range c.r.Header {
		for _, v := range values {
			size += 2 * int64(len(name)+len(v))
		}
	}
	from := Peer(c.r)
	c.share = c.shares.Claim(from, from)
	if c.share.TryGrow(size) || size <= waitBytes && c.waitFor(&c.share, size) {
		return nil
	}
	// Nothing of it is counted, so it must not stay long.
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(refusalTime)) // HTTP always can
	c.w.Header()["Connection"] = []string{"close"}
	return schedule.Refuse(schedule.CodeUnavailable, "too many requests of %s are under way", from)
}

// leave gives back what the request holds.
func (c *call) leave() {
	c.turn.Release()
	c.claim.Release()
	c.share.Release()
}

// compute takes a turn to decode or encode n bytes, if they are many. The turn ends
// with c.turn.Done, before the caller waits for the network.
func (c *call) compute(all *budget.Budget, n int) (err error) {
	if n < budget.LongBytes {
		return nil
	}
	settings := c.src.Spec()
	if c.turn, err = all.Take(c.r.Context(), settings.Namespace, settings.Name); err != nil {
		return noTurn()
	}
	return nil
}

// pass lets other computations go first.
func (c *call) pass() error {
	if err := c.turn.Pass(c.r.Context()); err != nil {
		return noTurn()
	}
	return nil
}

func noTurn() error {
	return schedule.Refuse(schedule.CodeUnavailable, "too many large bodies and answers wait for a processor")
}

// waitFor grows a claim, and waits for its share.
func (c *call) waitFor(claim *budget.Claim, n int64) bool {
	if claim.TryGrow(n) {
		return true
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), c.cfg.BudgetWait)
	defer cancel()
	return claim.Grow(ctx, n) == nil
}

// grow takes n bytes more for the body, for the answer, or for large entries that a change has
// to read. It does not wait for them with the turn: callers whose namespace has no memory left
// would hold up the others. It is a queue.ClaimMemory.
func (c *call) grow(n int64) error {
	if c.claim.TryGrow(n) {
		return nil
	}
	var full error
	err := c.turn.Without(c.r.Context(), func() error {
		if !c.waitFor(&c.claim, n) {
			full = schedule.Refuse(schedule.CodeUnavailable, "too many bytes of bodies and answers of %s are under way", c.r.URL.Path)
		}
		return full
	})
	if err != nil && full == nil {
		return noTurn()
	}
	return full
}

// reserve returns b with capacity for n bytes more. Once the answer is not small any
// more, it takes a share for them.
func (c *call) reserve(b []byte, n int) ([]byte, error) {
	if cap(b)-len(b) >= n {
		return b, nil
	}
	size := max(2*cap(b), len(b)+n)
	if size > smallAnswer {
		if err := c.grow(int64(size)); err != nil {
			return b, err
		}
	}
	more := append(make([]byte, 0, size), b...)
	if cap(b) > smallAnswer {
		c.claim.Shrink(int64(cap(b)))
	}
	return more, nil
}

// keep holds what the answer takes until it is sent, and gives back the rest.
func (c *call) keep(answer []byte) {
	need := int64(0)
	if cap(answer) > smallAnswer {
		need = int64(cap(answer))
	}
	c.claim.Shrink(c.claim.Held() - need)
}
