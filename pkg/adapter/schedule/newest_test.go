package schedule

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// history is a key, its dead letter, and what must be delivered: the newest accepted event, or the reply to it.
type history struct {
	key
	letter *Entry
	newest string // the type of the event; "" is the default event
	events int
	steps  []string
}

// No older event takes the place of a newer one, and no acknowledged event vanishes without a delivery, a dead letter,
// an expiry, a DELETE or something newer: over random PUTs, events, answers, replies, redrives, expiries, other uids
// and restarts.
func TestEvents_NewestIsDelivered(t *testing.T) {
	t.Parallel()
	first := uint64(time.Now().UnixNano())
	for i := range uint64(3000) {
		r := rand.New(rand.NewPCG(first+i, 0))
		h := &history{key: key{now: t0, src: &Spec{Policy: Replace, Ingest: Ingest{Policy: Earliest}, Delivery: Delivery{BackoffDelay: time.Second, Retry: new(r.IntN(3))}}}}
		h.src.Letters = Letters{Keep: 1, MaxAge: time.Hour}
		if r.IntN(2) == 0 {
			h.src.MaxInterval = 20 * time.Second
		}
		for range 60 {
			h.now = h.now.Add(time.Duration(max(r.IntN(20)-10, 0)) * time.Second)
			what, wrong := h.random(r)
			if h.steps = append(h.steps, what); wrong == "" && h.cur != nil && eventOf(h.cur) != h.newest {
				wrong = fmt.Sprintf("the key has the event %q, the newest is %q", eventOf(h.cur), h.newest)
			}
			if wrong != "" {
				t.Fatalf("seed %d, %q: %s", first+i, h.steps, wrong)
			}
		}
	}
}

func eventOf(e *Entry) string {
	if e.Event == nil {
		return ""
	}
	return e.Event.Type
}

func (h *history) event() *Event {
	h.events++
	return &Event{Type: fmt.Sprint(h.events)}
}

// random takes a step, and returns what breaks the promise.
func (h *history) random(r *rand.Rand) (what, wrong string) {
	there := h.cur != nil
	switch r.IntN(12) {
	case 0, 1, 2:
		h.start()
		return "start", ""
	case 3, 4, 5:
		q := randomRequest(r, h.now)
		if q.Event = nil; q.Ingested || r.IntN(2) == 0 {
			q.Event = h.event()
		}
		switch accepted := h.schedule(q, r.Float64()); {
		case accepted && q.Event != nil:
			h.newest = q.Event.Type
		case accepted && !there:
			h.newest = ""
		}
		return "schedule " + h.newest, ""
	case 6:
		h.cancel()
		return "cancel", ""
	case 7:
		h.expire()
		return "expire", ""
	case 8, 9:
		if h.flight == nil {
			return "", ""
		}
		return h.answer(r)
	case 10:
		if h.letter == nil {
			return "", ""
		}
		q, err := h.letter.Redrive(h.cur, false)
		if err != nil {
			return "redrive, refused", ""
		}
		if there && eventOf(h.letter) != h.newest {
			return "redrive", "it takes the place of something newer"
		}
		h.schedule(&q, 0)
		h.newest, h.letter = eventOf(h.letter), nil
		return "redrive " + h.newest, ""
	}
	h.restart()
	if there && h.cur == nil {
		return "restart", "the key is gone"
	}
	return "restart", ""
}

// answer ends the delivery under way.
func (h *history) answer(r *rand.Rand) (what, wrong string) {
	o := randomOutcome(r)
	if o.Kind == Succeeded && o.Again != nil && r.IntN(2) == 0 {
		o.Again.Reply = h.event()
	}
	f, was := h.flight, h.cur
	h.rev++
	s := f.Finish(Inputs{Key: "k", Source: h.src, Revision: h.rev, StoreID: "store", Now: h.now}, was, o)
	h.flight, h.cur = nil, s.Next
	if s.Dead != nil {
		h.letter = s.Dead
	}
	what = fmt.Sprintf("answer %d: %s", o.Kind, s.Disposition)
	switch {
	case f.Own && h.cur != nil && o.Again != nil && h.cur.Event == o.Again.Reply:
		h.newest = eventOf(h.cur) // the successor of the event that was delivered
	case !f.Own && was == nil && h.cur != nil: // after an expiry the key comes back with the event of the delivery, or the reply
		h.newest = eventOf(h.cur)
	case !f.Own && was != nil && h.cur == nil:
		wrong = "the answer to an older delivery ended the key"
	case f.Own && h.cur == nil && s.Disposition != Delivered && s.Disposition != Expired && s.Dead == nil:
		wrong = "the event is neither delivered nor a dead letter"
	case f.Own && s.Disposition == KeptLetter && eventOf(s.Dead) != eventOf(f.Entry):
		wrong = "the dead letter has another event"
	}
	return what, wrong
}
