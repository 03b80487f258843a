package replicated

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// documented runs a command as docs/replication.md has it, with the directory of a member.
func (g *group) documented(i int, command string) (string, error) {
	g.t.Helper()
	page, err := os.ReadFile("../../docs/replication.md")
	if err != nil {
		g.t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(command) + ` [^#\n]*`).FindString(string(page))
	if line == "" {
		g.t.Fatalf("docs/replication.md has no command %s", command)
	}
	binary, arguments, _ := strings.Cut(line, " ")
	binary = map[string]string{"adapter": harness.Binary(), "adapter-replicated": program}[binary]
	dir := "'" + filepath.Join(g.dir, name(i)) + "'"
	line = "'" + binary + "' " + strings.NewReplacer("/var/lib/reschedule", dir, "/var/lib/restored", dir, "reschedule.tar", "'"+filepath.Join(g.dir, "reschedule.tar")+"'").Replace(arguments)
	out, err := exec.CommandContext(g.t.Context(), "sh", "-c", line).CombinedOutput()
	return string(out), err
}

func (g *group) mustRun(i int, command string) {
	g.t.Helper()
	if out, err := g.documented(i, command); err != nil {
		g.t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// single starts the single adapter with the directory of a member, in its place.
func (g *group) single(i int, flags ...string) {
	g.t.Helper()
	a, err := harness.Launch(harness.Flags(g.sources, filepath.Join(g.dir, name(i)), flags...)...)
	if err != nil {
		g.t.Fatal(err)
	}
	g.mu.Lock()
	g.members[i] = a
	g.mu.Unlock()
}

// occurrence reads a key at a member: what tells its event from all others.
func (g *group) occurrence(i int, key string) string {
	g.t.Helper()
	r, err := harness.Do(g.t.Context(), http.MethodGet, g.members[i].URL+"/tests/s/schedules/"+key, "")
	if err != nil || r.Status != http.StatusOK {
		g.t.Fatalf("%s does not know %s: %v %v", name(i), key, r, err)
	}
	var v harness.Schedule
	r.Into(g.t, &v)
	return fmt.Sprint(v.Revision, " ", v.DueAt)
}

const (
	toGroup  = "adapter migrate --to group"
	seal     = "adapter-replicated seal"
	toSingle = "adapter-replicated migrate --to single"
)

// A single adapter becomes three, and one again, with the commands of the documentation and
// kill -9 at each end: nothing acknowledged is lost, nothing is delivered early or twice.
func TestMigrate_ThereAndBack(t *testing.T) {
	t.Parallel()
	g := prepare(t, func(*group) {})
	g.single(0)
	late := g.key()
	g.put(late, 24*time.Hour)
	for range 50 {
		g.put(g.key(), time.Duration(rand.IntN(12000))*time.Millisecond)
	}
	was := g.occurrence(0, late)
	g.kill(0)
	if a, err := (harness.Process{Binary: program}).Launch(g.flags(0)...); err == nil {
		a.Kill()
		t.Fatal("a member started with the directory of a single adapter")
	} else if !strings.Contains(err.Error(), toGroup) {
		t.Error("it does not name the command:", err)
	}
	g.mustRun(0, toGroup)
	g.mustRun(0, toGroup) // again, without harm
	if a, err := harness.Launch(harness.Flags(g.sources, filepath.Join(g.dir, name(0)))...); err == nil {
		a.Kill()
		t.Fatal("a single adapter started with the directory of a member")
	} else if !strings.Contains(err.Error(), "adapter migrate --to single") {
		t.Error("it does not name the command:", err)
	}
	g.launchAll()
	stop := g.write()
	g.pass(time.Second)
	for i := range g.members {
		g.ready(i)
		if is := g.occurrence(i, late); is != was {
			t.Errorf("at %s the key is %s, was %s", name(i), is, was)
		}
	}
	g.kill(0) // the two that began empty have everything
	g.pass(time.Second)
	g.known(1, late)
	g.launch(0)
	g.ready(0)
	stop()
	g.settled()

	if out, err := g.documented(0, toSingle); err == nil {
		t.Fatal("the directory of a running member was migrated")
	} else if !strings.Contains(out, "in use") {
		t.Error(out)
	}
	end := g.writeUntilSealed()
	g.pass(500 * time.Millisecond)
	keeps := (g.owner() + 1) % 3 // not the owner
	g.mustRun(keeps, seal)
	end()
	for i := range g.members {
		g.kill(i)
	}
	g.mustRun(keeps, toSingle)
	g.mustRun(keeps, toSingle)
	g.single(keeps)
	if is := g.occurrence(keeps, late); is != was {
		t.Errorf("the key is %s, was %s", is, was)
	}
	g.settled()
}

// writeUntilSealed lets callers write until the group is sealed, which they must learn.
func (g *group) writeUntilSealed() (end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for ctx.Err() == nil {
				key, delay, sent := g.key(), time.Duration(200+rand.IntN(1500))*time.Millisecond, time.Now()
				r, err := harness.Do(ctx, http.MethodPut, g.url()+"/tests/s/schedules/"+key, fmt.Sprintf(`{"delay":%q}`, delay))
				switch {
				case err != nil:
				case r.Status < 300:
					g.mu.Lock()
					g.acked[key] = sent.Add(delay)
					g.mu.Unlock()
				case strings.Contains(string(r.Body), "sealed"):
					return
				case r.Status != http.StatusServiceUnavailable:
					g.t.Errorf("PUT %s: %d %s", key, r.Status, r.Body)
				}
			}
			g.t.Error("a caller does not learn that the group was sealed")
		})
	}
	return func() {
		callers.Wait()
		cancel()
	}
}

