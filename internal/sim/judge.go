package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// judge reads a trace, one moment after the other, and holds each promise against
// it. It reads only the trace.
type judge struct {
	at, wall time.Time // of the moment
	failed   string    // the first broken promise
	random   float64   // what jitter draws

	sources map[string]*source         // by uid
	of      map[*schedule.Spec]*source // by settings

	changes []change // since the last of which it is known that a crash keeps it
	durable int      // so many of them are durable for certain

	marks
	workloads map[string]*workload // by name

	calls  map[*call]*expectation
	flying map[*start]*delivery
	begun  []*delivery // at the instant of the last start
	limits
}

// marks are the revisions and ids that were seen, over all restarts.
type marks struct {
	made    int
	numbers map[uint64]*mark // by revision
	ids     map[string]*mark // by event id
	newest  map[string]*mark // by source and key: the mark with the newest revision seen
}

// mark stands for a revision and the id of an occurrence's event. The judge reads
// both when it sees them first.
type mark struct {
	order  int
	number uint64
	id     string
}

// occurrence is what a key waits for, or delivers. It is never changed, only
// replaced.
type occurrence struct {
	rev, occ *mark

	scheduledAt, dueAt, previousDueAt, retryAt, expiresAt time.Time
	// olderAt is the due time of an older occurrence in delivery, if this one is an
	// event that came in behind it.
	olderAt time.Time
	// owedAt is the event's own time, after a crash brought the older occurrence
	// back: the key is due then once more.
	owedAt time.Time

	attempt uint32 // failed runs of the key in a row
	tries   uint32 // failed deliveries of this occurrence

	maxInterval *time.Duration
	slack       *time.Duration
	mayWait     bool // within its slack
	priority    schedule.Priority
	uid, reason string
	event       *schedule.Event
	dead        *letter
	pace
}

// letter is what a dead letter says.
type letter struct {
	key  string
	of   *occurrence
	code int
}

func (o *occurrence) at() time.Time {
	if !o.retryAt.IsZero() {
		return o.retryAt
	}
	return o.dueAt
}

func (o *occurrence) expired(now time.Time) bool {
	return o != nil && !o.expiresAt.IsZero() && !now.Before(o.expiresAt)
}

// delivery is a delivery under way, and what was accepted since it started.
type delivery struct {
	*start
	source *source
	key    *key
	of     *occurrence
	at     time.Time // in the bubble's time
	began  time.Time // by the adapter's clock

	overtaken bool // something: of is not the key's newest any more
	replaced  bool // a request that replaces the occurrence: no retry
	cancelled bool // a DELETE or another uid: the answer has no effect
	counted   bool // a PUT, which has a counter of its own
	wakes     bool // its slack was used up when it began
}

type key struct {
	name     string
	letter   bool
	newest   *occurrence
	out      *delivery
	since    time.Time // in the bubble's time: last change, or end of a delivery
	jumpedAt time.Time // in the bubble's time, when a jump of the clock made it due
}

func (k *key) own() bool { return k.out != nil && !k.out.overtaken }

// shown is what GET shows, waiting what of it waits or is due.
func (k *key) shown(now time.Time) *occurrence {
	if !k.own() && k.newest.expired(now) {
		return nil
	}
	return k.newest
}

func (k *key) waiting(now time.Time) *occurrence {
	if k.own() {
		return nil
	}
	return k.shown(now)
}

// source is a source from when it is added until it is removed.
type source struct {
	settings  *schedule.Spec
	keys      map[string]*key
	gone      bool
	before    map[*key]bool // keys that were there when a call of several began: they count until it ends
	appliedAt time.Time     // when its settings changed, in the bubble's time
	slackAt   time.Time     // when slack or company of the source changed, in the bubble's time
	awake     awakening
	load
}

func (s *source) key(name string) *key {
	k := s.keys[name]
	if k == nil {
		k = &key{name: name}
		s.keys[name] = k
	}
	return k
}

// letter is a new dead letter.
func (s *source) letter(m *mark) *key {
	k := &key{name: fmt.Sprintf("dead letter %d", m.order), letter: true}
	s.keys[k.name] = k
	return k
}

// change is a change of a key that a crash may take back.
type change struct {
	source *source
	k      *key
	old    *occurrence
	at     time.Time // in the bubble's time
	to     *mark     // of a move to the schedule of the source: the revision
	by     string    // the key whose delivery, or whose dead letter's, has ended; "" for another change
}

