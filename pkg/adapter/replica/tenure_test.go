package replica_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/replicatest"
)

// leaderless refuses as many appends at once as etcd does while it changes its leader.
type leaderless struct {
	replica.Log
	left int
}

func (l *leaderless) Append(ctx context.Context, epoch int64, seq uint64, data []byte, wall time.Time) (bool, error) {
	if l.left--; l.left >= 0 {
		return false, errors.New("proposal dropped")
	}
	return l.Log.Append(ctx, epoch, seq, data, wall)
}

// An append that the log refuses at once is repeated after a pause. It kept a processor busy while
// the leader of the log handed over, which needed that processor.
func TestAppend_PausesBetweenAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const refused = 100
		log := replicatest.NewMemory(rand.New(rand.NewPCG(1, 2)), replicatest.Faults{})
		took := make(chan time.Duration, 1)
		ctx, cancel := context.WithCancel(t.Context())
		g := replica.New(replica.Config{
			Member: "a", Members: []string{"a", "b", "c"}, Log: &leaderless{log.Member(), refused}, View: &view{disk: &disk{}, check: func(uint64, string) {}}, Silence: silence,
			Own: func(_ context.Context, tenure *replica.Tenure) {
				begun := time.Now()
				if err := tenure.Append([]byte("1")); err != nil {
					t.Error(err)
				}
				took <- time.Since(begun)
				cancel()
			},
		})
		if err := g.Run(ctx); err != nil {
			t.Error(err)
		}
		if d := <-took; d < refused*time.Millisecond {
			t.Errorf("%d attempts within %s", refused, d)
		}
	})
}

// silenced is a log that takes no renewal while it is silent.
type silenced struct {
	replica.Log
	silent atomic.Bool
}

func (l *silenced) Renew(ctx context.Context, epoch int64, last uint64, wall time.Time) error {
	if l.silent.Load() {
		return errors.New("no answer")
	}
	return l.Log.Renew(ctx, epoch, last, wall)
}

// A delivery that begins with a rest of the lease has a tenth of a second for its first byte. One with a millisecond left
// began, and its bytes were sent when another member owned the group.
func TestLease_MarginBeforeADelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &silenced{Log: replicatest.NewMemory(rand.New(rand.NewPCG(1, 2)), replicatest.Faults{}).Member()}
		ctx, cancel := context.WithCancel(t.Context())
		const silence = 600 * time.Millisecond
		g := replica.New(replica.Config{
			Member: "a", Members: []string{"a", "b", "c"}, Log: log, View: &view{disk: &disk{}, check: func(uint64, string) {}}, Silence: silence,
			Own: func(_ context.Context, tenure *replica.Tenure) {
				defer cancel()
				if err := tenure.Append([]byte("1")); err != nil || !tenure.HasMargin() {
					t.Error("it has no margin", err)
				}
				log.silent.Store(true)
				for tenure.HasMargin() {
					time.Sleep(time.Millisecond)
				}
				if left := tenure.LeaseRemaining(); left < 100*time.Millisecond || left > silence/5 {
					t.Error("a delivery begins until the rest of the lease is", left)
				}
				log.silent.Store(false)
				if !tenure.AwaitMargin() {
					t.Error("a renewal brings no margin")
				}
				log.silent.Store(true)
				if tenure.AwaitMargin(); !tenure.HasMargin() {
					t.Error("it waits with a margin")
				}
				for tenure.HasMargin() {
					time.Sleep(time.Millisecond)
				}
				if tenure.AwaitMargin() || tenure.Valid() {
					t.Error("it waits no longer than the lease")
				}
			},
		})
		if err := g.Run(ctx); err != nil {
			t.Error(err)
		}
	})
}

// trimmed is a log that has no entry any more.
type trimmed struct{ replica.Log }

func (trimmed) State(context.Context) (replica.State, error) {
	return replica.State{Epoch: 1, Owner: replica.Owner{Member: "b", Format: replica.Format}, Head: 1, Last: 9}, nil
}

// A copy that fails again and again is tried less and less often, once a minute in the end, and meanwhile the member
// knows the owner. Each attempt was a second after the one before, and had another member begin to send its view.
func TestCopy_FailuresAreSpaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := trimmed{replicatest.NewMemory(rand.New(rand.NewPCG(1, 2)), replicatest.Faults{}).Member()}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		copies := 0
		g := replica.New(replica.Config{
			Member: "a", Members: []string{"a", "b", "c"}, Log: log, View: &view{disk: &disk{}, check: func(uint64, string) {}}, Silence: silence,
			Copy: func(context.Context, bool, func()) error { copies++; return errors.New("no space") },
		})
		if err := g.Run(ctx); err != nil {
			t.Error(err)
		}
		if owner, _, _ := g.Owner(); copies < 10 || copies > 20 || owner.Member != "b" {
			t.Errorf("%d copies in ten minutes; the owner is %q", copies, owner.Member)
		}
	})
}
