package replicated

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// startGroups starts groups of three, each with a source. Callers call the members of two.
func startGroups(t testing.TB, n int) []*group {
	t.Helper()
	var groups []*group
	var peers []string
	var manifests [][]byte
	for shard := range n {
		g := prepare(t, func(g *group) { g.shard, g.source = shard, fmt.Sprintf("s%d", shard) })
		text, err := os.ReadFile(g.sources)
		if err != nil {
			t.Fatal(err)
		}
		groups, peers, manifests = append(groups, g), append(peers, g.peers), append(manifests, text)
	}
	for i, g := range groups {
		g.peers, g.beside = strings.Join(peers, ","), groups[(i+1)%n]
		if err := os.WriteFile(g.sources, bytes.Join(manifests, []byte("---\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	launchGroups(groups)
	return groups
}

// launchGroups starts all members of all groups, and waits until each group has an owner.
func launchGroups(groups []*group) {
	t := groups[0].t
	t.Helper()
	var all sync.WaitGroup
	for _, g := range groups {
		for i := range g.members {
			all.Go(func() { g.launch(i) })
		}
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, g := range groups {
		g.put(g.key(), time.Hour)
	}
}

// shardLabel is the label of the metrics of a group.
func (g *group) shardLabel() string { return fmt.Sprintf(`{shard="%d"}`, g.shard) }

// Any member of any group answers each call for any source, the streams too. A source that no
// member knows is 404.
func TestGroups_AnyMemberAnswers(t *testing.T) {
	groups := startGroups(t, 2)
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	for _, g := range groups {
		for _, at := range append(groups[0].members[:], groups[1].members[:]...) {
			key := g.key()
			for _, call := range []struct {
				method, path, body string
				status             int
			}{
				{http.MethodPut, "/schedules/" + key, `{"delay":"1h"}`, 201},
				{http.MethodGet, "/schedules/" + key, "", 200},
				{http.MethodGet, "/schedules", "", 200},
				{http.MethodGet, "/schedules/" + key + "/history", "", 200},
				{http.MethodGet, "/deadletters", "", 200},
				{http.MethodGet, "", "", 200},
				{http.MethodPost, "/schedules", `{"items":[{"key":"b","delay":"1h","event":{"data":"` + strings.Repeat("d", 100_000) + `"}}]}`, 200},
				{http.MethodDelete, "/schedules/" + key, "", 204},
				{http.MethodGet, "-unknown/schedules/" + key, "", 404},
			} {
				r, err := harness.Do(ctx, call.method, at.URL+g.path()+call.path, call.body)
				if err != nil || r.Status != call.status {
					t.Errorf("%s %s: %v %v, want %d", call.method, call.path, r, err, call.status)
				}
			}
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.URL+g.path()+"/events", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := http.DefaultClient.Do(request)
			if err != nil || answer.StatusCode != http.StatusOK || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") {
				t.Fatalf("events: %v %v", answer, err)
			}
			_ = answer.Body.Close()
		}
	}
}

// The owner of one group is killed: the other group goes on without a failed call.
func TestGroups_OwnerKilled(t *testing.T) {
	groups := startGroups(t, 2)
	steady, g := groups[0], groups[1]
	stopSteady, stop := steady.write(), g.write()
	i := g.owner()
	g.mu.Lock()
	g.avoid = i // calls under way at the member itself fail
	g.mu.Unlock()
	g.pass(500 * time.Millisecond)
	disk := watchDisk(t, steady.dir)
	steady.mu.Lock()
	steady.strict = true
	steady.mu.Unlock()
	begun := time.Now()
	g.kill(i)
	g.recovery("kill -9 of the owner of group 1", begun)
	g.pass(500 * time.Millisecond)
	stopSteady()
	stop()
	steady.judge(disk)
	t.Logf("the longest call in group 0 meanwhile took %s", steady.longest.Round(time.Millisecond))
	if steady.longest > 3*time.Second && disk.longest() < excuse {
		t.Errorf("a call in group 0 took %s", steady.longest)
	}
	g.avoid = -1
	g.launch(i)
	steady.settled()
	g.settled()
}

// Calls at all members of two groups, while members of the group that has the source are killed,
// stopped and ended, are as calls of one adapter, one after the other.
func TestGroups_AreLinearisable(t *testing.T) {
	groups := startGroups(t, 2)
	stop := groups[1].write()
	judge(groups[1], min(*chaos, 5*time.Minute))
	stop()
	groups[1].settled()
}

// Each of two groups is restored from a back-up of its own.
func TestGroups_Restored(t *testing.T) {
	t.Parallel()
	groups := startGroups(t, 2)
	late := make([]string, len(groups))
	for n, g := range groups {
		late[n] = g.key()
		g.put(late[n], 24*time.Hour)
		g.mustRun((g.owner()+1)%3, "adapter-replicated backup")
	}
	for _, g := range groups {
		for i := range g.members {
			g.lose(i)
			g.mustRun(i, "adapter-replicated restore")
		}
	}
	launchGroups(groups)
	for n, g := range groups {
		for i := range g.members {
			g.known(i, late[n])
		}
	}
}