// expectation is what the answer to a call must be.
type expectation struct {
	position int // in changes
	answers  []answer
	code     schedule.Code // of the whole call
	deleted  int
}

func newJudge() *judge {
	return &judge{
		sources: map[string]*source{}, of: map[*schedule.Spec]*source{}, marks: marks{numbers: map[uint64]*mark{}, ids: map[string]*mark{}, newest: map[string]*mark{}},
		workloads: map[string]*workload{}, calls: map[*call]*expectation{}, flying: map[*start]*delivery{},
	}
}

func (j *judge) broken(p promise, format string, args ...any) {
	if j.failed == "" {
		j.failed = fmt.Sprintf("at %s: %s: %s", stamp(j.wall), p, fmt.Sprintf(format, args...))
	}
}

func (m *marks) mark() *mark { m.made++; return &mark{order: m.made} }

// set replaces a key's occurrence.
func (j *judge) set(k *key, o *occurrence) {
	j.changes = append(j.changes, change{k: k, old: k.newest, at: j.at})
	k.newest, k.since = o, j.at
}

// see takes the next moment of the trace.
func (j *judge) see(m moment) {
	j.at, j.wall = m.at, m.wall
	j.rankedFirst()
	j.observe()
	switch e := m.what.(type) {
	case up:
		j.up(e)
	case found:
		j.restart(e)
	case down:
		j.down(e)
	case applied:
		j.apply(e.Spec)
	case removed:
		j.sources[e.uid].gone = true
		delete(j.sources, e.uid)
		j.changes, j.durable = nil, 0 // the removal is durable, and all before it
	case jumped:
		j.jump(e.by)
	case slow:
		j.slowUntil = e.until
	case drawn:
		j.random = e.random
	case *call:
		j.call(e)
	case answered:
		j.answer(e)
	case *start:
		j.start(e)
	case unreached:
		j.sources[e.uid].unreached(j.at)
	case end:
		j.end(e)
	case ended:
		napping{j}.ended(e)
	case scaled:
		napping{j}.scaled(e)
	case got:
		s := j.sources[e.uid]
		j.get(s, s.key(e.key), e.view, e.there)
	case quiet:
		j.prompt()
		napping{j}.wakes()
		j.expire()
		j.lazily()
	case *sight:
		j.sight(e)
	case drained:
		j.drained()
	}
}

// lazily notes that what is older than the store may leave without an fsync is
// durable too, whichever call waited for it.
func (j *judge) lazily() {
	for j.durable < len(j.changes) && j.at.Sub(j.changes[j.durable].at) > 2*store.LazySync {
		j.durable++
	}
}

func (j *judge) apply(settings *schedule.Spec) {
	s := j.sources[settings.UID]
	if s == nil {
		s = &source{keys: map[string]*key{}}
		j.sources[settings.UID] = s
		s.begin(j.at)
	} else {
		s.limit(settings.MaxPerSecond, j.at)
	}
	if old := s.settings; old != nil && (old.Slack != settings.Slack || old.Company != settings.Company) {
		s.slackAt = j.at
	}
	edited := s.settings != nil && !sameCalendar(s.settings.Calendar, settings.Calendar)
	s.settings, s.appliedAt, j.of[settings] = settings, j.at, s
	if edited {
		following{j}.edited(s)
	}
}

// call applies a call as its requests say, and notes the right answer.
func (j *judge) call(c *call) {
	s, want := j.sources[c.uid], &expectation{}
	j.calls[c] = want
	if len(c.items) != 1 { // the keys that are there count until the call ends
		s.before = map[*key]bool{}
		for _, k := range s.keys {
			if k.shown(j.wall) != nil {
				s.before[k] = true
			}
		}
	}
	switch c.kind {
	case callTogether:
		undo := j.save(s)
		for i := range c.items {
			if want.code = j.request(s, s.key(c.items[i].Key), &c.items[i].Request).code; want.code != "" {
				undo()
				break
			}
		}
	case callCancel:
		if refused, _ := j.cancel(s.key(c.items[0].Key), &c.items[0].Request.Conditions); refused {
			want.code = schedule.CodePrecondition
		}
	case callCancelAll:
		for _, k := range s.keys {
			if !k.letter && strings.HasPrefix(k.name, c.prefix) {
				if _, waited := j.cancel(k, &schedule.Conditions{}); waited {
					want.deleted++
				}
			}
		}
	default:
		for i := range c.items {
			want.answers = append(want.answers, j.request(s, s.key(c.items[i].Key), &c.items[i].Request))
		}
	}
	s.before = nil
	want.position = len(j.changes)
}

