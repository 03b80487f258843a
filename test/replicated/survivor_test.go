package replicated

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// One disk that survives has all that was acknowledged, though the view on it is behind: a back-up of
// it becomes a single adapter or a new group. Only the last state of the view was taken.
func TestGroup_DiskThatSurvives(t *testing.T) {
	t.Parallel()
	g := start(t)
	var late []string
	for range 100 {
		late = append(late, g.key())
		g.put(late[len(late)-1], 24*time.Hour)
	}
	survivor := g.owner()
	for i := range g.members {
		g.kill(i)
	}
	dir, file := filepath.Join(g.dir, name(survivor)), filepath.Join(g.dir, "survivor.tar")
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	run("backup", "--data-dir", dir, "-f", file)
	run("backup", "--data-dir", dir, "-f", file) // the first one has changed nothing
	if _, err := os.Stat(filepath.Join(dir, "checkpoint")); err == nil {
		t.Error("a copy is left")
	}
	if code, out := harness.Run("backup", "--data-dir", dir, "-f", file); code != 3 {
		t.Errorf("the single adapter makes a back-up of a member: %d %s", code, out)
	}

	restored := filepath.Join(g.dir, "restored")
	run("restore", "--to", "single", "--data-dir", restored, "-f", file)
	a, err := harness.Launch(harness.Flags(g.sources, restored)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range late {
		if r, err := harness.Do(t.Context(), http.MethodGet, a.URL+source+"/schedules/"+key, ""); err != nil || r.Status != http.StatusOK {
			t.Fatal(fmt.Sprint(key, r, err))
		}
	}
	a.Kill()

	for i := range g.members {
		if err := os.RemoveAll(filepath.Join(g.dir, name(i))); err != nil {
			t.Fatal(err)
		}
	}
	run("restore", "--data-dir", dir, "-f", file)
	g.launchAll()
	for _, key := range late {
		g.known(survivor, key)
	}
	g.known((survivor+1)%3, late[0])
}
