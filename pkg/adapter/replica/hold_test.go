package replica_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// away runs an owner that appends a kilobyte ten times a second, a standby, and after a minute a member with an empty view.
func away(t *testing.T, views map[string]*view, change func(*replica.Config)) (groups map[string]*replica.Group, begin func(name string), end func()) {
	t.Helper()
	log, groups := memory(), map[string]*replica.Group{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 3)
	begin = func(name string) {
		cfg := replica.Config{
			Member: name, Members: []string{"a", "b", "c"}, Log: log.Member(), View: views[name], Silence: silence, Keep: 16 << 10,
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
		copies := 0
		groups, begin, end := away(t, views, func(c *replica.Config) {
			c.Copy = func(context.Context, bool) error {
				copies++
				return views["c"].copyFrom(views["a"], time.Minute)
			}
		})
		begin("c")
		time.Sleep(2 * time.Minute)
		if copies != 1 || !groups["c"].CaughtUp() {
			t.Errorf("after two minutes %d copies were taken; caught up: %t", copies, groups["c"].CaughtUp())
		}
		if behind := groups["a"].Reached() - groups["a"].Trimmed(); behind > 200 {
			t.Errorf("%d entries are kept after the copy", behind)
		}
		end()
	})
}
