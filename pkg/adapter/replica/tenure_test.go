package replica_test

import (
	"context"
	"errors"
	"math/rand/v2"
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
