package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Send implements dispatch.Sender: the seed decides about the answer, and the trace
// has it before the queue.
func (p *process) Send(ctx context.Context, a schedule.Attempt) schedule.Outcome {
	w := p.w
	w.mu.Lock()
	reaches := p.dead || p.reaches(&a)
	if !reaches {
		w.record(unreached{a.Source.UID})
	}
	w.mu.Unlock()
	if !reaches {
		return schedule.Outcome{Kind: schedule.Failed, Unreached: true}
	}
	wrote, ok := a.Begin()
	if !ok {
		return schedule.Outcome{}
	}
	wrote()
	w.mu.Lock()
	s := &start{a}
	if !p.dead {
		w.record(s)
	}
	if p.dead || w.judge.failed != "" { // what goes on after the end has no effect
		w.mu.Unlock()
		<-ctx.Done()
		return schedule.Outcome{}
	}
	took, o := w.answer(a)
	o.Priority = w.priority(a)
	workload := a.Source.Scale.Name
	if a.Entry.DeadLetter != nil { // it goes elsewhere
		workload = ""
	}
	p.underWay[workload]++
	w.mu.Unlock()
	if took > 0 {
		t := time.NewTimer(took)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			o = schedule.Outcome{}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p.underWay[workload]--
	if !p.dead {
		w.record(end{s, o})
	}
	return o
}

// priority is the one in an answer, most often none.
func (w *world) priority(a schedule.Attempt) *schedule.Priority {
	r := rand.New(rand.NewPCG(w.h.seed, fnv(a.ID)))
	if w.draining || r.IntN(8) > 0 {
		return nil
	}
	return new(pick(r, schedule.Priorities[:]...))
}

// answer is the sink's, the same for the same delivery of a history.
func (w *world) answer(a schedule.Attempt) (time.Duration, schedule.Outcome) {
	if w.draining {
		return 0, schedule.Outcome{Kind: schedule.Succeeded, Never: true}
	}
	uid := a.Source.UID
	name := fmt.Sprintf("%s/%s/%v", uid, a.Key, a.Entry.DeadLetter != nil)
	w.sent[name]++
	r := rand.New(rand.NewPCG(w.h.seed, fnv(name)+uint64(w.sent[name])<<32))
	took := pick(r, 0, time.Millisecond, 50*time.Millisecond, time.Second, 3*time.Second, 10*time.Minute)
	if w.hangs[uid] {
		took = pick(r, time.Minute, 10*time.Minute, 20*time.Minute)
	}
	failure := schedule.Failure{Dest: "http://sink", Code: pick(r, 0, 404, 500, 503), Data: []byte("no")}
	switch n := r.IntN(100); {
	case n < 35:
		return took, schedule.Outcome{Kind: schedule.Succeeded}
	case n < 55:
		took = max(took, time.Millisecond)
		again := &schedule.RescheduleAfter{After: pick(r, 0, time.Millisecond, time.Second, 5*time.Minute, time.Hour)}
		if r.IntN(3) == 0 {
			again = &schedule.RescheduleAfter{At: w.now().Add(pick(r, -time.Hour, -1, 0, 10*time.Minute, time.Hour, 365*24*time.Hour))}
		}
		if r.IntN(3) == 0 {
			again.Reply = &schedule.Event{Type: "reply", Subject: fmt.Sprint(w.sent[name])}
		}
		return took, schedule.Outcome{Kind: schedule.Succeeded, Again: again}
	case n < 62:
		return took, schedule.Outcome{Kind: schedule.Succeeded, Never: true}
	case n < 90:
		return max(took, time.Millisecond), schedule.Outcome{Kind: schedule.Failed, Failure: failure, Again: againAfter(r),
			RetryAfter: pick(r, 0, 0, 0, time.Second, 7*time.Second, 2*time.Hour)}
	default:
		failure.Code = pick(r, 301, 400, 422)
		return max(took, time.Millisecond), schedule.Outcome{Kind: schedule.Rejected, Failure: failure, Again: againAfter(r)}
	}
}

// againAfter is the Reschedule-After of a failing answer, most often none.
func againAfter(r *rand.Rand) *schedule.RescheduleAfter {
	if r.IntN(4) > 0 {
		return nil
	}
	return &schedule.RescheduleAfter{After: pick(r, 0, time.Second, 5*time.Minute, time.Hour)}
}

// fnv hashes a name, the same in every process.
func fnv(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }
