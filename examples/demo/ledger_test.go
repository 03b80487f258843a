package main

import (
	"testing"
	"time"
)

// The ledger finds each mistake. A demo that always succeeds would prove nothing.
func TestLedger_FindsMistakes(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return begin.Add(d) }
	came := func(key string, attempt int, due, cameAfter time.Duration, status int) wakeUp {
		return wakeUp{
			key: key, id: key + "-1", attempt: attempt, dueAt: at(due), cameAt: at(cameAfter),
			answeredAt: at(cameAfter), status: status,
		}
	}
	const s, ms = time.Second, time.Millisecond
	again := came("a", 0, s, s, 204)
	again.againAfter = s
	unreadable := came("a", 0, s, s, 204)
	unreadable.problem = "has no key"
	for name, c := range map[string]struct {
		cancel, restart time.Duration // 0: not
		wakeUps         []wakeUp
		early, late     int
		lost, wrong     int
		ok              bool
	}{
		"on time":                            {wakeUps: []wakeUp{came("a", 0, s, s+ms, 204)}, ok: true},
		"at the very instant":                {wakeUps: []wakeUp{came("a", 0, s, s, 204)}, ok: true},
		"early by a nanosecond":              {wakeUps: []wakeUp{came("a", 0, s, s-1, 204)}, early: 1},
		"planned early":                      {wakeUps: []wakeUp{came("a", 0, s-ms, s+ms, 204)}, early: 1},
		"late":                               {wakeUps: []wakeUp{came("a", 0, s, 3*s+1, 204)}, late: 1},
		"planned late":                       {wakeUps: []wakeUp{came("a", 0, 4*s, 4*s, 204)}, late: 1},
		"lost":                               {lost: 1},
		"not an event of ours":               {wakeUps: []wakeUp{unreadable}, lost: 1, wrong: 1},
		"not scheduled":                      {wakeUps: []wakeUp{came("a", 0, s, s, 204), came("b", 0, s, s, 204)}, wrong: 1},
		"cancelled":                          {cancel: ms, ok: false},
		"cancelled, came":                    {cancel: ms, wakeUps: []wakeUp{came("a", 0, s, s, 204)}, wrong: 1},
		"came, then cancelled":               {cancel: 2 * s, wakeUps: []wakeUp{came("a", 0, s, s, 204)}},
		"retried":                            {wakeUps: []wakeUp{came("a", 0, s, s, 503), came("a", 1, s, 2*s, 204)}, ok: true},
		"retried too soon":                   {wakeUps: []wakeUp{came("a", 0, s, s, 503), came("a", 1, s, 2*s-ms, 204)}, early: 1},
		"second back-off not longer":         {wakeUps: []wakeUp{came("a", 0, s, s, 503), came("a", 1, s, 2*s, 503), came("a", 2, s, 3*s, 204)}, early: 1},
		"never retried":                      {wakeUps: []wakeUp{came("a", 0, s, s, 503)}, lost: 1},
		"retried without counting":           {wakeUps: []wakeUp{came("a", 0, s, s, 503), {key: "a", id: "other", cameAt: at(2 * s), dueAt: at(s), status: 204}}, lost: 1, wrong: 1},
		"Reschedule-After ignored":           {wakeUps: []wakeUp{again}, lost: 1},
		"Reschedule-After heeded":            {wakeUps: []wakeUp{again, {key: "a", id: "a-2", dueAt: at(2 * s), cameAt: at(2 * s), status: 204}}, ok: true},
		"Reschedule-After too soon":          {wakeUps: []wakeUp{again, {key: "a", id: "a-2", dueAt: at(2*s - ms), cameAt: at(2*s - ms), status: 204}}, early: 1},
		"the same event twice":               {wakeUps: []wakeUp{came("a", 0, s, s, 204), came("a", 0, s, 2*s, 204)}, ok: true},
		"due in an outage, at once after it": {restart: 9 * s, wakeUps: []wakeUp{came("a", 0, s, 9*s+ms, 204)}, ok: true},
		"due in an outage, late after it":    {restart: 9 * s, wakeUps: []wakeUp{came("a", 0, s, 11*s+ms, 204)}, late: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLedger(s, 2*s)
			l.want("a", at(s), 0)
			if c.cancel > 0 {
				l.cancel("a", at(c.cancel))
			}
			if c.restart > 0 {
				l.startedAt = at(c.restart)
			}
			for _, w := range c.wakeUps {
				l.came(w)
			}
			text, ok := l.verdict()
			if ok != c.ok || l.early != c.early || l.late != c.late || len(l.wanted) != c.lost || l.wrong != c.wrong {
				t.Errorf("ok %v, early %d, late %d, lost %d, wrong %d; want %v, %d, %d, %d, %d\n%s",
					ok, l.early, l.late, len(l.wanted), l.wrong, c.ok, c.early, c.late, c.lost, c.wrong, text)
			}
		})
	}
}
