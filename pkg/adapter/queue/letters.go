package queue

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Letters are the dead letters of a source that are kept. All methods are safe for
// concurrent use. mu guards the entries of all of them in the store; it is taken after
// the stripe of a key.
type Letters struct {
	s  *Source
	mu sync.Mutex
}

// Letter is a dead letter that is kept.
type Letter struct {
	Key string
	*schedule.Entry
}

// countAll counts the dead letters that are kept: they are the last rows of the due
// order.
func (l *Letters) countAll() error {
	usage := &l.s.usage
	if usage.letters.Load() == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	rows, err := l.rows(int(usage.letters.Load()))
	usage.kept.Store(int64(len(rows)))
	return err
}

// rows returns the rows of up to limit dead letters that are kept, oldest first.
func (l *Letters) rows(limit int) (rows []store.Row, _ error) {
	from := store.Position{At: l.s.now().Add(schedule.KeptAfter)}
	found, _, err := l.s.q.store.Due(nil, l.s.uid, schedule.HighPriority, from, limit)
	for _, r := range found {
		if schedule.IsKeptLetterKey(r.Key) {
			rows = append(rows, r)
		}
	}
	return rows, err
}

// keep adds to changes the dead letter of an occurrence that was given up, and the
// removal of the oldest ones beyond the limit. It returns changes as they were when there
// is no space for the letter. The caller holds mu, until the changes are applied.
func (l *Letters) keep(changes []store.Change, letter *schedule.Entry, settings *schedule.Spec) []store.Change {
	s, key := l.s, schedule.KeptLetterKey(letter.DeadLetter.Key)
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
	if excess := s.usage.kept.Load() + 1 - present(old) - int64(settings.Letters.Keep); excess > 0 {
		rows, err := l.rows(int(excess))
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
	if s.usage.noSpaceFor(growth, settings) {
		return changes
	}
	return append(more, store.Change{Source: s.uid, Key: key, Old: old, New: letter, Corrupt: corrupt})
}

// retire keeps a dead letter whose source has no dead letter sink any more, or drops it.
// The caller holds the stripe.
func (l *Letters) retire(stored, key string, e *schedule.Entry, settings *schedule.Spec, now time.Time) error {
	s := l.s
	l.mu.Lock()
	defer l.mu.Unlock()
	changes := []store.Change{{Source: s.uid, Key: stored, Old: e}}
	if settings.Letters.Keep > 0 {
		revision, err := s.q.store.NextRevision()
		if err != nil {
			return s.q.fatal(err)
		}
		changes = l.keep(changes, e.Keep(schedule.Inputs{Source: settings, Revision: revision, Now: now}), settings)
	}
	s.q.cfg.Log.Warn("the source of a dead letter has no dead letter sink any more", "source", settings.Path(), "key", key, "kept", len(changes) > 1)
	return l.apply(changes)
}

// Get returns the key's dead letter, if there is one that is kept.
func (l *Letters) Get(key string) (Letter, bool, error) {
	if err := schedule.ValidateKey(key); err != nil {
		return Letter{}, false, err
	}
	if err := l.s.enter(); err != nil {
		return Letter{}, false, err
	}
	defer l.s.leave()
	e, ok, err := l.get(key, whole)
	return Letter{key, e}, ok, err
}

// get reads the key's dead letter, and reports whether there is one that is not too old.
func (l *Letters) get(key string, most int64) (e *schedule.Entry, ok bool, err error) {
	e, _, err = l.s.get(schedule.KeptLetterKey(key), most)
	return e, err == nil && e != nil && !e.Expired(l.s.now()), err
}

// List returns a page of the dead letters that are kept, by key, and the token of the
// next page, "" at the end.
func (l *Letters) List(prefix, token string, limit int) ([]Letter, string, error) {
	after, err := decodeToken(ListOptions{Continue: token})
	if err != nil {
		return nil, "", err
	}
	if err := l.s.enter(); err != nil {
		return nil, "", err
	}
	defer l.s.leave()
	items, more, err := l.items(prefix, after.Key, limit, true)
	if err != nil {
		return nil, "", err
	}
	letters, next, now := make([]Letter, 0, len(items)), store.Position{}, l.s.now()
	for _, item := range items {
		if item.Entry != nil && !item.Entry.Expired(now) {
			letters = append(letters, Letter{item.Key, item.Entry})
		}
		if more {
			next.Key = item.Key
		}
	}
	return letters, encodeToken(false, next), nil
}

// items lists the dead letters that are kept, under the keys of their occurrences.
func (l *Letters) items(prefix, after string, limit int, events bool) ([]store.Item, bool, error) {
	all := schedule.KeptLetterKey("")
	if after != "" {
		after = all + after
	}
	items, more, err := l.s.q.store.Letters(l.s.uid, all+prefix, after, limit, events)
	for i := range items {
		items[i].Key = strings.TrimPrefix(items[i].Key, all)
	}
	return items, more, err
}

// Discard removes the key's dead letter; it is idempotent and returns once that is
// durable.
func (l *Letters) Discard(key string) error {
	if err := schedule.ValidateKey(key); err != nil {
		return err
	}
	if err := l.s.enter(); err != nil {
		return err
	}
	defer l.s.leave()
	if _, err := l.discard([]string{key}); err != nil {
		return err
	}
	return partialChangeError(l.s.q.barrier())
}

// DiscardAll removes all dead letters of keys with the prefix, "" for all, page by
// page, and returns how many. It returns once that is durable.
func (l *Letters) DiscardAll(ctx context.Context, prefix string) (int, error) {
	return l.each(ctx, prefix, "discarded", l.discard)
}

// discard removes dead letters and returns how many there were.
func (l *Letters) discard(keys []string) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changes := make([]store.Change, 0, len(keys))
	for _, key := range keys {
		key = schedule.KeptLetterKey(key)
		e, corrupt, err := l.s.get(key, outline)
		if err != nil {
			return 0, err
		}
		if e != nil || corrupt {
			changes = append(changes, store.Change{Source: l.s.uid, Key: key, Old: e, Corrupt: corrupt})
		}
	}
	if err := l.apply(changes); err != nil {
		return 0, err
	}
	return len(changes), nil
}