// save notes where a source stands; undo goes back there.
func (j *judge) save(s *source) (undo func()) {
	n, keys, out := len(j.changes), map[*key]key{}, map[*delivery]delivery{}
	for _, k := range s.keys {
		if keys[k] = *k; k.out != nil {
			out[k.out] = *k.out
		}
	}
	return func() {
		j.changes = j.changes[:n]
		for name, k := range s.keys {
			*k = keys[k]
			k.name = name
		}
		for d, was := range out {
			*d = was
		}
	}
}

// start judges the start of a delivery.
func (j *judge) start(e *start) {
	s := j.of[e.Source]
	k := s.find(e)
	if k == nil {
		j.broken(newestStarts, "key %q, revision %d: nothing waits for it: %s", e.Key, e.Revision(), s.keys[e.Key].describe())
		return
	}
	if s.settings.Scale.Sinkless {
		j.broken(nothingSent, "key %q of %s", e.Key, s.settings.UID)
	}
	d := &delivery{start: e, source: s, key: k, of: k.newest, at: j.at, began: j.wall}
	for _, i := range ofDeliveries {
		if problem := i.check(j, d); problem != "" {
			j.broken(i.promise, "key %q: %s\n  the key: %s", k.name, problem, k.describe())
		}
	}
	k.out, j.flying[e] = d, d
	s.take(d, j.at)
	if d.wakes = !k.letter && !s.until(d.of).After(j.wall); d.wakes {
		s.awake.begin(j.at)
	}
	j.begun = append(j.begun, d)
}

// find is the key of a start, or the dead letter.
func (s *source) find(e *start) *key {
	for _, k := range s.keys {
		switch o := k.newest; {
		case o == nil:
		case e.Entry.DeadLetter == nil && o.dead == nil && k.name == e.Key:
			return k
		case e.Entry.DeadLetter != nil && o.dead != nil && o.dead.key == e.Key && o.dead.of.rev.number == e.Revision():
			return k
		}
	}
	return nil
}

// end applies the answer to a delivery. After a crash, or when the source is gone,
// it has no effect.
func (j *judge) end(e end) {
	d := j.flying[e.start]
	if d == nil || d.source.gone {
		return
	}
	delete(j.flying, e.start)
	d.source.give(d)
	if d.wakes {
		d.source.awake.end(j.at)
	}
	before := len(j.changes)
	j.finish(d, e.Outcome)
	for i := range j.changes[before:] {
		c := &j.changes[before+i]
		c.source, c.by = d.source, d.source.settings.UID+"/"+d.Key
	}
	d.key.out, d.key.since = nil, j.at
}

// down ends all deliveries.
func (j *judge) down(e down) {
	for _, d := range j.flying {
		d.key.out = nil
		d.source.give(d)
	}
	for _, s := range j.sources {
		s.awake = awakening{}
	}
	clear(j.flying)
	j.begun = nil
	if !e.crash { // closing is a flush
		j.durable = len(j.changes)
	}
}

// restart takes back changes, newest first, until the rest is what a restart found.
// It does not take back what was acknowledged.
func (j *judge) restart(f found) {
	if !f.whole {
		j.broken(wholeDisk, "adapter verify finds faults")
	}
	for _, c := range j.changes[j.durable:] { // whether it is there cannot be seen
		if c.old.expired(j.wall) || c.k.newest.expired(j.wall) {
			j.unsureUntil = j.at.Add(expiresWithin)
		}
	}
	first := ""
	for {
		mismatch := j.mismatch(f)
		if mismatch == "" {
			break
		}
		if first == "" {
			first = mismatch
		}
		if len(j.changes) == j.durable {
			j.broken(nothingLost, "the store is at no moment after the last acknowledged change: at first %s; at last %s", first, mismatch)
			break
		}
		j.lostLast(f)
		last := j.changes[len(j.changes)-1]
		j.changes = j.changes[:len(j.changes)-1]
		last.k.newest = last.old
	}
	for _, s := range j.sources {
		for _, k := range s.keys {
			k.newest, k.since = restarted(k.newest), j.at
		}
	}
	moves := slices.DeleteFunc(slices.Clone(j.changes[j.durable:]), func(c change) bool { return c.to == nil })
	j.changes, j.durable = nil, 0
	for _, c := range moves { // whether the restart has made it again cannot be seen
		if c.at = j.at; c.k.newest != nil && c.k.newest.rev == c.to {
			j.changes = append(j.changes, c)
		}
	}
	following{j}.restarted(f)
}

