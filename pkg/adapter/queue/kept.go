package queue

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// kept guards the dead letters of a source that are kept, which have no stripes. Its
// lock comes after the locks of stripes.
type kept struct {
	sync.Mutex
	count atomic.Int64
}

// Letter is a dead letter that is kept.
type Letter struct {
	Key string
	*schedule.Entry
}

// countKept counts the dead letters that are kept: they are the last rows of the due
// order.
func (s *Source) countKept() error {
	if s.deadLetters.Load() == 0 {
		return nil
	}
	s.kept.Lock()
	defer s.kept.Unlock()
	rows, err := s.keptRows(nil, int(s.deadLetters.Load()))
	s.kept.count.Store(int64(len(rows)))
	return err
}

// keptRows appends the rows of up to limit dead letters that are kept, oldest first.
func (s *Source) keptRows(rows []store.Row, limit int) ([]store.Row, error) {
	from := store.Position{At: s.now().Add(schedule.KeptAfter)}
	found, _, err := s.q.store.Due(nil, s.uid, from, limit)
	for _, r := range found {
		if schedule.IsKeptLetterKey(r.Key) {
			rows = append(rows, r)
		}
	}
	return rows, err
}

// keep adds to changes the dead letter of an occurrence that was given up, and the
// removal of the oldest ones beyond the limit. It returns changes as they were when there
// is no space for the letter. The caller holds kept's lock, until the changes are applied.
func (s *Source) keep(changes []store.Change, letter *schedule.Entry, settings *schedule.Spec) []store.Change {
	key := schedule.KeptLetterKey(letter.DeadLetter.Key)
	old, corrupt, err := s.get(key, outline)
	if err != nil {
		if RefusalOfEndedStore(err) == nil {
			s.q.cfg.Log.Error("the dead letter of a key cannot be read", "source", settings.Path(), "key", letter.DeadLetter.Key, "error", err)
		}
		return changes
	}
	growth := letter.Size(key) - old.Size(key)
	for _, c := range changes {
		growth += c.New.Size(c.Key) - c.Old.Size(c.Key)
	}
	more := changes
	if excess := s.kept.count.Load() + 1 - present(old) - int64(settings.Letters.Keep); excess > 0 {
		rows, err := s.keptRows(nil, int(excess))
		if err != nil {
			if RefusalOfEndedStore(err) == nil {
				s.q.cfg.Log.Error("the oldest dead letter cannot be read", "source", settings.Path(), "error", err)
			}
			return changes
		}
		for _, r := range rows {
			oldest, unreadable, err := s.get(r.Key, outline)
			if r.Key == key || err != nil || oldest == nil && !unreadable {
				continue
			}
			growth -= oldest.Size(r.Key)
			more = append(more, store.Change{Source: s.uid, Key: r.Key, Old: oldest, Corrupt: unreadable})
		}
	}
	if s.noSpaceFor(growth, settings) {
		return changes
	}
	return append(more, store.Change{Source: s.uid, Key: key, Old: old, New: letter, Corrupt: corrupt})
}

// noSpaceFor reports that there is no space for so many bytes more: in the quotas, or on
// the disk. An outcome that grows is cut short then.
func (s *Source) noSpaceFor(growth int64, settings *schedule.Spec) bool {
	if growth <= 0 {
		return false
	}
	if quota, _ := s.exceededQuota(reservation{bytes: growth}, freed{}, settings); quota != "" {
		return true
	}
	return s.q.checkSpace(growth, s.tenant.bytes.Load()+growth) != nil
}

// Letter returns the key's dead letter, if there is one that is kept.
func (s *Source) Letter(key string) (Letter, bool, error) {
	if err := schedule.ValidateKey(key); err != nil {
		return Letter{}, false, err
	}
	if err := s.enter(); err != nil {
		return Letter{}, false, err
	}
	defer s.leave()
	e, _, err := s.get(schedule.KeptLetterKey(key), whole)
	return Letter{key, e}, s.isKept(e), err
}

// isKept reports whether there is the dead letter, and it is not too old.
func (s *Source) isKept(e *schedule.Entry) bool { return e != nil && !e.Expired(s.now()) }

