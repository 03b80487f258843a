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
	batch   int           // keys a call
	every   time.Duration // each caller begins a call so often, 0 = when the last one has ended
	lasting time.Duration
}

// drive schedules keys at the addresses of a source, and returns what an item costs each process.
func (g *group) drive(processes []*harness.Adapter, at []string, l workload) spent {
	ctx, cancel := context.WithTimeout(context.Background(), l.lasting)
	defer cancel()
	before := make([]time.Duration, len(processes))
	for i, a := range processes {
		before[i] = a.ProcessorTime(g.t)
	}
	data := strings.Repeat("d", 256)
	var items atomic.Int64
	var all sync.WaitGroup
	for caller := range l.callers {
		all.Go(func() {
			for next := time.Now().Add(l.every * time.Duration(caller) / time.Duration(l.callers)); ctx.Err() == nil; { // one after the other
				if l.every > 0 {
					next = next.Add(l.every)
					<-time.After(time.Until(next))
				}
				url := at[caller%len(at)] + "/schedules"
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

// rest returns how many processors the processes keep busy without a call.
func rest(b *testing.B, processes []*harness.Adapter, lasting time.Duration) float64 {
	b.Helper()
	var spent time.Duration
	for _, a := range processes {
		spent -= a.ProcessorTime(b)
	}
	<-time.After(lasting) // what is measured is what happens meanwhile
	for _, a := range processes {
		spent += a.ProcessorTime(b)
	}
	return spent.Seconds() / lasting.Seconds()
}

// pace is how often each caller begins a call where machines must not be busy: 32 callers of a group make 500
// calls a second.
const pace = 64 * time.Millisecond

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
			alone = append(alone, g.drive([]*harness.Adapter{single}, []string{single.URL + g.path()}, l))
			direct = append(direct, g.drive(members, []string{members[0].URL + g.path()}, l))
			forwarded = append(forwarded, g.drive(members, []string{members[1].URL + g.path()}, l))
		}
		b.Logf("%d a call: an item costs one adapter %s (%d/s); called at the owner %s (%d/s); called at the first follower %s (%d/s): owner, followers",
			batch, median(alone).each, median(alone).items, median(direct).each, median(direct).items, median(forwarded).each, median(forwarded).items)
	}
	if g.owner() != owner {
		b.Error("the shard went to another member meanwhile")
	}
}

// What a change costs where there are several groups, called at its owner, at a member that
// follows the owner, at a member of another group, and at any member; and of one group while the
// others do nothing, which shows what they take from each other on one machine. Twice for a PUT: as fast as the
// machine can, and at a rate for each group that leaves processors idle, as a machine for each member does. The
// groups are started anew for each round, in turns.
func BenchmarkGroups_Cost(b *testing.B) {
	sizes := []int{1, 2, 4, 8}
	type run struct {
		size, batch int
		at          string
		paced       bool
	}
	all := map[run][]spent{}
	var order []run
	for range 3 {
		for _, size := range sizes {
			groups := startGroups(b, size)
			var processes []*harness.Adapter // owners first
			owners := make([]int, size)
			for i, g := range groups {
				owners[i] = g.owner()
				processes = append(processes, g.members[owners[i]])
			}
			at := map[string][]string{}
			for i, g := range groups {
				beside := groups[(i+1)%size]
				for n, a := range g.members {
					if n != owners[i] {
						processes = append(processes, a)
					}
				}
				at["owner"] = append(at["owner"], g.members[owners[i]].URL+g.path())
				at["follower"] = append(at["follower"], g.members[(owners[i]+1)%3].URL+g.path())
				if size > 1 {
					at["another group"] = append(at["another group"], beside.members[(owners[(i+1)%size]+1)%3].URL+g.path())
				}
			}
			if size > 1 {
				at["one owner, while the other groups are idle"] = at["owner"][:1]
			}
			for n := range 3 * size { // so that the callers of each source are spread
				for _, g := range groups {
					at["any member"] = append(at["any member"], groups[n/3].members[n%3].URL+g.path())
				}
			}
			for _, kind := range []run{{batch: 1}, {batch: 100}, {batch: 1, paced: true}} {
				for _, where := range []string{"owner", "follower", "another group", "any member", "one owner, while the other groups are idle"} {
					if at[where] == nil {
						continue
					}
					r := run{size, kind.batch, where, kind.paced}
					if all[r] == nil {
						order = append(order, r)
					}
					// As many for each group: the appends of few callers hold fewer changes each.
					l := workload{callers: 32 * size, batch: r.batch, lasting: 3 * time.Second}
					if len(at[where]) < size {
						l.callers = 32
					}
					if r.paced {
						l.every = pace
					}
					s := groups[0].drive(processes, at[where], l)
					all[r] = append(all[r], s)
					b.Logf("%v: %d/s", r, s.items)
				}
			}
			b.Logf("%d groups without a call: all spend %.1f %% of a processor", size, rest(b, processes, 3*time.Second)*100)
			for i, g := range groups {
				if g.owner() != owners[i] {
					b.Errorf("shard %d went to another member meanwhile", i)
				}
				for n := range g.members {
					g.kill(n)
				}
			}
		}
	}
	for _, r := range order {
		s := median(all[r])
		var owners, others time.Duration
		for i, each := range s.each {
			if i < r.size {
				owners += each
			} else {
				others += each
			}
		}
		paced := ""
		if r.paced {
			paced = ", 500 calls a second for each group"
		}
		b.Logf("%d groups, %d a call, at %s%s: an item costs the owners %s, the others %s, all %s (%d/s)", r.size, r.batch, r.at, paced, owners, others, owners+others, s.items)
	}
}

// median is the round with the middle rate.
func median(rounds []spent) spent {
	slices.SortFunc(rounds, func(a, b spent) int { return int(a.items - b.items) })
	return rounds[len(rounds)/2]
}
