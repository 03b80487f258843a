//go:build faults

package replicated

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// spent is what calls cost each process.
type spent struct {
	items int64 // a second
	each  []time.Duration
}

// workload is how callers schedule keys.
type workload struct {
	callers int
	batch   int // keys a call
	lasting time.Duration
}

// drive schedules keys at the address of a source, and returns what an item costs each process.
func (g *group) drive(processes []*harness.Adapter, at string, l workload) spent {
	ctx, cancel := context.WithTimeout(context.Background(), l.lasting)
	defer cancel()
	before := make([]time.Duration, len(processes))
	for i, a := range processes {
		before[i] = a.ProcessorTime(g.t)
	}
	data := strings.Repeat("d", 256)
	var items atomic.Int64
	var all sync.WaitGroup
	for range l.callers {
		all.Go(func() {
			for ctx.Err() == nil { // one after the other
				url := at + "/schedules"
				method, body := http.MethodPut, fmt.Sprintf(`{"delay":"24h","event":{"data":%q}}`, data)
				if l.batch > 1 {
					list := make([]string, l.batch)
					for i := range list {
						list[i] = fmt.Sprintf(`{"key":%q,"delay":"24h","event":{"data":%q}}`, g.key(), data)
					}
					method, body = http.MethodPost, `{"items":[`+strings.Join(list, ",")+`]}`
				} else {
					url += "/" + g.key()
				}
				r, err := harness.Do(context.Background(), method, url, body)
				if err != nil || r.Status >= 300 || strings.Contains(string(r.Body), `"code"`) {
					g.t.Errorf("%s: %v %d %s", method, err, r.Status, r.Body)
					return
				}
				items.Add(int64(l.batch))
			}
		})
	}
	all.Wait()
	s := spent{items: items.Load() * int64(time.Second) / int64(l.lasting)}
	for i, a := range processes {
		s.each = append(s.each, (a.ProcessorTime(g.t)-before[i])/time.Duration(max(items.Load(), 1)))
	}
	return s
}

// What a change costs one adapter, the owner of a group, and the members that follow or
// forward it. It judges only that no call fails.
func BenchmarkGroup_Cost(b *testing.B) {
	g := start(b)
	single, err := harness.Launch(harness.Flags(g.sources, filepath.Join(g.dir, "single"))...)
	if err != nil {
		b.Fatal(err)
	}
	defer single.Kill()
	owner := g.owner()
	members := []*harness.Adapter{g.members[owner], g.members[(owner+1)%3], g.members[(owner+2)%3]}
	for _, batch := range []int{1, 100} {
		l := workload{callers: 32, batch: batch, lasting: 5 * time.Second}
		var alone, direct, forwarded []spent
		for range 3 {
			alone = append(alone, g.drive([]*harness.Adapter{single}, single.URL+source, l))
			direct = append(direct, g.drive(members, members[0].URL+source, l))
			forwarded = append(forwarded, g.drive(members, members[1].URL+source, l))
		}
		b.Logf("%d a call: an item costs one adapter %s (%d/s); called at the owner %s (%d/s); called at the first follower %s (%d/s): owner, followers",
			batch, median(alone).each, median(alone).items, median(direct).each, median(direct).items, median(forwarded).each, median(forwarded).items)
	}
	if g.owner() != owner {
		b.Error("the group went to another member meanwhile")
	}
}

// median is the round with the middle rate.
func median(rounds []spent) spent {
	slices.SortFunc(rounds, func(a, b spent) int { return int(a.items - b.items) })
	return rounds[len(rounds)/2]
}
