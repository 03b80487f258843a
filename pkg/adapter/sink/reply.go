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

// asks reports whether an answer may ask for the key again with an event. The body of
// other answers is not read.
func asks(h http.Header) bool {
	return cloudevent.IsMedia(h.Get(contentType)) || cloudevent.TimeExtensions(h) != nil
}

// reply returns what the event of an answer asks for; nil when that is nothing. It returns
// an error when the wait cannot be read. headerDecides: the time comes from the header, so that
// the attributes only mark the event as one for us.
func (s *Sender) reply(ctx context.Context, a *schedule.Attempt, resp *http.Response, headerDecides bool) (*schedule.RescheduleAfter, error) {
	extensions := cloudevent.TimeExtensions(resp.Header)
	event, err := s.replyEvent(ctx, a, resp)
	if extensions == nil && event != nil { // structured mode
		extensions = event.Extensions
	}
	if err != nil && extensions == nil && !headerDecides {
		return nil, err
	}
	again, unreadable := cloudevent.AnsweredTime(extensions, s.cfg.Now())
	if headerDecides && unreadable != nil {
		again, unreadable = &schedule.RescheduleAfter{}, nil
	}
	if unreadable != nil {
		return nil, unreadable
	}
	if again != nil && event != nil {
		err = fits(event)
	}
	if err != nil { // the time matters more than the event
		s.warn(a, fmt.Errorf("%w, so the old event stays", err))
	}
	if again == nil || event == nil || err != nil {
		return again, nil //nolint:nilerr // the warning has the error
	}
	again.Reply = event
	event.ID, event.Time = "", (&schedule.Event{}).Time
	for _, name := range cloudevent.Reserved {
		delete(event.Extensions, name)
	}
	if len(event.Extensions) == 0 {
		event.Extensions = nil
	}
	return again, nil
}

// fits reports why an event cannot be kept.
func fits(e *schedule.Event) error {
	if len(e.Data) > schedule.MaxDataBytes {
		return errTooLong(schedule.MaxDataBytes)
	}
	return cloudevent.CheckSize("", e)
}

// replyEvent reads the event of an answer; nil for a batch in which none asks for the key.
func (s *Sender) replyEvent(ctx context.Context, a *schedule.Attempt, resp *http.Response) (*schedule.Event, error) {
	declared := resp.Header.Get(contentType)
	most, structured := schedule.MaxDataBytes, cloudevent.IsMedia(declared)
	switch {
	case cloudevent.IsForeign(declared): // not known to carry a wait
		s.warn(a, fmt.Errorf("the reply has the type %.128q, which is not read here", declared))
		return nil, nil
	case structured:
		most = maxStructured
	}
	if resp.ContentLength > int64(most) {
		return nil, errTooLong(most)
	}
	claim := s.replies.Claim(a.Source.Namespace, a.Source.UID)
	defer claim.Release()
	body, err := s.readReply(ctx, &claim, resp.Body, most)
	if err != nil {
		return nil, err
	}
	defer recycle(body)               // an event has a copy of its data
	if structured && len(body) == 0 { // no body is no reply
		return nil, nil
	}
	if coding := cloudevent.Coding(resp.Header); coding != "" {
		return nil, fmt.Errorf("the reply has the content coding %.64q", coding)
	}
	events, err := cloudevent.Read(resp.Header, body)
	if err != nil {
		err = fmt.Errorf("the reply is not a CloudEvent: %w", err)
		if structured && !cloudevent.MayAsk(body) {
			s.warn(a, err)
			err = nil
		}
		return nil, err
	}
	if len(events) == 1 {
		return events[0], nil
	}
	for _, e := range events {
		if again, err := cloudevent.AnsweredTime(e.Extensions, s.cfg.Now()); again != nil || err != nil {
			return nil, fmt.Errorf("the reply is a batch of %d events, not one", len(events))
		}
	}
	return nil, nil
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
