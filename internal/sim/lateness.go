package sim

import (
	"cmp"
	"math"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	promptly      = time.Millisecond // after a key is due and there is capacity
	heartbeat     = 10 * time.Second // after a jump of the wall clock
	expiresWithin = 5 * time.Second
)

// limits are the judge's knowledge of what may delay all deliveries.
type limits struct {
	maxInFlight  int       // of all sources
	unsureUntil  time.Time // a crash may have left more that has expired
	slowUntil    time.Time // pages may still load
	upAt, jumpAt time.Time // start of the process, last jump of the clock
}

// load is what of a source's limits is in use.
type load struct {
	inFlight  int // of keys
	letters   int // dead letters in flight
	tokens    float64
	tokensAt  time.Time
	blockedAt time.Time // until then something else than time held deliveries back
	unsure    bool      // there may be fewer tokens, until no delivery started for a second

	lettersBlockedAt time.Time // the same for dead letters
}

// begin fills the budget of deliveries.
func (l *load) begin(now time.Time) { l.tokens, l.tokensAt, l.blockedAt = 1e9, now, now }

// limit changes maxPerSecond. The budget keeps its share of it. Without a limit there is no budget: the
// next limit begins with all of it, unless nothing was due meanwhile.
func (s *source) limit(perSecond int, now time.Time) {
	switch old := s.settings.MaxPerSecond; {
	case old == perSecond:
	case old > 0 && perSecond > 0:
		at := s.refilledAt() // observe has noted a later one, but not one that comes within a rounding error
		if at.After(now) {
			at = now
		}
		s.blockedAt = latest(s.blockedAt, at)
		s.tokens, s.tokensAt = s.available(now)*float64(perSecond)/float64(old), now
	default:
		s.begin(now)
		s.blockedAt, s.unsure = now.Add(time.Second), true
	}
}

// unreached counts an attempt that makes no connection, unless a change calls it off.
func (s *source) unreached(now time.Time) {
	if s != nil && s.settings.MaxPerSecond > 0 {
		s.blockedAt, s.unsure = now.Add(time.Second), true
	}
}

// take counts a delivery that starts, give one that ends.
func (s *source) take(d *delivery, now time.Time) {
	if s.unsure = s.unsure && now.Before(s.blockedAt); s.unsure {
		s.blockedAt = now.Add(time.Second)
	}
	s.tokens, s.tokensAt = s.available(now)-1, now
	*s.slots(d)++
}

func (s *source) give(d *delivery) { *s.slots(d)-- }

func (s *source) slots(d *delivery) *int {
	if d.key.letter {
		return &s.letters
	}
	return &s.inFlight
}

// available is the budget of deliveries: maxPerSecond a second, and bursts of one
// second's worth.
func (s *source) available(now time.Time) float64 {
	rate := float64(s.settings.MaxPerSecond)
	return min(rate, s.tokens+now.Sub(s.tokensAt).Seconds()*rate)
}

// refilledAt is when the budget, which was touched at tokensAt, has one delivery; zero if it had
// one then.
func (s *source) refilledAt() time.Time {
	if s.tokens >= 1 {
		return time.Time{}
	}
	return s.tokensAt.Add(time.Duration(math.Ceil((1 - s.tokens) / float64(s.settings.MaxPerSecond) * 1e9)))
}

const sharedSlots, byMaxInFlight = "the slots of all sources", "maxInFlight"

// blocked says what else than time keeps a key of the source from being delivered
// now, "" if nothing does. Dead letters have slots of their own.
func (j *judge) blocked(s *source, letter bool) string {
	total := 0
	for _, o := range j.sources {
		total += o.inFlight + o.letters
	}
	free := j.maxInFlight - total - 1 // after one more; all are in one namespace
	own := s.inFlight + s.letters
	switch {
	case letter && s.letters >= max(1, s.settings.MaxInFlight/4):
		return "the slots of dead letters"
	case s.settings.Suspend:
		return "suspended"
	case s.inFlight >= s.settings.MaxInFlight:
		return byMaxInFlight
	case free < 0, total > 0 && free < total+1, own > 0 && free-(total+1) < 2*(own+1):
		return sharedSlots
	case s.settings.MaxPerSecond > 0 && s.available(j.at) < 1-1e-6:
		return "maxPerSecond"
	}
	return ""
}

// begunWith is how many keys of the source have started at this instant, and are under way.
func (j *judge) begunWith(d *delivery) (n int) {
	for _, o := range j.begun {
		if o.source == d.source && !o.key.letter && o.at.Equal(d.at) && j.flying[o.start] == o {
			n++
		}
	}
	return n
}

// observe notes at each moment which sources are held back.
func (j *judge) observe() {
	for _, s := range j.sources {
		if j.blocked(s, false) != "" {
			s.blockedAt = latest(s.blockedAt, j.at)
		}
		if j.blocked(s, true) != "" {
			s.lettersBlockedAt = latest(s.lettersBlockedAt, j.at)
		}
	}
}

func (j *judge) up(e up) {
	j.upAt, j.maxInFlight = j.at, e.maxInFlight
	for _, s := range j.sources {
		s.begin(j.at)
	}
}

