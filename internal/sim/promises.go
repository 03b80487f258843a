package sim

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// promise is a sentence of the contract.
type promise string

// The promises.
const (
	neverEarly     promise = "nothing is delivered before its time, by the adapter's clock"
	oneAtATime     promise = "a key has one delivery at a time"
	newestStarts   promise = "after an acknowledged change only the newest occurrence starts, nor a retry of an older one"
	newestEvent    promise = "the newest accepted event is delivered"
	originalDue    promise = "the due time stays the original over retries"
	attemptCounter promise = "the event carries the key's attempt counter"
	oneID          promise = "a repeat has the same id, and a new occurrence another"
	notExpired     promise = "nothing is delivered after its expiresAt"
	goneIsGone     promise = "a source that was removed delivers nothing"
	inForce        promise = "new settings are in force for the next delivery"
	withinLimits   promise = "a source keeps its limits, and starts nothing while it is suspended"
	letterSaysWhy  promise = "a dead letter says why it was given up"
	prompt         promise = "what is due, and has used up its slack or finds the sink awake, is delivered at once when there is capacity"
	ranked         promise = "what is due and has no slack left is delivered by priority, then oldest first, within a source"

	nothingSent     promise = "no event is sent for a key of a source without a sink"
	doneWhenIdle    promise = "without a sink a key is done only after its workload was up, and idle for cooldown, since the key was due or changed"
	failsWithReason promise = "without a sink a key fails only if its workload has crashed or was not up in time; it stays, and waits for its back-off"
	wakesAtOnce     promise = "without a sink what is due wakes its workload at once"
	endsInTime      promise = "without a sink a due key ends once its workload was idle for cooldown, or not up in time"
	sleepsIdle      promise = "without a sink a workload is told to sleep only while nothing is due, and idle for cooldown"

	rightAnswer    promise = "a call is answered as the contract says"
	growing        promise = "revisions grow, and are never used again"
	getTells       promise = "GET tells what the calls and outcomes made of the key"
	listsAgree     promise = "a list shows what GET shows, in its order"
	countsAgree    promise = "counts agree with GET; what has expired is dropped within 5 s"
	nothingLost    promise = "nothing acknowledged is lost in a crash"
	wholeDisk      promise = "what a crash leaves on the disk is whole"
	allIsDelivered promise = "all that is accepted is delivered in the end"
)

// invariant checks a promise at a moment; the result says what breaks it, "" if
// nothing does.
type invariant[T any] struct {
	promise promise
	check   func(*judge, T) string
}

// ofDeliveries hold whenever a delivery starts.
var ofDeliveries = []invariant[*delivery]{
	{goneIsGone, func(_ *judge, d *delivery) string { return unless(!d.source.gone, "it is removed") }},
	{inForce, func(_ *judge, d *delivery) string {
		target := &d.source.settings.Sink
		if d.key.letter {
			target = d.source.settings.DeadLetter
		}
		return unless(d.Source == d.source.settings && target != nil && d.Target == *target, "it has older ones")
	}},
	{oneAtATime, func(_ *judge, d *delivery) string { return unless(d.key.out == nil, "another is under way") }},
	{neverEarly, func(j *judge, d *delivery) string {
		return unless(!d.of.at().After(j.wall), "%s too early", d.of.at().Sub(j.wall))
	}},
	{notExpired, func(j *judge, d *delivery) string {
		return unless(!d.of.expired(j.wall), "it expired at %s", d.of.expiresAt)
	}},
	{withinLimits, func(j *judge, d *delivery) string {
		why := j.blocked(d.source, d.key.letter)
		switch {
		case why == sharedSlots: // how all sources share is no promise to one
			return ""
		case why == byMaxInFlight && d.key.letter && d.source.inFlight-j.begunWith(d) < d.source.settings.MaxInFlight:
			return "" // it was chosen before a key that was recorded before it: each delivery is a goroutine
		}
		return unless(why == "", "%s", why)
	}},
	{newestStarts, func(j *judge, d *delivery) string {
		return unless(d.key.letter || j.learnRevision(d.source, d.key, d.of.rev, d.Revision()), "revision %d, want %d", d.Revision(), d.of.rev.number)
	}},
	{originalDue, func(_ *judge, d *delivery) string {
		return unless(d.DueAt().Equal(d.tells().dueAt), "%s, want %s", d.DueAt(), d.tells().dueAt)
	}},
	{attemptCounter, func(_ *judge, d *delivery) string {
		return unless(d.Number() == d.tells().attempt, "%d, want %d", d.Number(), d.tells().attempt)
	}},
	{newestEvent, func(_ *judge, d *delivery) string {
		return unless(sameEvent(d.Entry.Event, d.of.event), "%+v, want %+v", d.Entry.Event, d.of.event)
	}},
	{oneID, func(j *judge, d *delivery) string { return j.learnID(d.tells(), d.ID) }},
	{letterSaysWhy, func(_ *judge, d *delivery) string {
		return unless(!d.key.letter || d.Entry.DeadLetter.Failure.Code == d.of.dead.code, "another code")
	}},
	{prompt, func(j *judge, d *delivery) string {
		late := j.late(d.source, d.key)
		return unless(late <= promptly, "%s late", late)
	}},
}

