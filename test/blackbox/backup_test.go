package blackbox

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// acknowledged are the revisions of keys, 0 of a deleted one.
type acknowledged struct {
	sync.Mutex
	revisions map[string]uint64
}

func (a *acknowledged) copy() map[string]uint64 {
	a.Lock()
	defer a.Unlock()
	return maps.Clone(a.revisions)
}

// backupCommand runs a command as docs/backup.md has it, with other paths.
func backupCommand(t *testing.T, command string, paths ...string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/backup.md")
	must(t, err)
	line := regexp.MustCompile(`(?m)^adapter ` + command + ` [^#\n]*`).FindString(string(page))
	if line == "" {
		t.Fatalf("docs/backup.md has no command adapter %s", command)
	}
	line = strings.NewReplacer(paths...).Replace(strings.Replace(line, "adapter", "'"+harness.Binary()+"'", 1))
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// A back-up of a running adapter holds every change that was acknowledged before it began, whatever is written
// meanwhile. It is restored into an adapter that delivers.
func TestBackup_OfARunningAdapter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &source{name: "backed-up"}
	o := alone(t, nil, s)
	restored, stopped, copied := filepath.Join(dir, "restored"), filepath.Join(dir, "stopped"), filepath.Join(dir, "copy.tar")
	s.put(t, "soon", `{"delay":3600}`)

	const callers = 4
	writing, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	all := &acknowledged{revisions: map[string]uint64{}}
	ready := make(chan struct{}, callers)
	for w := range callers {
		writers.Go(func() {
			for i := 0; writing.Err() == nil; i++ {
				if i == 200 {
					ready <- struct{}{}
				}
				key := fmt.Sprintf("w%d-%d", w, i%150)
				body, method := fmt.Sprintf(`{"delay":3600,"event":{"data":"%d"}}`, i), http.MethodPut
				if i%7 == 6 {
					method, body = http.MethodDelete, ""
				}
				r, err := harness.Do(t.Context(), method, s.url()+harness.KeyPath(key), body)
				if err != nil || r.Status >= 300 {
					t.Errorf("%s %s: %v %v", method, key, r, err)
					return
				}
				var v harness.Schedule
				if method == http.MethodPut {
					r.Into(t, &v)
				}
				all.Lock()
				all.revisions[key] = v.Revision
				all.Unlock()
			}
		})
	}
	for range callers {
		select {
		case <-ready:
		case <-time.After(3 * harness.Patience):
			t.Fatal("the writers do not get on")
		}
	}
	before := all.copy()
	paths := []string{"/var/lib/reschedule", o.data, "/var/lib/restored", restored, "reschedule.tar", copied}
	backupCommand(t, "backup", paths...)
	stop()
	writers.Wait() // a change in the back-up may be acknowledged after it
	after := all.copy()
	if _, err := os.Stat(filepath.Join(o.data, "checkpoint")); !os.IsNotExist(err) {
		t.Errorf("the back-up is over, and its checkpoint is there: %v", err)
	}
	if info, err := os.Stat(filepath.Join(o.data, "backup.sock")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket of back-ups: %v %v", info, err)
	}
	o.Kill()
	o.restart(t) // the socket of the killed one is in its way
	command(t, 0, "backup", "--data-dir", o.data, "-f", copied+".again")
	lost := s.put(t, "lost", `{"delay":3600}`) // it is not in the back-up
	o.Kill()
	command(t, 0, "backup", "--data-dir", o.data, "-f", copied+".stopped")
	command(t, 0, "restore", "--data-dir", stopped, "-f", copied+".stopped")
	if out := command(t, 0, "inspect", "--source", "tests/backed-up", stopped); !strings.Contains(out, `"key":"lost"`) {
		t.Errorf("it does not have what was acknowledged last: %.500s", out)
	}

	backupCommand(t, "restore", paths...)
	command(t, 0, "verify", restored)
	if out := command(t, 3, "restore", "--data-dir", restored, "-f", copied); !strings.Contains(out, "is not empty") {
		t.Errorf("a second restore: %s", out)
	}
	o.data = restored
	o.restart(t)
	for key, revision := range before {
		v, there := s.look(t, key)
		changed := after[key] != revision
		switch {
		case changed && there && v.Revision >= revision, changed && !there: // it changed meanwhile: before or after the back-up
		case revision == 0 && there, revision > 0 && v.Revision != revision:
			t.Errorf("%s has revision %d, acknowledged was %d before the back-up", key, v.Revision, revision)
		}
	}
	if v := s.put(t, "new", `{"delay":3600}`); v.Revision <= lost.Revision {
		t.Errorf("what is new after the restore has revision %d, what was lost had %d", v.Revision, lost.Revision)
	}
	s.put(t, "soon", `{"delay":0,"policy":"earliest"}`)
	s.next(t, "soon")
}

