package replica_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/replicatest"
)

// away runs an owner that appends a kilobyte ten times a second, a standby, and after a minute a member with an empty view.
func away(t *testing.T, log *replicatest.Memory, views map[string]*view, change func(*replica.Config)) (groups map[string]*replica.Group, begin func(name string), end func()) {
	t.Helper()
	groups = map[string]*replica.Group{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 3)
	begin = func(name string) {
		cfg := replica.Config{
			Member: name, Members: []string{"a", "b", "c"}, Log: log.Member(), View: views[name], Silence: silence, Keep: 128 << 10,
			Unfit: func() bool { return name != "a" },
			Own: func(ctx context.Context, tenure *replica.Tenure) {
				for ctx.Err() == nil && tenure.Append(make([]byte, 1<<10)) == nil {
					time.Sleep(100 * time.Millisecond)
				}
			},
		}
		change(&cfg)
		g := replica.New(cfg)
		groups[name] = g
		go func() {
			if err := g.Run(ctx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			done <- struct{}{}
		}()
	}
	begin("a")
	begin("b")
	time.Sleep(time.Minute)
	return groups, begin, func() {
		cancel()
		for range groups {
			<-done
		}
	}
}

// A copy that took longer than the log was kept for was too old when it had arrived, again and again. The log is kept for
// it, and removed afterwards.
func TestCopy_LogIsKeptForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		views := map[string]*view{"a": undamaged(), "b": undamaged(), "c": undamaged()}
		var copies atomic.Int64
		groups, begin, end := away(t, memory(), views, func(c *replica.Config) {
			c.Copy = func(_ context.Context, _ bool, hold func()) error {
				copies.Add(1)
				hold()
				return views["c"].copyFrom(views["a"], time.Minute)
			}
		})
		begin("c")
		time.Sleep(2 * time.Minute)
		if copies.Load() != 1 || !groups["c"].CaughtUp() {
			t.Errorf("after two minutes %d copies were taken; caught up: %t", copies.Load(), groups["c"].CaughtUp())
		}
		if behind := groups["a"].Reached() - groups["a"].Trimmed(); behind > 200 {
			t.Errorf("%d entries are kept after the copy", behind)
		}
		end()
	})
}

// A member that had no space for a copy, or paused after one that failed, had the log kept for an hour, and again by each
// new owner. It counts like a member that is away.
func TestCopy_NoSpaceHoldsNothing(t *testing.T) {
	t.Parallel()
	for name, began := range map[string]bool{"no space": false, "cut off": true} {
		synctest.Test(t, func(t *testing.T) {
			views := map[string]*view{"a": undamaged(), "b": undamaged(), "c": undamaged()}
			groups, begin, end := away(t, memory(), views, func(c *replica.Config) {
				c.Copy = func(_ context.Context, _ bool, hold func()) error {
					if began {
						hold()
						time.Sleep(5 * time.Second)
					}
					return errors.New("it failed")
				}
			})
			begin("c")
			time.Sleep(10*time.Minute + 50*time.Second)
			if behind := groups["a"].Reached() - groups["a"].Trimmed(); behind > 200 {
				t.Errorf("%s: %d entries are kept", name, behind)
			}
			end()
		})
	}
}

// A member that takes a copy gets the whole time for it in each tenure of an owner. The time began with the first copy of
// an earlier tenure.
func TestCopy_TimeOfAnEarlierTenure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, views := memory(), map[string]*view{"a": undamaged(), "b": undamaged(), "c": undamaged()}
		var tenures atomic.Int64
		groups, _, end := away(t, log, views, func(c *replica.Config) {
			c.Silence = 10 * time.Second
			c.Own = func(ctx context.Context, tenure *replica.Tenure) {
				if tenures.Add(1) == 1 {
					time.AfterFunc(2*time.Hour, func() { tenure.Release("it begins anew") })
				}
				for ctx.Err() == nil && tenure.Append(make([]byte, 1<<10)) == nil {
					time.Sleep(time.Second)
				}
			}
		})
		copying := time.Now().Add(3 * time.Hour)
		go func() {
			for beat := int64(1); time.Now().Before(copying); beat++ {
				if err := log.Member().Report(t.Context(), "c", replica.Report{Copies: true, Beat: beat}); err != nil {
					t.Error(err)
				}
				time.Sleep(5 * time.Second)
			}
		}()
		for after, kept := range map[time.Duration]bool{90 * time.Minute: false, 150 * time.Minute: true} {
			time.AfterFunc(after, func() {
				if behind := groups["a"].Reached() - groups["a"].Trimmed(); behind > 200 != kept {
					t.Errorf("after %s in tenure %d: %d entries are kept", after, tenures.Load(), behind)
				}
			})
		}
		time.Sleep(time.Until(copying) + 10*time.Second)
		end()
	})
}

// A caller waited for its turn in a full log for a minute after the tenure had ended.
func TestAppend_SlowEndsWithTheTenure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owned(t, memory().Member(), func(tenure *replica.Tenure) {
			time.AfterFunc(time.Second, func() { tenure.Release("another one is next") })
			begun := time.Now()
			if err := tenure.Append(make([]byte, 60<<20)); !errors.Is(err, replica.ErrNotOwner) || time.Since(begun) > 2*time.Second {
				t.Error(err, time.Since(begun))
			}
		}, func(c *replica.Config) { c.LogBytes = 1; c.Log = full{c.Log} })
	})
}

// A batch of 15 MiB cut off all deliveries: an entry of it took longer to append on a busy disk than the lease lasts.
func TestAppend_LargeBatchKeepsTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		owned(t, memory().Member(), func(tenure *replica.Tenure) {
			done := make(chan error)
			go func() { done <- tenure.Append(make([]byte, 15<<20)) }()
			for {
				select {
				case err := <-done:
					if err != nil {
						t.Error(err)
					}
					return
				case <-time.After(10 * time.Millisecond):
					if !tenure.Valid() {
						t.Fatal("the lease has ended")
					}
				}
			}
		}, func(c *replica.Config) { c.Log = busy{c.Log} })
	})
}

// busy is a log on a disk that takes two MiB a second.
type busy struct{ replica.Log }

func (b busy) Append(ctx context.Context, epoch int64, seq uint64, data []byte, wall time.Time) (bool, error) {
	time.Sleep(time.Duration(len(data)) * time.Second / (2 << 20))
	return b.Log.Append(ctx, epoch, seq, data, wall)
}

// full is a log without space.
type full struct{ replica.Log }

func (full) Size() int64 { return 1 << 30 }