// tells is the occurrence that the event is about: for a dead letter the occurrence
// that was given up.
func (d *delivery) tells() *occurrence {
	if d.of.dead != nil {
		return d.of.dead.of
	}
	return d.of
}

func unless(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

// learnRevision records the revision of a mark, or compares it with the known revision.
func (all *marks) learnRevision(s *source, k *key, m *mark, number uint64) bool {
	if m.number != 0 {
		return m.number == number
	}
	if all.numbers[number] != nil {
		return false
	}
	m.number, all.numbers[number] = number, m
	name := s.settings.UID + "/" + k.name
	last := all.newest[name]
	if last == nil || m.order > last.order {
		all.newest[name] = m
		return last == nil || number > last.number
	}
	return number < last.number
}

// learnID records the id of an occurrence's event, or compares it with the known id.
func (all *marks) learnID(o *occurrence, id string) string {
	want := o.occ.id
	if o.event != nil && o.event.ID != "" {
		want = o.event.ID
	} else if want == "" {
		if all.ids[id] != nil {
			return fmt.Sprintf("%q belongs to another occurrence", id)
		}
		o.occ.id, all.ids[id] = id, o.occ
		return ""
	}
	return unless(id == want, "%q, want %q", id, want)
}

// answer compares the answer to a call; what is answered is durable.
func (j *judge) answer(c answered) {
	s, want := j.sources[c.uid], j.calls[c.call]
	delete(j.calls, c.call)
	wrong := func(format string, args ...any) {
		j.broken(rightAnswer, "%s %s: %s", c.kind, c.uid, fmt.Sprintf(format, args...))
	}
	if codeOf(c.err) != want.code || c.deleted != want.deleted || len(c.scheduled) != len(want.answers) {
		wrong("%v, deleted %d, %d answers, want %q, %d, %d", c.err, c.deleted, len(c.scheduled), want.code, want.deleted, len(want.answers))
		return
	}
	accepted := want.code == ""
	for i := range want.answers {
		got, want := &c.scheduled[i], &want.answers[i]
		var err error
		if got.Err != nil {
			err = got.Err
		}
		accepted = accepted && (c.kind == callBulk || err == nil)
		if codeOf(err) != want.code {
			wrong("%q: %v, want %q", c.items[i].Key, err, want.code)
		} else if err == nil && got.Result != want.result {
			wrong("%q: %s, want %s", c.items[i].Key, got.Result, want.result)
		} else if err == nil {
			j.compare(rightAnswer, s, want.key, comparison{occurrence: want.newest, view: got.View, now: want.now, inFlight: want.inFlight})
		}
	}
	if accepted {
		j.durable = max(j.durable, want.position)
	}
}

// codeOf is the code of an error, "" of nil.
func codeOf(err error) schedule.Code {
	if err == nil {
		return ""
	}
	if refused, ok := errors.AsType[*schedule.Error](err); ok {
		return refused.Code
	}
	return "no refusal"
}

// get checks the answer to GET of a key.
func (j *judge) get(s *source, k *key, v schedule.View, there bool) {
	if o := k.shown(j.wall); there && o != nil {
		j.compare(getTells, s, k, comparison{occurrence: o, view: v, now: j.wall, own: k.own(), inFlight: k.out != nil})
		if c := v.CompanyUntil; !c.IsZero() && (v.State != schedule.Due || !c.After(j.wall) || c.After(s.until(o))) {
			j.broken(getTells, "%s/%s: it waits for company until %s: %s", s.settings.UID, k.name, c, k.describe())
		}
	} else if there != (o != nil) {
		j.broken(getTells, "%s/%s: there %v, want %v: %s", s.settings.UID, k.name, there, o != nil, k.describe())
	}
}

// sight compares what a source shows while nothing moves.
func (j *judge) sight(e *sight) {
	s := j.sources[e.uid]
	for name := range e.views {
		s.key(name) // it is unknown if it was never scheduled
	}
	for _, k := range s.keys {
		if v, there := e.views[k.name]; !k.letter {
			j.get(s, k, v, there)
		}
	}
	if e.listed != nil {
		if want := e.wanted(); !reflect.DeepEqual(e.list, want) {
			j.broken(listsAgree, "%s, by due %v, prefix %q: %+v, want %+v", e.uid, e.listed.ByDue, e.listed.Prefix, e.list, want)
		}
	}
	want, lingering := j.counted(s, e), j.lingering(s)
	got := e.counts
	if extra := got.Pending - want.Pending; extra >= 0 && extra <= lingering { // they may still be counted
		want.Pending = got.Pending
	}
	if lingering > 0 {
		want.Bands = got.Bands
		want.Due, want.Retrying, want.NextDueAt, want.OldestDueAt, want.OldestUntriedAt = got.Due, got.Retrying, got.NextDueAt, got.OldestDueAt, got.OldestUntriedAt
	}
	if !sameCounts(got, want) {
		j.broken(countsAgree, "%s: %+v, want %+v, %d have expired", e.uid, got, want, lingering)
	}
}

func sameCounts(a, b queue.Counts) bool {
	same := a.NextDueAt.Equal(b.NextDueAt) && a.OldestDueAt.Equal(b.OldestDueAt) && a.OldestUntriedAt.Equal(b.OldestUntriedAt)
	a.NextDueAt, a.OldestDueAt, a.OldestUntriedAt = b.NextDueAt, b.OldestDueAt, b.OldestUntriedAt
	for i := range a.Bands {
		same = same && a.Bands[i].OldestUntriedAt.Equal(b.Bands[i].OldestUntriedAt)
		a.Bands[i].OldestUntriedAt = b.Bands[i].OldestUntriedAt
	}
	return same && a == b
}

// wanted is the list that agrees with GET.
func (e *sight) wanted() []schedule.View {
	var views []schedule.View
	for _, v := range e.views {
		if strings.HasPrefix(v.Key, e.listed.Prefix) {
			views = append(views, v)
		}
	}
	slices.SortFunc(views, func(a, b schedule.View) int {
		if c := a.DueAt.Compare(b.DueAt); c != 0 && e.listed.ByDue {
			return c
		}
		return strings.Compare(a.Key, b.Key)
	})
	return views
}

// comparison is a view of a key at an instant, beside the occurrence that it must show. own
// and inFlight are what it must say of the delivery.
type comparison struct {
	occurrence    *occurrence
	view          schedule.View
	now           time.Time
	own, inFlight bool
}

// compare compares what the adapter shows of a key with the occurrence.
func (j *judge) compare(p promise, s *source, k *key, c comparison) {
	o, v := c.occurrence, c.view
	if !j.learnRevision(s, k, o.rev, v.Revision) {
		j.broken(growing, "%s/%s: revision %d, want %d or, when new, a larger one than all before: %s", s.settings.UID, k.name, v.Revision, o.rev.number, k.describe())
	}
	if diff := c.difference(); diff != "" {
		j.broken(p, "%s/%s: %s\n  the key: %s", s.settings.UID, k.name, diff, k.describe())
	}
}

// difference is how the view differs from the occurrence, "" if it does not.
func (c comparison) difference() string {
	o, v, state := c.occurrence, c.view, schedule.Due
	switch {
	case c.own:
		state = schedule.InFlight
	case o.dueAt.After(c.now):
		state = schedule.Waiting
	}
	same := func(what string, got, want any) string { return unless(got == want, "%s %v, want %v", what, got, want) }
	instant := func(what string, got, want time.Time) string {
		return unless(got.Equal(want), "%s %s, want %s", what, got, want)
	}
	return cmp.Or(
		same("state", v.State, state), same("inFlight", v.InFlight, c.inFlight),
		instant("dueAt", v.DueAt, o.dueAt), instant("previousDueAt", v.PreviousDueAt, o.previousDueAt), instant("next attempt", v.RetryAt, o.retryAt), instant("scheduledAt", v.ScheduledAt, o.scheduledAt),
		instant("expiresAt", v.ExpiresAt, o.expiresAt), same("attempt", v.Attempt, o.attempt), same("uid", v.UID, o.uid), same("reason", v.Reason, o.reason),
		unless(sameEvent(v.Event, o.event), "event %+v, want %+v", v.Event, o.event), same("maxInterval", interval(v.MaxInterval), interval(o.maxInterval)),
		same("slack", interval(v.Slack), interval(o.slack)), same("mayWait", v.MayWait, o.mayWait),
		same("priority", v.Priority, o.priority),
		same("calendar", calendarIn(v.Entry), o.calendar.shown()),
	)
}

func sameEvent(a, b *schedule.Event) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ID == b.ID && a.Source == b.Source && a.Time.Equal(b.Time) && a.Type == b.Type && a.Subject == b.Subject && string(a.Data) == string(b.Data)
}

