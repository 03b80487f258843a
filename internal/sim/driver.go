package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// call makes a call and waits until it is applied; its answer may take longer.
func (w *world) call(c *call) {
	p := w.p
	w.note(c)
	w.calls.Go(func() {
		a := c.make(p.sources[c.uid])
		w.mu.Lock()
		defer w.mu.Unlock()
		if !p.dead {
			w.record(a)
		}
	})
	synctest.Wait()
}

func (c *call) make(s *queue.Source) answered {
	a := answered{call: c}
	switch c.kind {
	case callPut:
		var got queue.Scheduled
		got, a.err = s.Schedule(c.items[0].Key, &c.items[0].Request, nil)
		if errors.As(a.err, &got.Err) {
			a.err = nil
		}
		a.scheduled = []queue.Scheduled{got}
	case callBulk:
		a.scheduled, a.err = s.ScheduleAll(c.items, nil)
	case callTogether:
		a.err = s.ScheduleTogether(c.items)
	case callCancel:
		a.err = s.Cancel(c.items[0].Key, c.items[0].Request.Conditions)
	case callCancelAll:
		a.deleted, a.err = s.CancelAll(context.Background(), c.prefix)
	}
	return a
}

// settle reads all sources while nothing moves.
func (w *world) settle(r *rand.Rand) {
	synctest.Wait()
	w.note(quiet{})
	for _, uid := range slices.Sorted(maps.Keys(w.settings)) {
		s := w.p.sources[uid]
		e := &sight{uid: uid, views: map[string]schedule.View{}}
		var err error
		for _, name := range names[:w.h.keys] {
			v, ok, failed := s.Get(name)
			if err = cmp.Or(err, failed); ok {
				e.views[name] = v
			}
		}
		if r.IntN(4) == 0 {
			e.listed = &queue.ListOptions{Limit: 1 + r.IntN(5), ByDue: r.IntN(2) == 0, Prefix: pick(r, "", "", "a", "a/", "b", "zz")}
			for o := *e.listed; err == nil; {
				var views []schedule.View
				views, o.Continue, err = s.List(o)
				if e.list = append(e.list, views...); o.Continue == "" || len(e.list) > 100 {
					break
				}
			}
		}
		var failed error
		if e.counts, failed = s.Counts(); cmp.Or(err, failed) != nil {
			w.broken("reading %s: %v", uid, cmp.Or(err, failed))
		}
		w.note(e)
	}
}

// waiting are the keys of a source that wait, and whether others have expired and
// are still stored.
func (w *world) waiting(uid string) (views []schedule.View, linger bool) {
	s := w.p.sources[uid]
	views, _, err := s.List(queue.ListOptions{Limit: 1000})
	counts, failed := s.Counts()
	if cmp.Or(err, failed) != nil {
		w.broken("reading %s: %v", uid, cmp.Or(err, failed))
	}
	pending := int64(0)
	for _, v := range views {
		if v.State != schedule.InFlight {
			pending++
		}
	}
	return views, counts.Pending != pending
}

// instants are when something is due, tried again or expires.
func (w *world) instants() (all []time.Time) {
	for uid, s := range w.p.sources {
		views, _, _ := s.List(queue.ListOptions{Limit: 1000})
		for _, v := range views {
			all = append(all, v.DueAt, v.RetryAt, v.ExpiresAt, v.SlackEnd(s.Spec()))
		}
		dead, _, _ := w.p.db.DeadLetters(uid, "", 1000)
		for _, i := range dead {
			all = append(all, i.Entry.DueAt, i.Entry.RetryAt)
		}
	}
	return all
}

// randomSettings draws the settings of a source.
func (w *world) randomSettings(r *rand.Rand, uid string) *schedule.Spec {
	s := &schedule.Spec{
		UID: uid, Namespace: "ns", Name: "n" + uid, Targets: schedule.Targets{Sink: schedule.Target{URL: fmt.Sprintf("http://sink/%d", r.IntN(3))}},
		Delivery: schedule.Delivery{Linear: r.IntN(4) == 0, BackoffDelay: pick(r, 0, time.Millisecond, time.Second, time.Second, time.Minute), Timeout: time.Minute},
		Delay:    pick(r, 0, 0, time.Second, time.Hour),
		Policy:   pick(r, schedule.Replace, schedule.Replace, schedule.Earliest, schedule.Latest, schedule.Keep, schedule.Fail),
		Ingest: schedule.Ingest{Policy: pick(r, schedule.Earliest, schedule.Earliest, schedule.Earliest, schedule.Replace, schedule.Latest, schedule.Keep,
			schedule.Fail)},
		MaxInterval: pick(r, 0, 0, 10*time.Minute, 10*time.Hour),
		Limits:      schedule.Limits{MaxInFlight: pick(r, 1, 2, 100, 100), MaxPerSecond: pick(r, 0, 0, 0, 1, 3), MaxPending: pick[int64](r, 2, 5, 1000, 1000)},
	}
	if r.IntN(2) == 0 {
		n := pick(r, 0, 1, 3)
		s.Delivery.Retry = &n
	}
	if r.IntN(3) == 0 {
		d := pick(r, 0, 5*time.Second, time.Hour)
		s.Delivery.RetryAfterMax = &d
	}
	if r.IntN(3) == 0 {
		d := pick(r, 0, time.Millisecond, 10*time.Second, time.Hour)
		s.Delivery.BackoffMax = &d
	}
	s.Calendar = randomCalendar(r, 5)
	s.Slack, s.Company = pick(r, 0, 0, time.Second, time.Minute, 10*time.Minute, 2*time.Hour), pick(r, 0, schedule.DefaultCompany, time.Minute)
	w.randomWorkload(r, s)
	if fnv(uid)%2 == 0 && !s.Scale.Sinkless { // the same over all settings of a source
		s.DeadLetter = &schedule.Target{URL: fmt.Sprintf("http://dead/%d", r.IntN(3))}
	}
	return s
}

