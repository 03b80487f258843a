//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// The release before is the commit UPGRADE_FROM. The cluster runs this
// checkout at first and at the end, as it is on the disk.
func upgradeAndBack(t *testing.T, turn func()) {
	const schedules = 500
	n := newNamespace(t, "upgrade")
	n.deploy("operator", 2, streamRules...)
	s := n.source("upgraded", toService("operator")+"delivery: {backoffDelay: PT0.5S, backoffPolicy: linear}\n")
	platforms := platforms(n)
	before := releaseOf(t, "before", checkout(t, cmp.Or(os.Getenv("UPGRADE_FROM"), "HEAD^")), platforms)
	now := releaseOf(t, "now", "../..", platforms)
	turn()
	s.served()
	t.Cleanup(func() {
		if t.Failed() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := now.apply(ctx); err != nil {
				t.Errorf("the cluster does not run this checkout: %v", err)
			}
		}
	})

	stream := s.stream()
	stream.flow(50)
	var outages []outage
	var down time.Time // since when an adapter refuses the data
	for _, step := range []struct {
		name string
		*release
	}{{"back", before}, {"upgrade", now}} {
		o := outage{from: down}
		if down.IsZero() {
			stream.spread(step.name, schedules, 20*time.Second)
			stream.underWay() // else an install may begin between two deliveries
			o.from = time.Now()
		}
		err := installRelease(n, step.release)
		if step.release == before && err != nil && strings.Contains(err.Error(), otherFormat) {
			t.Logf("there is no way back from this format, and the data stay as they are: %v", err)
			down = o.from
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		o.to = time.Now()
		outages = append(outages, o)
		stream.flow(100)
	}
	stream.end()
	stream.judge(outages...)
	eventually(t, patience, "the cluster is well", n.well)
}

// platforms are the platforms of the nodes, as ko names them.
func platforms(n *namespace) string {
	n.t.Helper()
	nodes, err := n.Client.CoreV1().Nodes().List(n.t.Context(), metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	var platforms []string
	for _, node := range nodes.Items {
		platforms = append(platforms, node.Status.NodeInfo.OperatingSystem+"/"+node.Status.NodeInfo.Architecture)
	}
	slices.Sort(platforms)
	return strings.Join(slices.Compact(platforms), ",")
}

// checkout is a folder with the files of a commit.
func checkout(t *testing.T, commit string) string {
	t.Helper()
	git := func(ctx context.Context, args ...string) error {
		cmd := exec.CommandContext(ctx, "git", args...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	if err := git(t.Context(), "rev-parse", "--verify", commit+"^{commit}"); err != nil {
		t.Fatalf("commit %s is not in this clone: git fetch --deepen=1 gets the commit before the newest, and UPGRADE_FROM names another: %v", commit, err)
	}
	dir := filepath.Join(t.TempDir(), "before")
	if err := git(t.Context(), "worktree", "add", "--detach", dir, commit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := git(context.Background(), "worktree", "remove", "--force", dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// release is what hack/release.sh writes.
type release struct {
	file                string
	adapter, controller string // their images
}

// releaseOf makes the release of a checkout, of a name in bin/ko, and pushes its images.
func releaseOf(t *testing.T, name, dir, platforms string) *release {
	t.Helper()
	// ko has one place for each program, which two checkouts would share.
	cache, err := filepath.Abs("../../bin/ko")
	if err != nil {
		t.Fatal(err)
	}
	dist := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "hack/release.sh")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KOCACHE="+filepath.Join(cache, name), "DIST="+dist, "PLATFORMS="+platforms, "KOFLAGS=--sbom=none", "VERSION=")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("hack/release.sh in %s: %v\n%s", dir, err, &said)
	}
	r := &release{file: filepath.Join(dist, "reschedule.yaml")}
	manifests, err := os.ReadFile(r.file)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := kube.Objects(manifests)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		for _, c := range containers {
			image, _, _ := unstructured.NestedString(c.(map[string]any), "image")
			switch o.GetName() {
			case adapter:
				r.adapter = image
			case controller:
				r.controller = image
			}
		}
	}
	if r.adapter == "" || r.controller == "" {
		t.Fatalf("%s has no images of adapter and controller", r.file)
	}
	return r
}

// apply applies it as docs/upgrade.md says: where a field of the StatefulSet
// differs that cannot be changed, the StatefulSet is deleted without its pod
// and made again.
func (r *release) apply(ctx context.Context) error {
	err := kubectl(ctx, "apply", "-f", r.file)
	if !kube.RefusedAsImmutable(err) {
		return err
	}
	if err := kubectl(ctx, "-n", system, "delete", "statefulset", adapter, "--cascade=orphan"); err != nil {
		return err
	}
	return kubectl(ctx, "apply", "-f", r.file)
}

func kubectl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "kubectl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// otherFormat is what an adapter says that cannot read the data directory.
const otherFormat = "this program reads version"

// installRelease applies a release and waits until nothing else runs. The error may be
// that this adapter refuses the data.
func installRelease(n *namespace, r *release) error {
	if err := r.apply(n.t.Context()); err != nil {
		return err
	}
	return poll(n.t.Context(), patience, func() error {
		for component, image := range map[string]string{controller: r.controller, adapter: r.adapter} {
			pods, err := n.Client.CoreV1().Pods(system).List(n.t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
			if err != nil {
				return err
			}
			for _, pod := range pods.Items {
				if is := pod.Spec.Containers[0].Image; is != image {
					return fmt.Errorf("pod %s runs %s, not %s", pod.Name, is, image)
				}
				if err := wellPod(&pod); err != nil && strings.Contains(err.Error(), otherFormat) {
					return final{err}
				} else if err != nil {
					return err
				}
			}
			if len(pods.Items) == 0 && (component == controller || anySource(n)) {
				return fmt.Errorf("there is no pod of %s", component)
			}
		}
		return nil
	})
}

// anySource says whether the adapter is wanted.
func anySource(n *namespace) bool {
	list, err := n.sources.SourcesV1alpha1().RescheduleSources(corev1.NamespaceAll).List(n.t.Context(), metav1.ListOptions{Limit: 1})
	return err != nil || len(list.Items) > 0
}
