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
	var done effect
	if err := s.cancel(key, c, &done); err != nil {
		return err
	}
	if err := s.q.wait(done.commit); err != nil {
		return err
	}
	done.writes.wait()
	return nil
}

func (s *Source) cancel(key string, c schedule.Conditions, done *effect) error {
	defer s.stripes.lock(key)()
	k := keyState{key: key}
	if err := s.open(&k, s.now(), outline); err != nil {
		return err
	}
	if err := c.Check(key, k.current); err != nil {
		return err
	}
	if _, err := s.remove([]keyState{k}, false, done); err != nil {
		return err
	}
	if k.current != nil {
		s.rememberEnd(key, k.current.Attempt, deleted)
	}
	return nil
}

// remove removes the entries of the keys and returns how many of them were waiting
// or due. Without any it is a barrier, because an earlier removal may not be durable
// yet. The caller holds the stripes.
func (s *Source) remove(keys []keyState, lazy bool, done *effect) (pending int, err error) {
	changes := make([]store.Change, 0, len(keys))
	for _, k := range keys {
		if k.stored != nil || k.corrupt {
			changes = append(changes, store.Change{Source: s.uid, Key: k.key, Old: k.stored, Corrupt: k.corrupt})
		}
		if k.current != nil && !k.own || k.corrupt {
			pending++
		}
	}
	if done.commit, err = s.q.store.Apply(lazy, changes...); err != nil {
		return 0, s.q.fatal(err)
	}
	for _, c := range changes {
		s.usage.count(c)
	}
	s.changes.add(resultCancelled, int64(pending))
	for _, k := range keys {
		if k.flight != nil {
			s.stripes.modify(k.key, (*schedule.Flight).Cancel)
			done.writes.callOff(k.flight)
		}
	}
	return pending, nil
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
	c := cancellation{Source: s, prefix: prefix}
	defer func() {
		if after != "" { // a page was cancelled
			err = partialChangeError(err)
		}
	}()
	for more := true; more; {
		if ctx.Err() != nil {
			return total, schedule.Refuse(schedule.CodeUnavailable, "the call ended after %d keys were cancelled: call again for the others", total)
		}
		var items []store.Item
		if items, more, err = s.q.store.List(s.uid, prefix, after, cancelPage, false); err != nil {
			return total, err
		}
		n, err := c.items(items)
		total += n
		if err != nil {
			return total, err
		}
		if len(items) > 0 {
			after = items[len(items)-1].Key
		}
	}
	for i := range s.stripes.all {
		if err := c.leaving(&s.stripes.all[i]); err != nil {
			return total, err
		}
	}
	if err := s.q.barrier(); err != nil {
		return total, err
	}
	c.writes.wait()
	return total, nil
}

// cancellation is a call that cancels all keys with a prefix.
type cancellation struct {
	*Source
	prefix string
	effect
}

// items cancels keys and returns how many were waiting or due, or could not be read.
func (c *cancellation) items(items []store.Item) (int, error) {
	if len(items) == 0 {
		return 0, nil
	}
	wanted := make([]string, len(items))
	for i := range items {
		wanted[i] = items[i].Key
	}
	defer c.stripes.lock(wanted...)()
	keys, now := make([]keyState, len(items)), c.now()
	for i := range items {
		keys[i].key = items[i].Key
		if err := c.open(&keys[i], now, outline); err != nil {
			return 0, err
		}
	}
	return c.remove(keys, true, &c.effect)
}

// leaving cancels the deliveries whose key has no entry any more, because the
// occurrence behind them expired: their answers would make one.
func (c *cancellation) leaving(st *stripe) error {
	st.Lock()
	defer st.Unlock()
	for key, f := range st.flights {
		if f.Own || f.Cancelled || !strings.HasPrefix(key, c.prefix) || schedule.IsDeadLetterKey(key) {
			continue
		}
		e, unreadable, err := c.get(key, outline)
		if err != nil {
			return err
		}
		if e == nil && !unreadable {
			c.stripes.modify(key, (*schedule.Flight).Cancel)
			c.writes.callOff(f)
		}
	}
	return nil
}
