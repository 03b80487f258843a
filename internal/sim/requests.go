package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

func (w *world) stepRequest(r *rand.Rand) { w.requestOnce(r, r.Int()) }

// stepBurst schedules a few keys again and again for the same few instants.
func (w *world) stepBurst(r *rand.Rand) {
	uid, s := w.source(r)
	base := w.now().Round(0).Add(pick(r, 0, time.Second, time.Minute))
	for range 4 + r.IntN(12) {
		w.mu.Lock()
		if !w.tight(s) {
			q := &schedule.Request{DueAt: base.Add(time.Duration(r.IntN(3)) * time.Second), Policy: pick(r, schedule.Replace, schedule.Earliest, schedule.Earliest)}
			w.send(uid, s, w.name(r), q)
			continue
		}
		w.mu.Unlock()
	}
}

func (w *world) requestOnce(r *rand.Rand, number int) {
	w.mu.Lock()
	uid, s := w.source(r)
	if w.tight(s) {
		w.mu.Unlock()
		return
	}
	name := w.name(r)
	w.send(uid, s, name, w.request(r, s, s.keys[name], number))
}

// send makes a request. The caller holds the lock, which send releases.
func (w *world) send(uid string, s *source, name string, q *schedule.Request) {
	want := w.m.request(s, name, q, w.share())
	w.note("  %s/%s %s: want %q %s", uid, name, requestText{q}, want.code, want.result)
	w.mu.Unlock()
	w.call(func(p *process) (string, bool) {
		got, err := p.sources[uid].Schedule(name, q, nil)
		if err != nil && !errors.As(err, &got.Err) {
			return fmt.Sprintf("PUT %s/%s: %v", uid, name, err), false
		}
		return w.judge(fmt.Sprintf("PUT %s/%s", uid, name), want, got), got.Err == nil
	})
}

func (w *world) share() float64 { return float64(w.random.Load()) / (1 << 53) }

// judge compares an answer, "" when it is right.
func (w *world) judge(what string, want answer, got queue.Scheduled) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if diff := w.m.answers(want, got); diff != "" {
		return fmt.Sprintf("%s: %s\n  the answer: %+v %v", what, diff, got, got.Err)
	}
	return ""
}

func (w *world) items(r *rand.Rand, s *source) []queue.Item {
	items := make([]queue.Item, pick(r, r.IntN(7), r.IntN(20)))
	for i := range items {
		name := w.name(r)
		items[i] = queue.Item{Key: name, Request: *w.request(r, s, s.keys[name], r.Int())}
	}
	return items
}

func (w *world) stepBulk(r *rand.Rand) {
	w.mu.Lock()
	uid, s := w.source(r)
	if w.tight(s) {
		w.mu.Unlock()
		return
	}
	items := w.items(r, s)
	end := s.together()
	want := make([]answer, len(items))
	for i := range items {
		want[i] = w.m.request(s, items[i].Key, &items[i].Request, w.share())
		w.note("  %s/%s %s: want %q %s", uid, items[i].Key, requestText{&items[i].Request}, want[i].code, want[i].result)
	}
	end()
	w.mu.Unlock()
	w.call(func(p *process) (string, bool) {
		got, err := p.sources[uid].ScheduleAll(items, nil)
		if err != nil {
			return fmt.Sprintf("bulk: %v", err), false
		}
		for i := range got {
			if problem := w.judge(fmt.Sprintf("bulk %s, item %d, %q", uid, i, items[i].Key), want[i], got[i]); problem != "" {
				return problem, false
			}
		}
		return "", true
	})
}

// stepTogether schedules all or none.
func (w *world) stepTogether(r *rand.Rand) {
	w.mu.Lock()
	uid, s := w.source(r)
	if w.tight(s) {
		w.mu.Unlock()
		return
	}
	items := w.items(r, s)
	end, undo := s.together(), w.m.save(s)
	var code schedule.Code
	for i := range items {
		a := w.m.request(s, items[i].Key, &items[i].Request, w.share())
		w.note("  %s/%s %s: want %q", uid, items[i].Key, requestText{&items[i].Request}, a.code)
		if code = a.code; code != "" {
			undo()
			break
		}
	}
	end()
	w.mu.Unlock()
	w.call(func(p *process) (string, bool) {
		err := p.sources[uid].ScheduleTogether(items)
		var refused *schedule.Error
		switch {
		case err == nil && code == "":
			return "", true
		case errors.As(err, &refused) && refused.Code == code:
			return "", false
		}
		return fmt.Sprintf("all or none on %s: %v, want %q", uid, err, code), false
	})
}

func (w *world) stepCancel(r *rand.Rand) {
	w.mu.Lock()
	uid, s := w.source(r)
	name := w.name(r)
	c := w.conditions(r, s.keys[name])
	c.IfNoneMatch = false
	if r.IntN(4) == 0 {
		c.IfUID = pick(r, "u1", "u2")
	}
	refused, _ := w.m.cancel(s, name, &c)
	w.note("  %s/%s: want refused %v", uid, name, refused)
	w.mu.Unlock()
	w.call(func(p *process) (string, bool) {
		err := p.sources[uid].Cancel(name, c)
		var e *schedule.Error
		if err != nil && !errors.As(err, &e) || refused != (e != nil) || e != nil && e.Code != schedule.CodePrecondition {
			return fmt.Sprintf("DELETE %s/%s: %v, want refused %v", uid, name, err, refused), false
		}
		return "", !refused
	})
}

func (w *world) stepCancelAll(r *rand.Rand) {
	w.mu.Lock()
	uid, s := w.source(r)
	prefix := pick(r, "", "a", "a/", "b", "zz")
	want := 0
	for _, name := range s.names() {
		if len(name) >= len(prefix) && name[:len(prefix)] == prefix {
			if _, waited := w.m.cancel(s, name, &schedule.Conditions{}); waited {
				want++
			}
		}
	}
	w.note("  %s prefix %q: want %d", uid, prefix, want)
	w.mu.Unlock()
	w.call(func(p *process) (string, bool) {
		if n, err := p.sources[uid].CancelAll(context.Background(), prefix); err != nil || n != want {
			return fmt.Sprintf("DELETE %s, prefix %q: %d %v, want %d", uid, prefix, n, err, want), false
		}
		return "", true
	})
}

type requestText struct{ *schedule.Request }

// String implements fmt.Stringer.
func (r requestText) String() string {
	text := string(r.Policy)
	if r.Ingested {
		text += " event " + r.Event.ID
	}
	if r.Delay != nil {
		text += fmt.Sprintf(" delay %s", *r.Delay)
	}
	if !r.DueAt.IsZero() {
		text += " dueAt " + stamp(r.DueAt)
	}
	if r.Backoff != nil {
		text += fmt.Sprintf(" backoff %+v", *r.Backoff)
	}
	if !r.ExpiresAt.IsZero() {
		text += " expiresAt " + stamp(r.ExpiresAt)
	}
	if r.MaxInterval != nil {
		text += fmt.Sprintf(" maxInterval %s", *r.MaxInterval)
	}
	if r.IfMatch != nil {
		text += fmt.Sprintf(" if-match %d", *r.IfMatch)
	}
	if r.IfNoneMatch {
		text += " if-none-match"
	}
	return fmt.Sprintf("%s jitter %g uid %q event %v", text, r.Jitter, r.UID, r.Event != nil)
}
