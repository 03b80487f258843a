package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// maxStructured bounds a reply in the JSON format: data as base64 or with
// every byte escaped a little, and attributes.
const maxStructured = 3*schedule.MaxDataBytes + 256<<10

// A reply up to freeReply is part of the memory that dispatch counts for a delivery.
// Each byte of a larger one counts replyCopies times: for the growing buffer, and for
// the event.
const (
	freeReply   = 16 << 10
	replyCopies = 4
)

// asks reports whether an answer is an event that may ask for the key again. The body
// of other answers is not read.
func asks(h http.Header) bool {
	if !cloudevent.IsEvent(h) {
		return false
	}
	return cloudevent.IsMedia(h.Get(contentType)) || len(h["Ce-Rescheduleafter"]) > 0 || len(h["Ce-Rescheduleat"]) > 0
}

// reply reads the event of an answer. When its data cannot be read, attributes in
// headers still apply.
func (s *Sender) reply(ctx context.Context, a *schedule.Attempt, resp *http.Response, headerDecides bool) *schedule.RescheduleAfter {
	structured := cloudevent.IsMedia(resp.Header.Get(contentType))
	most := schedule.MaxDataBytes
	if structured {
		most = maxStructured
	}
	claim := s.replies.Claim(a.Source.Namespace, a.Source.UID)
	defer claim.Release()
	var body []byte
	err := errTooLong(most)
	if resp.ContentLength <= int64(most) {
		body, err = s.readReply(ctx, &claim, resp.Body, most)
	}
	if err != nil && structured {
		s.warn(a, err)
		return nil
	}
	again := s.replied(a, resp.Header, body, headerDecides)
	if err != nil && again != nil {
		s.warn(a, fmt.Errorf("%w, so the old event stays", err)) // the time matters more than the event
		again.Reply = nil
	}
	recycle(body) // an event has a copy of its data
	return again
}

func errTooLong(most int) error { return fmt.Errorf("the reply has more than %d bytes", most) }

// readReply reads a body of at most the given bytes, within the claim. Without an error the
// caller may recycle it.
func (s *Sender) readReply(ctx context.Context, claim *budget.Claim, body io.Reader, most int) (_ []byte, err error) {
	b := newBuffer(freeReply / 4)
	defer func() {
		if err != nil {
			recycle(b)
		}
	}()
	for {
		if len(b) == cap(b) {
			size := min(2*cap(b), most+1)
			if size > freeReply {
				if err := claim.Grow(ctx, replyCopies*int64(size)-claim.Held()); err != nil {
					return nil, fmt.Errorf("no memory for the reply within %s", s.replyTimeout)
				}
			}
			small := b
			b = append(newBuffer(size), small...)
			recycle(small)
		}
		n, err := body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case len(b) > most:
			return nil, errTooLong(most)
		case errors.Is(err, io.EOF):
			return b, nil
		case err != nil && ctx.Err() != nil:
			return nil, fmt.Errorf("the reply did not come within %s", s.replyTimeout)
		case err != nil:
			return nil, fmt.Errorf("the reply broke off: %w", err)
		}
	}
}

// replyBuffers are buffers for later replies, by their size. A sink that answers each delivery
// with a large reply would have the collector run once a second, which delays all deliveries.
var replyBuffers = func() map[int]*sync.Pool {
	pools := map[int]*sync.Pool{}
	for _, most := range []int{schedule.MaxDataBytes, maxStructured} {
		pools[most+1] = new(sync.Pool)
		for size := freeReply / 4; size <= most; size *= 2 {
			pools[size] = new(sync.Pool)
		}
	}
	return pools
}()

func newBuffer(size int) []byte {
	if b, ok := replyBuffers[size].Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, 0, size)
}

// recycle keeps a buffer for later replies. nil is no buffer.
func recycle(b []byte) {
	if b != nil {
		b = b[:0]
		replyBuffers[cap(b)].Put(&b)
	}
}

// replied is what an event in the sink's answer asks for; nil when that is
// nothing. headerDecides: the time comes from the header, so that the
// attributes only mark the event as one for us.
func (s *Sender) replied(a *schedule.Attempt, h http.Header, body []byte, headerDecides bool) *schedule.RescheduleAfter {
	events, err := cloudevent.Read(h, body)
	if err != nil {
		s.warn(a, fmt.Errorf("the reply is not a CloudEvent: %w", err))
		return nil
	}
	if len(events) != 1 {
		s.warn(a, fmt.Errorf("the reply is a batch of %d events, not one", len(events)))
		return nil
	}
	e := events[0]
	delay, at, err := cloudevent.RequestedTime(e, s.cfg.Now())
	again := &schedule.RescheduleAfter{}
	switch {
	case delay == nil && at.IsZero() && err == nil:
		return nil // an ordinary reply
	case headerDecides:
	case err != nil:
		s.warn(a, fmt.Errorf("the reply: %w", err))
		return nil
	case delay != nil:
		again.After = *delay
	default:
		again.At = at
	}
	if len(e.Data) > schedule.MaxDataBytes {
		// The time matters more than the event.
		s.warn(a, fmt.Errorf("the reply's data has more than %d bytes, so the old event stays", schedule.MaxDataBytes))
		return again
	}
	e.ID, e.Time = "", (&schedule.Event{}).Time
	for _, name := range cloudevent.Reserved {
		delete(e.Extensions, name)
	}
	if len(e.Extensions) == 0 {
		e.Extensions = nil
	}
	again.Reply = e
	return again
}
