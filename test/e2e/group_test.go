//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

const (
	memberLabel = "app.kubernetes.io/component=" + adapter
	groupPage   = "docs/high-availability.md"
	groupSize   = 3 // adapters
)

// One adapter becomes three, any of them goes, and they become one again: nothing is lost, and
// callers wait seconds. A workload that is asleep and must start meanwhile starts, and sleeps again.
func groupLosesNothing(t *testing.T, turn func()) {
	n := newNamespace(t, "group")
	n.deploy("operator", 2, streamRules...)
	s := n.source("group", toService("operator")+"delivery: {backoffDelay: PT0.5S, backoffPolicy: linear}\n")
	sleepy := newNamespace(t, "group-asleep")
	scales(sleepy)
	sleepy.deploy("operator", 1)
	sleeper := sleepy.source("sleeper", scaled("")+"delivery: {backoffDelay: PT0.5S, backoffPolicy: linear}\n")
	user := n.explainer()
	replicated, err := adapterReplicated()
	if err != nil {
		t.Fatal(err)
	}
	turn()
	n.singleAgain()
	s.served()
	stream := s.stream()
	const unite = "from three to one"
	var kept map[string]harness.Schedule
	var backup string
	stream.flow(150) // slow runs are under way when the first step begins
	var outages []outage
	for i, step := range []struct {
		name string
		do   func() (back func() error)
	}{
		{"from one to three", func() func() error { return n.replicate(user) }},
		{"the owner's process is killed", func() func() error {
			pod := n.groupOwner()
			n.killContainers(pod)
			return n.restarted(pod)
		}},
		{"the owner's pod is deleted without grace", func() func() error {
			pod := n.groupOwner()
			n.deleteNow(pod)
			return func() error { return n.replaced(pod) }
		}},
		{"the owner's pod is evicted, as from a node that is drained", func() func() error {
			pod := n.groupOwner()
			n.evict(pod)
			return func() error { return n.replaced(pod) }
		}},
		{"all pods are replaced, one after the other", func() func() error {
			before := n.podsOf(system, memberLabel)
			if err := kubectl(n.t.Context(), "-n", system, "rollout", "restart", "statefulset/"+adapter); err != nil {
				t.Fatal(err)
			}
			return func() error { return n.allReplaced(before) }
		}},
		{"all processes are killed at once", func() func() error {
			pods := n.podsOf(system, memberLabel)
			n.killContainers(pods...)
			return n.restarted(pods...)
		}},
		{unite, func() func() error { return n.unite(user) }},
	} {
		if step.name == unite {
			kept, backup = stream.backUpAndRestore(user, replicated)
		}
		sleepy.asleep()
		wake := sleeper.put("wake/"+strconv.Itoa(i), `{"delay": "300ms"}`).Key
		o := outage{from: time.Now()}
		eventually(t, patience, step.name+": all are back", step.do())
		o.to = time.Now()
		outages = append(outages, o)
		stream.flow(100)
		eventually(t, patience, step.name+": the cluster is well", n.well)
		if step.name != unite {
			eventually(t, patience, step.name+": doctor shows an owner and two standbys", func() error { return user.seesGroup() })
		}
		notEarly(sleepy, sleepy.awaitRuns(patience, wake, 1)...)
		t.Logf("%s: callers had no answer for %s", step.name, stream.unanswered(o))
	}
	stream.end()
	stream.judge(outages...)

	n.kustomized(threeAdapters)
	n.restore(backup, 3)
	s.served()
	stream.same(kept, stream.keys("far/", func(path string) (*harness.Reply, error) { return s.try("GET", path, "") }))
	eventually(t, patience, "a restored group: the cluster is well", n.well)
	eventually(t, patience, "a restored group has an owner and two standbys", func() error { return user.seesGroup() })
}

// seesGroup is nil when doctor and top show an owner and two standbys to a user of the command line.
func (e *explainer) seesGroup() error {
	for command, want := range map[string][2]string{"doctor": {"It owns the group, and has entry", "It is a standby: it lacks"}, "top": {" owns the group", " behind"}} {
		out, _ := e.command(command).CombinedOutput() // doctor fails for other findings too
		if text := string(out); strings.Count(text, want[0]) != 1 || strings.Count(text, want[1]) != groupSize-1 {
			return fmt.Errorf("%s says\n%s", command, text)
		}
	}
	return nil
}

// installed are commands of bash that install the checkout, as make deploy does, and wait for it.
const installed = `
go run -modfile=tools/ko/go.mod github.com/google/ko apply --sbom=none -f config/
for workload in deployment/reschedule-controller statefulset/reschedule-adapter; do
    kubectl -n knative-eventing rollout status $workload --timeout=3m
done`

// threeAdapters are the lines of a kustomization that make a group.
const threeAdapters = `components: [$(realpath --relative-to="$DIR" config/replicated)]`

// singleAgain leaves the cluster with one adapter, and no volume, when the test ends.
func (n *namespace) singleAgain() { n.t.Cleanup(n.adapterAgain) }

// adapterAgain makes one adapter with an empty volume.
func (n *namespace) adapterAgain() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // the test's own is over
	defer cancel()
	if n.t.Failed() {
		(&namespace{cluster: n.cluster, t: n.t, name: system}).dump(ctx)
	}
	err := n.removeAdapters(ctx)
	if err == nil { // a restore that failed has left no controller
		err = kubectl(ctx, "-n", system, "scale", "deployment", "reschedule-controller", "--replicas=1")
	}
	if err == nil {
		err = inCheckout(ctx, n.t.TempDir(), installed)
	}
	if err != nil {
		n.t.Errorf("the cluster has not one adapter again: %v", err)
	}
}

