//go:build faults

package replicated

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

var pending = flag.Int("pending", 1_000_000, "how many keys are pending in BenchmarkGroup_Pending")

// How long a group with many pending keys takes to go on without its owner, to hand the group
// over, and to take in a member with an empty directory. It judges only what is lost.
func BenchmarkGroup_Pending(b *testing.B) {
	g := start(b)
	load(g, *pending)
	var stop func()
	for range 3 {
		stop = g.write()
		g.pass(2 * time.Second)
		i := g.owner()
		begun := time.Now()
		g.kill(i)
		g.recovery("kill -9 of the owner", begun)
		begun = time.Now()
		g.launch(i)
		g.readyWithin(i, 5*time.Minute)
		b.Logf("the killed member is ready after %s", time.Since(begun).Round(time.Millisecond))
		stop()
	}
	g.settled()

	stop = g.write()
	g.pass(2 * time.Second)
	i := g.owner()
	disk := watchDisk(b, g.dir)
	leaving := g.withdraw(i)
	g.beStrict(true)
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	if status, _, err := leaving.Terminate(ctx); err != nil || status != 0 {
		b.Fatalf("status %d, %v:\n%s", status, err, leaving.Log())
	}
	g.pass(time.Second)
	g.beStrict(false)
	g.judge(disk)
	b.Logf("SIGTERM of the owner: the longest call took %s", g.longest.Round(time.Millisecond))
	g.launch(i)
	g.readyWithin(i, 5*time.Minute)

	lost := (g.owner() + 1) % 3
	g.lose(lost)
	begun := time.Now()
	g.launch(lost)
	g.readyWithin(lost, 5*time.Minute)
	b.Logf("an empty directory became a member after %s; copies: %v", time.Since(begun).Round(time.Millisecond), g.metric(lost, "reschedule_group_copied_total"))
	g.kill((lost + 1) % 3)
	g.put(g.key(), time.Hour)
	g.known(lost, "million%2F0%2F0")
	g.known(lost, fmt.Sprintf("million%%2F%d%%2F999", (*pending-1)/1000))
	stop()
	g.settled()
}

// load schedules so many keys, a thousand a call.
func load(g *group, keys int) {
	begun := time.Now()
	var next atomic.Int64
	var callers sync.WaitGroup
	for range 3 {
		callers.Go(func() {
			for call := int(next.Add(1)) - 1; call < keys/1000; call = int(next.Add(1)) - 1 {
				var items strings.Builder
				for n := range 1000 {
					fmt.Fprintf(&items, `,{"key":"million/%d/%d","delay":"24h"}`, call, n)
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				r, err := harness.Do(ctx, http.MethodPost, g.url()+"/tests/s/schedules", `{"items":[`+items.String()[1:]+`]}`)
				cancel()
				if err != nil || r.Status != http.StatusOK || strings.Contains(string(r.Body), `"code"`) {
					g.t.Errorf("POST: %v %v", r, err)
					return
				}
			}
		})
	}
	callers.Wait()
	if g.t.Failed() {
		g.t.FailNow()
	}
	g.t.Logf("%d keys are pending after %s", keys, time.Since(begun).Round(time.Millisecond))
}
