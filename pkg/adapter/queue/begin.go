package queue

import "time"

// OnCallOff says how the attempt is ended should a change take the place of
// its occurrence before it has begun. cancel must not block. Without it an
// attempt that is called off ends at its Begin.
func (s *Source) OnCallOff(d *Delivery, cancel func()) {
	st := s.stripe(d.key)
	st.Lock()
	defer st.Unlock()
	d.flight.cancel = cancel
	if d.flight.CalledOff() {
		cancel()
	}
}

// begin is Attempt.Begin. The key's lock decides: a change that came first
// calls the attempt off; one that comes later waits for the first bytes.
func (s *Source) begin(st *stripe, f *flight) (wrote func(), ok bool) {
	st.Lock()
	defer st.Unlock()
	if f.CalledOff() || s.removed.Load() {
		return nil, false
	}
	writing := make(chan struct{})
	f.writing = writing
	return func() { close(writing) }, true
}

// begun are attempts that were writing their first bytes when a change took
// the place of their occurrences.
type begun []writing

type writing struct {
	done   <-chan struct{}
	cancel func()
}

// callOff ends a flight's attempt if a change took the place of its occurrence
// before it began; one that has begun must be waited for. The caller holds the
// stripe.
func (b *begun) callOff(f *flight) {
	switch {
	case !f.CalledOff():
	case f.writing != nil:
		*b = append(*b, writing{f.writing, f.cancel})
	case f.cancel != nil:
		f.cancel()
	}
}

// writeWait is how long a change waits for first bytes that do not get away,
// into a connection that the sink does not read: then they are cut off.
const writeWait = time.Second

// wait returns when the first bytes of all of them are written, so that none
// is written after the answer to the change.
func (b begun) wait() {
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
