package replica_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/replicatest"
)

// oldView understands entries up to its level; an entry is its level.
type oldView struct {
	view
	level int
}

func (v *oldView) Apply(seq uint64, data []byte) error {
	if data[0] > byte('0'+v.level) {
		return replica.ErrLevel
	}
	return v.view.Apply(seq, data)
}

// The owner writes the new form once all members have said that they understand it. A member
// that has gone back to an older program stops there: it applies nothing, is not caught up,
// claims nothing, and goes on once it is the newer program again.
func TestGroup_OldProgramStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := replicatest.NewMemory(rand.New(rand.NewPCG(1, 1)), replicatest.Faults{})
		names := []string{"a", "b", "c"}
		views := map[string]*oldView{}
		owned := map[string]int{}
		start := func(name string, level int) (*replica.Group, func()) {
			v := views[name]
			if v == nil {
				v = &oldView{view: view{disk: &disk{}, check: func(uint64, string) {}}}
				views[name] = v
			}
			v.level = level
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			g := replica.New(replica.Config{
				Member: name, Members: names, Log: log.Member(), View: v, Silence: silence, Level: level,
				Own: func(ctx context.Context, tenure *replica.Tenure) {
					owned[name]++
					for ctx.Err() == nil {
						if tenure.Append(fmt.Append(nil, tenure.Level())) != nil {
							return
						}
						time.Sleep(100 * time.Millisecond)
					}
				},
			})
			go func() {
				defer close(ended)
				if err := g.Run(ctx); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}()
			return g, func() { cancel(); <-ended }
		}
		newest := func(name string) string {
			v := views[name]
			v.mu.Lock()
			defer v.mu.Unlock()
			return v.applied[len(v.applied)-1]
		}
		_, endA := start("a", 2)
		time.Sleep(time.Second)
		_, endB := start("b", 2)
		_, endC := start("c", 1)
		time.Sleep(5 * time.Second)
		if got := newest("a"); got != "1" || newest("c") != "1" {
			t.Errorf("with an old program among them the owner wrote %s", got)
		}
		endC()
		_, endC = start("c", 2)
		time.Sleep(5 * time.Second)
		if got := newest("a"); got != "2" || newest("c") != "2" {
			t.Errorf("with new programs alone the owner wrote %s", got)
		}
		endC()
		at, tenures := views["c"].Applied(), owned["c"]
		old, endC := start("c", 1)
		time.Sleep(5 * time.Second)
		if views["c"].Applied() != at || old.CaughtUp() || owned["c"] != tenures {
			t.Errorf("the old program is at %d, was %d; caught up: %v; tenures: %d, were %d", views["c"].Applied(), at, old.CaughtUp(), owned["c"], tenures)
		}
		if owner, _, _ := old.Owner(); owner.Member == "" || owner.Member == "c" {
			t.Errorf("it does not know the owner: %+v", owner)
		}
		endC()
		again, endC := start("c", 2)
		time.Sleep(time.Second)
		if !again.CaughtUp() || views["c"].Applied() <= at {
			t.Error("the new program does not go on")
		}
		endA()
		endB()
		endC()
	})
}
