package main

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// wakeUp is one delivery and its answer, as seen between adapter and operator.
type wakeUp struct {
	key, id      string
	attempt      int
	dueAt        time.Time // as the event says it
	cameAt       time.Time
	answeredAt   time.Time
	status       int
	againAfter   time.Duration // Reschedule-After of the answer, 0 when there is none
	notRecovered string        // what could not be read of it
}

// ledger knows by the demo's own clock what must come and what must not, and
// judges what came. The adapter's word is taken for nothing but the instant it
// planned, and that only when it is not before what was asked for.
type ledger struct {
	backoff time.Duration // spec.delivery.backoffDelay, doubled with every failure
	slack   time.Duration // how late is too late

	wanted    map[string]time.Time // key: not before
	cancelled map[string]bool
	done      map[string]bool // id and attempt of what came, to know a repeat
	startedAt time.Time       // of the adapter that runs now

	wakeUps, early, late, unwanted, repeats int
	worst                                   time.Duration
}

func newLedger(backoff, slack time.Duration) *ledger {
	return &ledger{
		backoff: backoff, slack: slack,
		wanted: map[string]time.Time{}, cancelled: map[string]bool{}, done: map[string]bool{},
	}
}

func (l *ledger) want(key string, notBefore time.Time) {
	l.wanted[key] = notBefore.Round(0) // the wall clock decides: the adapter's is another process's
}

func (l *ledger) cancel(key string) {
	delete(l.wanted, key)
	l.cancelled[key] = true
}

// waitsFor says whether something is still to come.
func (l *ledger) waitsFor() bool { return len(l.wanted) > 0 }

// overdue says whether everything that is still to come is beyond the slack.
func (l *ledger) overdue(now time.Time) bool {
	for _, notBefore := range l.wanted {
		if now.Before(l.owedAt(notBefore).Add(l.slack)) {
			return false
		}
	}
	return true
}

// owedAt is when a wake-up could come at the soonest: what was due while the
// adapter was dead is owed from its restart on.
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
	notBefore, wanted := l.wanted[w.key]
	if !wanted {
		j := judgement{plannedAt: w.dueAt, off: w.cameAt.Sub(w.dueAt)}
		switch {
		case l.done[seen]: // its outcome was still in memory when the adapter was killed
			l.repeats++
			j.ok, j.note = true, "a repeat after the kill, with the same id: at least once"
		case l.cancelled[w.key]:
			l.unwanted++
			j.note = "was cancelled and came all the same"
		default:
			l.unwanted++
			j.note = "nobody asked for it"
		}
		return j
	}
	delete(l.wanted, w.key)
	l.done[seen] = true
	l.wakeUps++

	j := judgement{ok: true, plannedAt: notBefore}
	if w.attempt == 0 && w.dueAt.After(notBefore) {
		j.plannedAt = w.dueAt // a retry's is that of the first attempt
	}
	j.off = w.cameAt.Sub(j.plannedAt)
	lateness := w.cameAt.Sub(l.owedAt(j.plannedAt))
	l.worst = max(l.worst, lateness)
	switch {
	case w.notRecovered != "":
		l.unwanted++
		j.ok, j.note = false, w.notRecovered
		return j
	case w.cameAt.Before(notBefore), w.dueAt.Before(notBefore) && w.attempt == 0:
		l.early++
		j.ok, j.note = false, "early"
	case w.cameAt.Sub(l.owedAt(notBefore)) > l.slack:
		l.late++
		j.ok, j.note = false, "late"
	case l.startedAt.After(j.plannedAt):
		j.note = fmt.Sprintf("due while the adapter was dead: %s after its restart", millis(lateness))
	}
	j.note = strings.TrimPrefix(j.note+", "+l.follow(w), ", ")
	return j
}

// follow does with an answer what the contract says of it.
func (l *ledger) follow(w wakeUp) string {
	answer := fmt.Sprint(w.status)
	switch {
	case w.status >= 500:
		wait := l.backoff << w.attempt
		l.want(w.key, w.answeredAt.Add(wait))
		return fmt.Sprintf("%s %s → again after the back-off of %s", answer, http.StatusText(w.status), wait)
	case w.againAfter > 0:
		l.want(w.key, w.answeredAt.Add(w.againAfter))
		return fmt.Sprintf("%s, Reschedule-After: %s", answer, w.againAfter)
	}
	return answer + " done"
}

// verdict counts what went wrong; lost is what never came.
func (l *ledger) verdict() (text string, ok bool) {
	lost := len(l.wanted)
	ok = l.early+l.late+lost+l.unwanted == 0 && l.wakeUps > 0
	text = fmt.Sprintf("%d wake-ups, the latest %s after its instant; %s early, %s lost, %s unasked for",
		l.wakeUps, millis(l.worst), none(l.early), none(lost), none(l.unwanted))
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
