package replicated

import (
	"cmp"
	"context"
	"flag"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// hack/test-upgrade.sh sets it.
var older = flag.String("upgrade.from", "", "PROGRAM of an older member; default this one, which shows that load outlives restarts")

// The members are replaced by this version, one after the other, and one of them by the older version again meanwhile,
// under load: they work together, and nothing acknowledged is lost.
func TestUpgrade_MemberByMember(t *testing.T) {
	t.Parallel()
	from := cmp.Or(*older, program)
	g := startWith(t, func(g *group) { g.process = func(int) harness.Process { return harness.Process{Binary: from} } })
	late := g.key()
	g.put(late, 24*time.Hour)
	stop := g.write()
	for _, step := range []struct {
		member  int
		program string
	}{{0, program}, {1, program}, {1, from}, {1, program}, {2, program}} {
		g.mu.Lock()
		a := g.members[step.member]
		g.avoid = step.member
		g.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
		if status, _, err := a.Terminate(ctx); err != nil || status != 0 {
			t.Fatalf("SIGTERM of %s: status %d, %v", name(step.member), status, err)
		}
		cancel()
		g.process = func(int) harness.Process { return harness.Process{Binary: step.program} }
		g.launch(step.member)
		g.ready(step.member)
		g.setAvoided(-1)
		g.pass(500 * time.Millisecond)
	}
	stop()
	g.settled()
	for i := range g.members {
		g.known(i, late)
	}
}
