package replica_test

import (
	"context"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/replicatest"
)

// slow makes the lease of one member last too long: its clock loses a part that the margin does not cover.
func slow(c *replica.Config) {
	if clock := c.Clock; c.Member == "a" {
		c.Clock = func() time.Duration { return clock() * 7 / 10 }
	}
}

// hasty releases the group while the lease of its owner lasts, now and then.
type hasty struct {
	replica.Log
	member string
	n      int // of appends, one at a time
}

func (l *hasty) Append(ctx context.Context, epoch int64, seq uint64, data []byte, wall time.Time) (bool, error) {
	added, err := l.Log.Append(ctx, epoch, seq, data, wall)
	if l.n++; err == nil && l.n%100 == 0 {
		err = l.Release(ctx, epoch, replica.Owner{Clock: l.member, Format: replica.Format}, wall)
	}
	return added, err
}

// clockless does not show the group's clock.
type clockless struct{ replica.Log }

func (l clockless) State(ctx context.Context) (replica.State, error) {
	s, err := l.Log.State(ctx)
	s.Wall = time.Time{}
	return s, err
}

func (l clockless) Follow(ctx context.Context, revision int64) <-chan replica.State {
	from, to := l.Log.Follow(ctx, revision), make(chan replica.State)
	go func() {
		defer close(to)
		for s := range from {
			s.Wall = time.Time{}
			select {
			case to <- s:
			case <-ctx.Done():
			}
		}
	}()
	return to
}

// Each rule that is broken on purpose is found: at the seam, where a wrong Group or a wrong log would break it.
func TestGroup_SabotageIsFound(t *testing.T) {
	t.Parallel()
	lenient := rough
	lenient.Lenient = true
	for name, test := range map[string]struct {
		faults replicatest.Faults
		broken func(*replica.Config)
	}{
		"a lease without a margin":      {rough, slow},
		"a lease beyond the release":    {rough, func(c *replica.Config) { c.Log = &hasty{Log: c.Log, member: c.Member} }},
		"a claim that ignores the head": {lenient, nil},
		"a clock that is not held back": {rough, func(c *replica.Config) { c.Log = clockless{c.Log} }},
		"a claim by an unknown clock":   {rough, func(c *replica.Config) { c.Unfit = c.Clocks.ExceedsLimit }},
		"parts of two owners' batches":  {rough, func(c *replica.Config) { c.Log = &replica.Joining{Log: c.Log} }},
		"a trim without a flush":        {rough, func(c *replica.Config) { c.View = forgetful{c.View.(*view)} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := uint64(1); seed <= 100; seed++ {
				if problems, _ := simulate(t, seed, test.faults, test.broken); len(problems) > 0 {
					t.Logf("history %d: %s", seed, problems[0])
					return
				}
			}
			t.Error("100 histories did not show it")
		})
	}
}