func (j *judge) jump(by time.Duration) {
	j.jumpAt = j.at
	for _, s := range j.sources {
		for _, k := range s.keys {
			if by < 0 && k.shown(j.wall) == nil {
				k.newest = nil // it was dropped, and does not come back
			}
			if o := k.newest; o != nil && o.at().After(j.wall) && !o.at().After(j.wall.Add(by)) {
				k.jumpedAt = j.at
			}
		}
	}
}

// noticed is when the adapter had to notice an instant of the wall clock: it may
// have come by a jump.
func (j *judge) noticed(instant time.Time) time.Time {
	at := j.at.Add(-j.wall.Sub(instant))
	if !j.jumpAt.IsZero() && at.Before(j.jumpAt.Add(heartbeat)) {
		return j.jumpAt.Add(heartbeat)
	}
	return at
}

// late is for how long only the adapter itself has kept a key from being delivered
// that is due.
func (j *judge) late(s *source, k *key) time.Duration {
	at := latest(j.dueBy(s, k.newest), k.since, s.blockedAt, j.upAt, j.slowUntil)
	if s.settings.MaxPerSecond > 0 {
		at = latest(at, s.refilledAt())
	}
	if k.letter {
		at = latest(at, s.lettersBlockedAt)
	}
	return j.at.Sub(at)
}

// startable reports that a key could be in delivery.
func (k *key) startable(wall time.Time) bool {
	return k.newest != nil && k.out == nil && !k.newest.at().After(wall) && !k.newest.expired(wall)
}

// prompt finds keys that must be in delivery by now.
func (j *judge) prompt() {
	for _, s := range j.sources {
		for _, k := range s.keys {
			if k.startable(j.wall) && (k.letter || !s.settings.Scale.Sinkless) && j.blocked(s, k.letter) == "" && j.late(s, k) > promptly {
				j.broken(prompt, "%q of %s is not delivered for %s\n  the key: %s", k.name, s.settings.UID, j.late(s, k), k.describe())
			}
		}
	}
}

// rankedFirst checks the deliveries that started at one earlier instant: of the
// keys of their source that were due before it, none that is still there may have a higher priority, or
// the same and be older, unless it has slack left. Dead letters have slots, and an order, of their own.
func (j *judge) rankedFirst() {
	if len(j.begun) == 0 || !j.at.After(j.begun[0].at) {
		return
	}
	instant := j.begun[0].at
	wall := j.wall.Add(-j.at.Sub(instant))
	for _, d := range j.begun {
		for _, k := range d.source.keys {
			if d.key.letter || k.letter || d.source.gone || !k.since.Before(instant) || !k.startable(wall) || !k.newest.before(d.of) || d.source.until(k.newest).After(wall) {
				continue
			}
			// It must have been due for certain: not only since a jump, a restart or another slack that
			// the adapter may not have dealt with yet.
			if latest(j.noticed(k.newest.at()), j.upAt, j.slowUntil, d.source.slackAt).Before(instant) {
				j.broken(ranked, "at %s %q, %s of %s, was due, and another key, %s of %s, was started", stamp(wall), k.name, k.newest.priority, stamp(k.newest.at()), d.of.priority, stamp(d.of.at()))
			}
		}
	}
	j.begun = j.begun[:0]
}

// before reports that the occurrence goes first when both are due.
func (o *occurrence) before(other *occurrence) bool {
	return cmp.Or(cmp.Compare(other.priority, o.priority), o.at().Compare(other.at())) < 0
}

// expire drops what must have been dropped by now.
func (j *judge) expire() {
	for _, s := range j.sources {
		for _, k := range s.keys {
			if k.own() || !k.newest.expired(j.wall) {
				continue
			}
			if j.at.Sub(latest(j.noticed(k.newest.expiresAt), k.since, j.upAt)) > expiresWithin {
				j.set(k, nil)
			}
		}
	}
}

// lingering are keys that have expired and may not have been dropped yet.
func (j *judge) lingering(s *source) (n int64) {
	for _, k := range s.keys {
		if k.newest != nil && k.shown(j.wall) == nil {
			n++
		}
	}
	if !j.at.After(j.unsureUntil) {
		n += int64(len(s.keys))
	}
	return n
}

// counted are the counts that agree with GET of each key, the deliveries
// under way and the dead letters.
func (j *judge) counted(s *source, e *sight) (want queue.Counts) {
	for _, k := range s.keys {
		switch {
		case !k.letter && k.out != nil:
			want.InFlight++
		case k.letter && k.out != nil:
			want.LettersInFlight++
		}
		if k.letter && k.newest != nil {
			want.DeadLetters++
		}
	}
	sooner := func(t *time.Time, than time.Time) {
		if t.IsZero() || than.Before(*t) {
			*t = than
		}
	}
	for _, v := range e.views {
		switch v.State {
		case schedule.Waiting:
			want.Pending++
			want.Bands[v.Priority.Band()].Pending++
			sooner(&want.NextDueAt, v.DueAt)
		case schedule.Due:
			want.Pending++
			want.Due++
			band := &want.Bands[v.Priority.Band()]
			band.Pending++
			band.Due++
			sooner(&want.OldestDueAt, v.DueAt)
			switch end := v.SlackEnd(s.settings); {
			case !v.RetryAt.IsZero():
				want.Retrying++
			case !end.After(j.wall):
				sooner(&want.OldestUntriedAt, end)
				sooner(&band.OldestUntriedAt, end)
			}
		}
	}
	want.CompanyUntil = e.counts.CompanyUntil
	return want
}
