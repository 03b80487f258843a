package queue

import (
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// keyState is a key during a call: the entry in the store, and the entry that
// the call has made of it so far.
type keyState struct {
	key      string
	flight   *activeFlight
	own      bool
	stored   *schedule.Entry
	corrupt  bool            // something is stored that cannot be read: counted, and as if absent
	letter   *schedule.Entry // a dead letter that is kept, and goes with the change
	current  *schedule.Entry // nil: none, or expired
	changed  bool
	reserved reservation
	swap     *swap // of the call
	refused  error
	accepts  []accepted
}

type accepted struct {
	change   schedule.Change
	ingested bool
}

// open reads the entry and the flight of a key.
func (s *Source) open(k *keyState, now time.Time, most int64) (err error) {
	k.flight = s.stripes.flight(k.key)
	if k.flight == nil || !k.flight.Own {
		if k.stored, k.corrupt, err = s.get(k.key, most); err != nil {
			return err
		}
	}
	k.begin(now)
	return nil
}

// begin sets the current entry: the delivered occurrence if nothing waits behind it,
// otherwise the stored entry. An expired entry counts as absent.
func (k *keyState) begin(now time.Time) {
	k.own = k.flight != nil && k.flight.Own
	if k.own {
		k.stored = k.flight.Entry
	}
	k.current = k.stored
	if k.current != nil && !k.own && k.current.Expired(now) {
		k.current, k.changed = nil, true
	}
}

// reads reports that the key's entry must be read from the store.
func (k *keyState) reads() bool {
	return k.refused == nil && (k.flight == nil || !k.flight.Own)
}

// decide decides about one request and records its effect.
func (s *Source) decide(k *keyState, r *schedule.Request, out *Scheduled, settings *schedule.Spec, now time.Time) error {
	if k.refused != nil {
		return k.refused
	}
	revision, err := s.q.store.NextRevision()
	if err != nil {
		return s.q.fatal(err)
	}
	in := schedule.Inputs{Key: k.key, Source: settings, Revision: revision, Now: now, Random: s.q.cfg.Random()}
	if k.flight != nil {
		in.Started = k.flight.Started
	}
	c, err := r.Apply(in, k.current, k.own)
	if err != nil {
		return err
	}
	out.Result = c.Result
	out.View = schedule.NewView(k.key, c.Entry, k.flight != nil, false, now)
	if c.Result == schedule.Kept {
		return nil
	}
	expired := c.Entry.Expired(now) // accepted and dropped: it counts in no quota
	if !expired {
		if err := s.usage.reserve(k, c.Entry, settings); err != nil {
			return err
		}
	}
	k.current, k.own, k.changed = c.Entry, false, true
	if k.flight != nil {
		k.accepts = append(k.accepts, accepted{c, r.Ingested})
	}
	if expired { // the next item may use the quota
		k.current = nil
		s.usage.unreserve(k)
	}
	return nil
}

// apply gives the changes to the store and, once they are visible, to the page and
// the deliveries under way. A lazy apply is durable with the next one that is not.
func (s *Source) apply(keys []keyState, marks []store.MarkChange, lazy bool, done *effect) error {
	changes := make([]store.Change, 0, len(keys))
	for i := range keys {
		k := &keys[i]
		if k.changed && (k.stored != nil || k.corrupt || k.current != nil) {
			changes = append(changes, store.Change{Source: s.uid, Key: k.key, Old: k.stored, New: k.current, Corrupt: k.corrupt})
		}
		if k.letter != nil {
			changes = append(changes, store.Change{Source: s.uid, Key: schedule.KeptLetterKey(k.key), Old: k.letter})
		}
	}
	// Without changes this is a barrier: the answer "kept" too requires that the kept
	// entry is durable.
	commit, err := s.q.store.ApplyMarked(lazy, marks, changes...)
	if err != nil {
		s.usage.release(keys)
		return s.q.fatal(err)
	}
	done.commit = commit
	for _, c := range changes {
		done.wake = s.accept(c) || done.wake
	}
	for i := range keys {
		k := &keys[i]
		if k.changed {
			s.usage.settle(k)
		}
		if k.changed && k.current == nil { // it had expired, or was accepted and dropped
			s.expired.Add(1)
			s.rememberEnd(k.key, 0, string(schedule.Expired))
		}
		for _, accepted := range k.accepts {
			s.stripes.modify(k.key, func(f *schedule.Flight) { f.Accept(accepted.change, accepted.ingested) })
		}
		if len(k.accepts) > 0 {
			done.writes.callOff(k.flight)
		}
	}
	return nil
}
