package queue

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// While the disk has no space for outcomes, no delivery starts; once there is space, deliveries go on by themselves.
func TestTake_NothingWithoutSpaceForOutcomes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var full atomic.Bool
		var woken atomic.Int64
		s, _ := open(t, func(cfg *Config, _ *schedule.Spec) {
			cfg.Store = &hooked{Store: cfg.Store, before: func(call, _ string) error {
				if call == "SpaceForOutcomes" && full.Load() {
					return store.ErrFull
				}
				return nil
			}}
			cfg.Wake = func(*Source) { woken.Add(1) }
		})
		must(t, errorOf(s.Schedule("k", &schedule.Request{}, nil)))
		synctest.Wait() // its page is loaded
		full.Store(true)
		if d, err := s.Take(); d != nil || err != nil || !s.NextAt().IsZero() {
			t.Errorf("a delivery without space: %v %v, the next at %v", d, err, s.NextAt())
		}
		time.Sleep(3 * time.Second)
		full.Store(false)
		before := woken.Load()
		time.Sleep(spaceEvery)
		synctest.Wait()
		if woken.Load() == before {
			t.Error("the source is not woken although there is space")
		}
		if d, err := s.Take(); d == nil || err != nil {
			t.Errorf("no delivery although there is space: %v", err)
		}
	})
}