// request draws one for a key.
func (w *world) request(r *rand.Rand, uid, name string, number int) *schedule.Request {
	now := w.now().Round(0)
	q := &schedule.Request{}
	delays := []time.Duration{0, 0, 1, time.Millisecond, 20 * time.Millisecond, time.Second, time.Second, 5 * time.Second, 10 * time.Second, time.Minute, 10 * time.Minute,
		time.Hour, 24 * time.Hour, 365 * 24 * time.Hour, 90 * 365 * 24 * time.Hour}
	switch r.IntN(10) {
	case 0, 1, 2, 3:
		d := pick(r, delays...)
		q.Delay = &d
	case 4, 5: // many ties
		q.DueAt = now.Truncate(pick(r, time.Second, 10*time.Second, time.Minute)).Add(pick(r, delays...))
	case 6:
		q.DueAt = now.Add(-pick(r, delays...))
	case 7, 8:
		q.Backoff = &schedule.Backoff{Base: pick(r, 0, time.Millisecond, time.Second, time.Minute), Factor: pick(r, 1, 1.5, 2, 10),
			Cap: pick(r, time.Second, 1000*time.Second, time.Hour), MaxAttempts: pick[uint32](r, 0, 0, 1, 2, 3)}
	}
	if q.Calendar = randomCalendar(r, 8); q.Calendar != nil {
		q.Delay, q.DueAt, q.Backoff = nil, time.Time{}, nil
	}
	q.Priority = pick(r, schedule.NormalPriority, schedule.NormalPriority, schedule.LowPriority, schedule.HighPriority)
	if r.IntN(5) == 0 {
		q.Jitter = pick(r, 0.1, 0.5, 1)
	}
	if r.IntN(2) == 0 {
		q.Policy = pick(r, schedule.Replace, schedule.Earliest, schedule.Earliest, schedule.Latest, schedule.Keep, schedule.Fail)
	}
	if r.IntN(3) > 0 {
		q.Event = &schedule.Event{Type: "t", Data: fmt.Appendf(nil, "%d", number)}
	}
	if r.IntN(4) == 0 {
		q.Ingested = true
		q.Event = &schedule.Event{ID: fmt.Sprintf("in-%d", number), Source: "elsewhere", Time: now,
			Type: pick(r, "dev.knative.apiserver.ref.update", "dev.knative.apiserver.ref.update", "dev.knative.apiserver.ref.delete")}
		q.Backoff = nil
		if r.IntN(2) == 0 {
			q.Delay, q.DueAt, q.Calendar, q.Policy = nil, time.Time{}, nil, ""
		}
		return q
	}
	if r.IntN(6) == 0 {
		d := pick(r, 0, 10*time.Minute, time.Hour)
		q.MaxInterval = &d
	}
	if r.IntN(6) == 0 {
		q.Slack = new(pick(r, 0, time.Second, 10*time.Minute, time.Hour))
	}
	if r.IntN(5) == 0 {
		q.ExpiresAt = now.Add(pick(r, -time.Second, 0, time.Millisecond, time.Second, 7*time.Second, time.Minute, 20*time.Minute, 24*time.Hour))
	}
	if r.IntN(4) == 0 {
		q.UID = pick(r, "u1", "u2")
	}
	if r.IntN(4) == 0 {
		q.Reason = fmt.Sprintf("reason %d", number)
	}
	q.Conditions = w.conditions(r, uid, name)
	return q
}

// randomCalendar draws one, or, most often, none: one of so many has one. What comes often is rare.
func randomCalendar(r *rand.Rand, of int) *schedule.Calendar {
	if r.IntN(of) > 0 {
		return nil
	}
	return &schedule.Calendar{
		Cron:     pick(r, "* * * * *", "*/5 * * * *", "*/5 * * * *", "@hourly", "@hourly", "0 */6 * * *", "30 1-3 * * *", "30 1-3 * * *", "30 2 * * MON-FRI"),
		TimeZone: pick(r, "", "Europe/Berlin", "Europe/Berlin", "America/New_York", "Asia/Kolkata"),
	}
}

func (w *world) conditions(r *rand.Rand, uid, name string) (c schedule.Conditions) {
	switch r.IntN(12) {
	case 0:
		c.IfNoneMatch = true
	case 1, 2:
		v, there, err := w.p.sources[uid].Get(name)
		if err != nil {
			w.broken("GET: %v", err)
		}
		w.note(got{uid, name, v, there})
		if there {
			rev := v.Revision - pick[uint64](r, 0, 0, 1)
			c.IfMatch = &rev
		}
	case 3:
		n := uint64(1 << 60)
		c.IfMatch = &n
	}
	return c
}
