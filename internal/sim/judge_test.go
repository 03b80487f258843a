package sim

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// spoiling makes traces that break a promise: it replaces a moment of a good trace by
// others, nil where it does not apply.
type spoiling struct {
	promise promise
	moments func(moment) []moment
}

var spoiled = []spoiling{
	{neverEarly, spoilTime(-200 * 365 * 24 * time.Hour)},
	{notExpired, spoilTime(200 * 365 * 24 * time.Hour)},
	{prompt, spoilTime(2 * time.Millisecond)},
	{oneAtATime, insert(func(m moment, _ *start) []moment { return []moment{m, m} })},
	{ranked, insert(func(moment, *start) []moment { return []moment{} })},
	{goneIsGone, insert(func(m moment, s *start) []moment {
		return []moment{{m.at, m.wall, removed{s.Source.UID}}, m}
	})},
	{withinLimits, insert(func(m moment, s *start) []moment {
		n := *s.Source
		n.Suspend = true
		other := *s
		other.Source = &n
		return []moment{{m.at, m.wall, applied{&n}}, {m.at, m.wall, &other}}
	})},
	{inForce, spoilStart(func(s *start) { s.Target.URL = "http://other" })},
	{oneID, spoilStart(func(s *start) { s.ID += "x" })},
	{newestStarts, spoilEntry(func(e *schedule.Entry) { e.Revision-- })},
	{newestEvent, spoilEntry(func(e *schedule.Entry) { e.Event = &schedule.Event{Type: "older"} })},
	{originalDue, spoilEntry(func(e *schedule.Entry) { e.DueAt = e.DueAt.Add(1) })},
	{attemptCounter, spoilEntry(func(e *schedule.Entry) { e.Attempt++ })},
	{letterSaysWhy, spoilEntry(func(e *schedule.Entry) {
		if e.DeadLetter != nil {
			d := *e.DeadLetter
			d.Failure.Code++
			e.DeadLetter = &d
		}
	})},
	{nothingSent, insert(func(m moment, s *start) []moment {
		n := *s.Source
		n.Scale.Sinkless = true
		other := *s
		other.Source = &n
		return []moment{{m.at, m.wall, applied{&n}}, {m.at, m.wall, &other}}
	})},
	{doneWhenIdle, spoil(func(e *ended) { e.what = schedule.Delivered })},
	{failsWithReason, spoil(func(e *ended) { e.what = schedule.Retrying })},
	{wakesAtOnce, func(m moment) []moment {
		if s, ok := m.what.(scaled); !ok || s.replicas == 0 {
			return nil
		}
		return []moment{}
	}},
	{endsInTime, func(m moment) []moment {
		s, ok := m.what.(scaled)
		if !ok || s.replicas == 0 {
			return nil
		}
		s.phases = []phase{{from: m.at, ready: true}}
		return []moment{{m.at, m.wall, s}}
	}},
	{sleepsIdle, func(m moment) []moment {
		e, ok := m.what.(ended)
		if !ok {
			return nil
		}
		return []moment{{m.at, m.wall, scaled{name: e.uid}}, m}
	}},
	{rightAnswer, spoil(func(a *answered) { a.deleted++ })},
	{growing, spoil(func(a *answered) {
		a.scheduled = slices.Clone(a.scheduled)
		for i := range a.scheduled {
			if e := a.scheduled[i].View.Entry; e != nil {
				n := *e
				n.Revision = 1
				a.scheduled[i].View.Entry = &n
			}
		}
	})},
	{getTells, spoil(func(g *got) { g.there = !g.there })},
	// A calendar fires for each of the instants that were missed.
	{neverEarly, func(m moment) []moment {
		e, ok := m.what.(end)
		if !ok || e.Entry.Calendar == nil || e.Kind != schedule.Succeeded || e.Again != nil || e.Never {
			return nil
		}
		return []moment{m, {m.at, m.wall, &start{e.Attempt}}}
	}},
	// It ends with its first occurrence.
	{getTells, spoilCalendars(func(s *sight, v schedule.View) { delete(s.views, v.Key) })},
	// It follows the clock of another zone, and the answer does not tell which.
	{getTells, spoilCalendars(func(s *sight, v schedule.View) {
		v.Entry.DueAt = v.DueAt.Add(-30 * time.Minute)
		s.views[v.Key] = v
	})},
	{rightAnswer, spoil(func(a *answered) {
		a.scheduled = slices.Clone(a.scheduled)
		for i := range a.scheduled {
			if e := a.scheduled[i].View.Entry; e != nil && e.Calendar != nil {
				n := *e
				n.Calendar = &schedule.Calendar{Cron: e.Calendar.Cron, TimeZone: e.Calendar.TimeZone + "x", Jitter: e.Calendar.Jitter}
				a.scheduled[i].View.Entry = &n
			}
		}
	})},
	// An edit of the schedule does not reach the keys that wait.
	{getTells, func(m moment) []moment {
		a, ok := m.what.(applied)
		if !ok || a.Calendar == nil {
			return nil
		}
		other := *a.Spec
		other.Calendar = &schedule.Calendar{Cron: "@hourly", TimeZone: "Asia/Kolkata"}
		return []moment{m, {m.at, m.wall, applied{&other}}}
	}},
	{listsAgree, spoilSight(func(s *sight) { s.list = append(slices.Clone(s.list), schedule.View{}) })},
	{countsAgree, spoilSight(func(s *sight) { s.counts.Pending += 100 })},
	{nothingLost, spoil(func(f *found) { f.views = nil })},
	{wholeDisk, spoil(func(f *found) { f.whole = false })},
	{allIsDelivered, func(m moment) []moment { return []moment{m, {m.at, m.wall, drained{}}} }},
}

