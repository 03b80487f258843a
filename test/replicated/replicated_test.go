package replicated

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// program is the binary of the members. More are built in programs.
var program, programs string

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(dir string) (func() error, error) {
		programs = dir
		program = filepath.Join(dir, "adapter-replicated")
		return func() error { return nil }, harness.Build(program, "github.com/reschedule-dev/reschedule/cmd/adapter-replicated")
	}))
}

const manifest = `apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: s, namespace: tests}
spec:
  sink: {uri: %q}
  delivery: {backoffDelay: PT0.05S, timeout: PT5S}
  limits: {maxInFlight: 200, maxPending: 2000000}
`

// group is three processes, with the sink, and with callers.
type group struct {
	*deliveries
	*callers
	t       testing.TB
	sink    *harness.Sink
	dir     string
	sources string
	peers   string
	ports   [3]string           // of the logs
	members [3]*harness.Adapter // nil: it is down
	ran     []ran               // all processes so far
	process func(i int) harness.Process
	host    string               // of the members' addresses
	more    func(i int) []string // flags
	errors  []string             // what members may log as an error, see checkErrors

	mu    sync.Mutex // guards members, ran and avoid
	avoid int        // the member that callers do not call; -1: none
}

func start(t testing.TB) *group {
	return startWith(t, func(*group) {})
}

func startWith(t testing.TB, set func(g *group)) *group {
	g := prepare(t, set)
	g.launchAll()
	g.put(g.key(), time.Hour) // there is an owner
	return g
}

// prepare makes a group whose members are not started.
func prepare(t testing.TB, set func(g *group)) *group {
	g := &group{t: t, sink: harness.NewSink(), dir: t.TempDir(), avoid: -1, deliveries: newDeliveries(t)}
	g.callers = &callers{t: t, at: g.url, acked: map[string]time.Time{}}
	g.process, g.host = func(int) harness.Process { return harness.Process{Binary: program} }, "127.0.0.1"
	g.more = func(int) []string { return nil }
	set(g)
	t.Cleanup(g.sink.Close)
	g.sink.Answer("s", "", g.deliver)
	g.deliverTo(g.sink.URL)
	var peers []string
	for i := range g.members {
		address, err := harness.FreePair()
		if err != nil {
			t.Fatal(err)
		}
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		g.ports[i] = port
		peers = append(peers, name(i)+"="+net.JoinHostPort(g.host, port))
	}
	g.peers = strings.Join(peers, ",")
	t.Cleanup(func() {
		for i, a := range g.members {
			if a != nil {
				a.Kill()
				if t.Failed() {
					t.Logf("%s said:\n%s", name(i), a.Log())
				}
			}
		}
		g.checkErrors()
	})
	return g
}

// deliverTo writes the manifest of the source.
func (g *group) deliverTo(url string) {
	g.sources = filepath.Join(g.dir, "sources.yaml")
	if err := os.WriteFile(g.sources, fmt.Appendf(nil, manifest, url+"/s"), 0o600); err != nil {
		g.t.Fatal(err)
	}
}

// launchAll starts all members, as a first start needs it.
func (g *group) launchAll() {
	g.t.Helper()
	var all sync.WaitGroup
	for i := range g.members {
		all.Go(func() { g.launch(i) })
	}
	all.Wait()
	if g.t.Failed() {
		g.t.FailNow()
	}
}

func name(i int) string { return string(rune('a' + i)) }

func (g *group) flags(i int) []string {
	own := append([]string{"--replicated", "--member", name(i), "--peers", g.peers}, g.more(i)...)
	return harness.Flags(g.sources, filepath.Join(g.dir, name(i)), own...)
}

func (g *group) launch(i int) {
	a, err := g.process(i).Launch(g.flags(i)...)
	if err != nil {
		g.t.Error(err)
		return
	}
	g.mu.Lock()
	g.members[i], g.ran = a, append(g.ran, ran{name(i), a})
	g.mu.Unlock()
}

func (g *group) kill(i int) {
	if a := g.withdraw(i); a != nil {
		a.Kill()
	}
}

// withdraw takes a member from callers, for the test to end it; nil: it is down.
func (g *group) withdraw(i int) *harness.Adapter {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.members[i]
	g.members[i] = nil
	return a
}

