package queue

import (
	"cmp"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/recent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// remember notes the end of an attempt. The caller holds the stripe.
func (s *Source) remember(d *Delivery, o schedule.Outcome, what schedule.Disposition, now time.Time) {
	if d.Entry.DeadLetter != nil {
		return
	}
	status := cmp.Or(o.Status, o.Failure.Code)
	cause := ""
	if d.Entry.Event != nil {
		cause, _ = d.Entry.Event.Extensions[schedule.CauseAttribute].(string)
	}
	s.q.history.Add(d.Source.Namespace, s.uid, d.key, recent.Outcome{
		At: now, Result: string(what), Cause: cause, Status: status, Attempt: d.Entry.Attempt,
		Lateness: d.Lateness, Duration: max(now.Sub(d.flight.Started), 0),
	})
	if feed := s.feed.Feed(); feed != nil {
		feed.Add(recent.Event{Kind: recent.Ended, Key: d.key, At: now, Attempt: d.Entry.Attempt, Result: string(what), Status: status})
	}
}

// deleted is the result of a key that a caller cancelled. It is no disposition: no attempt
// ended.
const deleted = "deleted"

// rememberEnd notes the end of a key without an attempt. The caller holds the stripe.
func (s *Source) rememberEnd(key string, attempt uint32, result string) {
	if schedule.IsDeadLetterKey(key) {
		return
	}
	now := s.now()
	s.q.history.Add(s.Spec().Namespace, s.uid, key, recent.Outcome{At: now, Result: result, Attempt: attempt})
	if feed := s.feed.Feed(); feed != nil {
		feed.Add(recent.Event{Kind: recent.Ended, Key: key, At: now, Attempt: attempt, Result: result})
	}
}

// showScheduled shows a new or changed occurrence to the followers of the source. The
// caller holds the stripe.
func (s *Source) showScheduled(feed *recent.Feed, c *store.Change) {
	if schedule.IsDeadLetterKey(c.Key) || c.Old != nil && c.Old.Revision == c.New.Revision {
		return
	}
	feed.Add(recent.Event{Kind: recent.Scheduled, Key: c.Key, At: s.now(), Revision: c.New.Revision, DueAt: c.New.DueAt})
}

// History returns the last outcomes of the key that are known, newest first, and since
// when all of them are.
func (s *Source) History(key string) ([]recent.Outcome, time.Time, error) {
	if err := schedule.ValidateKey(key); err != nil {
		return nil, time.Time{}, err
	}
	if err := s.enter(); err != nil {
		return nil, time.Time{}, err
	}
	defer s.leave()
	outcomes, since := s.q.history.Get(s.Spec().Namespace, s.uid, key)
	return outcomes, since, nil
}

// Follow returns a follower of the source's events. With resume it begins after the event
// with the number after; whole is false when some later events are not known any more.
func (s *Source) Follow(after uint64, resume bool) (f *recent.Follower, whole bool, _ error) {
	if err := s.enter(); err != nil {
		return nil, false, err
	}
	defer s.leave()
	f, whole = s.q.feeds.Follow(&s.feed, after, resume)
	if f == nil {
		return nil, false, schedule.Refuse(schedule.CodeUnavailable, "the events of too many sources are followed at once")
	}
	return f, whole, nil
}

// EndEvents ends the streams of all followers.
func (q *Queue) EndEvents() {
	for _, s := range q.Sources() {
		q.feeds.End(&s.feed)
	}
}
