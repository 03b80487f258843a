package reschedulesource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/reconciler"
)

// slow reconciles each key in some time, and fails for some.
type slow struct {
	reconciler.LeaderAwareFuncs
	takes time.Duration
	fails func(key string, times int) bool
	err   error // how it fails; default: some error

	mu    sync.Mutex
	times map[string]int
	under map[string]int // way, by namespace
	most  int            // under way in one namespace
	begun map[string]time.Time
}

func (s *slow) Reconcile(_ context.Context, key string) error {
	namespace, _, _ := strings.Cut(key, "/")
	s.mu.Lock()
	s.times[key]++
	s.under[namespace]++
	s.most = max(s.most, s.under[namespace])
	s.begun[key] = time.Now()
	fails := s.fails != nil && s.fails(key, s.times[key])
	s.mu.Unlock()
	time.Sleep(s.takes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.under[namespace]--
	if fails {
		return cmp.Or(s.err, errors.New("it fails"))
	}
	return nil
}

func busyKey(n int) types.NamespacedName {
	return types.NamespacedName{Namespace: "busy", Name: fmt.Sprint("source-", n)}
}

var calmKey = types.NamespacedName{Namespace: "calm", Name: "source"}

// taking runs a controller with such a reconciler, in fake time.
func taking(t *testing.T, s *slow, test func(t *testing.T, impl *controller.Impl)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s.times, s.under, s.begun = map[string]int{}, map[string]int{}, map[string]time.Time{}
		ctx, end := context.WithCancel(logging.WithLogger(t.Context(), zap.NewNop().Sugar()))
		impl := controller.NewContext(ctx, s, controller.ControllerOptions{WorkQueueName: "test", Logger: zap.NewNop().Sugar()})
		takeTurns(impl)
		var running sync.WaitGroup
		running.Go(func() {
			if err := impl.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		test(t, impl)
		end()
		running.Wait()
	})
}

// A source is reconciled at once although another namespace has changed 3,000 of its own, and each
// of the 3,000 is reconciled, one at a time. It waited for all of them.
func TestFair_StormOfANeighbour(t *testing.T) {
	for _, lane := range []string{"changes", "resync"} {
		t.Run(lane, func(t *testing.T) {
			s := &slow{takes: 5 * time.Millisecond}
			taking(t, s, func(t *testing.T, impl *controller.Impl) {
				enqueue := impl.EnqueueKey
				if lane == "resync" {
					enqueue = impl.EnqueueSlowKey
				}
				for n := range 3000 {
					enqueue(busyKey(n))
				}
				time.Sleep(100 * time.Millisecond)
				at := time.Now()
				impl.EnqueueKey(calmKey)
				time.Sleep(time.Minute)
				synctest.Wait()
				if waited := s.begun[calmKey.String()].Sub(at); waited > s.takes {
					t.Errorf("it waited %s", waited)
				}
				if len(s.times) != 3001 || s.most != 1 {
					t.Errorf("%d keys were reconciled, up to %d of one namespace at once", len(s.times), s.most)
				}
			})
		})
	}
}

// A source that failed once is tried again at once although sources of another namespace fail again
// and again. All failures waited in one queue, ten a second.
func TestFair_FailuresOfANeighbour(t *testing.T) {
	s := &slow{takes: time.Millisecond, fails: func(key string, times int) bool { return key != calmKey.String() || times == 1 }}
	taking(t, s, func(t *testing.T, impl *controller.Impl) {
		for n := range 1000 {
			impl.EnqueueKey(busyKey(n))
		}
		time.Sleep(10 * time.Second)
		at := time.Now()
		impl.EnqueueKey(calmKey)
		time.Sleep(time.Minute)
		synctest.Wait()
		if waited := s.begun[calmKey.String()].Sub(at); waited > 5*retryLeast || s.times[calmKey.String()] != 2 {
			t.Errorf("it was reconciled %d times, the last time after %s", s.times[calmKey.String()], waited)
		}
		if n := s.times[busyKey(0).String()]; n < 10 || n > 20 {
			t.Errorf("one that fails was tried %d times in a minute, want a wait that doubles", n)
		}
	})
}

// A sink of a kind that the cluster does not have is found within a minute of its definition, after any time.
// An object that does not exist is followed, so its retries wait longer and longer.
func TestFair_MissingKind(t *testing.T) {
	services := schema.GroupResource{Group: "serving.knative.dev", Resource: "services"}
	for name, test := range map[string]struct {
		err         error
		least, most int // times in an hour, after a day
	}{
		"kind":   {apierrors.NewGenericServerResponse(404, "get", services, "", "", 0, true), 60, 130},
		"object": {apierrors.NewNotFound(services, "sink"), 1, 10},
	} {
		t.Run(name, func(t *testing.T) {
			s := &slow{takes: time.Millisecond, fails: func(string, int) bool { return true }, err: fmt.Errorf("sink: %w", test.err)}
			taking(t, s, func(t *testing.T, impl *controller.Impl) {
				impl.EnqueueKey(calmKey)
				time.Sleep(24 * time.Hour)
				before := s.times[calmKey.String()]
				time.Sleep(time.Hour)
				if n := s.times[calmKey.String()] - before; n < test.least || n > test.most {
					t.Errorf("tried %d times in an hour, want %d to %d", n, test.least, test.most)
				}
			})
		})
	}
}

// A change of a source that is reconciled, or that waits for its turn, is not lost.
func TestFair_ChangeMeanwhile(t *testing.T) {
	s := &slow{takes: time.Second}
	taking(t, s, func(t *testing.T, impl *controller.Impl) {
		impl.EnqueueKey(busyKey(0))
		synctest.Wait() // it is reconciled, and the other one waits
		impl.EnqueueKey(busyKey(1))
		time.Sleep(s.takes / 2)
		impl.EnqueueKey(busyKey(0))
		impl.EnqueueKey(busyKey(1))
		time.Sleep(time.Minute)
		synctest.Wait()
		if first, second := s.times[busyKey(0).String()], s.times[busyKey(1).String()]; first != 2 || second != 1 {
			t.Errorf("%d and %d times, want 2 and 1", first, second)
		}
		if n := len(impl.Reconciler.(*fair).queues); n != 0 {
			t.Errorf("%d queues are kept", n)
		}
	})
}
