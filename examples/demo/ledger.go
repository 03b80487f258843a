package main

import (
	"fmt"
	"time"
)

// wakeUp is one delivery and its answer, as seen between adapter and operator.
type wakeUp struct {
	key, id    string
	attempt    int
	dueAt      time.Time // by the event
	cameAt     time.Time
	answeredAt time.Time
	status     int
	againAfter time.Duration // Reschedule-After of the answer, 0 when there is none
	problem    string        // why it is not an event of a RescheduleSource, else ""
}

// ledger knows by the demo's own clock which wake-ups must come and which must not, and
// judges each wake-up. It believes the adapter only the planned instant, and only when
// that is not before the requested one.
type ledger struct {
	backoff time.Duration // spec.delivery.backoffDelay, doubled with every failure
	slack   time.Duration // a later wake-up is late

	wanted    map[string]want      // by key
	cancelled map[string]time.Time // when
	done      map[string]bool      // by id and attempt, to recognise a repeat
	startedAt time.Time            // of the running adapter

	wakeUps, early, late, wrong, repeats int
	worst, worstOwed                     time.Duration // the latter: due while the adapter was dead
}

// want is a wake-up that must come.
type want struct {
	notBefore time.Time
	attempt   int
}

func newLedger(backoff, slack time.Duration) *ledger {
	return &ledger{
		backoff: backoff, slack: slack,
		wanted: map[string]want{}, cancelled: map[string]time.Time{}, done: map[string]bool{},
	}
}

func (l *ledger) want(key string, notBefore time.Time, attempt int) {
	l.wanted[key] = want{notBefore.Round(0), attempt} // the wall clock: the adapter is another process
}

func (l *ledger) cancel(key string, at time.Time) {
	delete(l.wanted, key)
	l.cancelled[key] = at.Round(0)
}

// waitsFor reports whether a wake-up has not come yet.
func (l *ledger) waitsFor() bool { return len(l.wanted) > 0 }

// overdue reports whether every wake-up that has not come yet is beyond the slack.
func (l *ledger) overdue(now time.Time) bool {
	for _, next := range l.wanted {
		if now.Before(l.owedAt(next.notBefore).Add(l.slack)) {
			return false
		}
	}
	return true
}

// owedAt is the soonest time at which a wake-up could come. While the adapter is dead
// that is its restart.
func (l *ledger) owedAt(plannedAt time.Time) time.Time {
	if l.startedAt.After(plannedAt) {
		return l.startedAt
	}
	return plannedAt
}

// judgement is what the screen shows of a wake-up.
type judgement struct {
	ok        bool
	plannedAt time.Time
	off       time.Duration // came after (or before) plannedAt
	note      string
}

// came judges a wake-up and, from its answer, notes what must come next.
func (l *ledger) came(w wakeUp) judgement {
	w.cameAt, w.answeredAt = w.cameAt.Round(0), w.answeredAt.Round(0)
	seen := fmt.Sprintf("%s attempt %d", w.id, w.attempt)
	next, wanted := l.wanted[w.key]
	if !wanted || w.attempt != next.attempt || w.problem != "" {
		return l.unexpected(w, next, l.done[seen])
	}
	delete(l.wanted, w.key)
	l.done[seen] = true
	l.wakeUps++

	j := judgement{ok: true, plannedAt: next.notBefore}
	if w.attempt == 0 && w.dueAt.After(next.notBefore) {
		j.plannedAt = w.dueAt // a retry keeps the time of the first attempt
	}
	j.off = w.cameAt.Sub(j.plannedAt)
	lateness := w.cameAt.Sub(l.owedAt(j.plannedAt))
	owed := l.startedAt.After(j.plannedAt)
	j.note = l.follow(w)
	switch {
	case w.cameAt.Before(next.notBefore), w.attempt == 0 && w.dueAt.Before(next.notBefore):
		l.early++
		j.ok, j.note = false, "early, "+j.note
	case w.cameAt.Sub(l.owedAt(next.notBefore)) > l.slack:
		l.late++
		j.ok, j.note = false, "late, "+j.note
	}
	if owed {
		l.worstOwed = max(l.worstOwed, lateness)
		j.note += fmt.Sprintf(", %s after the restart", millis(lateness))
	} else {
		l.worst = max(l.worst, lateness)
	}
	return j
}

// unexpected judges a wake-up that is not the next one of its key.
func (l *ledger) unexpected(w wakeUp, next want, seenBefore bool) judgement {
	j := judgement{plannedAt: w.dueAt, off: w.cameAt.Sub(w.dueAt)}
	cancelledAt, cancelled := l.cancelled[w.key]
	switch {
	case seenBefore && w.problem == "": // its outcome was not on disk yet when the adapter was killed
		l.repeats++
		j.ok, j.note = true, "a repeat with the same id: at least once"
		return j
	case w.problem != "":
		j.note = w.problem
	case cancelled && w.cameAt.Before(cancelledAt): // on a slow machine
		j.ok, j.note = true, "came before it was cancelled"
		return j
	case cancelled:
		j.note = "came after it was cancelled"
	case next.notBefore.IsZero():
		j.note = "was not scheduled"
	default:
		j.note = fmt.Sprintf("is attempt %d, wants %d", w.attempt, next.attempt)
	}
	l.wrong++
	return j
}

// follow applies the contract to an answer.
func (l *ledger) follow(w wakeUp) string {
	switch {
	case w.status >= 500:
		wait := l.backoff << w.attempt
		l.want(w.key, w.answeredAt.Add(wait), w.attempt+1)
		return fmt.Sprintf("%d: again after %s of back-off", w.status, wait)
	case w.againAfter > 0:
		l.want(w.key, w.answeredAt.Add(w.againAfter), 0)
		return fmt.Sprintf("%d, Reschedule-After: %s", w.status, w.againAfter)
	}
	return fmt.Sprint(w.status)
}

// verdict counts the mistakes. A wake-up that never came is lost.
func (l *ledger) verdict() (text string, ok bool) {
	lost := len(l.wanted)
	ok = l.early+l.late+lost+l.wrong == 0 && l.wakeUps > 0
	text = fmt.Sprintf("%d wake-ups, at worst %s late (%s after the restart for what was due before it);\n  %s early, %s lost, %s unasked for",
		l.wakeUps, millis(l.worst), millis(l.worstOwed), none(l.early), none(lost), none(l.wrong))
	if l.late > 0 {
		text += fmt.Sprintf(", %d more than %s late", l.late, l.slack)
	}
	if l.repeats > 0 {
		text += fmt.Sprintf("; %d repeated after the kill", l.repeats)
	}
	return text, ok
}

func none(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

func millis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
