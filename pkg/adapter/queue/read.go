package queue

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Get returns the key; false once nothing waits and nothing is in flight.
func (s *Source) Get(key string) (schedule.View, bool, error) {
	if err := schedule.ValidateKey(key); err != nil {
		return schedule.View{}, false, err
	}
	if err := s.enter(); err != nil {
		return schedule.View{}, false, err
	}
	defer s.leave()
	f, under := s.stripes.copy(key)
	e := f.Entry
	if !f.Own {
		var err error
		if e, _, err = s.get(key, whole); err != nil {
			return schedule.View{}, false, err
		}
	}
	now := s.now()
	if e == nil || !f.Own && e.Expired(now) {
		return schedule.View{}, false, nil
	}
	v := schedule.NewView(key, e, under, f.Own, now)
	v.WaitFor(s.page.companyUntil(now), s.Spec(), now)
	return v, true, nil
}

// ListOptions select keys.
type ListOptions struct {
	Prefix   string
	Limit    int    // at least 1
	Continue string // token of the page before
	ByDue    bool   // by due time, then key; else by key
	State    State  // "": every state
}

// State selects keys by where they stand.
type State string

// The states that a list can select.
const (
	Waiting  = State(schedule.Waiting)
	Due      = State(schedule.Due)      // also between two attempts
	InFlight = State(schedule.InFlight) // nothing waits behind the delivery
	Retrying = State("retrying")        // between two attempts
)

// has reports whether the key is in the state.
func (o State) has(v *schedule.View) bool {
	switch o {
	case "":
		return true
	case Retrying:
		return v.Retrying()
	}
	return schedule.State(o) == v.State
}

// scanRows bounds the index rows that one page of a list reads: a short page may
// still have a next one.
const scanRows = 100_000

// List returns a page of keys and the token of the next page, "" at the end.
// Pages are not a snapshot: a key that changes meanwhile may be missed or seen twice.
func (s *Source) List(o ListOptions) ([]schedule.View, string, error) {
	after, err := decodeToken(o)
	if err != nil {
		return nil, "", err
	}
	if err := s.enter(); err != nil {
		return nil, "", err
	}
	defer s.leave()
	now := s.now()
	var items []store.Item
	var next store.Position
	if o.State == InFlight {
		views, next := s.stripes.list(o, after, now)
		return views, next, nil
	}
	if o.ByDue {
		if o.State == Waiting && after.At.Before(now) {
			after = store.Position{At: now}
		}
		items, next, err = s.q.store.ListDue(s.uid, o.Prefix, after, o.Limit, scanRows)
	} else {
		var more bool
		items, more, err = s.q.store.List(s.uid, o.Prefix, after.Key, o.Limit, true)
		if more {
			next.Key = items[len(items)-1].Key
		}
	}
	if err != nil {
		return nil, "", err
	}
	views, until := make([]schedule.View, 0, len(items)), s.page.companyUntil(now)
	for _, item := range items {
		if item.Entry == nil {
			continue // it cannot be read
		}
		v, ok := s.stripes.view(item, now)
		if o.ByDue && v.DueAt.After(now) && (o.State == Due || o.State == Retrying) {
			return views, "", nil // the rest waits
		}
		v.WaitFor(until, s.Spec(), now)
		if ok && o.State.has(&v) {
			views = append(views, v)
		}
	}
	return views, encodeToken(o.ByDue, next), nil
}

// A token has the order, and the due time and key of the last row.
func encodeToken(byDue bool, p store.Position) string {
	if p.Key == "" {
		return ""
	}
	if !byDue {
		return base64.RawURLEncoding.EncodeToString(append([]byte{'k'}, p.Key...))
	}
	b := binary.BigEndian.AppendUint64([]byte{'d'}, uint64(p.At.UnixNano()))
	return base64.RawURLEncoding.EncodeToString(append(b, p.Key...))
}

