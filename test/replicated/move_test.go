package replicated

import (
	"bufio"
	"context"
	"errors"
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

// documented runs a command as docs/high-availability.md has it, with the directory of a member.
func (g *group) documented(i int, command string) (string, error) {
	g.t.Helper()
	page, err := os.ReadFile("../../docs/high-availability.md")
	if err != nil {
		g.t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(command) + ` [^#\n]*`).FindString(string(page))
	if line == "" {
		g.t.Fatalf("docs/high-availability.md has no command %s", command)
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
	sealSingle = "adapter seal"
	backSingle = "adapter backup"
	toGroup    = "adapter restore --to group"
	sealGroup  = "adapter-replicated seal"
	backGroup  = "adapter-replicated backup"
	toSingle   = "adapter restore --to single"
)

// A single adapter becomes three, and one again, with the commands of the documentation, while callers write: nothing
// acknowledged is lost, nothing is delivered early.
func TestMove_ThereAndBack(t *testing.T) {
	t.Parallel()
	g := prepare(t, func(*group) {})
	g.single(0)
	late := g.key()
	g.put(late, 24*time.Hour)
	for range 50 {
		g.put(g.key(), time.Duration(rand.IntN(12000))*time.Millisecond)
	}
	was := g.occurrence(0, late)
	end := g.writeUntil(func(err error, _ string) bool { return err != nil }) // a sealed adapter ends
	g.pass(time.Second)
	g.mustRun(0, sealSingle)
	end()
	g.backUpSealed(0)
	if a, err := (harness.Process{Binary: program}).Launch(g.flags(0)...); err == nil {
		a.Kill()
		t.Fatal("a member started with the directory of a single adapter")
	} else if !strings.Contains(err.Error(), "--to group") {
		t.Error("it does not name the command:", err)
	}
	g.lose(0)
	g.mustRun(0, toGroup)
	if a, err := harness.Launch(harness.Flags(g.sources, filepath.Join(g.dir, name(0)))...); err == nil {
		a.Kill()
		t.Fatal("a single adapter started with the directory of a member")
	} else if !strings.Contains(err.Error(), "--to single") {
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

	end = g.writeUntil(func(_ error, body string) bool { return strings.Contains(body, "sealed") })
	g.pass(500 * time.Millisecond)
	keeps := (g.owner() + 1) % 3 // not the owner
	g.mustRun(keeps, sealGroup)
	end()
	g.mustRun(keeps, backGroup)
	for i := range g.members {
		g.lose(i)
	}
	g.mustRun(keeps, toSingle)
	g.single(keeps)
	if is := g.occurrence(keeps, late); is != was {
		t.Errorf("the key is %s, was %s", is, was)
	}
	g.settled()
}

// backUpSealed starts the adapter of a sealed directory, which serves back-ups alone, and makes one.
func (g *group) backUpSealed(i int) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), harness.Patience)
	defer cancel()
	in, out, err := os.Pipe()
	if err != nil {
		g.t.Fatal(err)
	}
	defer in.Close()
	cmd := exec.CommandContext(ctx, harness.Binary(), harness.Flags(g.sources, filepath.Join(g.dir, name(i)))...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := errors.Join(cmd.Start(), out.Close()); err != nil {
		g.t.Fatal(err)
	}
	sealed := false
	for lines := bufio.NewScanner(in); !sealed && lines.Scan(); sealed = strings.Contains(lines.Text(), "the store is sealed") {
		if strings.HasPrefix(lines.Text(), "ready:") {
			g.t.Error("a sealed adapter serves")
		}
	}
	if !sealed {
		g.t.Error("it does not say that it is sealed")
	}
	g.mustRun(i, backSingle)
	cancel() // kill -9
	_ = cmd.Wait()
}

// writeUntil lets callers write until what they get says that the adapter, or the group, is sealed.
func (g *group) writeUntil(sealed func(err error, body string) bool) (end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for ctx.Err() == nil {
				key, delay, sent := g.key(), time.Duration(200+rand.IntN(1500))*time.Millisecond, time.Now()
				r, err := harness.Do(ctx, http.MethodPut, g.url()+"/tests/s/schedules/"+key, fmt.Sprintf(`{"delay":%q}`, delay))
				body := ""
				if err == nil {
					body = string(r.Body)
				}
				switch {
				case sealed(err, body):
					return
				case err != nil:
				case r.Status < 300:
					g.acknowledged(key, sent.Add(delay))
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

// A member of a sealed group takes part in no other one: what it has is old.
func TestMove_OldDirectoriesAreRefused(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.mustRun(0, sealGroup)
	g.mustRun(0, backGroup)
	for i := range g.members {
		g.kill(i)
	}
	g.lose(0)
	g.mustRun(0, toSingle)
	g.single(0)
	late := g.key()
	g.put(late, 24*time.Hour)
	g.mustRun(0, sealSingle)
	g.mustRun(0, backSingle)
	g.lose(0)
	g.mustRun(0, toGroup)
	var old [3]*harness.Adapter
	var all sync.WaitGroup
	for i := range g.members {
		all.Go(func() {
			a, err := harness.Process{Binary: program}.Launch(g.flags(i)...)
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
func TestMove_FirstStartCutOff(t *testing.T) {
	t.Parallel()
	g := prepare(t, func(*group) {})
	g.single(0)
	late := g.key()
	g.put(late, 24*time.Hour)
	g.mustRun(0, backSingle)
	g.lose(0)
	g.mustRun(0, toGroup)
	for cut := range 8 {
		var all sync.WaitGroup
		for i := range g.members {
			if cut%2 == 1 && rand.IntN(3) == 0 {
				continue
			}
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(100+cut*150+rand.IntN(300))*time.Millisecond)
				defer cancel()
				if out, err := exec.CommandContext(ctx, program, g.flags(i)...).CombinedOutput(); ctx.Err() == nil { // kill -9
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
