package queue

import (
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// OnCallOff sets the function that ends the attempt if a change replaces its
// occurrence before it has begun. cancel must not block. Without it an attempt that
// is called off ends at its Begin.
func (d *Delivery) OnCallOff(cancel func()) {
	d.stripe.Lock()
	defer d.stripe.Unlock()
	d.flight.cancel = cancel
	if d.flight.CalledOff() {
		cancel()
	}
}

// begin is Attempt.Begin. The key's lock decides: a change that came first
// calls the attempt off; one that comes later waits for the first bytes.
func (s *Source) begin(st *stripe, f *activeFlight) (wrote func(), ok bool) {
	st.Lock()
	defer st.Unlock()
	if f.CalledOff() || s.removed.Load() || !s.q.cfg.Owns() {
		return nil, false
	}
	writing := make(chan struct{})
	f.writing = writing
	return func() { close(writing) }, true
}

// effect is what changes leave to be done once the locks of their keys are released.
type effect struct {
	commit store.Commit // the last one, which covers those before it
	writes firstWrites
	wake   bool // the source may have something due sooner
}

// firstWrites are the attempts that were writing their first bytes when a change
// replaced their occurrences.
type firstWrites []firstWrite

type firstWrite struct {
	done   <-chan struct{}
	cancel func()
}

// callOff ends a flight's attempt if a change replaced its occurrence before it
// began. If it has begun, wait waits for it. The caller holds the stripe.
func (b *firstWrites) callOff(f *activeFlight) {
	switch {
	case !f.CalledOff():
	case f.writing != nil:
		*b = append(*b, firstWrite{f.writing, f.cancel})
	case f.cancel != nil:
		f.cancel()
	}
}

// writeWait is how long a change waits for first bytes that block, because the sink
// does not read its connection. Then the attempt is cut off.
const writeWait = time.Second

// wait returns when the first bytes of all of them are written, so that none
// is written after the answer to the change.
func (b firstWrites) wait() {
	for _, w := range b {
		select {
		case <-w.done:
			continue
		case <-time.After(writeWait):
		}
		if w.cancel != nil {
			w.cancel()
		}
		<-w.done
	}
}
