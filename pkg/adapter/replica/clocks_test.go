package replica_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/replicatest"
)

// A clock is wrong when it is off the median of all three, which must be known.
func TestClocks_Off(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		b, c time.Duration
		off  bool
		fast bool
	}{
		{0, 0, false, false},
		{200 * time.Millisecond, 240 * time.Millisecond, false, false},
		{400 * time.Millisecond, 300 * time.Millisecond, true, false},
		{-400 * time.Millisecond, -300 * time.Millisecond, true, true},
		{time.Hour, -time.Hour, false, false},
		{time.Hour, 0, false, false},
		{255 * time.Millisecond, 255 * time.Millisecond, false, false}, // it may be the error
	} {
		synctest.Test(t, func(t *testing.T) {
			c := replica.NewClocks("a", 2)
			if c.Agrees() {
				t.Error("without an answer it is not known whether the clock is right")
			}
			c.Record("b", replica.Offset{By: test.b, Error: 10 * time.Millisecond})
			if c.ExceedsLimit() || c.Agrees() != (test.b.Abs() < time.Second) {
				t.Errorf("of two clocks either may be wrong; %s apart: agrees: %v", test.b, c.Agrees())
			}
			c.Record("c", replica.Offset{By: test.c, Error: 10 * time.Millisecond})
			if off, fast := c.ExceedsLimit(), c.IsAhead(); off != test.off || fast != test.fast {
				t.Errorf("%s and %s: off %v, fast %v", test.b, test.c, off, fast)
			}
			time.Sleep(time.Minute)
			if c.ExceedsLimit() || len(c.Offsets()) != 0 {
				t.Error("an old measurement counts")
			}
		})
	}
}

// claimants are members that say when they own the group, and own it until they are ended.
type claimants struct {
	log     *replicatest.Memory
	owner   chan string
	running sync.WaitGroup
}

func newClaimants() *claimants {
	return &claimants{log: replicatest.NewMemory(rand.New(rand.NewPCG(1, 2)), replicatest.Faults{}), owner: make(chan string, 2)}
}

func (c *claimants) start(ctx context.Context, t *testing.T, name string, clocks *replica.Clocks) {
	t.Helper()
	g := replica.New(replica.Config{
		Member: name, Members: []string{"a", "b", "c"}, Log: c.log.Member(), View: undamaged(), Silence: silence, Clocks: clocks,
		Own: func(ctx context.Context, _ *replica.Tenure) {
			c.owner <- name
			<-ctx.Done()
		},
	})
	c.running.Go(func() {
		if err := g.Run(ctx); err != nil {
			t.Error(err)
		}
	})
}

// A new group, or a restored one, delivered all keys early by minutes where a member whose clock is ahead had claimed before
// it had measured the others. The one behind claims where the third does not answer, since nothing is early then. Where
// no other member answers, a member claims at last.
func TestClocks_FirstStartIsNotEarly(t *testing.T) {
	t.Parallel()
	for answered := range 3 { // others that a has measured when it starts
		synctest.Test(t, func(t *testing.T) {
			claimants := newClaimants()
			ctx, cancel := context.WithCancel(context.Background())
			began := time.Now()
			start := func(name string, offsets ...time.Duration) {
				clocks := replica.NewClocks(name, 2)
				for i, by := range offsets {
					clocks.Record([]string{"x", "y"}[i], replica.Offset{By: by, Error: 10 * time.Millisecond})
				}
				claimants.start(ctx, t, name, clocks)
			}
			start("a", []time.Duration{-10 * time.Minute, -10 * time.Minute}[:answered]...)
			time.Sleep(4 * silence)
			switch answered {
			case 0: // the others never start
			case 1:
				start("b", 10*time.Minute)
			default:
				start("b", 10*time.Minute, 10*time.Millisecond)
			}
			first, after := <-claimants.owner, time.Since(began)
			if (first == "a") != (answered == 0) || after < 4*silence || after > 10*silence {
				t.Errorf("with %d measured %s claims it after %s", answered, first, after)
			}
			cancel()
			claimants.running.Wait()
		})
	}
}

// A member whose clock is wrong claims the group only after a long silence.
func TestClocks_WrongOneClaimsLast(t *testing.T) {
	t.Parallel()
	for _, others := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			claimants := newClaimants()
			ctx, cancel := context.WithCancel(context.Background())
			began := time.Now()
			for i, name := range []string{"a", "b"}[:1+others] {
				clocks := replica.NewClocks(name, 2)
				for _, other := range []string{"x", "y"} { // a's is wrong
					clocks.Record(other, replica.Offset{By: time.Duration(1-i) * time.Second})
				}
				claimants.start(ctx, t, name, clocks)
			}
			switch first, after := <-claimants.owner, time.Since(began); {
			case others > 0 && (first != "b" || after > 2*silence):
				t.Errorf("%s claims it after %s", first, after)
			case others == 0 && (after < 4*silence || after > 6*silence):
				t.Errorf("the only member claims it after %s", after)
			}
			cancel()
			claimants.running.Wait()
		})
	}
}

// While a member is cut off, one whose clock is behind owns the group and releases it. The
// member then holds its own clock back, though it has heard of the release alone.
func TestClocks_ReleaseByUnheardOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ahead = 500 * time.Millisecond
		log := replicatest.NewMemory(rand.New(rand.NewPCG(1, 2)), replicatest.Faults{})
		a, b := log.Member(), log.Member()
		owned := make(chan *replica.Tenure)
		g := replica.New(replica.Config{
			Member: "a", Members: []string{"a", "b", "c"}, Log: a, View: &view{disk: &disk{}, check: func(uint64, string) {}}, Silence: silence,
			Wall: func() time.Time { return time.Now().Add(ahead) },
			Own: func(ctx context.Context, tenure *replica.Tenure) {
				owned <- tenure
				<-ctx.Done()
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := g.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		<-owned
		a.Cut(true, false)
		time.Sleep(silence)
		if err := b.Mark(ctx, "b", 0); err != nil { // from then on it has all of the log
			t.Fatal(err)
		}
		seen, err := b.State(ctx)
		if err != nil {
			t.Fatal(err)
		}
		epoch, err := b.Claim(ctx, seen, replica.Owner{Member: "b", Claim: "b/1", Clock: "b", Format: replica.Format}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Release(ctx, epoch, replica.Owner{Clock: "b", Format: replica.Format}, time.Now()); err != nil {
			t.Fatal(err)
		}
		a.Cut(false, false)
		if after := time.Until((<-owned).Now()); after > 0 {
			t.Errorf("the group's clock is %s ahead of the last owner's", after)
		}
		cancel()
		running.Wait()
	})
}