// spoil changes a copy of what a moment tells.
func spoil[T any](change func(*T)) func(moment) []moment {
	return func(m moment) []moment {
		what, ok := m.what.(T)
		if !ok {
			return nil
		}
		change(&what)
		m.what = what
		return []moment{m}
	}
}

func insert(change func(moment, *start) []moment) func(moment) []moment {
	return func(m moment) []moment {
		if s, ok := m.what.(*start); ok {
			return change(m, s)
		}
		return nil
	}
}

func spoilStart(change func(*start)) func(moment) []moment {
	return insert(func(m moment, s *start) []moment {
		other := *s
		change(&other)
		return []moment{{m.at, m.wall, &other}}
	})
}

func spoilEntry(change func(*schedule.Entry)) func(moment) []moment {
	return spoilStart(func(s *start) {
		e := *s.Entry
		change(&e)
		s.Entry = &e
	})
}

func spoilTime(by time.Duration) func(moment) []moment {
	return insert(func(m moment, _ *start) []moment {
		return []moment{{m.at.Add(by), m.wall.Add(by), m.what}}
	})
}

func spoilSight(change func(*sight)) func(moment) []moment {
	return func(m moment) []moment {
		s, ok := m.what.(*sight)
		if !ok {
			return nil
		}
		other := *s
		change(&other)
		return []moment{{m.at, m.wall, &other}}
	}
}

// spoilCalendars changes what is seen of a key with a calendar of its own that waits.
func spoilCalendars(change func(*sight, schedule.View)) func(moment) []moment {
	return func(m moment) []moment {
		s, ok := m.what.(*sight)
		if !ok {
			return nil
		}
		for _, v := range s.views {
			if v.Calendar != nil && v.State == schedule.Waiting {
				other, e := *s, *v.Entry
				other.views, v.Entry = maps.Clone(s.views), &e
				change(&other, v)
				return []moment{{m.at, m.wall, &other}}
			}
		}
		return nil
	}
}

// Each promise is found broken, by its name, in a trace that breaks it.
func TestJudge_NamesWhatIsBroken(t *testing.T) {
	unbroken := slices.Clone(spoiled)
	for seed := uint64(1); seed <= 12 && len(unbroken) > 0; seed++ {
		h := newHistory(seed, historySteps)
		if failed := h.run(t); failed != "" {
			t.Fatal(failed)
		}
		unbroken = slices.DeleteFunc(unbroken, func(s spoiling) bool { return broke(h.trace, s.moments, s.promise) })
	}
	for _, s := range unbroken {
		t.Errorf("no trace breaks it for the judge: %s", s.promise)
	}
}

