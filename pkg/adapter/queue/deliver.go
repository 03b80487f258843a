package queue

import (
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/recent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/timer"
)

// Delivery is a delivery under way: from [Source.Take] to [Source.Finish] its
// key is not handed out again.
type Delivery struct {
	schedule.Attempt
	// Lateness is the time from the end of the slack, or between attempts from the retry
	// time, until Take.
	Lateness time.Duration

	key    string // in the store; a dead letter's differs from Attempt.Key
	stripe *stripe
	flight *activeFlight
}

// Take returns the next key that is due, nil when there is none now or the source is
// suspended. A change that is accepted from now on is a change during the delivery,
// and until the attempt has begun (Attempt.Begin) it calls the attempt off. The
// caller must call [Source.Finish] in any case.
func (s *Source) Take() (*Delivery, error) { return s.take(false) }

// TakeLetter is Take for dead letters alone, which go to another sink.
func (s *Source) TakeLetter() (*Delivery, error) { return s.take(true) }

func (s *Source) take(letters bool) (*Delivery, error) {
	if err := s.enter(); err != nil {
		return nil, nil // a removed source has nothing due
	}
	defer s.leave()
	for !s.page.readsFail() && s.q.mayDeliver() {
		now := s.now()
		row, ok := s.page.take(now, letters)
		if !ok {
			return nil, nil
		}
		d, err := s.start(row, now)
		if d == nil {
			s.page.done(row.Key, row.part, false)
		} else {
			s.page.began(row.part, now)
		}
		if d != nil || err != nil {
			return d, err
		}
	}
	return nil, nil
}

// spaceEvery is how often the queue looks for space while no delivery starts for want of it.
const spaceEvery = time.Second

// mayDeliver reports that a delivery may start: no other adapter can own the store, and the
// disk has space for outcomes. Without space it has all sources woken once there is some.
func (q *Queue) mayDeliver() bool {
	if !q.cfg.Owns() {
		return false
	}
	if q.store.SpaceForOutcomes() {
		return true
	}
	if !q.paused.Swap(true) {
		q.cfg.Log.Warn("the disk is nearly full: no delivery starts until there is space for its outcome")
		q.work.Go(q.awaitSpace)
	}
	return false
}

// untilSpace returns once the disk has space for outcomes, false when the queue is closed before.
func (q *Queue) untilSpace() bool {
	for !q.store.SpaceForOutcomes() {
		select {
		case <-q.stop:
			return false
		case <-time.After(spaceEvery):
		}
	}
	return true
}

func (q *Queue) awaitSpace() {
	if !q.untilSpace() {
		return
	}
	q.paused.Store(false)
	q.cfg.Log.Info("the disk has space again: deliveries go on")
	for _, s := range q.Sources() {
		q.cfg.Wake(s)
	}
}

// start begins the delivery that a row of the page stands for, unless its key
// is in delivery already (then its outcome puts the key back into the page),
// or the row is stale.
func (s *Source) start(row dueRow, now time.Time) (*Delivery, error) {
	st := s.stripes.of(row.Key)
	st.Lock()
	defer st.Unlock()
	if st.flights[row.Key] != nil {
		return nil, nil
	}
	e, _, err := s.get(row.Key, whole)
	if err != nil {
		s.page.retry(row.Row, err)
		return nil, nil
	}
	if e == nil || e.Revision != row.Revision || e.At().UnixNano() != row.At {
		return nil, nil
	}
	if e.Expired(now) {
		return nil, s.drop(row.Key, e)
	}
	if s.page.outranked(row, now) {
		return nil, nil
	}
	attempt, ok := schedule.NewAttempt(row.settings, row.Key, e, s.q.storeID)
	if !ok {
		return nil, s.Letters.retire(row.Key, attempt.Key, e, row.settings, now)
	}
	f := &activeFlight{Flight: schedule.Flight{Entry: e, Started: now, Own: true}, part: row.part}
	attempt.Begin = func() (func(), bool) { return s.begin(st, f) }
	s.stripes.begin(st, row.Key, f)
	if feed := s.feed.Feed(); feed != nil && e.DeadLetter == nil {
		feed.Add(recent.Event{Kind: recent.Started, Key: row.Key, At: now, Attempt: e.Attempt})
	}
	return &Delivery{Attempt: attempt, Lateness: max(now.Sub(e.SlackEnd(row.settings)), 0), key: row.Key, stripe: st, flight: f}, nil
}