// setAvoided lets callers avoid a member; -1: none.
func (g *group) setAvoided(i int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.avoid = i
}

// source is the path of the source.
const source = "/tests/s"

// url is the address of a member that runs, at random.
func (g *group) url() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		if i := rand.IntN(3); g.members[i] != nil && i != g.avoid {
			return g.members[i].URL
		}
	}
}

// owner waits until a member says that it owns the group.
func (g *group) owner() int {
	begun := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		for i := range g.members {
			g.mu.Lock()
			a := g.members[i]
			g.mu.Unlock()
			if a == nil {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			owns := a.OwnsGroup(ctx)
			cancel()
			if owns {
				return i
			}
		}
		if time.Since(begun) > harness.Patience {
			break
		}
	}
	g.t.Fatal("there is no owner")
	return 0
}

// settled waits until all that was acknowledged has been delivered, for as long as ever more
// of it is: callers are faster than a sink that works on each delivery. They have ended.
func (g *group) settled() {
	g.t.Helper()
	missing, total := g.expected()
	least, since := math.MaxInt, time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		missing = g.missing(missing)
		switch n := len(missing); {
		case n == 0:
			g.t.Logf("%d keys were acknowledged, and delivered", total)
			return
		case n < least:
			least, since = n, time.Now()
		case time.Since(since) > harness.Patience:
			g.t.Fatalf("%d of %d keys were not delivered, %s among them", n, total, missing[0])
		}
	}
}

// recovery measures how long the first acknowledged change and the first delivery take.
func (g *group) recovery(what string, begun time.Time) {
	g.t.Helper()
	g.put(g.key(), 0)
	write := time.Since(begun)
	deadline := time.After(harness.Patience)
	for {
		last, delivered := g.newest()
		if last.After(begun.Add(200 * time.Millisecond)) {
			first := time.Since(begun)
			g.t.Logf("%s: the first acknowledged change after %s, a delivery after %s", what, write.Round(time.Millisecond), first.Round(time.Millisecond))
			if max(write, first) > 10*time.Second {
				g.t.Errorf("%s took %s and %s", what, write, first)
			}
			return
		}
		select {
		case <-delivered:
		case <-deadline:
			g.t.Fatalf("%s: nothing is delivered", what)
		}
	}
}

// kill -9 of the owner, again and again: the others go on, nothing acknowledged is lost.
func TestOwner_Killed(t *testing.T) {
	g := start(t)
	stop := g.write()
	for range 3 {
		g.pass(1500 * time.Millisecond)
		i := g.owner()
		begun := time.Now()
		g.kill(i)
		g.recovery("kill -9 of the owner", begun)
		g.launch(i)
	}
	stop()
	g.settled()
}

// An owner that stood still beyond its lease neither answers nor delivers as the owner.
func TestOwner_Paused(t *testing.T) {
	g := start(t)
	stop := g.write()
	g.pass(time.Second)
	i := g.owner()
	paused := g.members[i]
	g.setAvoided(i)
	begun := time.Now()
	if err := paused.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	g.recovery("SIGSTOP of the owner", begun)
	g.pass(2 * time.Second)
	if err := paused.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	g.setAvoided(-1)
	g.pass(time.Second)
	key := g.key()
	g.put(key, time.Hour)
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	r, err := harness.Do(ctx, http.MethodGet, paused.URL+"/tests/s/schedules/"+key, "")
	if err != nil || r.Status != http.StatusOK {
		t.Errorf("the paused member does not know what was acknowledged since: %v %v", r, err)
	}
	stop()
	g.settled()
}

// kill -9 of all: what was acknowledged is there when two of them are back.
func TestGroup_AllKilled(t *testing.T) {
	t.Parallel()
	g := start(t)
	stop := g.write()
	g.pass(2 * time.Second)
	stop()
	late := g.key()
	g.put(late, 24*time.Hour)
	for i := range g.members {
		g.kill(i)
	}
	g.setAvoided(2)
	begun := time.Now()
	var two sync.WaitGroup
	for i := range 2 {
		two.Go(func() { g.launch(i) })
	}
	two.Wait()
	g.recovery("the start of two after kill -9 of all", begun)
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	r, err := harness.Do(ctx, http.MethodGet, g.url()+"/tests/s/schedules/"+late, "")
	if err != nil || r.Status != http.StatusOK {
		t.Errorf("%s is lost: %v %v", late, r, err)
	}
	g.settled()
}