// Letters returns a page of the dead letters that are kept, by key, and the token of the
// next page, "" at the end.
func (s *Source) Letters(prefix, token string, limit int) ([]Letter, string, error) {
	after, err := decodeToken(ListOptions{Continue: token})
	if err != nil {
		return nil, "", err
	}
	if err := s.enter(); err != nil {
		return nil, "", err
	}
	defer s.leave()
	items, more, err := s.keptItems(prefix, after.Key, limit, true)
	if err != nil {
		return nil, "", err
	}
	letters, next := make([]Letter, 0, len(items)), store.Position{}
	for _, item := range items {
		if s.isKept(item.Entry) {
			letters = append(letters, Letter{item.Key, item.Entry})
		}
		if more {
			next.Key = item.Key
		}
	}
	return letters, encodeToken(false, next), nil
}

// keptItems lists the dead letters that are kept, under the keys of their occurrences.
func (s *Source) keptItems(prefix, after string, limit int, events bool) ([]store.Item, bool, error) {
	all := schedule.KeptLetterKey("")
	if after != "" {
		after = all + after
	}
	items, more, err := s.q.store.Letters(s.uid, all+prefix, after, limit, events)
	for i := range items {
		items[i].Key = strings.TrimPrefix(items[i].Key, all)
	}
	return items, more, err
}

// DiscardLetter removes the key's dead letter; it is idempotent and returns once that is
// durable.
func (s *Source) DiscardLetter(key string) error {
	if err := schedule.ValidateKey(key); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if _, err := s.discard([]string{key}); err != nil {
		return err
	}
	return partialChangeError(s.q.barrier())
}

// discard removes dead letters and returns how many there were.
func (s *Source) discard(keys []string) (int, error) {
	s.kept.Lock()
	defer s.kept.Unlock()
	changes := make([]store.Change, 0, len(keys))
	for _, key := range keys {
		key = schedule.KeptLetterKey(key)
		e, corrupt, err := s.get(key, outline)
		if err != nil {
			return 0, err
		}
		if e != nil || corrupt {
			changes = append(changes, store.Change{Source: s.uid, Key: key, Old: e, Corrupt: corrupt})
		}
	}
	if err := s.change(changes); err != nil {
		return 0, err
	}
	return len(changes), nil
}

// change applies changes of dead letters that are kept, and counts them. The caller
// holds kept's lock.
func (s *Source) change(changes []store.Change) error {
	if len(changes) == 0 {
		return nil
	}
	if _, err := s.q.store.Apply(true, changes...); err != nil {
		return s.q.fatal(err)
	}
	for _, c := range changes {
		s.count(c)
		s.accept(c)
	}
	return nil
}

// DiscardLetters removes all dead letters of keys with the prefix, "" for all, page by
// page, and returns how many. It returns once that is durable.
func (s *Source) DiscardLetters(ctx context.Context, prefix string) (int, error) {
	return s.eachPage(ctx, prefix, "discarded", s.discard)
}

// RedriveLetters makes a new occurrence of each dead letter of a key with the prefix,
// "" for all, and returns of how many. It skips the letters of keys that have something newer,
// unless it may replace that. What was redriven before an error stays so.
func (s *Source) RedriveLetters(ctx context.Context, prefix string, replace bool, claim ClaimMemory) (redriven, skipped int, err error) {
	held := int64(0)
	most := func(need int64) error { // one at a time is in memory
		if claim == nil || need <= held {
			return nil
		}
		more := need - held
		held = need
		return claim(more)
	}
	redriven, err = s.eachPage(ctx, prefix, "redriven", func(keys []string) (n int, err error) {
		for _, key := range keys {
			there, err := s.redrive(key, replace, most)
			refused, ok := errors.AsType[*schedule.Error](err)
			switch {
			case ok && refused.Code == schedule.CodeExists:
				skipped++
			case err != nil:
				return n, err
			case there:
				n++
			}
		}
		return n, nil
	})
	return redriven, skipped, err
}

// lettersPage bounds the dead letters that a call changes at a time.
const lettersPage = 64

