package queue

import (
	"errors"
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
	// Lateness is the time from the due time, or between attempts from the retry
	// time, until Take.
	Lateness time.Duration

	started time.Time

	key    string // in the store; a dead letter's differs from Attempt.Key
	flight *activeFlight
}

// Take returns the next key that is due, nil when there is none now or the source is
// suspended. A change that is accepted from now on is a change during the delivery,
// and until the attempt has begun (Attempt.Begin) it calls the attempt off. The
// caller must call [Source.Finish] in any case.
func (s *Source) Take() (*Delivery, error) {
	if err := s.enter(); err != nil {
		return nil, nil // a removed source has nothing due
	}
	defer s.leave()
	for !s.readsFail() && s.q.mayDeliver() {
		now := s.now()
		s.page.Lock()
		settings := s.Spec() // with the lock: a key that came after the source was suspended is not taken
		if settings.Suspend {
			s.page.Unlock()
			return nil, nil
		}
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

func (q *Queue) awaitSpace() {
	for !q.store.SpaceForOutcomes() {
		select {
		case <-q.stop:
			return
		case <-time.After(spaceEvery):
		}
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
func (s *Source) start(row timer.Row, settings *schedule.Spec, now time.Time) (*Delivery, error) {
	st := s.stripe(row.Key)
	st.Lock()
	defer st.Unlock()
	if st.flights[row.Key] != nil {
		return nil, nil
	}
	e, _, err := s.get(row.Key, whole)
	if err != nil {
		s.retryRead(row, err)
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
		return nil, s.retire(row.Key, attempt.Key, e, settings, now)
	}
	f := &activeFlight{Flight: schedule.Flight{Entry: e, Own: true}}
	attempt.Begin = func() (func(), bool) { return s.begin(st, f) }
	shown := st.show()
	if st.flights == nil {
		st.flights = map[string]*activeFlight{}
	}
	st.flights[row.Key] = f
	shown()
	if e.DeadLetter == nil {
		s.flights.Add(1)
		s.own.Add(1)
		if feed := s.feed.Feed(); feed != nil {
			feed.Add(recent.Event{Kind: recent.Started, Key: row.Key, At: now, Attempt: e.Attempt})
		}
	}
	return &Delivery{Attempt: attempt, Lateness: now.Sub(e.At()), started: now, key: row.Key, flight: f}, nil
}

// maxRereads is how many keys of a source may wait for another read. With more of them
// the disk cannot be read at all, and the whole source waits.
const maxRereads = 64

func (s *Source) readsFail() bool { return s.again.Load() >= maxRereads }

// retryRead tries a key again whose entry could not be read.
func (s *Source) retryRead(row timer.Row, err error) {
	if errors.Is(err, store.ErrClosed) {
		return
	}
	s.again.Add(1)
	s.q.cfg.Log.Error("an entry cannot be read; trying again", "source", s.Spec().Path(), "key", row.Key, "error", err)
	s.q.work.Go(func() {
		select {
		case <-s.q.stop:
			return
		case <-time.After(time.Second):
		}
		st := s.stripe(row.Key)
		st.Lock()
		e, _, err := s.get(row.Key, outline)
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

// drop removes an entry that must not be delivered. The caller holds the stripe.
func (s *Source) drop(key string, e *schedule.Entry) error {
	c := store.Change{Source: s.uid, Key: key, Old: e}
	if _, err := s.q.store.Apply(true, c); err != nil {
		return s.q.fatal(err)
	}
	s.count(c)
	if !schedule.IsKeptLetterKey(key) {
		s.expired.Add(1)
	}
	s.rememberEnd(key, e.Attempt, string(schedule.Expired))
	return nil
}

// retire keeps a dead letter whose source has no dead letter sink any more, or drops it.
// The caller holds the stripe.
func (s *Source) retire(stored, key string, e *schedule.Entry, settings *schedule.Spec, now time.Time) error {
	s.kept.Lock()
	defer s.kept.Unlock()
	changes := []store.Change{{Source: s.uid, Key: stored, Old: e}}
	if settings.Letters.Keep > 0 {
		revision, err := s.q.store.NextRevision()
		if err != nil {
			return s.q.fatal(err)
		}
		changes = s.keep(changes, e.Keep(schedule.Inputs{Source: settings, Revision: revision, Now: now}), settings)
	}
	s.q.cfg.Log.Warn("the source of a dead letter has no dead letter sink any more", "source", settings.Path(), "key", key, "kept", len(changes) > 1)
	return s.change(changes)
}

// Finish applies the outcome of a delivery. It does not wait for the disk: if a crash
// loses the outcome, the delivery is repeated.
func (s *Source) Finish(d *Delivery, o schedule.Outcome) (schedule.Disposition, error) {
	if err := s.enter(); err != nil {
		s.forget(d)
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
	st := s.stripe(d.key)
	st.Lock()
	defer st.Unlock()
	f := st.flights[d.key]
	cur, unreadable, err := s.entry(d.key, f)
	if err != nil {
		// The occurrence in the store will be delivered. Without reading it, the
		// effect of this outcome on it is not known.
		s.retryRead(timer.Row{At: s.now().UnixNano(), Key: d.key}, err)
		s.endFlight(st, d, f)
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
	if settings.Jitter > 0 {
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
		s.kept.Lock()
		defer s.kept.Unlock()
		n := len(changes)
		if changes = s.keep(changes, step.Dead, settings); len(changes) == n {
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
	s.endFlight(st, d, f)
	s.remember(d, o, step.Disposition, now)
	wake := false
	for _, c := range changes {
		s.count(c)
		wake = s.accept(c) || wake
	}
	if !step.Changed && step.Next != nil { // its row may have come and gone meanwhile
		wake = s.add(d.key, step.Next) || wake
	}
	return step.Disposition, wake, nil
}

// dropAnswer drops what the sink answered from the entry if there is no space for it.
func (s *Source) dropAnswer(step *schedule.Step, stored *schedule.Entry, key string, settings *schedule.Spec) {
	e := step.Next
	if e == nil || e.LastFailure == nil || !s.noSpaceFor(e.Size(key)-stored.Size(key), settings) {
		return
	}
	n, failure := *e, *e.LastFailure
	failure.Data, n.LastFailure = nil, &failure
	step.Next = &n
}

// endFlight ends the flight. The caller holds the stripe.
func (s *Source) endFlight(st *stripe, d *Delivery, f *activeFlight) {
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
	s.endFlight(st, d, st.flights[d.key])
}
