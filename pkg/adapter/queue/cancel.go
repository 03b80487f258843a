package queue

import (
	"context"
	"strings"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Cancel removes the key if the conditions hold; it is idempotent. It returns
// once that is durable. From then on the answer to a delivery under way has no
// effect.
func (s *Source) Cancel(key string, c schedule.Conditions) error {
	if err := schedule.ValidateKey(key); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	commit, writes, err := s.cancel(key, c)
	if err != nil {
		return err
	}
	if err := s.q.wait(commit); err != nil {
		return err
	}
	writes.wait()
	return nil
}

func (s *Source) cancel(key string, c schedule.Conditions) (store.Commit, firstWrites, error) {
	defer s.lock(key)()
	k := keyState{key: key}
	if err := s.open(&k, s.now(), outline); err != nil {
		return nil, nil, err
	}
	if err := c.Check(key, k.current); err != nil {
		return nil, nil, err
	}
	commit, writes, _, err := s.remove([]keyState{k}, false)
	if err == nil && k.current != nil {
		s.rememberEnd(key, k.current.Attempt, deleted)
	}
	return commit, writes, err
}

// remove removes the entries of the keys and returns how many of them were waiting
// or due. Without any it is a barrier, because an earlier removal may not be durable
// yet. The caller holds the stripes.
func (s *Source) remove(keys []keyState, lazy bool) (store.Commit, firstWrites, int, error) {
	changes := make([]store.Change, 0, len(keys))
	pending := 0
	for _, k := range keys {
		if k.stored != nil || k.corrupt {
			changes = append(changes, store.Change{Source: s.uid, Key: k.key, Old: k.stored, Corrupt: k.corrupt})
		}
		if k.current != nil && !k.own || k.corrupt {
			pending++
		}
	}
	commit, err := s.q.store.Apply(lazy, changes...)
	if err != nil {
		return nil, nil, 0, s.q.fatal(err)
	}
	for _, c := range changes {
		s.count(c)
	}
	s.changes.add(resultCancelled, int64(pending))
	var writes firstWrites
	for _, k := range keys {
		if k.flight != nil {
			s.cancelFlight(k)
			writes.callOff(k.flight)
		}
	}
	return commit, writes, pending, nil
}

func (s *Source) cancelFlight(k keyState) {
	defer s.stripe(k.key).show()()
	if k.flight.Own {
		s.own.Add(-1)
	}
	k.flight.Cancel()
}

// cancelPage bounds the keys that CancelAll holds at a time.
const cancelPage = 256

// CancelAll cancels all keys with the prefix, "" for all, page by page, and
// returns how many were waiting or due, or could not be read. It returns once
// that is durable. Keys that are scheduled meanwhile may stay. When ctx ends it
// stops between two pages; the keys cancelled by then stay cancelled.
func (s *Source) CancelAll(ctx context.Context, prefix string) (total int, err error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.leave()
	after := ""
	var writes firstWrites
	defer func() {
		if after != "" { // a page was cancelled
			err = partialChangeError(err)
		}
	}()
	for {
		if ctx.Err() != nil {
			return total, schedule.Refuse(schedule.CodeUnavailable, "the call ended after %d keys were cancelled: call again for the others", total)
		}
		items, more, err := s.q.store.List(s.uid, prefix, after, cancelPage, false)
		if err != nil {
			return total, err
		}
		n, err := s.cancelItems(items, &writes)
		total += n
		if err != nil {
			return total, err
		}
		if len(items) > 0 {
			after = items[len(items)-1].Key
		}
		if !more {
			if err := s.cancelLeaving(prefix, &writes); err != nil {
				return total, err
			}
			if err := s.q.barrier(); err != nil {
				return total, err
			}
			writes.wait()
			return total, nil
		}
	}
}

// cancelLeaving cancels the deliveries whose key has no entry any more, because the
// occurrence behind them expired: their answers would make one.
func (s *Source) cancelLeaving(prefix string, writes *firstWrites) error {
	for i := range s.stripes {
		if err := s.cancelStripe(&s.stripes[i], prefix, writes); err != nil {
			return err
		}
	}
	return nil
}

func (s *Source) cancelStripe(st *stripe, prefix string, writes *firstWrites) error {
	st.Lock()
	defer st.Unlock()
	for key, f := range st.flights {
		if f.Own || f.Cancelled || !strings.HasPrefix(key, prefix) || schedule.IsDeadLetterKey(key) {
			continue
		}
		e, unreadable, err := s.get(key, outline)
		if err != nil {
			return err
		}
		if e == nil && !unreadable {
			shown := st.show()
			f.Cancel()
			shown()
			writes.callOff(f)
		}
	}
	return nil
}

func (s *Source) cancelItems(items []store.Item, writes *firstWrites) (int, error) {
	if len(items) == 0 {
		return 0, nil
	}
	wanted := make([]string, len(items))
	for i := range items {
		wanted[i] = items[i].Key
	}
	defer s.lock(wanted...)()
	keys, now := make([]keyState, len(items)), s.now()
	for i := range items {
		keys[i].key = items[i].Key
		if err := s.open(&keys[i], now, outline); err != nil {
			return 0, err
		}
	}
	_, more, n, err := s.remove(keys, true)
	*writes = append(*writes, more...)
	return n, err
}
