package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// call runs an operation whose effect the model has foreseen, and waits until
// it is applied; its acknowledgement may take longer, unless wait says so.
// It returns what was wrong with the answer, "" if nothing, and whether the
// answer tells that all so far is durable.
func (w *world) call(op func(*process) (problem string, durable bool)) {
	p := w.p
	w.mu.Lock()
	position := len(w.m.log)
	w.mu.Unlock()
	w.calls.Go(func() {
		problem, durable := op(p)
		w.mu.Lock()
		defer w.mu.Unlock()
		if p.dead {
			return
		}
		if problem != "" {
			w.fail("%s", problem)
		}
		if durable {
			w.m.ack(position)
		}
	})
	synctest.Wait()
}

// settle checks everything that can be checked while nothing moves.
func (w *world) settle(r *rand.Rand) {
	synctest.Wait()
	w.mu.Lock()
	w.m.checkPrompt()
	w.m.expire()
	w.m.lazily()
	w.mu.Unlock()
	for uid, s := range w.p.sources {
		w.mu.Lock()
		model := w.m.sources[uid]
		names := model.names()
		w.mu.Unlock()
		for _, name := range names {
			v, ok, err := s.Get(name)
			w.mu.Lock()
			if err != nil {
				w.fail("GET %s/%s: %v", uid, name, err)
			} else if diff := w.m.view(model.keys[name], v, ok); diff != "" {
				w.fail("GET %s/%s: %s\n  the key: %s", uid, name, diff, w.m.describe(model.keys[name]))
			}
			w.mu.Unlock()
		}
		counts, err := s.Counts()
		w.mu.Lock()
		if err != nil {
			w.fail("counting %s: %v", uid, err)
		} else if diff := w.m.counts(model, counts); diff != "" {
			w.fail("the counts of %s: %s", uid, diff)
		}
		w.mu.Unlock()
		if r.IntN(4) == 0 {
			w.list(r, uid, s, model)
		}
	}
}

// list reads a source's list page by page.
func (w *world) list(r *rand.Rand, uid string, s *queue.Source, model *source) {
	o := queue.ListOptions{Limit: 1 + r.IntN(5), ByDue: r.IntN(2) == 0, Prefix: pick(r, "", "", "a", "a/", "b", "zz")}
	w.mu.Lock()
	want := w.m.listed(model, o.ByDue, o.Prefix)
	w.mu.Unlock()
	var got []string
	for range 100 {
		views, next, err := s.List(o)
		if err != nil {
			w.broken("listing %s: %v", uid, err)
			return
		}
		w.mu.Lock()
		for _, v := range views {
			got = append(got, v.Key)
			k := model.keys[v.Key]
			if k == nil {
				w.fail("a list of %s has the unknown key %q", uid, v.Key)
			} else if diff := w.m.view(k, v, true); diff != "" {
				w.fail("a list of %s: %q: %s", uid, v.Key, diff)
			}
		}
		w.mu.Unlock()
		if o.Continue = next; next == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		w.broken("a list of %s, by due %v, prefix %q: %q, want %q", uid, o.ByDue, o.Prefix, got, want)
	}
}

// settings draws a source's.
func (w *world) settings(r *rand.Rand, uid string) *schedule.Source {
	s := &schedule.Source{
		UID: uid, Namespace: "ns", Name: "n" + uid, Sink: schedule.Target{URL: fmt.Sprintf("http://sink/%d", r.IntN(3))},
		Delivery: schedule.Delivery{Linear: r.IntN(4) == 0, BackoffDelay: pick(r, 0, time.Millisecond, time.Second, time.Second, time.Minute), Timeout: time.Minute},
		Delay:    pick(r, 0, 0, time.Second, time.Hour),
		Policy:   pick(r, schedule.Replace, schedule.Replace, schedule.Earliest, schedule.Latest, schedule.Keep, schedule.Fail),
		IngestPolicy: pick(r, schedule.Earliest, schedule.Earliest, schedule.Earliest, schedule.Replace, schedule.Latest, schedule.Keep,
			schedule.Fail),
		MaxInterval: pick(r, 0, 0, 10*time.Minute, 10*time.Hour),
		MaxInFlight: pick(r, 1, 2, 100, 100), MaxPerSecond: pick(r, 0, 0, 0, 1, 3), MaxPending: pick[int64](r, 2, 5, 1000, 1000),
	}
	if r.IntN(2) == 0 {
		n := pick(r, 0, 1, 3)
		s.Delivery.Retry = &n
	}
	if r.IntN(3) == 0 {
		d := pick(r, 0, 5*time.Second, time.Hour)
		s.Delivery.RetryAfterMax = &d
	}
	if fnv(uid)%2 == 0 { // the same over all settings of a source
		s.DeadLetter = &schedule.Target{URL: fmt.Sprintf("http://dead/%d", r.IntN(3))}
	}
	return s
}

// request draws one for a key.
func (w *world) request(r *rand.Rand, s *source, k *key, number int) *schedule.Request {
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
			q.Delay, q.DueAt, q.Policy = nil, time.Time{}, ""
		}
		return q
	}
	if r.IntN(6) == 0 {
		d := pick(r, 0, 10*time.Minute, time.Hour)
		q.MaxInterval = &d
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
	q.Conditions = w.conditions(r, k)
	return q
}

func (w *world) conditions(r *rand.Rand, k *key) (c schedule.Conditions) {
	switch r.IntN(12) {
	case 0:
		c.IfNoneMatch = true
	case 1, 2:
		if k != nil && k.cur != nil {
			if rev := w.m.revs[k.cur.rev]; rev > 0 {
				rev -= pick[uint64](r, 0, 0, 1)
				c.IfMatch = &rev
			}
		}
	case 3:
		n := uint64(1 << 60)
		c.IfMatch = &n
	}
	return c
}
