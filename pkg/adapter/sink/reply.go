package sink

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	afterAttribute = "rescheduleafter"
	atAttribute    = "rescheduleat"
)

// replied is what an event in the sink's answer asks for; nil when that is
// nothing. headerDecides says that the time comes from the header, so that the
// attributes only mark the event as one for us.
func (s *Sender) replied(a *schedule.Attempt, h http.Header, body []byte, whole, headerDecides bool) *schedule.Again {
	if !whole && isStructured(h) {
		s.warn(a, fmt.Errorf("the reply has more than %d bytes", maxReply))
		return nil
	}
	if !whole {
		body = body[:schedule.MaxDataBytes+1] // the attributes still count
	}
	events, err := cloudevent.Read(h, body)
	if err != nil {
		s.warn(a, fmt.Errorf("the reply is no CloudEvent: %w", err))
		return nil
	}
	if len(events) != 1 {
		s.warn(a, fmt.Errorf("the reply is a batch of %d events, not one", len(events)))
		return nil
	}
	e := events[0]
	after, hasAfter := e.Extensions[afterAttribute]
	at, hasAt := e.Extensions[atAttribute]
	if !hasAfter && !hasAt {
		return nil // an ordinary reply
	}
	again := &schedule.Again{}
	if !headerDecides {
		if again, err = s.replyTime(after, at, hasAfter, hasAt); err != nil {
			s.warn(a, fmt.Errorf("the reply: %w", err))
			return nil
		}
	}
	if len(e.Data) > schedule.MaxDataBytes {
		// The wake-up counts more than its event.
		s.warn(a, fmt.Errorf("the reply's data has more than %d bytes, so the event stays the old one", schedule.MaxDataBytes))
		return again
	}
	e.ID, e.Time = "", (&schedule.Event{}).Time
	for _, name := range notStored {
		delete(e.Extensions, name)
	}
	if len(e.Extensions) == 0 {
		e.Extensions = nil
	}
	again.Reply = e
	return again
}

// notStored are the attributes that steer, or that every delivery sets anew.
var notStored = []string{
	afterAttribute, atAttribute, "reschedulepolicy", cloudevent.KeyAttribute,
	cloudevent.RevisionAttribute, cloudevent.DueAtAttribute, cloudevent.NumberAttribute,
}

func (s *Sender) replyTime(after, at any, hasAfter, hasAt bool) (*schedule.Again, error) {
	again := &schedule.Again{}
	var err error
	switch {
	case hasAfter && hasAt:
		return nil, fmt.Errorf("%s stands beside %s", afterAttribute, atAttribute)
	case hasAfter:
		text, ok := after.(string)
		if !ok {
			return nil, fmt.Errorf("%s: %v is not a duration", afterAttribute, after)
		}
		again.After, err = schedule.ParseDuration(afterAttribute, strings.TrimSpace(text))
	default:
		text, _ := at.(string)
		again.At, err = schedule.ParseInstant(atAttribute, strings.TrimSpace(text), s.cfg.Now())
	}
	return again, err
}

func isStructured(h http.Header) bool {
	ct := strings.ToLower(strings.TrimSpace(h.Get(contentType)))
	return strings.HasPrefix(ct, "application/cloudevents")
}