// The judge finds a dispatcher that exceeds maxInFlight by one, and one that makes three times maxPerSecond. The
// judge gets a lower limit than the dispatcher keeps.
func TestJudge_FindsExceededLimits(t *testing.T) {
	found := map[string]bool{byMaxInFlight: false, "maxPerSecond": false}
	for seed := uint64(1); seed <= 12 && !(found[byMaxInFlight] && found["maxPerSecond"]); seed++ {
		h := newHistory(seed, historySteps)
		if failed := h.run(t); failed != "" {
			t.Fatal(failed)
		}
		for why, lower := range map[string]func(*schedule.Spec){
			byMaxInFlight:  func(s *schedule.Spec) { s.MaxInFlight = max(1, s.MaxInFlight-1) },
			"maxPerSecond": func(s *schedule.Spec) { s.MaxPerSecond = min(1, s.MaxPerSecond) },
		} {
			j := newJudge()
			for _, m := range lowered(h.trace, lower) {
				if j.see(m); j.failed != "" {
					break
				}
			}
			found[why] = found[why] || strings.Contains(j.failed, ": "+string(withinLimits)+": ") && strings.Contains(j.failed, ": "+why+"\n")
		}
	}
	for why, is := range found {
		if !is {
			t.Errorf("no trace exceeds it for the judge: %s", why)
		}
	}
}

// lowered is a trace with other settings of the sources.
func lowered(trace []moment, lower func(*schedule.Spec)) []moment {
	settings := map[*schedule.Spec]*schedule.Spec{}
	other := func(s *schedule.Spec) *schedule.Spec {
		if settings[s] == nil {
			n := *s
			lower(&n)
			settings[s] = &n
		}
		return settings[s]
	}
	starts := map[*start]*start{}
	trace = slices.Clone(trace)
	for i := range trace {
		switch what := trace[i].what.(type) {
		case applied:
			trace[i].what = applied{other(what.Spec)}
		case *start:
			n := *what
			n.Source = other(what.Source)
			starts[what], trace[i].what = &n, &n
		case end:
			trace[i].what = end{starts[what.start], what.Outcome}
		}
	}
	return trace
}

// broke says that the judge names the promise when one of the moments is replaced.
func broke(trace []moment, by func(moment) []moment, p promise) bool {
	for i, m := range trace {
		others := by(m)
		if others == nil {
			continue
		}
		j := newJudge()
		for _, m := range slices.Concat(trace[:i], others, trace[i+1:]) {
			if j.see(m); j.failed != "" {
				break
			}
		}
		if strings.Contains(j.failed, ": "+string(p)+": ") {
			return true
		}
	}
	return false
}

// Two deliveries that end at one instant are stored in any order, so a crash may keep either end without the other. It
// loses nothing acknowledged.
func TestJudge_EndsAtOneInstant(t *testing.T) {
	at := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	sink := &schedule.Target{URL: "http://dead"}
	src := &schedule.Spec{UID: "s", Targets: schedule.Targets{DeadLetter: sink}}
	for _, c := range []struct {
		name         string
		ends         string // the keys whose deliveries end: with a capital letter their dead letters end too
		keys, letter string // what is found
		acknowledged bool   // all of it
		broken       bool
	}{
		{"both are kept", "ab", "", "ab", false, false},
		{"neither is kept", "ab", "ab", "", false, false},
		{"the later one is lost", "ab", "b", "a", false, false},
		{"the earlier one is lost", "ab", "a", "b", false, false},
		{"two of three are lost", "abc", "ac", "b", false, false},
		{"a dead letter's end is lost, a later end is not", "Ab", "", "ab", false, false},
		{"an end is lost that was acknowledged", "ab", "a", "b", true, true},
		{"a key is lost", "ab", "", "b", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newJudge()
			j.see(moment{at, at, applied{src}})
			s := j.sources["s"]
			entries := map[string]*schedule.Entry{}
			revision := uint64(0)
			for _, name := range []string{"a", "b", "c"} {
				if !strings.ContainsAny(strings.ToLower(c.ends), name) {
					continue
				}
				revision++
				entries[name] = &schedule.Entry{Revision: revision, DueAt: at}
				j.set(s.key(name), &occurrence{rev: &mark{number: revision}, occ: &mark{}, dueAt: at})
			}
			j.durable = len(j.changes)
			rejected := schedule.Outcome{Kind: schedule.Rejected}
			for _, ended := range c.ends {
				name := strings.ToLower(string(ended))
				endOf(j, s, s.key(name), name, rejected)
				if name == string(ended) {
					continue
				}
				for _, k := range s.keys {
					if k.letter && k.newest != nil && k.newest.dead.key == name {
						endOf(j, s, k, name, schedule.Outcome{Kind: schedule.Succeeded})
					}
				}
			}
			if c.acknowledged {
				j.durable = len(j.changes)
			}
			f := found{whole: true, views: map[string][]schedule.View{}, dead: map[string][]store.Item{}}
			for _, key := range c.keys {
				name := string(key)
				f.views["s"] = append(f.views["s"], schedule.View{Key: name, Entry: entries[name], State: schedule.Due})
			}
			for _, key := range c.letter {
				name := string(key)
				f.dead["s"] = append(f.dead["s"], store.Item{Entry: &schedule.Entry{DeadLetter: &schedule.DeadLetter{Key: name, Revision: entries[name].Revision}}})
			}
			j.see(moment{at, at, down{crash: true}})
			j.see(moment{at, at, f})
			if (j.failed != "") != c.broken {
				t.Errorf("%q", j.failed)
			}
		})
	}
}

