package sim

import (
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// until is when an occurrence must be delivered, with what its slack allows.
func (s *source) until(o *occurrence) time.Time {
	slack := s.settings.Slack
	if o.slack != nil {
		slack = *o.slack
	}
	if !o.mayWait || !o.retryAt.IsZero() || !o.expiresAt.IsZero() || o.dead != nil {
		slack = 0
	}
	return o.at().Add(slack)
}

// named reports that a request names a time that is still ahead.
func named(r *schedule.Request, now time.Time) bool {
	return r.Delay != nil && *r.Delay > 0 || r.DueAt.After(now)
}

// awakening is what woke a sink for certain: deliveries whose slack was used up.
type awakening struct {
	under       int
	since, last time.Time // the first of those under way began, the last one ended, in the bubble's time
}

func (a *awakening) begin(now time.Time) {
	if a.under++; a.under == 1 {
		a.since = now
	}
}

func (a *awakening) end(now time.Time) { a.under, a.last = a.under-1, now }

// awakeSince is since when the sink is awake for certain, zero if it may sleep. A jump of the clock may make the
// adapter forget.
func (j *judge) awakeSince(s *source) time.Time {
	switch {
	case s.awake.under > 0:
		return s.awake.since
	case s.awake.last.IsZero() || !s.awake.last.After(j.jumpAt) || !j.at.Before(s.awake.last.Add(s.settings.Company)):
		return time.Time{}
	}
	return s.awake.last
}

// dueBy is when the adapter has to begin a delivery: at the end of the slack, or once the sink is awake.
func (j *judge) dueBy(s *source, o *occurrence) time.Time {
	by := latest(j.noticed(s.until(o)), s.slackAt)
	if awake := j.awakeSince(s); !awake.IsZero() {
		if at := latest(j.noticed(o.at()), awake, s.slackAt); at.Before(by) {
			return at
		}
	}
	return by
}
