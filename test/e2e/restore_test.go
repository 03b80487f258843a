//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

const backupPage = "docs/backup.md"

// An adapter whose volume is lost has all that the back-up has, after the commands of the page,
// and nothing that was made since.
func restoreInTheCluster(t *testing.T, turn func()) {
	const kept = 40
	n := newNamespace(t, "restore")
	user := n.explainer()
	s := n.source("restored", "suspend: true\nsink: {uri: 'http://127.0.0.1:1/'}")
	backup, _, found := strings.Cut(n.onPageOf(backupPage, "kn source reschedule backup -f reschedule.tar"), "\n")
	if !found {
		t.Fatalf("%s has another way to a back-up", backupPage)
	}
	backup = "cd \"$DIR\"\n" + strings.Replace(backup, "kn source reschedule", "'"+user.binary+"'", 1)
	program, err := adapterReplicated() // an adapter as any other without --replicated
	if err != nil {
		t.Fatal(err)
	}
	turn()
	s.served()
	t.Cleanup(func() {
		if t.Failed() {
			n.adapterAgain()
		}
	})

	before := map[string]harness.Schedule{}
	for i := range kept {
		key := fmt.Sprintf("kept/%d", i)
		s.put(key, fmt.Sprintf(`{"delay": "%dh"}`, i+1))
		before[key] = *s.scheduled(key)
	}
	dir := t.TempDir()
	uids := n.onPageOf(backupPage, "> sources.yaml")
	if err := inCheckout(t.Context(), dir, backup+"\ncd \"$DIR\"\n"+uids); err != nil {
		t.Fatal(err)
	}
	s.put("later", `{"delay": "1h"}`)
	s.call("DELETE", harness.KeyPath("kept/0"), "")

	n.restore(filepath.Join(dir, "reschedule.tar"), 1)
	s.served()
	for key, want := range before {
		got := s.scheduled(key)
		if got == nil {
			t.Errorf("%s is not restored", key)
		} else if diff := cmp.Diff(want, *got); diff != "" {
			t.Errorf("%s is not as it was (-want +got):\n%s", key, diff)
		}
	}
	if s.scheduled("later") != nil {
		t.Error("a key that was made after the back-up is there: nothing was restored")
	}
	if c := s.counts(); c.Pending != kept {
		t.Errorf("%+v, want %d keys", c, kept)
	}
	eventually(t, patience, "the cluster is well", n.well)
	s.moveToANewOne(user, program, dir, before)
}

// moveToANewOne makes the source anew, as in a new cluster, with another uid: its restored keys are
// purged, and it gets them back from the files of the back-up in the directory, by the commands of
// the page.
func (s *source) moveToANewOne(user *explainer, program, dir string, want map[string]harness.Schedule) {
	s.t.Helper()
	if err := kubectl(s.t.Context(), "-n", s.namespace.name, "delete", "reschedulesource", s.name); err != nil {
		s.t.Fatal(err)
	}
	s.apply(manifestOf(s.name, "suspend: true\nsink: {uri: 'http://127.0.0.1:1/'}"))
	s.ready(rescheduling, s.name)
	s.served()
	eventually(s.t, patience, "the keys of the old uid are gone", func() error {
		if c := s.counts(); c.Pending != 0 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})

	lines := strings.Split(s.onPageOf(backupPage, "adapter --standalone --sources sources.yaml"), "\n")
	if len(lines) != 4 {
		s.t.Fatalf("%s has other steps to a new cluster: %q", backupPage, lines)
	}
	edited := func(line string, more ...string) string {
		return "cd \"$DIR\"\n" + strings.NewReplacer(append(more, "kn source reschedule", "'"+user.binary+"'",
			"adapter restore", "'"+program+"' restore", "demo -n default", s.name+" -n "+s.namespace.name)...).Replace(line)
	}
	if err := inCheckout(s.t.Context(), dir, edited(lines[0])); err != nil {
		s.t.Fatal(err)
	}
	a, err := harness.Process{Binary: program}.Launch(harness.Flags(filepath.Join(dir, "sources.yaml"), filepath.Join(dir, "restored"))...)
	if err != nil {
		s.t.Fatal(err)
	}
	defer a.Kill()
	if err := inCheckout(s.t.Context(), dir, edited(lines[2], "http://127.0.0.1:8080", a.URL)+"\n"+edited(lines[3])); err != nil {
		s.t.Fatal(err)
	}
	for key, want := range want {
		if got := s.scheduled(key); got == nil || !got.DueAt.Equal(want.DueAt) {
			s.t.Errorf("%s was moved to a new source as %+v, want it due at %s", key, got, want.DueAt)
		}
	}
}

// restore runs the commands of the page: so many adapters get the back-up in place of what they
// have.
func (n *namespace) restore(backup string, members int) {
	n.t.Helper()
	const one = "members=1 form=single "
	form := "single"
	if members > 1 {
		form = "group"
	}
	commands := n.onPageOf(backupPage, "args: [restore")
	if !strings.Contains(commands, one) {
		n.t.Fatalf("%s does not say for how many adapters the commands are:\n%s", backupPage, commands)
	}
	commands = strings.NewReplacer(one, fmt.Sprintf("members=%d form=%s ", members, form), "reschedule.tar", "'"+backup+"'").Replace(commands)
	began := time.Now()
	if err := inCheckout(n.t.Context(), n.t.TempDir(), commands); err != nil {
		n.t.Fatal(err)
	}
	n.t.Logf("restored %d within %s", members, time.Since(began).Round(time.Second))
}
