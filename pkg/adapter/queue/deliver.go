package queue

import (
	"errors"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/timer"
)

// Delivery is a delivery under way: from [Source.Take] to [Source.Finish] its
// key is not handed out again.
type Delivery struct {
	schedule.Attempt
	// Lateness is how long after its time, the due time or between attempts the
	// retry time, it was taken.
	Lateness time.Duration

	key    string // in the store; a dead letter's differs from Attempt.Key
	flight *flight
}

// Take hands out the next key that is due, nil when there is none now or the
// source is suspended. A change that is accepted from now on counts as one
// during the delivery, and until the attempt has begun (Attempt.Begin) it calls
// the attempt off. The caller calls [Source.Finish] in any case.
func (s *Source) Take() (*Delivery, error) {
	if err := s.enter(); err != nil {
		return nil, nil // a removed source has nothing due
	}
	defer s.leave()
	settings := s.Settings()
	if settings.Suspend {
		return nil, nil
	}
	for !s.stuck() {
		now := s.now()
		s.page.Lock()
		row, ok := s.next(settings, now)
		low := s.page.NeedsLoad()
		s.page.Unlock()
		if low {
			s.load()
		}
		if !ok {
			return nil, nil
		}
		d, err := s.start(row, settings, now)
		if d == nil && schedule.IsDeadLetterKey(row.Key) {
			s.page.Lock()
			s.page.letters.flights--
			s.page.Unlock()
		}
		if d != nil || err != nil {
			return d, err
		}
	}
	return nil, nil
}

// start begins the delivery that a row of the page stands for, unless its key
// is in delivery already (then its outcome puts the key back into the page),
// or the row is stale.
func (s *Source) start(row timer.Row, settings *schedule.Source, now time.Time) (*Delivery, error) {
	st := s.stripe(row.Key)
	st.Lock()
	defer st.Unlock()
	if st.flights[row.Key] != nil {
		return nil, nil
	}
	e, _, err := s.get(row.Key, false)
	if err != nil {
		s.later(row, err)
		return nil, nil
	}
	if e == nil || e.Revision != row.Revision || e.At().UnixNano() != row.At {
		return nil, nil
	}
	if e.Expired(now) {
		return nil, s.drop(row.Key, e)
	}
	attempt, ok := schedule.NewAttempt(settings, row.Key, e, s.q.storeID)
	if !ok {
		s.q.cfg.Log.Warn("a dead letter is dropped: the source has no dead letter sink any more", "source", settings.Path(), "key", attempt.Key)
		return nil, s.drop(row.Key, e)
	}
	f := &flight{Flight: schedule.Flight{Entry: e, Own: true}}
	attempt.Begin = func() (func(), bool) { return s.begin(st, f) }
	shown := st.show()
	if st.flights == nil {
		st.flights = map[string]*flight{}
	}
	st.flights[row.Key] = f
	shown()
	if e.DeadLetter == nil {
		s.flights.Add(1)
		s.own.Add(1)
	}
	return &Delivery{Attempt: attempt, Lateness: now.Sub(e.At()), key: row.Key, flight: f}, nil
}

// maxAgain is how many keys of a source may wait to be read once more. With
// more of them the disk does not read at all: the source waits with them.
const maxAgain = 64

func (s *Source) stuck() bool { return s.again.Load() >= maxAgain }

// later looks at a key again whose entry could not be read just now.
func (s *Source) later(row timer.Row, err error) {
	if errors.Is(err, store.ErrClosed) {
		return
	}
	s.again.Add(1)
	s.q.cfg.Log.Error("an entry cannot be read; trying again", "source", s.Settings().Path(), "key", row.Key, "error", err)
	s.q.work.Go(func() {
		select {
		case <-s.q.stop:
			return
		case <-time.After(time.Second):
		}
		st := s.stripe(row.Key)
		st.Lock()
		e, _, err := s.get(row.Key, true)
		if err == nil && e != nil {
			row.At, row.Revision = e.At().UnixNano(), e.Revision
		}
		st.Unlock()
		s.page.Lock()
		s.page.Add(row)
		s.page.Unlock()
		s.again.Add(-1)
		s.q.cfg.Wake(s)
	})
}

// drop removes an entry that is not to be delivered. The caller holds the stripe.
func (s *Source) drop(key string, e *schedule.Entry) error {
	c := store.Change{Source: s.uid, Key: key, Old: e}
	if _, err := s.q.store.Apply(true, c); err != nil {
		return s.q.fatal(err)
	}
	s.count(c)
	s.expired.Add(1)
	return nil
}

// Finish applies the outcome of a delivery. It does not wait for the disk:
// losing it in a crash repeats the delivery.
func (s *Source) Finish(d *Delivery, o schedule.Outcome) (schedule.Disposition, error) {
	if err := s.enter(); err != nil {
		s.forget(d)
		return schedule.Unfinished, nil // what a removed source delivered has no effect
	}
	defer s.leave()
	disposition, wake, err := s.finish(d, o)
	if wake {
		s.q.cfg.Wake(s)
	}
	return disposition, err
}

func (s *Source) finish(d *Delivery, o schedule.Outcome) (schedule.Disposition, bool, error) {
	st := s.stripe(d.key)
	st.Lock()
	defer st.Unlock()
	f := st.flights[d.key]
	cur, unreadable, err := s.entry(d.key, f)
	if err != nil {
		// The occurrence that is in the store will be delivered; of this one's
		// outcome nobody can say what it means for that one.
		s.later(timer.Row{At: s.now().UnixNano(), Key: d.key}, err)
		s.land(st, d, f)
		return schedule.Unfinished, false, nil
	}
	revision, err := s.q.store.NextRevision()
	if err != nil {
		return "", false, s.q.fatal(err)
	}
	stored, settings, now := cur, s.Settings(), s.now()
	if cur != nil && !f.Own && cur.Expired(now) { // what waited is not there any more, swept or not
		cur = nil
		s.expired.Add(1)
	}
	step := f.Finish(d.key, cur, o, settings, revision, s.q.storeID, now)
	var changes [2]store.Change
	n := 0
	if step.Changed || stored != cur {
		changes[n] = store.Change{Source: s.uid, Key: d.key, Old: stored, New: step.Next, Corrupt: unreadable && step.Next != nil}
		n++
	}
	if step.Dead != nil {
		changes[n] = store.Change{Source: s.uid, Key: schedule.DeadLetterKey(revision), New: step.Dead}
		n++
	}
	if n > 0 {
		if _, err := s.q.store.Apply(true, changes[:n]...); err != nil {
			return "", false, s.q.fatal(err)
		}
	}
	s.land(st, d, f)
	wake := false
	for _, c := range changes[:n] {
		s.count(c)
		wake = s.accept(c) || wake
	}
	if !step.Changed && step.Next != nil { // its row may have come and gone meanwhile
		wake = s.add(d.key, step.Next) || wake
	}
	return step.Disposition, wake, nil
}

// land ends the flight. The caller holds the stripe.
func (s *Source) land(st *stripe, d *Delivery, f *flight) {
	shown := st.show()
	delete(st.flights, d.key)
	shown()
	if d.Entry.DeadLetter != nil {
		s.page.Lock()
		s.page.letters.flights--
		s.page.Unlock()
		return
	}
	s.flights.Add(-1)
	if f.Own {
		s.own.Add(-1)
	}
}

// forget ends a delivery of a source that was removed.
func (s *Source) forget(d *Delivery) {
	st := s.stripe(d.key)
	st.Lock()
	defer st.Unlock()
	s.land(st, d, st.flights[d.key])
}