// drained is the end of a history: all sinks are well and all times have come.
func (j *judge) drained() {
	for uid, s := range j.sources {
		for _, k := range s.keys {
			again := s.settings.Scale.Sinkless && !k.letter && k.newest != nil && // no answer ends it
				(k.newest.calendar != nil || s.interval(k.newest.maxInterval) > 0 && k.newest.dueAt.After(j.wall))
			if k.shown(j.wall) != nil && !again {
				j.broken(allIsDelivered, "%s/%q is not: %s", uid, k.name, k.describe())
			}
		}
	}
}

func (k *key) describe() string {
	if k == nil {
		return "unknown"
	}
	text := "nothing"
	if o := k.newest; o != nil {
		text = fmt.Sprintf("rev %d occ %d priority %s due %s calendar %+v on %+v mayWait %v retry %s expires %s older %s owed %s attempt %d tries %d uid %q event %+v dead %+v", o.rev.number, o.occ.order, o.priority,
			stamp(o.dueAt), o.calendar, o.on, o.mayWait, stamp(o.retryAt), stamp(o.expiresAt), stamp(o.olderAt), stamp(o.owedAt), o.attempt, o.tries, o.uid, o.event, o.dead)
	}
	if d := k.out; d != nil {
		text += fmt.Sprintf("; in delivery: rev %d overtaken %v replaced %v cancelled %v", d.of.rev.number, d.overtaken, d.replaced, d.cancelled)
	}
	return text
}
