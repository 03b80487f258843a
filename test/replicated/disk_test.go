package replicated

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// lose ends a member and removes its directory.
func (g *group) lose(i int) {
	g.kill(i)
	if err := os.RemoveAll(filepath.Join(g.dir, name(i))); err != nil {
		g.t.Fatal(err)
	}
}

// ready waits until the member has caught up.
func (g *group) ready(i int) { g.readyWithin(i, 2*harness.Patience) }

func (g *group) readyWithin(i int, d time.Duration) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		r, err := harness.Do(ctx, http.MethodGet, g.members[i].Admin+"/readyz", "")
		if err == nil && r.Status == http.StatusOK {
			return
		}
		if ctx.Err() != nil {
			g.t.Fatalf("%s is not ready", name(i))
		}
	}
}

// known reads the key at the member.
func (g *group) known(i int, key string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	r, err := harness.Do(ctx, http.MethodGet, g.members[i].URL+source+"/schedules/"+key, "", g.headers...)
	if err != nil || r.Status != http.StatusOK {
		g.t.Errorf("%s does not know %s: %v %v", name(i), key, r, err)
	}
}

// A member that has lost its disk joins again by itself while callers write, with all that
// was acknowledged: then another one may be lost.
func TestMember_LostDisk(t *testing.T) {
	t.Parallel()
	g := start(t)
	stop := g.write()
	g.pass(time.Second)
	late := g.key()
	g.put(late, 24*time.Hour)
	lost := g.owner()
	begun := time.Now()
	g.lose(lost)
	g.recovery("the loss of the owner's disk", begun)
	begun = time.Now()
	g.launch(lost)
	g.ready(lost)
	t.Logf("with an empty directory it is a member again after %s", time.Since(begun).Round(time.Millisecond))
	g.pass(time.Second)
	other := (lost + 1) % 3
	begun = time.Now()
	g.kill(other)
	g.recovery("kill -9 of another one", begun)
	g.known(lost, late)
	stop()
	g.settled()
}

// metric reads a metric of a member, 0 when it is not there.
func (g *group) metric(i int, name string) float64 {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	r, err := harness.Do(ctx, http.MethodGet, g.members[i].Admin+"/metrics", "")
	if err != nil {
		g.t.Fatal(err)
	}
	for line := range strings.Lines(string(r.Body)) {
		if text, is := strings.CutPrefix(line, name+" "); is {
			value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				g.t.Fatal(err)
			}
			return value
		}
	}
	return 0
}

// A member that is away while more is written than the log keeps takes a copy of another
// member's view: the log is trimmed meanwhile.
func TestMember_AwayBeyondTheLog(t *testing.T) {
	t.Parallel()
	g := start(t)
	owner := g.owner()
	away := (owner + 1) % 3
	applied := g.metric(away, "reschedule_group_applied")
	g.kill(away)
	body := func(round int) string { // an event that stays as it is would not be written again
		var items []string
		event := fmt.Sprintf(`{"type":"t","data":%q}`, strings.Repeat(string(rune('a'+round%2)), 250<<10))
		for n := range 12 {
			items = append(items, fmt.Sprintf(`{"key":"large/%d","delay":"24h","event":%s}`, n, event))
		}
		return `{"items":[` + strings.Join(items, ",") + `]}`
	}
	ctx, cancel := context.WithTimeout(context.Background(), 6*harness.Patience)
	defer cancel()
	for written, round := 0, 0; written < 72<<20; round++ { // replica.KeepBytes are 64 MiB
		large := body(round)
		r, err := harness.Do(ctx, http.MethodPost, g.url()+"/tests/s/schedules", large)
		if err != nil || r.Status != http.StatusOK && r.Status != http.StatusServiceUnavailable {
			t.Fatal(r, err)
		}
		if r.Status == http.StatusOK {
			written += len(large)
		}
	}
	last := g.key()
	g.put(last, 24*time.Hour)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for g.metric(owner, "reschedule_group_trimmed") <= applied+1 {
		<-tick.C
		if ctx.Err() != nil {
			t.Fatal("the log is kept for the member that is away")
		}
		owner = g.owner()
	}
	begun := time.Now()
	g.launch(away)
	g.ready(away)
	t.Logf("it has caught up after %s", time.Since(begun).Round(time.Millisecond))
	if n := g.metric(away, "reschedule_group_copied_total"); n != 1 {
		t.Errorf("it took %v copies", n)
	}
	g.kill((away + 1) % 3)
	g.put(g.key(), time.Hour)
	g.known(away, last)
	g.known(away, "large%2F11")
}

// A replacement that is cut off at any moment goes on at the next start.
func TestMember_ReplacementCutOff(t *testing.T) {
	t.Parallel()
	g := start(t)
	late := g.key()
	g.put(late, 24*time.Hour)
	lost := (g.owner() + 1) % 3
	g.lose(lost)
	for cut := range 6 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(100+cut*250+rand.IntN(250))*time.Millisecond)
		if out, err := exec.CommandContext(ctx, program, g.flags(lost)...).CombinedOutput(); ctx.Err() == nil { // kill -9
			t.Errorf("it ended by itself: %v\n%s", err, out)
		}
		cancel()
	}
	g.launch(lost)
	g.ready(lost)
	g.kill((lost + 1) % 3)
	g.put(g.key(), time.Hour)
	g.known(lost, late)
}

// A member that loses its disk within the first second of its group joins again. The others have no record of it yet:
// it took itself for a new member, and etcd refused it at each start.
func TestMember_DiskLostAtOnce(t *testing.T) {
	t.Parallel()
	g := start(t)
	lost := rand.IntN(3)
	g.lose(lost)
	g.launch(lost)
	g.ready(lost)
	g.put(g.key(), time.Hour)
	g.kill((lost + 1) % 3)
	g.put(g.key(), time.Hour) // the member counts
}

// Where two of three have lost their disks no member knows all that was acknowledged: they
// refuse, and say what to do.
func TestGroup_TwoLostDisks(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.put(g.key(), time.Hour)
	g.lose(1)
	g.lose(2)
	var both sync.WaitGroup
	for _, i := range []int{1, 2} {
		both.Go(func() {
			a, err := harness.Process{Binary: program}.Launch(g.flags(i)...)
			if err == nil {
				a.Kill()
				t.Errorf("%s started", name(i))
			} else if !strings.Contains(err.Error(), "more than one member has lost its disk") {
				t.Error(err)
			}
		})
	}
	both.Wait()
}

// A back-up of any member, restored into three empty directories, is a new group.
func TestGroup_Restored(t *testing.T) {
	t.Parallel()
	g := start(t)
	late := g.key()
	g.put(late, 24*time.Hour)
	g.mustRun((g.owner()+1)%3, "adapter-replicated backup")
	for i := range g.members {
		g.lose(i)
		g.mustRun(i, "adapter-replicated restore")
	}
	g.launchAll()
	g.put(g.key(), time.Hour)
	for i := range g.members {
		g.known(i, late)
	}
}