// replicate makes three adapters of the single adapter, as the page says.
func (n *namespace) replicate(user *explainer) (back func() error) {
	n.t.Helper()
	n.authority = n.t.TempDir()
	n.certify()
	backup := n.sealed(user, "adapter")
	n.kustomized(threeAdapters)
	n.restore(backup, groupSize)
	return n.well
}

// sealed seals what runs, and backs it up, as the page says.
func (n *namespace) sealed(user *explainer, program string) (backup string) {
	n.t.Helper()
	steps, _, found := strings.Cut(n.onPage("/ko-app/"+program+" seal "), "\nkubectl kustomize")
	if !found {
		n.t.Fatalf("%s has other steps:\n%s", groupPage, steps)
	}
	dir := n.t.TempDir()
	steps = strings.NewReplacer("kn source reschedule", "'"+user.binary+"'", "reschedule.tar", `"$DIR/reschedule.tar"`).Replace(steps)
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	if err := inCheckout(ctx, dir, steps); err != nil {
		n.t.Fatal(err)
	}
	return filepath.Join(dir, "reschedule.tar")
}

// certify makes the certificate of the members, as the page says. Another one is of the same authority;
// edits are pairs of a text of the page, and the text in its place.
func (n *namespace) certify(edits ...string) {
	n.t.Helper()
	commands := strings.NewReplacer(edits...).Replace(n.onPage("create secret generic"))
	if err := inCheckout(n.t.Context(), n.authority, "cd \"$DIR\"\n"+commands); err != nil {
		n.t.Fatal(err)
	}
}

// unite makes one adapter of the three, as the page says.
func (n *namespace) unite(user *explainer) (back func() error) {
	n.t.Helper()
	backup := n.sealed(user, "adapter-replicated")
	n.kustomized("")
	n.restore(backup, 1)
	return n.well
}

// onPage is the one block of commands of the page about groups that has the text.
func (n *namespace) onPage(text string) string {
	n.t.Helper()
	return n.onPageOf(groupPage, text)
}

// onPageOf is the one block of commands of a page that has the text.
func (n *namespace) onPageOf(name, text string) string {
	n.t.Helper()
	page, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		n.t.Fatal(err)
	}
	with := func(page string) []step {
		return slices.DeleteFunc(steps(page), func(s step) bool { return !strings.Contains(s.commands, text) })
	}
	blocks := with(string(page))
	if len(blocks) == 0 { // a block within a list is indented
		blocks = with(strings.ReplaceAll(string(page), "\n  ", "\n"))
	}
	if len(blocks) != 1 {
		n.t.Fatalf("%s has %d blocks with %q", name, len(blocks), text)
	}
	return blocks[0].commands
}

// kustomized applies config with more lines in the kustomization.
func (n *namespace) kustomized(more string) {
	n.t.Helper()
	const install = `
cat >$DIR/kustomization.yaml <<END
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [$(realpath --relative-to="$DIR" config)]
%s
END
kubectl kustomize "$DIR" | go run -modfile=tools/ko/go.mod github.com/google/ko apply --sbom=none -f -`
	if err := inCheckout(n.t.Context(), n.t.TempDir(), fmt.Sprintf(install, more)); err != nil {
		n.t.Fatal(err)
	}
}

// inCheckout runs commands of bash in the project's directory, with a directory of their own
// in DIR.
func inCheckout(ctx context.Context, dir, commands string) error {
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "DIR="+dir)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w\n%s\n%s", err, commands, tail(said.String()))
	}
	return nil
}

// removeAdapters removes all adapters, their volumes and their certificate.
func (n *namespace) removeAdapters(ctx context.Context) error {
	if err := kubectl(ctx, "-n", system, "delete", "statefulset", adapter, "--ignore-not-found", "--timeout=2m"); err != nil {
		return err
	}
	if err := kubectl(ctx, "-n", system, "delete", "pvc", "-l", memberLabel, "--timeout=2m"); err != nil {
		return err
	}
	return kubectl(ctx, "-n", system, "delete", "secret", "reschedule-adapter-peers", "--ignore-not-found")
}

// allReplaced says whether all members of the one group are ready and none is an old pod.
func (n *namespace) allReplaced(before []*corev1.Pod) error {
	for i := range groupSize {
		pod, err := n.Client.CoreV1().Pods(system).Get(n.t.Context(), fmt.Sprintf("%s-%d", adapter, i), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if slices.ContainsFunc(before, func(p *corev1.Pod) bool { return p.UID == pod.UID }) {
			return fmt.Errorf("%s is the old pod", pod.Name)
		}
		if err := wellPod(pod); err != nil {
			return err
		}
	}
	return nil
}

// groupOwner is the pod of the member that owns the group.
func (n *namespace) groupOwner() *corev1.Pod {
	n.t.Helper()
	var owner *corev1.Pod
	eventually(n.t, patience, "a member owns the group", func() error {
		owner = nil
		for _, pod := range n.podsOf(system, memberLabel) {
			metrics, err := n.Client.CoreV1().Pods(system).ProxyGet("http", pod.Name, "9090", "metrics", nil).DoRaw(n.t.Context())
			if err != nil {
				return err
			}
			if strings.Contains(string(metrics), "\nreschedule_group_owner 1\n") {
				owner = pod
			}
		}
		if owner == nil {
			return errors.New("none does")
		}
		return nil
	})
	return owner
}

// evict asks again while the budget of disruptions forbids it, as kubectl drain does.
func (n *namespace) evict(pod *corev1.Pod) {
	n.t.Helper()
	eventually(n.t, patience, "the eviction is allowed", func() error {
		err := n.Client.PolicyV1().Evictions(system).Evict(n.t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: system}})
		if err != nil && !apierrors.IsTooManyRequests(err) {
			return final{err}
		}
		return err
	})
}