// Without the seal the directory of a member is not taken, and it goes on as a member's.
func TestMigrate_WithoutTheSeal(t *testing.T) {
	t.Parallel()
	g := start(t)
	late := g.key()
	g.put(late, 24*time.Hour)
	for i := range g.members {
		g.kill(i)
	}
	for i := range g.members {
		if out, err := g.documented(i, toSingle); err == nil || !strings.Contains(out, "seal") {
			t.Errorf("%v: %s", err, out)
		}
	}
	log := harness.Refused(t, harness.Flags(g.sources, filepath.Join(g.dir, name(0)), "--migrate")...)
	if !strings.Contains(log, "seal") {
		t.Error(log)
	}
	g.launchAll()
	g.known(0, late)
}

// A member of a sealed group takes part in no other one: what it has is old.
func TestMigrate_OldDirectoriesAreRefused(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.mustRun(0, seal)
	for i := range g.members {
		g.kill(i)
	}
	g.single(0, "--migrate")
	late := g.key()
	g.put(late, 24*time.Hour)
	g.kill(0)
	var old [3]*harness.Adapter
	var all sync.WaitGroup
	for i := range g.members {
		all.Go(func() {
			a, err := harness.Process{Binary: program}.Launch(append(g.flags(i), "--migrate")...)
			switch {
			case err == nil && i == 0:
				a.Kill()
				t.Error("a group of the new data and of the old began")
			case err == nil:
				old[i] = a
			case !strings.Contains(err.Error(), "sealed") && !strings.Contains(err.Error(), "another group"):
				t.Error(err) // a member that has just started may not have read yet that it was sealed
			}
		})
	}
	all.Wait()
	for i, a := range old {
		if a != nil {
			a.Kill()
		}
		if i == 0 {
			continue
		}
		if err := os.RemoveAll(filepath.Join(g.dir, name(i))); err != nil {
			t.Fatal(err)
		}
	}
	g.launchAll()
	g.known(1, late)
}

// A first start in which one member was admitted and died before the others were goes on: its
// log has promised nothing.
func TestGroup_FirstStartCutOff(t *testing.T) {
	t.Parallel()
	g := prepare(t, func(*group) {})
	var others []*http.Server
	for _, peer := range strings.Split(g.peers, ",")[1:] { // two members that were not admitted yet
		_, address, _ := strings.Cut(peer, "=")
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(n+1)))
		if err != nil {
			t.Fatal(err)
		}
		other := &http.Server{ReadHeaderTimeout: harness.Patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprint(w, `{"attempt":"1"}`)
		})}
		go func() { _ = other.Serve(l) }()
		others = append(others, other)
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, g.flags(0)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if files, _ := filepath.Glob(filepath.Join(g.dir, name(0), "log", "member", "wal", "*.wal")); len(files) > 0 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("it was not admitted")
		}
	}
	for range 100 { // it asks the others for their votes meanwhile
		<-tick.C
	}
	cancel() // kill -9
	_ = cmd.Wait()
	for _, other := range others {
		other.Close()
	}
	g.launchAll()
	g.put(g.key(), 0)
	g.settled()
}

// A first start that is cut off again and again goes on with the data.
func TestMigrate_FirstStartCutOff(t *testing.T) {
	t.Parallel()
	g := prepare(t, func(*group) {})
	g.single(0)
	late := g.key()
	g.put(late, 24*time.Hour)
	g.kill(0)
	for cut := range 8 {
		var all sync.WaitGroup
		for i := range g.members {
			if cut%2 == 1 && rand.IntN(3) == 0 {
				continue
			}
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(100+cut*150+rand.IntN(300))*time.Millisecond)
				defer cancel()
				if out, err := exec.CommandContext(ctx, program, append(g.flags(i), "--migrate")...).CombinedOutput(); ctx.Err() == nil { // kill -9
					t.Errorf("it ended by itself: %v\n%s", err, out)
				}
			})
		}
		all.Wait()
	}
	g.launchAll()
	g.put(g.key(), time.Hour)
	for i := range g.members {
		g.ready(i)
		g.known(i, late)
	}
}