func decodeToken(o ListOptions) (p store.Position, err error) {
	if o.Continue == "" {
		return p, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(o.Continue)
	switch {
	case err != nil || len(b) < 2:
	case !o.ByDue && b[0] == 'k':
		return store.Position{Key: string(b[1:])}, nil
	case o.ByDue && b[0] == 'd' && len(b) > 9:
		return store.Position{At: time.Unix(0, int64(binary.BigEndian.Uint64(b[1:9]))), Key: string(b[9:])}, nil
	}
	return p, schedule.Invalid("continue", "is not a token of a list with this order: use the order of the first page")
}

// KeyDueBy reports whether a key of the source may be delivered by then, from the index,
// without rows that are stale, without dead letters, and without keys that wait for company.
func (s *Source) KeyDueBy(then time.Time) (bool, error) {
	if err := s.enter(); err != nil {
		return false, err
	}
	defer s.leave()
	s.page.mu.Lock()
	lets := s.page.rows.Lets(s.now().UnixNano(), then.UnixNano())
	s.page.mu.Unlock()
	for _, p := range schedule.Priorities {
		if due, err := s.page.keyDueBy(p, then, lets); due || err != nil {
			return due, err
		}
	}
	return false, nil
}

func (p *page) keyDueBy(rank schedule.Priority, then time.Time, lets int64) (bool, error) {
	s := p.s
	var page [64]store.Row
	for from := (store.Position{}); ; {
		rows, more, err := s.q.store.Due(page[:0], s.uid, rank, from, len(page))
		for _, r := range rows {
			if r.At.After(then) {
				return false, nil
			}
			waits := r.At.UnixNano() > lets && r.At.Add(s.Spec().Resolve(r.Slack)).After(then)
			if !schedule.IsDeadLetterKey(r.Key) && !waits {
				return true, nil
			}
			from = store.Position{At: r.At, Key: r.Key}
		}
		if err != nil || !more {
			return false, err
		}
	}
}

// Counts are a source's numbers.
type Counts struct {
	Pending  int64 // waiting and due
	Due      int64 // retrying ones among them
	Retrying int64 // between two attempts
	InFlight int64 // of keys: dead letters have slots of their own
	// NextDueAt is the soonest due time still ahead, OldestDueAt the earliest
	// one that has come, and OldestUntriedAt the earliest one that has come of a
	// key that is not between two attempts, counted from the end of its slack; zero when there is none.
	NextDueAt, OldestDueAt, OldestUntriedAt time.Time
	CompanyUntil                            time.Time // until then due keys wait for company; zero if none does
	DeadLetters                             int64     // waiting for the dead letter sink
	Kept                                    int64     // dead letters that are kept
	LettersInFlight                         int64     // dead letters under way, a part of DeadLetters
	Bands                                   [schedule.Bands]Band
}

// Band is the numbers of one priority, as in Counts.
type Band struct {
	Pending, Due    int64
	OldestUntriedAt time.Time
}

// Up to exactDue due keys the counts are exact. Above that they are counted again
// when they are older than staleAfter and than countingFactor times the duration of
// the last counting, so that frequent calls cost little.
const (
	exactDue       = 10_000
	staleAfter     = 5 * time.Second
	countingFactor = 20
)

// counting is the last complete counting of a large backlog. A call holds its lock while it counts.
type counting struct {
	sync.Mutex
	backlog store.Backlog
	at      time.Time
	took    time.Duration
}

// Counts counts. Up to 10,000 due keys it is exact; above that Due and the
// instants may be 5 s old, or 20 times as old as counting takes.
func (s *Source) Counts() (Counts, error) {
	if err := s.enter(); err != nil {
		return Counts{}, err
	}
	defer s.leave()
	backlog, err := s.backlog()
	if err != nil {
		return Counts{}, err
	}
	s.page.mu.Lock()
	letters := s.page.letters.flights
	s.page.mu.Unlock()
	stored, err := s.q.store.Bands(s.uid)
	if err != nil {
		return Counts{}, err
	}
	pending, bands := s.usage.keys.Load(), [schedule.Bands]Band{}
	for i, b := range backlog.Bands {
		own := s.stripes.own[i].Load()
		pending -= own
		bands[i] = Band{Pending: max(stored[i]-own, 0), Due: int64(b.Due), OldestUntriedAt: b.OldestUntriedAt}
	}
	u := &s.usage
	return Counts{
		Bands: bands, Pending: max(pending, 0), Due: int64(backlog.Due), Retrying: int64(backlog.Retrying), InFlight: s.stripes.underWay.Load(),
		NextDueAt: backlog.NextAt, OldestDueAt: backlog.OldestAt, OldestUntriedAt: backlog.OldestUntriedAt,
		CompanyUntil: s.page.companyUntil(s.now()),
		DeadLetters:  max(u.letters.Load()-u.kept.Load(), 0), Kept: u.kept.Load(), LettersInFlight: int64(letters),
	}, nil
}

func (s *Source) backlog() (store.Backlog, error) {
	backlog, err := s.q.store.Backlog(s.uid, s.now(), s.Spec().Slack, exactDue, s.stripes.inFlight)
	if err != nil || !backlog.Partial {
		return backlog, err
	}
	s.counts.Lock()
	defer s.counts.Unlock()
	if age := time.Since(s.counts.at); age < staleAfter || age < countingFactor*s.counts.took {
		return s.counts.backlog, nil
	}
	start := time.Now()
	backlog, err = s.q.store.Backlog(s.uid, s.now(), s.Spec().Slack, math.MaxInt, s.stripes.inFlight)
	if err == nil {
		s.counts.backlog, s.counts.at, s.counts.took = backlog, time.Now(), time.Since(start)
	}
	return backlog, err
}
