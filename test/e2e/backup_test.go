//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// backUpAndRestore backs a group up while it is called, by the command line, and restores the
// back-up on this machine, as the page says: a new group of processes has all keys that were
// acknowledged before. It returns these, and a back-up that has them.
func (f *stream) backUpAndRestore(user *explainer, replicated string) (map[string]harness.Schedule, string) {
	f.t.Helper()
	dir := f.t.TempDir()
	backup, restore := "", ""
	for line := range strings.Lines(f.onPage("adapter-replicated restore")) {
		line, _, _ = strings.Cut(line, "#")
		line = strings.NewReplacer("reschedule.tar", `"$DIR/reschedule.tar"`, "/var/lib/restored", `"$DIR/a"`).Replace(line)
		if rest, is := strings.CutPrefix(line, "kn source reschedule "); is {
			backup = "'" + user.binary + "' " + rest
		}
		if rest, is := strings.CutPrefix(line, "adapter-replicated restore "); is {
			restore = "'" + replicated + "' restore " + rest
		}
	}
	f.mu.Lock()
	acknowledged := maps.Clone(f.far)
	f.mu.Unlock()
	if err := inCheckout(f.t.Context(), dir, backup); err != nil { // as an administrator
		f.t.Fatal(err)
	}
	second := filepath.Join(dir, "second.tar")
	f.backUpOfAnother(user, second)
	if err := inCheckout(f.t.Context(), dir, restore); err != nil {
		f.t.Fatal(err)
	}

	// Nothing is delivered: the operator gets each key from the cluster alone.
	sources := filepath.Join(dir, "sources.yaml")
	manifest := manifestOf(f.name, "suspend: true\nsink: {uri: 'http://127.0.0.1:1/'}")
	manifest = strings.Replace(manifest, "metadata: {", fmt.Sprintf("metadata: {namespace: %s, uid: %s, ", f.namespace.name, f.get().UID), 1)
	if err := os.WriteFile(sources, []byte(manifest+"\n"), 0o600); err != nil {
		f.t.Fatal(err)
	}
	var all sync.WaitGroup
	members := [groupSize]*harness.Adapter{}
	peers := f.peers(len(members))
	for i := range members {
		all.Go(func() {
			name := string(rune('a' + i))
			flags := harness.Flags(sources, filepath.Join(dir, name), "--replicated", "--member", name, "--peers", peers)
			a, err := harness.Process{Binary: replicated}.Launch(flags...)
			if err != nil {
				f.t.Error(err)
				return
			}
			f.t.Cleanup(a.Kill)
			members[i] = a
		})
	}
	all.Wait()
	if f.t.Failed() {
		f.t.FailNow()
	}
	for _, a := range members {
		get := func(path string) (*harness.Reply, error) {
			return harness.Do(f.t.Context(), "GET", a.URL+"/"+f.namespace.name+"/"+f.name+path, "")
		}
		f.same(acknowledged, f.keys("far/", get))
		var counts harness.Counts
		r, err := get("")
		if err == nil {
			err = json.Unmarshal(r.Body, &counts)
		}
		if keys := f.keys("", get); err != nil || counts.Pending != len(keys) {
			f.t.Errorf("%+v, and %d keys are there: %v", counts, len(keys), err)
		}
	}
	for _, a := range members {
		a.Kill()
	}
	f.t.Logf("%d keys were acknowledged before the back-up, and are there after it was restored", len(acknowledged))
	return acknowledged, second
}

// backUpOfAnother backs up as a user who may not run commands in the first pod: the second one is
// asked, and gives it.
func (f *stream) backUpOfAnother(user *explainer, file string) {
	f.t.Helper()
	const name = "backup-of-another"
	f.apply(fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: %[1]s, namespace: %[2]s}
rules:
- {apiGroups: [""], resources: [pods/exec], resourceNames: [reschedule-adapter-1], verbs: [get, create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[1]s, namespace: %[2]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[1]s}
subjects: [{kind: ServiceAccount, name: ada, namespace: %[3]s}]
`, name, system, f.namespace.name))
	f.t.Cleanup(func() {
		_ = exec.Command("kubectl", "-n", system, "delete", "role/"+name, "rolebinding/"+name).Run()
	})
	eventually(f.t, patience, "a back-up of the second pod", func() error { // the right counts a moment later
		if out, err := user.command("backup", "-f", file).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// peers are the addresses of so many members on this machine.
func (f *stream) peers(many int) string {
	f.t.Helper()
	var peers []string
	for i := range many {
		address, err := harness.FreePair()
		if err != nil {
			f.t.Fatal(err)
		}
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			f.t.Fatal(err)
		}
		peers = append(peers, string(rune('a'+i))+"="+net.JoinHostPort("127.0.0.1", port))
	}
	return strings.Join(peers, ",")
}