// SIGTERM of the owner hands the group over: no call at another member fails, also with a
// body that a member does not keep, and while a reader follows the events of a source, and no
// delivery is cut off. Without a hand-over another
// member would claim the group only after calls have failed.
func TestOwner_HandsOver(t *testing.T) {
	process := patient(t)
	g := startWith(t, func(g *group) { g.process, g.hold, g.large = process, 50*time.Millisecond, 256<<10 })
	disk := watchDisk(t, g.dir)
	stop := g.write()
	for _, member := range g.members {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, member.URL+"/tests/s/events", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("events: %v %v", answer, err)
		}
		defer answer.Body.Close()
	}
	g.pass(time.Second)
	i := g.owner()
	leaving := g.withdraw(i)
	g.beStrict(true)
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	status, took, err := leaving.Terminate(ctx)
	if err != nil || status != 0 {
		t.Fatalf("status %d, %v:\n%s", status, err, leaving.Log())
	}
	g.pass(time.Second)
	stop()
	g.settled()
	g.judge(disk)
	if g.cutOff > 0 {
		t.Errorf("%d deliveries were cut off", g.cutOff)
	}
	t.Logf("the end of the owner took %s, the longest call %s", took.Round(time.Millisecond), g.longest.Round(time.Millisecond))
}

var chaos = flag.Duration("chaos", 5*time.Second, "how long TestGroup_Chaos lasts")

// Members are killed, stopped and ended at random, one at a time, while callers write.
func TestGroup_Chaos(t *testing.T) {
	t.Parallel()
	g := start(t)
	stop := g.write()
	g.disturb(*chaos)
	stop()
	g.settled()
}

// disturb kills, stops and ends members at random, one at a time.
func (g *group) disturb(lasting time.Duration) {
	for end := time.Now().Add(lasting); time.Now().Before(end) && !g.t.Failed(); {
		i := rand.IntN(3)
		a := g.members[i]
		switch what := rand.IntN(3); what {
		case 0:
			g.kill(i)
			g.pass(time.Duration(rand.IntN(1500)) * time.Millisecond)
			g.launch(i)
		case 1:
			g.setAvoided(i)
			err := a.Signal(syscall.SIGSTOP)
			g.pass(time.Duration(rand.IntN(2500)) * time.Millisecond)
			if err := errors.Join(err, a.Signal(syscall.SIGCONT)); err != nil {
				g.t.Fatal(err)
			}
			g.setAvoided(-1)
		case 2:
			g.withdraw(i)
			ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
			if status, _, err := a.Terminate(ctx); err != nil || status != 0 {
				g.t.Errorf("SIGTERM: status %d, %v", status, err)
			}
			cancel()
			g.launch(i)
		}
		if !g.t.Failed() {
			g.pass(time.Duration(rand.IntN(1000)) * time.Millisecond)
		}
	}
}

// Any member answers each call, the streams too. A source that no member knows is 404.
func TestGroup_AnyMemberAnswers(t *testing.T) {
	t.Parallel()
	g := start(t)
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	for _, at := range g.members {
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
			r, err := harness.Do(ctx, call.method, at.URL+source+call.path, call.body)
			if err != nil || r.Status != call.status {
				t.Errorf("%s %s: %v %v, want %d", call.method, call.path, r, err, call.status)
			}
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.URL+source+"/events", http.NoBody)
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

// The single adapter names the program that can be one of a group.
func TestReplicated_SingleAdapterRefuses(t *testing.T) {
	t.Parallel()
	log := harness.Refused(t, "--standalone", "--sources", "x", "--data-dir", t.TempDir(), "--replicated", "--member", "a", "--peers", "a=127.0.0.1:1,b=127.0.0.1:2,c=127.0.0.1:3")
	if !strings.Contains(log, "adapter-replicated") {
		t.Error(log)
	}
}