// lostLast sorts the changes by deliveries that ended at one instant, the newest one, so that changes of keys that a
// restart did not find come last. The trace has these ends in the order of the answers; the queue stores them side by
// side. The changes of one key keep their order.
func (j *judge) lostLast(f found) {
	newest := j.changes[len(j.changes)-1]
	from := len(j.changes)
	for from > j.durable && j.changes[from-1].by != "" && j.changes[from-1].at.Equal(newest.at) {
		from--
	}
	lost := map[string]bool{}
	for _, c := range j.changes[from:] {
		lost[c.by] = lost[c.by] || !j.isFound(c, f)
	}
	slices.SortStableFunc(j.changes[from:], func(a, b change) int {
		switch {
		case lost[a.by] == lost[b.by]:
			return 0
		case lost[b.by]:
			return -1
		}
		return 1
	})
}

// isFound reports that a restart found the key as the change of an ended delivery left it.
func (j *judge) isFound(c change, f found) bool {
	uid, now := c.source.settings.UID, c.k.newest
	if c.k.letter {
		if now == nil {
			return c.old == nil || !c.old.among(f.dead[uid])
		}
		return now.among(f.dead[uid])
	}
	for _, v := range f.views[uid] {
		if v.Key == c.k.name {
			return j.found(c.source, restarted(now), v, true) == ""
		}
	}
	return j.found(c.source, restarted(now), schedule.View{}, false) == ""
}

// mismatch says how what a restart found differs from the keys.
func (j *judge) mismatch(f found) string {
	for uid, s := range j.sources {
		views := map[string]schedule.View{}
		for _, v := range f.views[uid] {
			views[v.Key] = v
		}
		letters := 0
		for _, k := range s.keys {
			if k.letter {
				if k.newest == nil {
					continue
				}
				letters++
				if !k.newest.among(f.dead[uid]) {
					return fmt.Sprintf("a dead letter of %q is not there", k.newest.dead.key)
				}
				continue
			}
			v, there := views[k.name]
			if diff := j.found(s, restarted(k.newest), v, there); diff != "" {
				return fmt.Sprintf("%s/%s: %s: %s", uid, k.name, diff, k.describe())
			}
			delete(views, k.name)
		}
		if len(views) > 0 {
			return fmt.Sprintf("%s has keys that were never scheduled: %v", uid, views)
		}
		if letters != len(f.dead[uid]) {
			return fmt.Sprintf("%s has %d dead letters, want %d", uid, len(f.dead[uid]), letters)
		}
	}
	return ""
}

// found says how what a restart found of a key differs from an occurrence. Keys may have moved to the schedule of their
// source, and must have if their time was from another.
func (j *judge) found(s *source, o *occurrence, v schedule.View, there bool) string {
	n := following{j}.moved(s, o)
	if n == nil || !there {
		return o.differs(j, v, there)
	}
	diff := n.differs(j, v, there)
	if diff != "" && sameCalendar(o.on, s.settings.Calendar) {
		return o.differs(j, v, there)
	}
	return diff
}

func (o *occurrence) differs(j *judge, v schedule.View, there bool) string {
	switch {
	case !there && (o == nil || o.expired(j.wall)):
		return ""
	case o == nil || o.expired(j.wall):
		return fmt.Sprintf("revision %d is there, want nothing", v.Revision)
	case !there:
		return fmt.Sprintf("it is not there, want revision %d", o.rev.number)
	case v.Revision != o.rev.number && (o.rev.number != 0 || j.numbers[v.Revision] != nil):
		return fmt.Sprintf("revision %d, want %d", v.Revision, o.rev.number)
	case v.Tries != o.tries:
		return fmt.Sprintf("tries %d, want %d", v.Tries, o.tries)
	}
	return comparison{occurrence: o, view: v, now: j.wall}.difference()
}

func (o *occurrence) among(dead []store.Item) bool {
	for _, i := range dead {
		if e := i.Entry; e.DeadLetter.Key == o.dead.key && e.DeadLetter.Revision == o.dead.of.rev.number && e.Tries == o.tries && e.RetryAt.Equal(o.retryAt) {
			return true
		}
	}
	return false
}
