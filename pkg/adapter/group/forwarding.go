package group

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
)

const (
	// maxReplay bounds the bytes of a body that a call keeps to be sent to another owner.
	maxReplay = 64 << 10
	// headTime is how long the first maxReplay bytes of a body may take. A call holds a slot
	// meanwhile.
	headTime = 10 * time.Second
	// Of a body that the owner does not read, so much is read and dropped, for so long.
	skipBytes = 16 << 20
	skipTime  = 2 * time.Second
)

// forwarding is a call on its way to the owner.
type forwarding struct {
	head  []byte    // of the body
	rest  io.Reader // the body behind head
	whole bool      // head is all of the body: it can be sent again
	large *gate     // the body of the last try, where it can be read once
	slot  *budget.Claim
}

// gate is a body that can be read once. A member that does not own the group refuses the call
// before it reads the body; then the gate is shut, and the body is there for the next try.
type gate struct {
	mu          sync.Mutex
	begun, shut bool
	failed      error // the caller's body could not be read
	body        io.Reader
}

var errGateShut = errors.New("group: the call is sent to another owner")

// Read implements io.Reader.
func (g *gate) Read(p []byte) (int, error) {
	g.mu.Lock()
	shut := g.shut
	g.begun = g.begun || !shut
	g.mu.Unlock()
	if shut {
		return 0, errGateShut
	}
	n, err := g.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.failed = err
	}
	return n, err
}

// failure is why the caller's body could not be read.
func (g *gate) failure() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed
}

// close shuts the gate. It returns false if a read has begun.
func (g *gate) close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = !g.begun
	return g.shut
}

// newForwarding reads the head of the body. The time for the rest is bounded by the owner.
func newForwarding(w http.ResponseWriter, r *http.Request) (*forwarding, error) {
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(headTime)) // HTTP always can
	defer func() { _ = connection.SetReadDeadline(time.Time{}) }()
	f := &forwarding{rest: r.Body}
	var err error
	if f.head, err = io.ReadAll(io.LimitReader(r.Body, maxReplay+1)); err != nil {
		return nil, err
	}
	f.whole = len(f.head) <= maxReplay
	return f, nil
}

// body is the body for one try.
func (f *forwarding) body() io.Reader {
	if f.whole {
		return bytes.NewReader(f.head)
	}
	f.large = &gate{body: io.MultiReader(bytes.NewReader(f.head), f.rest)}
	return f.large
}

// skip reads what the owner did not want of the body. This member has told the caller to go on,
// and a caller that reads no answer before its last byte is sent would see a broken connection.
func (f *forwarding) skip(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(skipTime)) // HTTP always can
	_, _ = io.CopyN(io.Discard, f.rest, skipBytes)
}

// repeatable reports that the call can be sent, again too. The last try has ended.
func (f *forwarding) repeatable() bool { return f.whole || f.large == nil || f.large.close() }
