package dispatch

import (
	"strings"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The deliveries of a source fail when none has succeeded for failingAfter and at least
// failingTries have failed.
const (
	failingAfter = time.Minute
	failingTries = 3
	// maxFailureText bounds the text of a failure in logs and conditions.
	maxFailureText = 200
)

// HealthState says whether the deliveries of a source succeed.
type HealthState uint8

// The states.
const (
	Untried HealthState = iota
	Succeeding
	Failing
)

// Health is the state of a source's deliveries, with the last failure.
type Health struct {
	State HealthState
	At    time.Time
	Code  int    // HTTP status, 0 when there was no answer
	Text  string // start of the answer; without an answer the reason
}

// health follows the deliveries of a lane.
type health struct {
	sync.Mutex
	Health
	since  time.Time // of the last success, or the first failure without one
	failed int       // since then
}

// observe notes the end of an attempt and reports whether the deliveries fail from now on.
func (h *health) observe(o *schedule.Outcome, now time.Time) bool {
	h.Lock()
	defer h.Unlock()
	switch o.Kind {
	case schedule.Succeeded:
		h.State, h.since, h.failed = Succeeding, now, 0
	case schedule.Failed, schedule.Rejected:
		if h.failed++; h.since.IsZero() {
			h.since = now
		}
		h.At, h.Code, h.Text = now, o.Failure.Code, failureText(o.Failure.Data)
	}
	return h.turn(now)
}

// turn makes the state Failing if it is time, and reports that. The caller holds the lock.
func (h *health) turn(now time.Time) bool {
	if now.Before(h.since) { // the wall clock was set back
		h.since = now
	}
	if h.State == Failing || h.failed < failingTries || now.Sub(h.since) < failingAfter {
		return false
	}
	h.State = Failing
	return true
}

// look returns the health, and whether the deliveries fail from now on.
func (h *health) look(now time.Time) (Health, bool) {
	h.Lock()
	defer h.Unlock()
	turned := h.turn(now)
	return h.Health, turned
}

func failureText(data []byte) string {
	text := strings.ToValidUTF8(string(data[:min(len(data), maxFailureText)]), "")
	return strings.Join(strings.Fields(text), " ")
}

// Health returns whether the deliveries of the source succeed.
func (d *Dispatcher) Health(s *queue.Source) Health {
	d.mu.Lock()
	l := d.lanes[s]
	d.mu.Unlock()
	if l == nil {
		return Health{}
	}
	h, turned := l.health.look(d.cfg.Now().Round(0))
	if turned && d.cfg.Failing != nil {
		d.cfg.Failing(s.Spec(), h)
	}
	return h
}

// failureLines is how many lines a second the log has of one source's failed attempts.
const failureLines = 5

// observeHealth follows the deliveries of a source, and logs the first failure of a key
// and then each doubling of its attempts.
func (d *Dispatcher) observeHealth(l *lane, t *queue.Delivery, o *schedule.Outcome, dest string) {
	now := d.cfg.Now().Round(0)
	if l.health.observe(o, now) && d.cfg.Failing != nil {
		h, _ := l.health.look(now)
		d.cfg.Failing(t.Source, h)
	}
	tries := t.Entry.Tries + 1
	if o.Kind != schedule.Failed && o.Kind != schedule.Rejected || tries&(tries-1) != 0 {
		return
	}
	if leftOut, ok := l.failures.Next(time.Now()); ok {
		d.cfg.Log.Warn("a delivery failed", "source", t.Source.Path(), "key", t.Key, "revision", t.Revision(), "tries", tries,
			"dest", dest, "code", o.Failure.Code, "text", failureText(o.Failure.Data), "linesLeftOut", leftOut)
	}
}