// eachPage does something to all dead letters of keys with the prefix, and returns to
// how many.
func (s *Source) eachPage(ctx context.Context, prefix, done string, do func(keys []string) (int, error)) (total int, err error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	defer s.leave()
	begun := false // something was done
	defer func() {
		if begun {
			err = partialChangeError(err)
		}
	}()
	for after, more := "", true; more; {
		if ctx.Err() != nil {
			return total, schedule.Refuse(schedule.CodeUnavailable, "the call ended after %d dead letters were %s: call again for the others", total, done)
		}
		var items []store.Item
		if items, more, err = s.keptItems(prefix, after, lettersPage, false); err != nil {
			return total, err
		}
		keys := make([]string, len(items))
		for i, item := range items {
			keys[i], after = item.Key, item.Key
		}
		n, err := do(keys)
		total, begun = total+n, begun || n > 0
		if err != nil {
			return total, err
		}
	}
	return total, s.q.barrier()
}

// RedriveLetter makes a new occurrence of the key's dead letter, in one change with its
// removal, and returns once that is durable; false when there is none. It is refused with
// CodeExists while the key has something newer, unless it may replace that.
func (s *Source) RedriveLetter(key string, replace bool, claim ClaimMemory) (bool, error) {
	if err := schedule.ValidateKey(key); err != nil {
		return false, err
	}
	if err := s.enter(); err != nil {
		return false, err
	}
	defer s.leave()
	there, err := s.redrive(key, replace, claim)
	if err != nil || !there {
		return false, err
	}
	return true, partialChangeError(s.q.barrier())
}

func (s *Source) redrive(key string, replace bool, claim ClaimMemory) (bool, error) {
	letter, _, err := s.get(schedule.KeptLetterKey(key), outline)
	if err != nil || !s.isKept(letter) {
		return false, err
	}
	if claim != nil {
		if err := claim(entryCopies * letter.Size(key)); err != nil {
			return false, err
		}
	}
	var a admission
	there, err := s.redriven(key, replace, &a)
	if a.wake {
		s.q.cfg.Wake(s)
	}
	a.writes.wait()
	return there, err
}

// redriven is redrive under the locks.
func (s *Source) redriven(key string, replace bool, a *admission) (bool, error) {
	defer s.lock(key)()
	s.kept.Lock()
	defer s.kept.Unlock()
	letter, _, err := s.get(schedule.KeptLetterKey(key), whole)
	if err != nil || !s.isKept(letter) {
		return false, err
	}
	settings, now := s.Spec(), s.now()
	k := keyState{key: key}
	if err := s.open(&k, now, whole); err != nil {
		return false, err
	}
	request, err := letter.Redrive(k.current, replace)
	if err != nil {
		return false, err
	}
	var out Scheduled
	// What the letter takes is free for the occurrence.
	removal := store.Change{Source: s.uid, Key: schedule.KeptLetterKey(key), Old: letter}
	s.count(removal)
	if err := s.decide(&k, &request, &out, settings, now); err != nil {
		s.count(store.Change{Source: s.uid, Key: removal.Key, New: letter})
		return false, err
	}
	a.extra = []store.Change{removal}
	return true, s.apply([]keyState{k}, a, true)
}

// trimKept brings the dead letters that are kept in line with settings that changed.
func (s *Source) trimKept() {
	if err := s.enter(); err != nil {
		return
	}
	defer s.leave()
	letters := s.Spec().Letters
	s.kept.Lock()
	rows, err := s.keptRows(nil, int(s.kept.count.Load()))
	s.kept.Unlock()
	for i, r := range rows {
		if err == nil {
			err = s.trimOne(r, len(rows)-i > letters.Keep, letters.MaxAge)
		}
	}
	if err != nil && RefusalOfEndedStore(err) == nil {
		s.q.cfg.Log.Error("the dead letters of a source could not be brought in line with its settings", "source", s.Spec().Path(), "error", err)
	}
}

func (s *Source) trimOne(r store.Row, surplus bool, maxAge time.Duration) error {
	s.kept.Lock()
	defer s.kept.Unlock()
	e, _, err := s.get(r.Key, outline)
	if err != nil || e == nil || e.Revision != r.Revision {
		return err
	}
	c := store.Change{Source: s.uid, Key: r.Key, Old: e}
	if until := e.ScheduledAt.Add(maxAge); !surplus && until.After(s.now()) {
		if until.Equal(e.ExpiresAt) {
			return nil
		}
		n := *e
		n.ExpiresAt = until
		c.New = &n
	}
	return s.change([]store.Change{c})
}