// Half a back-up, or what is none, is refused and leaves nothing.
func TestRestore_RefusesWhatIsNotWhole(t *testing.T) {
	t.Parallel()
	// A socket may have some hundred bytes of path.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	must(t, os.Mkdir(dir, 0o700))
	s := &source{name: "not-whole"}
	o := aloneIn(t, dir, nil, s)
	copied, restored := filepath.Join(dir, "copy.tar"), filepath.Join(dir, "restored")
	s.put(t, "flipped", `{"delay":"1h"}`)
	command(t, 0, "backup", "--data-dir", o.data, "-f", copied)
	whole, err := os.ReadFile(copied)
	must(t, err)
	// The store takes it for the torn end of its log: the key was lost, and the status 0.
	flipped := bytes.Replace(whole, []byte("flipped"), []byte("flippee"), 1)
	for name, text := range map[string][]byte{
		"empty": {}, "cut": whole[:len(whole)/2], "no end": whole[:len(whole)-2048], "half an end": whole[:len(whole)-1536],
		"no tar": []byte("no tar at all"), "flipped bits": flipped,
	} {
		write(t, copied, string(text))
		out := command(t, 3, "restore", "--data-dir", restored, "-f", copied)
		if left, err := os.ReadDir(restored); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v: %s", name, left, err, out)
		}
	}
	write(t, copied, string(whole))
	cutOffRestores(t, dir, o.file, copied, whole)
	if out := command(t, 3, "backup", "--data-dir", dir, "-f", copied); !strings.Contains(out, "it holds nothing") {
		t.Errorf("a back-up of a directory that is none: %s", out)
	}
	if out := command(t, 3, "seal", "--data-dir", dir); !strings.Contains(out, "no adapter") {
		t.Errorf("a seal without an adapter: %s", out)
	}
}

// cutOffRestores ends restores by a signal and by kill -9. Nothing must be removed by hand.
func cutOffRestores(t *testing.T, dir, sources, copied string, whole []byte) {
	t.Helper()
	restored := filepath.Join(dir, "cut-off")
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGKILL} {
		cmd := exec.CommandContext(t.Context(), harness.Binary(), "restore", "--data-dir", restored, "-f", "-")
		in, err := cmd.StdinPipe()
		must(t, err)
		var said strings.Builder
		cmd.Stderr = &said
		must(t, cmd.Start())
		_, err = in.Write(whole[:len(whole)/2])
		must(t, err)
		eventually(t, "its mark and a file of the back-up are there", func() bool {
			files, _ := os.ReadDir(restored) // it may not be there yet
			return len(files) >= 2
		})
		must(t, cmd.Process.Signal(signal))
		_ = cmd.Wait() // by its signal, or with status 3
		left, err := os.ReadDir(restored)
		if signal != syscall.SIGKILL && (err != nil || len(left) > 0 || cmd.ProcessState.ExitCode() != 3 || !strings.Contains(said.String(), "repeat the command")) {
			t.Errorf("%s: status %d, left %v, %v: %s", signal, cmd.ProcessState.ExitCode(), left, err, &said)
		}
		if signal == syscall.SIGKILL && (err != nil || len(left) == 0) {
			t.Fatalf("kill -9 left %v, %v", left, err)
		}
	}
	if out := command(t, 1, harness.Flags(sources, restored)...); !strings.Contains(out, "run adapter restore again") {
		t.Errorf("an adapter in half a restore: %s", out)
	}
	command(t, 0, "restore", "--data-dir", restored, "-f", copied)
	harness.Start(t, harness.Flags(sources, restored)...)
}

// An adapter that starts while a back-up of the stopped directory is under way waits for its end. It ended at once.
func TestBackup_HoldsUpAStart(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	file := write(t, filepath.Join(t.TempDir(), "sources.yaml"), plain.manifest())
	lock, err := os.Create(filepath.Join(data, "LOCK"))
	must(t, err)
	defer lock.Close()
	must(t, syscall.FcntlFlock(lock.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK}))
	in, out, err := os.Pipe()
	must(t, err)
	defer in.Close()
	cmd := exec.CommandContext(t.Context(), harness.Binary(), harness.Flags(file, data)...)
	cmd.Stdout, cmd.Stderr = out, out
	must(t, errors.Join(cmd.Start(), out.Close()))
	var waited, ready bool
	lines := bufio.NewScanner(in)
	for !ready && lines.Scan() {
		if strings.Contains(lines.Text(), "the data directory is in use: waiting") {
			waited = true
			lock.Close()
		}
		ready = strings.HasPrefix(lines.Text(), "ready:")
	}
	if !waited || !ready {
		t.Errorf("it waited: %v; it is ready: %v: %s", waited, ready, lines.Text())
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}