// drop removes an entry that must not be delivered. The caller holds the stripe.
func (s *Source) drop(key string, e *schedule.Entry) error {
	c := store.Change{Source: s.uid, Key: key, Old: e}
	if _, err := s.q.store.Apply(true, c); err != nil {
		return s.q.fatal(err)
	}
	s.usage.count(c)
	if !schedule.IsKeptLetterKey(key) {
		s.expired.Add(1)
	}
	s.rememberEnd(key, e.Attempt, string(schedule.Expired))
	return nil
}

// Finish applies the outcome of a delivery. It does not wait for the disk: if a crash
// loses the outcome, the delivery is repeated.
func (s *Source) Finish(d *Delivery, o schedule.Outcome) (schedule.Disposition, error) {
	if err := s.enter(); err != nil {
		d.stripe.Lock()
		defer d.stripe.Unlock()
		s.endFlight(d)
		return schedule.Unfinished, nil // an outcome of a removed source has no effect
	}
	defer s.leave()
	disposition, wake, err := s.finish(d, o)
	if wake {
		s.q.cfg.Wake(s)
	}
	return disposition, err
}

func (s *Source) finish(d *Delivery, o schedule.Outcome) (schedule.Disposition, bool, error) {
	d.stripe.Lock()
	defer d.stripe.Unlock()
	f, unreadable, err := d.flight, false, error(nil)
	cur := f.Entry
	if !f.Own {
		cur, unreadable, err = s.get(d.key, outline)
	}
	if err != nil {
		// The occurrence in the store will be delivered. Without reading it, the
		// effect of this outcome on it is not known.
		s.page.retry(timer.Row{At: s.now().UnixNano(), Key: d.key}, err)
		s.endFlight(d)
		return schedule.Unfinished, false, nil
	}
	revision, err := s.q.store.NextRevision()
	if err != nil {
		return "", false, s.q.fatal(err)
	}
	stored, settings, now := cur, s.Spec(), s.now()
	if cur != nil && !f.Own && cur.Expired(now) { // the waiting occurrence has expired, swept or not
		cur = nil
		s.expired.Add(1)
	}
	in := schedule.Inputs{Key: d.key, Source: settings, Revision: revision, StoreID: s.q.storeID, Now: now}
	if settings.Jitter > 0 || f.Entry.Calendar != nil {
		in.Random = s.q.cfg.Random()
	}
	step := f.Finish(in, cur, o)
	if step.Disposition == schedule.Retrying {
		s.dropAnswer(&step, stored, d.key, settings)
	}
	var few [2]store.Change
	changes := few[:0]
	if step.Changed || stored != cur {
		changes = append(changes, store.Change{Source: s.uid, Key: d.key, Old: stored, New: step.Next, Corrupt: unreadable && step.Next != nil})
	}
	switch {
	case step.Disposition == schedule.KeptLetter:
		s.Letters.mu.Lock()
		defer s.Letters.mu.Unlock()
		n := len(changes)
		if changes = s.Letters.keep(changes, step.Dead, settings); len(changes) == n {
			step.Disposition = schedule.Dropped
		}
	case step.Dead != nil:
		changes = append(changes, store.Change{Source: s.uid, Key: schedule.DeadLetterKey(revision), New: step.Dead})
	}
	if len(changes) > 0 {
		if _, err := s.q.store.Apply(true, changes...); err != nil {
			return "", false, s.q.fatal(err)
		}
	}
	s.endFlight(d)
	s.remember(d, o, step.Disposition, now)
	wake := false
	for _, c := range changes {
		s.usage.count(c)
		wake = s.accept(c) || wake
	}
	if !step.Changed && step.Next != nil { // its row may have come and gone meanwhile
		wake = s.page.add(d.key, step.Next) || wake
	}
	return step.Disposition, wake, nil
}

// dropAnswer drops what the sink answered from the entry if there is no space for it.
func (s *Source) dropAnswer(step *schedule.Step, stored *schedule.Entry, key string, settings *schedule.Spec) {
	e := step.Next
	if e == nil || e.LastFailure == nil || !s.usage.noSpaceFor(e.Size(key)-stored.Size(key), settings) {
		return
	}
	n, failure := *e, *e.LastFailure
	failure.Data, n.LastFailure = nil, &failure
	step.Next = &n
}

// endFlight ends the flight. The caller holds the stripe.
func (s *Source) endFlight(d *Delivery) {
	s.stripes.end(d)
	s.page.done(d.key, d.flight.part, true)
}
