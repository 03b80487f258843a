package replicated

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// keep puts the directory of a member aside, and take puts it back in the place of the present one.
func (g *group) keep(i int) (take func()) {
	g.t.Helper()
	dir, kept := filepath.Join(g.dir, name(i)), filepath.Join(g.t.TempDir(), "kept")
	if err := os.RemoveAll(filepath.Join(dir, "backup.sock")); err != nil { // of the process that was killed
		g.t.Fatal(err)
	}
	if err := os.CopyFS(kept, os.DirFS(dir)); err != nil {
		g.t.Fatal(err)
	}
	return func() {
		g.t.Helper()
		if err := os.RemoveAll(dir); err != nil {
			g.t.Fatal(err)
		}
		if err := os.CopyFS(dir, os.DirFS(kept)); err != nil {
			g.t.Fatal(err)
		}
	}
}

// A disk of the group before a restore comes back. Its member refuses to start, though its log is longer, and what the
// restored group has acknowledged stays. The old log replaced the new one, and 200 acknowledged keys were gone. With an
// empty directory the member joins.
func TestGroup_OldDiskComesBack(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.mustRun(0, "adapter-replicated backup")
	old := (g.owner() + 1) % 3
	for range 300 {
		g.put(g.key(), time.Hour)
	}
	for i := range g.members {
		g.kill(i)
	}
	comeBack := g.keep(old)
	g.forget()
	for i := range g.members {
		if err := os.RemoveAll(filepath.Join(g.dir, name(i))); err != nil {
			t.Fatal(err)
		}
		g.mustRun(i, "adapter-replicated restore")
	}
	g.launchAll()
	var keys []string
	for range 20 {
		keys = append(keys, g.key())
		g.put(keys[len(keys)-1], 24*time.Hour)
	}
	g.kill(old)
	comeBack()
	a, err := harness.Process{Binary: program}.Launch(g.flags(old)...)
	if err == nil {
		a.Kill()
		t.Error("the member with the old disk started")
	} else if text := err.Error(); !strings.Contains(text, "is of another group") || !strings.Contains(text, "empty the directory of member "+name(old)) {
		t.Error(err)
	}
	g.put(g.key(), time.Hour)
	if err := os.RemoveAll(filepath.Join(g.dir, name(old))); err != nil {
		t.Fatal(err)
	}
	g.launch(old)
	g.ready(old)
	g.kill((old + 1) % 3)
	g.put(g.key(), time.Hour)
	for _, key := range keys {
		g.known(old, key)
	}
}

// A member whose volume was set back to a snapshot joins anew, by itself: it has forgotten what it promised. etcd panicked
// at each start, or the member took part without its promises.
func TestMember_SetBackJoinsAnew(t *testing.T) {
	t.Parallel()
	g := start(t)
	back := (g.owner() + 1) % 3
	g.kill(back)
	setBack := g.keep(back)
	g.launch(back)
	g.ready(back)
	applied := g.metric(back, "reschedule_group_applied")
	late := g.key()
	g.put(late, 24*time.Hour)
	g.eventually("all views are on disk beyond the snapshot", func() bool {
		return g.metric(g.owner(), "reschedule_group_trimmed") > applied
	})
	g.kill(back)
	setBack()
	g.launch(back)
	g.members[back].AwaitLog(t, "what it promised since is lost", "joined in its own place")
	g.ready(back)
	g.kill((back + 1) % 3)
	g.put(g.key(), time.Hour)
	g.known(back, late)
}
