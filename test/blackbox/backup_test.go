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

// acknowledged are the revisions of the keys of one writer, 0 of a deleted one.
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
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^adapter ` + command + ` [^#\n]*`).FindString(string(page))
	if line == "" {
		t.Fatalf("docs/backup.md has no command adapter %s", command)
	}
	line = strings.NewReplacer(paths...).Replace(strings.Replace(line, "adapter", "'"+harness.Binary()+"'", 1))
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// A back-up of a running adapter holds every change that was acknowledged before it
// began, whatever is written meanwhile. It is restored into an adapter that delivers.
func TestBackup_OfARunningAdapter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &source{name: "backed-up"}
	file, data, restored, copied := filepath.Join(dir, "sources.yaml"), filepath.Join(dir, "data"), filepath.Join(dir, "restored"), filepath.Join(dir, "copy.tar")
	if err := os.WriteFile(file, []byte(s.manifest()), 0o600); err != nil {
		t.Fatal(err)
	}
	a := harness.Start(t, harness.Flags(file, data)...)
	s.at = func() string { return a.URL }
	s.put(t, "soon", `{"delay":3600}`)

	writing, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	all := make([]*acknowledged, 4)
	ready := make(chan struct{}, len(all))
	for w := range all {
		all[w] = &acknowledged{revisions: map[string]uint64{}}
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
				all[w].Lock()
				all[w].revisions[key] = v.Revision
				all[w].Unlock()
			}
		})
	}
	for range all {
		select {
		case <-ready:
		case <-time.After(3 * harness.Patience):
			t.Fatal("the writers do not get on")
		}
	}
	var before []map[string]uint64
	for _, w := range all {
		before = append(before, w.copy())
	}
	paths := []string{"/var/lib/reschedule", data, "/var/lib/restored", restored, "reschedule.tar", copied}
	backupCommand(t, "backup", paths...)
	stop()
	writers.Wait() // a change in the back-up may be acknowledged after it
	var after []map[string]uint64
	for _, w := range all {
		after = append(after, w.copy())
	}
	if _, err := os.Stat(filepath.Join(data, "checkpoint")); !os.IsNotExist(err) {
		t.Errorf("the back-up is over, and its checkpoint is there: %v", err)
	}
	if info, err := os.Stat(filepath.Join(data, "backup.sock")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket of back-ups: %v %v", info, err)
	}
	a.Kill()
	again := harness.Start(t, harness.Flags(file, data)...) // the socket of the killed one is in its way
	if code, out := harness.Run("backup", "--data-dir", data, "-f", copied+".again"); code != 0 {
		t.Errorf("after kill -9: %d %s", code, out)
	}
	s.at = func() string { return again.URL }
	lost := s.put(t, "lost", `{"delay":3600}`) // it is not in the back-up
	again.Kill()
	stopped := filepath.Join(dir, "stopped")
	if code, out := harness.Run("backup", "--data-dir", data, "-f", copied+".stopped"); code != 0 {
		t.Errorf("of an adapter that does not run: %d %s", code, out)
	}
	if code, out := harness.Run("restore", "--data-dir", stopped, "-f", copied+".stopped"); code != 0 {
		t.Errorf("restore of it: %d %s", code, out)
	}
	if _, out := harness.Run("inspect", "--source", "tests/backed-up", stopped); !strings.Contains(out, `"key":"lost"`) {
		t.Errorf("it does not have what was acknowledged last: %.500s", out)
	}

	backupCommand(t, "restore", paths...)
	if code, out := harness.Run("verify", restored); code != 0 {
		t.Errorf("adapter verify: %d %s", code, out)
	}
	if code, out := harness.Run("restore", "--data-dir", restored, "-f", copied); code != 3 || !strings.Contains(out, "is not empty") {
		t.Errorf("a second restore: %d %s", code, out)
	}
	a = harness.Start(t, harness.Flags(file, restored)...)
	s.at = func() string { return a.URL }
	for w := range all {
		for key, revision := range before[w] {
			v, there := s.look(t, key)
			changed := after[w][key] != revision
			switch {
			case changed && there && v.Revision >= revision, changed && !there: // it changed meanwhile: before or after the back-up
			case revision == 0 && there, revision > 0 && v.Revision != revision:
				t.Errorf("%s has revision %d, acknowledged was %d before the back-up", key, v.Revision, revision)
			}
		}
	}
	if v := s.put(t, "new", `{"delay":3600}`); v.Revision <= lost.Revision {
		t.Errorf("what is new after the restore has revision %d, what was lost had %d", v.Revision, lost.Revision)
	}
	s.put(t, "soon", `{"delay":0,"policy":"earliest"}`)
	sink.Next(t, s.name, "soon")
}

