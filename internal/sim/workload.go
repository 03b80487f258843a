package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// Workloads of a history are scaled at once, and accept connections at once, so that the promises about lateness hold for
// their sources too. They outlast the process.

// randomWorkload gives some sources a workload, the same over all of their settings.
func randomWorkload(r *rand.Rand, s *schedule.Spec) {
	if fnv(s.UID)%3 > 0 {
		return
	}
	s.Scale = schedule.Scale{
		Workload: schedule.Workload{Kind: "Deployment", Name: s.UID, Replicas: 1}, Mode: schedule.ScaleAuto, Recorded: true,
		Cooldown: pick(r, time.Second, 10*time.Second, 5*time.Minute), StartTimeout: 2 * time.Minute,
	}
	s.Scale.Held = s.Scale.Workload
	s.Company = s.Scale.Cooldown
}

var errDead = errors.New("the process is dead")

// Replicas implements scale.API.
func (p *process) Replicas(_ context.Context, _ objects.Account, x schedule.Workload) (int32, error) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return p.w.replicas[x.Name], nil
}

// SetReplicas implements scale.API.
func (p *process) SetReplicas(_ context.Context, _ objects.Account, x schedule.Workload, n int32) (int32, error) {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.dead {
		return 0, errDead
	}
	if n == 0 && p.underWay[x.Name] > 0 {
		w.judge.broken("no delivery is under way on a workload that is told to sleep", "%d are under way on %s", p.underWay[x.Name], x.Name)
	}
	was := w.replicas[x.Name]
	w.replicas[x.Name] = n
	return was, nil
}

// Examine implements scale.API. Every source of a history has a sink.
func (p *process) Examine(context.Context, objects.Account, schedule.Workload, schedule.Busy) (scale.Health, error) {
	return scale.Health{}, errors.ErrUnsupported
}

// connect is scale.Config.Connect.
func (p *process) connect(_ context.Context, src *schedule.Spec) error {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.w.replicas[src.Scale.Name] == 0 {
		return errors.New("refused")
	}
	return nil
}

// reaches reports whether an attempt makes a connection. The caller holds the lock.
func (p *process) reaches(a *schedule.Attempt) bool {
	return a.Entry.DeadLetter != nil || !a.Source.Scale.Scales() || p.w.replicas[a.Source.Scale.Name] > 0
}
