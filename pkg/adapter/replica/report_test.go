package replica_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// trio runs members. The owner appends until the end.
func trio(t *testing.T, views map[string]*view, change func(*replica.Config)) (groups map[string]*replica.Group, end func()) {
	t.Helper()
	log, groups := memory(), map[string]*replica.Group{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for name, v := range views {
		cfg := replica.Config{
			Member: name, Members: []string{"a", "b", "c"}, Log: log.Member(), View: v, Silence: silence,
			Own: func(ctx context.Context, tenure *replica.Tenure) {
				for ctx.Err() == nil && tenure.Append([]byte("x")) == nil {
					time.Sleep(100 * time.Millisecond)
				}
			},
		}
		change(&cfg)
		g := replica.New(cfg)
		groups[name] = g
		running.Go(func() {
			if err := g.Run(ctx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	return groups, func() { cancel(); running.Wait() }
}

func undamaged(applied ...string) *view {
	return &view{applied: applied, saved: len(applied), disk: &disk{}, check: func(uint64, string) {}}
}

// A standby whose view had other data than the others' served it after the next failover, and no member noticed. It is
// not ready, and takes a copy. Where both standbys differ from the owner, either side may be wrong: they say so, and none
// throws its view away.
func TestViews_DifferenceIsFound(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		damaged []string
		copied  string
	}{
		"one standby":   {[]string{"b"}, "b"},
		"both standbys": {[]string{"b", "c"}, ""},
		"none":          {nil, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			views := map[string]*view{"a": undamaged(), "b": undamaged(), "c": undamaged()}
			var copied atomic.Value
			copied.Store("")
			groups, end := trio(t, views, func(c *replica.Config) {
				member := c.Member
				c.Unfit = func() bool { return member != "a" }
				c.Copy = func(_ context.Context, differs bool, _ func()) error {
					if !differs {
						return errors.New("the log has all that it needs")
					}
					copied.Store(member)
					views[member].lose()
					return views[member].copyFrom(views["a"], 0)
				}
			})
			time.Sleep(2 * time.Second)
			for _, member := range test.damaged {
				v := views[member]
				v.mu.Lock()
				v.applied[0], v.hashes = "y", nil
				v.mu.Unlock()
			}
			time.Sleep(20 * time.Second)
			if got := copied.Load(); got != test.copied {
				t.Errorf("%s: %q took a copy, want %q", name, got, test.copied)
			}
			if differing := groups["a"].Differing(); differing != len(test.damaged) && test.copied == "" || differing > 0 && test.copied != "" {
				t.Errorf("%s: the owner knows of %d members that differ", name, differing)
			}
			for member, g := range groups {
				if !g.CaughtUp() {
					t.Errorf("%s: %s is not caught up", name, member)
				}
			}
			end()
		})
	}
}

// A member whose view was damaged stayed ready, and became the owner beside two whole views. It takes a copy once another
// member owns the group.
func TestView_DamagedIsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		views := map[string]*view{"a": undamaged(), "b": undamaged(), "c": undamaged()}
		var damaged atomic.Bool
		groups, end := trio(t, views, func(c *replica.Config) {
			member := c.Member
			c.Unfit = func() bool { return member != "a" }
			c.Damaged = func() bool { return member == "b" && damaged.Load() }
			c.Copy = func(_ context.Context, wrong bool, _ func()) error {
				if member != "b" || !wrong {
					t.Error(member, "takes a copy; it is wrong:", wrong)
				}
				damaged.Store(false)
				views[member].lose()
				return views[member].copyFrom(views["a"], 0)
			}
		})
		time.Sleep(2 * time.Second)
		damaged.Store(true)
		time.Sleep(5 * time.Second)
		if damaged.Load() || !groups["b"].CaughtUp() {
			t.Error("the view is still damaged:", damaged.Load(), "; it has caught up:", groups["b"].CaughtUp())
		}
		end()
	})
}

// Two members alone cannot say whose view is right: the standby is not ready, and does not claim the group.
func TestViews_DifferenceOfTwo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		views := map[string]*view{"a": undamaged(), "b": undamaged()}
		groups, end := trio(t, views, func(c *replica.Config) {
			member := c.Member
			c.Unfit = func() bool { return member != "a" }
			c.Copy = func(context.Context, bool, func()) error { t.Error("it takes a copy"); return nil }
		})
		time.Sleep(2 * time.Second)
		v := views["b"]
		v.mu.Lock()
		v.applied[0], v.hashes = "y", nil
		v.mu.Unlock()
		time.Sleep(20 * time.Second)
		groups["a"].HandOver()
		time.Sleep(20 * time.Second)
		if _, own, _ := groups["b"].Owner(); own || groups["b"].CaughtUp() {
			t.Error("it owns the group:", own, "; it is ready:", groups["b"].CaughtUp())
		}
		end()
	})
}

// A log that may not grow is slowed down, and keeps its owner: a copy ends under any rate of changes.
func TestAppend_SlowsWhileTheLogIsFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := memory().Member()
		owned(t, log, func(tenure *replica.Tenure) {
			for range 3 {
				if begun := time.Now(); !tenure.HasSpace() || tenure.Append(make([]byte, 1<<20)) != nil || time.Since(begun) > 100*time.Millisecond {
					t.Error("it is slow with space")
				}
			}
			if begun := time.Now(); tenure.HasSpace() || tenure.Append(make([]byte, 1<<20)) != nil || time.Since(begun) < time.Second || !tenure.Valid() {
				t.Error("it is not slow without space")
			}
			if err := log.Trim(t.Context(), 1<<20); err != nil {
				t.Error(err)
			}
			if begun := time.Now(); !tenure.HasSpace() || tenure.Append([]byte("1")) != nil || time.Since(begun) > 100*time.Millisecond {
				t.Error("it is slow with space again")
			}
		}, func(c *replica.Config) { c.LogBytes = 3 << 20 })
	})
}
