package replicated

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// skews are how far the members' clocks are ahead.
var skews = [3]time.Duration{0, 230 * time.Millisecond, 200 * time.Millisecond}

// calls are what callers were promised, by the clock of this process.
type calls struct {
	mu      sync.Mutex
	sent    map[string]time.Time
	delays  map[string]time.Duration
	early   time.Duration // the most
	late    time.Duration
	arrived map[string]bool
}

// Over failovers between machines whose clocks differ, no delay becomes shorter: kill -9 of
// the owner with the slowest clock, and of all.
func TestOwner_KilledWithSkewedClocks(t *testing.T) {
	program := alterable(t)
	g := startWith(t, func(g *group) {
		g.errors = []string{clockIsWrong} // 0.23 s is near the limit, where a busy machine measures more
		g.process = func(i int) harness.Process {
			return harness.Process{Binary: program, Env: []string{"SKEW=" + skews[i].String()}}
		}
	})
	c := &calls{sent: map[string]time.Time{}, delays: map[string]time.Duration{}, arrived: map[string]bool{}}
	g.sink.Answer("s", "", func(w http.ResponseWriter, _ *http.Request, d *harness.Delivery) {
		now := time.Now()
		c.mu.Lock()
		defer c.mu.Unlock()
		if due, is := c.sent[d.Key]; is {
			due = due.Add(c.delays[d.Key])
			// The clock of the group may go faster by 500 parts in a million.
			c.early = max(c.early, due.Sub(now)-c.delays[d.Key]/2000)
			c.late = max(c.late, now.Sub(due))
			c.arrived[d.Key] = true
		}
		w.WriteHeader(http.StatusNoContent)
	})
	for g.owner() != 0 { // the slowest clock
		i := g.owner()
		g.kill(i)
		g.put(g.key(), time.Hour)
		g.launch(i)
		g.ready(i)
	}
	c.promise(g)
	slow := 0
	g.kill(slow)
	g.put(g.key(), time.Hour)
	c.promise(g)
	g.launch(slow)
	g.ready(slow)
	c.promise(g)
	for i := range g.members {
		g.kill(i)
	}
	g.launchAll()
	g.put(g.key(), time.Hour)
	c.promise(g)
	deadline := time.After(harness.Patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		c.mu.Lock()
		left := len(c.sent) - len(c.arrived)
		c.mu.Unlock()
		if left == 0 {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d of %d keys are not delivered", left, len(c.sent))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Logf("%d keys: the earliest %s too early, the latest %s late", len(c.sent), c.early, c.late)
	if c.early > 0 {
		t.Errorf("a key came %s too early", c.early)
	}
}

// promise schedules keys that come due over the next seconds. A call that fails promises nothing.
func (c *calls) promise(g *group) {
	for i := range 60 {
		key, delay := g.key(), 500*time.Millisecond+time.Duration(i)*100*time.Millisecond
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		sent := time.Now()
		r, err := harness.Do(ctx, http.MethodPut, g.url()+"/tests/s/schedules/"+key, fmt.Sprintf(`{"delay":%q}`, delay))
		cancel()
		if err != nil || r.Status >= 300 {
			continue
		}
		c.mu.Lock()
		c.sent[key], c.delays[key] = sent, delay
		c.mu.Unlock()
	}
}

// A member shows how far the other members' clocks are ahead of its own, and says so when its
// own is wrong.
func TestMember_MeasuresClocks(t *testing.T) {
	t.Parallel()
	program := alterable(t)
	g := startWith(t, func(g *group) {
		g.errors = []string{clockIsWrong}
		g.process = func(i int) harness.Process { // c's is ten seconds ahead
			return harness.Process{Binary: program, Env: []string{fmt.Sprintf("SKEW=%ds", i/2*10)}}
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := harness.Do(ctx, http.MethodGet, g.members[0].Admin+"/metrics", "")
		if err != nil {
			t.Fatal(err)
		}
		text := string(r.Body)
		if strings.Contains(text, `reschedule_clock_offset_seconds{peer="c"} 9.9`) || strings.Contains(text, `reschedule_clock_offset_seconds{peer="c"} 10`) {
			break
		}
		<-tick.C
	}
	for !strings.Contains(g.members[2].Log(), clockIsWrong) {
		if ctx.Err() != nil {
			t.Fatal("c does not say that its clock differs too much")
		}
		<-tick.C
	}
	if strings.Contains(g.members[0].Log(), clockIsWrong) || strings.Contains(g.members[1].Log(), clockIsWrong) {
		t.Error("one of the others says so too")
	}
}

// clockIsWrong is an error that a member with a wrong clock logs, as it should.
const clockIsWrong = "this machine's clock differs too much"

// An owner whose clock was set back stays the owner, since another clock would make delays
// shorter. With a clock that is ahead it hands the group over, and owns it no more.
func TestOwner_ClockJumps(t *testing.T) {
	process := patient(t) // a lease of two seconds may end on a busy machine, and with it the ownership
	g := startWith(t, func(g *group) { g.errors, g.process = []string{clockIsWrong}, process })
	i := g.owner()
	jump := func(s syscall.Signal) {
		t.Helper()
		if err := g.members[i].Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	jump(syscall.SIGUSR2)
	g.members[i].AwaitLog(t, clockIsWrong)
	jump(syscall.SIGUSR1)
	g.members[i].AwaitLog(t, "clock agrees with the other members' again")
	if strings.Contains(g.members[i].Log(), "hands the group over") {
		t.Error("with a clock that is behind it hands the group over")
	}
	jump(syscall.SIGUSR1)
	g.members[i].AwaitLog(t, "its clock is ahead", "does not own the group any more")
	g.put(g.key(), 300*time.Millisecond)
	if g.owner() == i {
		t.Error("it owns the group again")
	}
	g.settled()
}
