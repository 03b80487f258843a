package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	close9 = cmpopts.EquateApprox(0, 1e-9)
	began  = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
)

const uid = "00000000-1111-2222-3333-444444444444"

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// Both versions of control groups are read.
func TestNode_BothCgroupVersions(t *testing.T) {
	id, rest := strings.Repeat("ab", 32), strings.Repeat(" 0", 37)+"\n" // rest: of a line of stat, after the times
	proc := map[string]string{
		"7/comm": "containerd-shim\n", "7/cmdline": "containerd-shim-runc-v2\x00-id\x00" + id + "\x00", "7/stat": "7 (containerd-shim) S 1 1 1 0 -1 0 0 0 0 0 20 10" + rest,
		"7/smaps_rollup": "5500-7ff [rollup]\nRss:  9000 kB\nPrivate_Clean:  1 kB\nPrivate_Dirty:  3 kB\n",
		"8/comm":         "kubelet\n", "8/stat": "8 (kubelet) S 1 1 1 0 -1 0 0 0 0 0 100 50" + rest, "8/status": "VmRSS:\t5 kB\nRssAnon:\t2 kB\nRssFile:\t3 kB\n",
		"9/comm": "operator\n", "9/status": "RssFile:\t7 kB\n",
	}
	one, two := "kubepods/burstable/pod"+uid, "kubepods.slice/kubepods-pod"+strings.ReplaceAll(uid, "-", "_")+".slice"
	for name, files := range map[string]map[string]string{
		"version 1, cgroupfs": {
			"cpuacct/" + one + "/cpuacct.usage": "2500000000\n", "cpuacct/" + one + "/" + id + "/cgroup.procs": "9\n10\n",
			"memory/" + one + "/memory.usage_in_bytes": "1000\n", "memory/" + one + "/memory.stat": "cache 1\ntotal_cache 600\ntotal_inactive_file 200\n",
			"cpuacct/kubepods/podffffffff-1111-2222-3333-444444444444/without-any": "",
		},
		"version 2, systemd": {
			two + "/cpu.stat": "usage_usec 2500000\nuser_usec 1\n", two + "/memory.current": "1000\n", two + "/memory.stat": "anon 1\nfile 600\ninactive_file 200\n",
			two + "/cri-containerd-" + id + ".scope/cgroup.procs": "9\n10\n",
		},
	} {
		n := node{cgroups: t.TempDir(), proc: t.TempDir()}
		write(t, n.cgroups, files)
		write(t, n.proc, proc)
		got, err := n.read(t.Context())
		want := map[string]reading{uid: {2.5, 400, 7168}, shimOf + uid: {0.3, 4096, 0}, kubernetesItself: {1.5, 2048, 3072}}
		if diff := cmp.Diff(want, got, close9, cmp.AllowUnexported(reading{})); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	got := map[string]reading{}
	err := addSummary(got, []byte(`{"pods":[{"podRef":{"uid":"u"},"cpu":{"usageCoreNanoSeconds":2500000000},"memory":{"rssBytes":7}}]}`))
	if err != nil || got["u"] != (reading{cpu: 2.5, memory: 7}) {
		t.Errorf("%v, %v", got, err)
	}
}

// A pod costs what it uses between the readings; one that starts meanwhile had used nothing before.
func TestRecord_OlderAndStarted(t *testing.T) {
	namespaces := map[string]string{"stays": "expiry-resident-0", "comes": "expiry-serverless-0", "late": "expiry-serverless-1", "foreign": "other"}
	r := &record{subjects: map[string]*track{}, traces: map[string][][2]float64{}, partOf: func(uid string) (string, string) {
		return formOf(namespaces[uid]), namespaces[uid]
	}}
	stays, comes, shim := reading{10, 50, 40}, reading{0.5, 20, 10}, reading{0.1, 2, 1}
	r.add(began, map[string]reading{"stays": stays, "foreign": stays})
	r.add(began.Add(100*time.Second), map[string]reading{"stays": stays, "comes": comes, shimOf + "comes": shim})
	r.add(began.Add(140*time.Second), map[string]reading{"stays": {10.5, 70, 40}, "comes": {0.75, 40, 10}, shimOf + "comes": shim})
	r.add(began.Add(200*time.Second), map[string]reading{"stays": {0.25, 70, 40}, "late": comes}) // it was started again
	want := map[string]use{
		resident: {Pod: cost{100*50 + 40*60 + 60*70, 200 * 40, 0.5}, Pods: 1, There: 200},
		serverless: {
			Pod: cost{40 * 30, 40 * 10, 0.75 + 0.5}, Shim: cost{40 * 2, 40 * 1, 0.1}, Pods: 2, There: 40,
			Lives: []life{{40, cost{40*30 + 40*2, 40*10 + 40*1, 0.85}}},
		},
	}
	if diff := cmp.Diff(want, r.bill().Used, close9); diff != "" || len(r.traces[resident]) != 1 || r.traces[resident][0] != [2]float64{0, 90} {
		t.Errorf("%v (-want +got):\n%s", r.traces, diff)
	}
}

// Every pod belongs to its part.
func TestPodPart_OfEach(t *testing.T) {
	source, component := "eventing.knative.dev/source", "app.kubernetes.io/component"
	for _, c := range []struct{ namespace, name, label, value, want string }{
		{"expiry-resident-0", "expiry-1", "", "", resident},
		{"expiry-serverless-2", "expiry-00001-deployment-1", "", "", serverless},
		{"expiry-fed-0", "apiserversource-1", source, "apiserver-source-controller", watcher},
		{"expiry-shared-0", "apiserversource-1", source, "apiserver-source-controller", sharedWatcher},
		{"knative-eventing", "reschedule-adapter-0", component, "reschedule-adapter", adapter},
		{"knative-eventing", "reschedule-controller-1", component, "reschedule-controller", controller},
		{"knative-eventing", "eventing-webhook-1", "", "", eventing},
		{"knative-eventing", "mt-broker-filter-1", "", "", broker},
		{"knative-serving", "activator-1", component, "activator", activator},
		{"knative-serving", "autoscaler-h1", "", "", autoscaler},
		{"knative-serving", "autoscaler-hpa-1", "", "", serving},
		{"knative-serving", "controller-1", "", "", serving},
		{"knative-serving", "traefik-1", "", "", ingress},
		{"kourier-system", "3scale-kourier-gateway-1", "", "", ingress},
		{"other", "expiry-1", "", "", ""},
	} {
		if got := podPart(metav1.ObjectMeta{Namespace: c.namespace, Name: c.name, Labels: map[string]string{c.label: c.value}}); got != c.want {
			t.Errorf("%s/%s is of %q, want %q", c.namespace, c.name, got, c.want)
		}
	}
}

// No operator is woken before it is at zero again, or after the end.
func TestJobs_LeaveTimeToReachZero(t *testing.T) {
	const long = 24 * time.Minute
	for _, jobs := range [][]job{cycles(long), sparse(long)} {
		last := map[string]time.Duration{}
		for _, j := range jobs {
			if before, woken := last[j.ns]; woken && j.after-before < 80*time.Second || j.lives < 80*time.Second || j.after+j.lives > long {
				t.Errorf("%+v comes after %s", j, before)
			}
			last[j.ns] = j.after + j.lives
		}
		if len(last) != len(namespaces()) {
			t.Errorf("only %v have jobs", last)
		}
	}
}

// The committed pages and plot are made of the committed results.
func TestRender_CommittedResults(t *testing.T) {
	r, err := load("results.json")
	if err != nil {
		t.Fatal(err)
	}
	repo, files := t.TempDir(), map[string]string{"docs/images/scale-to-zero.svg": ""}
	for _, page := range pages {
		files[page] = "<!-- results:scale-to-zero, generated -->\nold<!-- results:end -->\n"
	}
	write(t, repo, files)
	if err := render(repo, r); err != nil {
		t.Fatal(err)
	}
	for file := range files {
		got, _ := os.ReadFile(filepath.Join(repo, file))
		want, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil || !bytes.Contains(want, bytes.TrimSpace(got)) {
			t.Errorf("%s, %v: it lacks\n%s", file, err, got)
		}
	}
}

// The commands of the page compute what the tables say.
func TestPage_Calculator(t *testing.T) {
	r, err := load("results.json")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/scale-to-zero.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	for _, size := range []float64{25, 50, 100, 250} {
		for _, k := range []float64{1, 4, 12} {
			numbers := strings.NewReplacer("operator=100", fmt.Sprintf("operator=%g", size), "starts=4", fmt.Sprintf("starts=%g", k))
			got, err := exec.CommandContext(t.Context(), "sh", "-c", numbers.Replace(block)).CombinedOutput()
			resident, zero := r.sized(size*1e6, k)
			saved := resident - zero
			want := fmt.Sprintf("%.0f MB resident, %.0f MB at zero\npays from %s operators, or %s if Knative is there only for this\n",
				resident/1e6, zero/1e6, from(saved, r.all(ours).bytes()), from(saved, r.all(ours, knative).bytes()))
			if err != nil || string(got) != want {
				t.Errorf("%g MB, %g starts: %v, %s, want %s", size, k, err, got, want)
			}
		}
	}
}