// Half a back-up, or what is none, is refused and leaves nothing.
func TestRestore_RefusesWhatIsNotWhole(t *testing.T) {
	t.Parallel()
	// A socket may have some hundred bytes of path.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := &source{name: "not-whole"}
	file, data, copied := filepath.Join(dir, "sources.yaml"), filepath.Join(dir, "data"), filepath.Join(dir, "copy.tar")
	if err := os.WriteFile(file, []byte(s.manifest()), 0o600); err != nil {
		t.Fatal(err)
	}
	a := harness.Start(t, harness.Flags(file, data)...)
	s.at = func() string { return a.URL }
	s.put(t, "flipped", `{"delay":"1h"}`)
	if code, out := harness.Run("backup", "--data-dir", data, "-f", copied); code != 0 {
		t.Fatalf("adapter backup: %d %s", code, out)
	}
	whole, err := os.ReadFile(copied)
	if err != nil {
		t.Fatal(err)
	}
	// The store takes it for the torn end of its log: the key was lost, and the status 0.
	flipped := bytes.Replace(whole, []byte("flipped"), []byte("flippee"), 1)
	for name, text := range map[string][]byte{
		"empty": {}, "cut": whole[:len(whole)/2], "no end": whole[:len(whole)-2048], "half an end": whole[:len(whole)-1536],
		"no tar": []byte("no tar at all"), "flipped bits": flipped,
	} {
		if err := os.WriteFile(copied, text, 0o600); err != nil {
			t.Fatal(err)
		}
		restored := filepath.Join(dir, "restored")
		code, out := harness.Run("restore", "--data-dir", restored, "-f", copied)
		left, err := os.ReadDir(restored)
		if code != 3 || err != nil || len(left) > 0 {
			t.Errorf("%s: status %d, left %v, %v: %s", name, code, left, err, out)
		}
	}
	if err := os.WriteFile(copied, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	cutOffRestores(t, dir, file, copied, whole)
	if code, out := harness.Run("backup", "--data-dir", dir, "-f", copied); code != 3 || !strings.Contains(out, "it holds nothing") {
		t.Errorf("a back-up of a directory that is none: %d %s", code, out)
	}
	if code, out := harness.Run("seal", "--data-dir", dir); code != 3 || !strings.Contains(out, "no adapter") {
		t.Errorf("a seal without an adapter: %d %s", code, out)
	}
}

// cutOffRestores ends restores by a signal and by kill -9. Nothing must be removed by hand.
func cutOffRestores(t *testing.T, dir, sources, copied string, whole []byte) {
	t.Helper()
	restored := filepath.Join(dir, "cut-off")
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGKILL} {
		cmd := exec.CommandContext(t.Context(), harness.Binary(), "restore", "--data-dir", restored, "-f", "-")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := in.Write(whole[:len(whole)/2]); err != nil {
			t.Fatal(err)
		}
		tick, deadline := time.NewTicker(10*time.Millisecond), time.After(harness.Patience)
		for present := 0; present < 2; { // its mark, and a file of the back-up
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatal("the restore does not begin")
			}
			files, _ := os.ReadDir(restored) // it may not be there yet
			present = len(files)
		}
		tick.Stop()
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // by its signal, or with status 3
		left, err := os.ReadDir(restored)
		if signal != syscall.SIGKILL && (err != nil || len(left) > 0 || cmd.ProcessState.ExitCode() != 3 || !strings.Contains(said.String(), "repeat the command")) {
			t.Errorf("%s: status %d, left %v, %v: %s", signal, cmd.ProcessState.ExitCode(), left, err, &said)
		}
		if signal == syscall.SIGKILL && (err != nil || len(left) == 0) {
			t.Fatalf("kill -9 left %v, %v", left, err)
		}
	}
	if code, out := harness.Run(harness.Flags(sources, restored)...); code != 1 || !strings.Contains(out, "run adapter restore again") {
		t.Errorf("an adapter in half a restore: %d %s", code, out)
	}
	if code, out := harness.Run("restore", "--data-dir", restored, "-f", copied); code != 0 {
		t.Errorf("the restore after kill -9: %d %s", code, out)
	}
	harness.Start(t, harness.Flags(sources, restored)...)
}

// An adapter that starts while a back-up of the stopped directory is under way waits for its end. It ended at once.
func TestBackup_HoldsUpAStart(t *testing.T) {
	t.Parallel()
	data, file := t.TempDir(), filepath.Join(t.TempDir(), "sources.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\nmetadata: {name: a, namespace: b}\nspec: {sink: {uri: \"http://127.0.0.1:1\"}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(data, "LOCK"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.FcntlFlock(lock.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd := exec.CommandContext(t.Context(), harness.Binary(), harness.Flags(file, data)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := errors.Join(cmd.Start(), out.Close()); err != nil {
		t.Fatal(err)
	}
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