// apply applies changes of dead letters that are kept, and counts them. The caller
// holds mu.
func (l *Letters) apply(changes []store.Change) error {
	if len(changes) == 0 {
		return nil
	}
	if _, err := l.s.q.store.Apply(true, changes...); err != nil {
		return l.s.q.fatal(err)
	}
	for _, c := range changes {
		l.s.usage.count(c)
		l.s.accept(c)
	}
	return nil
}

// lettersPage bounds the dead letters that a call changes at a time.
const lettersPage = 64

// each does something to all dead letters of keys with the prefix, page by page, and
// returns to how many.
func (l *Letters) each(ctx context.Context, prefix, done string, do func(keys []string) (int, error)) (total int, err error) {
	if err := l.s.enter(); err != nil {
		return 0, err
	}
	defer l.s.leave()
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
		if items, more, err = l.items(prefix, after, lettersPage, false); err != nil {
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
	return total, l.s.q.barrier()
}

// Redrive makes a new occurrence of the key's dead letter, in one change with its
// removal, and returns once that is durable; false when there is none. It is refused with
// CodeExists while the key has something newer, unless it may replace that.
func (l *Letters) Redrive(key string, replace bool, claim ClaimMemory) (bool, error) {
	if err := schedule.ValidateKey(key); err != nil {
		return false, err
	}
	if err := l.s.enter(); err != nil {
		return false, err
	}
	defer l.s.leave()
	there, err := l.redrive(key, replace, claim)
	if err != nil || !there {
		return false, err
	}
	return true, partialChangeError(l.s.q.barrier())
}

// RedriveAll makes a new occurrence of each dead letter of a key with the prefix,
// "" for all, and returns of how many. It skips the letters of keys that have something newer,
// unless it may replace that. What was redriven before an error stays so.
func (l *Letters) RedriveAll(ctx context.Context, prefix string, replace bool, claim ClaimMemory) (redriven, skipped int, err error) {
	held := int64(0)
	most := func(need int64) error { // one at a time is in memory
		if claim == nil || need <= held {
			return nil
		}
		more := need - held
		held = need
		return claim(more)
	}
	redriven, err = l.each(ctx, prefix, "redriven", func(keys []string) (n int, err error) {
		for _, key := range keys {
			there, err := l.redrive(key, replace, most)
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

// redrive makes a new occurrence of the key's dead letter; false when there is none.
func (l *Letters) redrive(key string, replace bool, claim ClaimMemory) (bool, error) {
	letter, ok, err := l.get(key, outline)
	if !ok {
		return false, err
	}
	if claim != nil {
		if err := claim(entryCopies * letter.Size(key)); err != nil {
			return false, err
		}
	}
	var e effect
	there, err := l.redriveLocked(key, replace, &e)
	if e.wake {
		l.s.q.cfg.Wake(l.s)
	}
	e.writes.wait()
	return there, err
}

// redriveLocked is redrive with the key locked.
func (l *Letters) redriveLocked(key string, replace bool, done *effect) (bool, error) {
	s := l.s
	defer s.stripes.lock(key)()
	l.mu.Lock()
	defer l.mu.Unlock()
	letter, ok, err := l.get(key, whole)
	if !ok {
		return false, err
	}
	settings, now := s.Spec(), s.now()
	k := keyState{key: key, swap: new(swap), letter: letter}
	if err := s.open(&k, now, whole); err != nil {
		return false, err
	}
	request, err := letter.Redrive(k.current, replace)
	if err != nil {
		return false, err
	}
	// What the letter takes is free for the occurrence.
	stored := schedule.KeptLetterKey(key)
	s.usage.count(store.Change{Source: s.uid, Key: stored, Old: letter})
	var out Scheduled
	if err := s.decide(&k, &request, &out, settings, now); err != nil {
		s.usage.count(store.Change{Source: s.uid, Key: stored, New: letter})
		return false, err
	}
	return true, s.apply([]keyState{k}, nil, true, done)
}

// trim brings the dead letters that are kept in line with settings that changed.
func (l *Letters) trim() {
	s := l.s
	if err := s.enter(); err != nil {
		return
	}
	defer s.leave()
	letters := s.Spec().Letters
	l.mu.Lock()
	rows, err := l.rows(int(s.usage.kept.Load()))
	l.mu.Unlock()
	for i, r := range rows {
		if err == nil {
			err = l.trimOne(r, len(rows)-i > letters.Keep, letters.MaxAge)
		}
	}
	if err != nil && RefusalOfEndedStore(err) == nil {
		s.q.cfg.Log.Error("the dead letters of a source could not be brought in line with its settings", "source", s.Spec().Path(), "error", err)
	}
}

func (l *Letters) trimOne(r store.Row, surplus bool, maxAge time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, _, err := l.s.get(r.Key, outline)
	if err != nil || e == nil || e.Revision != r.Revision {
		return err
	}
	c := store.Change{Source: l.s.uid, Key: r.Key, Old: e}
	if until := e.ScheduledAt.Add(maxAge); !surplus && until.After(l.s.now()) {
		if until.Equal(e.ExpiresAt) {
			return nil
		}
		n := *e
		n.ExpiresAt = until
		c.New = &n
	}
	return l.apply([]store.Change{c})
}
