package scale

import (
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// figures are what is reported of a workload. They are under target.mu.
type figures struct {
	schedule.ScaleStatus
	counted time.Time // until when Awake and Observed are counted
}

// count adds the time since it was counted last.
func (f *figures) count(now time.Time) {
	if d := now.Sub(f.counted); f.State != "" {
		f.Observed += d
		if f.State != asleep {
			f.Awake += d
		}
	}
	f.counted = now
}

func (t *target) setState(state string, now time.Time) {
	if t.State == state {
		return
	}
	t.count(now)
	t.State, t.Since = state, now.Round(0)
	t.changed()
}

func (t *target) setProblem(reason, message string) {
	if t.Reason != reason || t.Message != message {
		t.Reason, t.Message = reason, message
		t.changed()
	}
}

func (t *target) changed() {
	for _, m := range t.members {
		t.keeper.cfg.Changed(m.src)
	}
}

// status is what is reported now.
func (t *target) status() schedule.ScaleStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count(time.Now())
	return t.ScaleStatus
}