// A limit that is raised a nanosecond before the budget has one delivery held deliveries back until then.
func TestJudge_LimitRaisedBeforeRefill(t *testing.T) {
	at := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, before := range []time.Duration{time.Second, time.Millisecond, time.Nanosecond, 0} {
		s := &source{settings: &schedule.Spec{Limits: schedule.Limits{MaxPerSecond: 1}}}
		s.begin(at.Add(-time.Hour))
		s.tokens, s.tokensAt = 0, at.Add(-time.Second)
		s.limit(3, at.Add(-before))
		if held := s.blockedAt; !held.Equal(at.Add(-before)) {
			t.Errorf("raised %s before: held back until %s before", before, at.Sub(held))
		}
	}
}

// A key that starts while one of a higher priority is due breaks a promise, however old it is; without a due one
// it breaks none.
func TestJudge_FindsALowerKeyFirst(t *testing.T) {
	at := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		started, due schedule.Priority
		dueAt        time.Time
		broken       bool
	}{
		{schedule.LowPriority, schedule.NormalPriority, at.Add(-time.Second), true},
		{schedule.NormalPriority, schedule.HighPriority, at.Add(-time.Second), true},
		{schedule.LowPriority, schedule.HighPriority, at.Add(time.Second), false},
		{schedule.HighPriority, schedule.LowPriority, at.Add(-2 * time.Hour), false},
		{schedule.LowPriority, schedule.LowPriority, at.Add(-2 * time.Hour), true},
	} {
		j := newJudge()
		j.see(moment{at.Add(-time.Hour), at.Add(-time.Hour), applied{&schedule.Spec{UID: "s", Limits: schedule.Limits{MaxInFlight: 1}}}})
		s := j.sources["s"]
		j.set(s.key("due"), &occurrence{rev: &mark{number: 1}, occ: &mark{}, dueAt: c.dueAt, priority: c.due})
		of := &occurrence{rev: &mark{number: 2}, occ: &mark{}, dueAt: at.Add(-time.Hour), priority: c.started}
		j.begun = []*delivery{{start: &start{}, source: s, key: s.key("started"), of: of, at: at}}
		j.at, j.wall = at.Add(time.Millisecond), at.Add(time.Millisecond)
		if j.rankedFirst(); (j.failed != "") != c.broken {
			t.Errorf("%s before %s, due %s: %q", c.started, c.due, c.dueAt, j.failed)
		}
	}
}

// endOf ends a delivery of a key, or of a dead letter of the key with the name.
func endOf(j *judge, s *source, k *key, name string, o schedule.Outcome) {
	begun := &start{schedule.Attempt{Key: name}}
	j.flying[begun] = &delivery{start: begun, source: s, key: k, of: k.newest}
	j.end(end{begun, o})
}
