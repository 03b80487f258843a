package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/reschedule-dev/reschedule/bench/report"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	close9 = cmpopts.EquateApprox(0, 1e-9)
	began  = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
)

func at(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }

// The cost of a time is the part of the series within it.
func TestSeries_CostOfATime(t *testing.T) {
	t.Parallel()
	s := series{{10, reading{cpu: 1, memory: 100, text: 50}}, {12, reading{cpu: 2, memory: 200, text: 50}}, {20, reading{cpu: 2, memory: 200, text: 50}}}
	for name, c := range map[string]struct {
		from, to float64
		older    bool
		want     cost
	}{
		"its whole life":                {0, 30, false, cost{300 + 1600, 500, 2}},
		"what it had used before":       {0, 30, true, cost{300 + 1600, 500, 1}},
		"the middle":                    {11, 13, false, cost{175 + 200, 100, 0.5}},
		"between two samples":           {14, 16, true, cost{400, 100, 0}},
		"before it was there":           {0, 5, false, cost{}},
		"after it was gone":             {25, 30, false, cost{}},
		"from its beginning":            {10, 12, false, cost{300, 100, 2}},
		"from its beginning, but older": {10, 12, true, cost{300, 100, 1}},
	} {
		if diff := cmp.Diff(c.want, s.between(c.from, c.to, c.older), close9); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

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
	t.Parallel()
	id := strings.Repeat("ab", 32)
	rest := strings.Repeat(" 0", 37) + "\n" // of a line of stat, after the times
	proc := map[string]string{
		"7/comm": "containerd-shim\n", "7/cmdline": "containerd-shim-runc-v2\x00-id\x00" + id + "\x00", "7/stat": "7 (containerd-shim) S 1 1 1 0 -1 0 0 0 0 0 20 10" + rest,
		"7/smaps_rollup": "5500-7ff [rollup]\nRss:  9000 kB\nPrivate_Clean:  1 kB\nPrivate_Dirty:  3 kB\n",
		"8/comm":         "kubelet\n", "8/stat": "8 (kubelet) S 1 1 1 0 -1 0 0 0 0 0 100 50" + rest, "8/status": "VmRSS:\t5 kB\nRssAnon:\t2 kB\nRssFile:\t3 kB\n",
		"9/comm": "operator\n", "9/status": "RssFile:\t7 kB\n",
	}
	one, two := "kubepods/burstable/pod"+uid, "kubepods.slice/kubepods-pod"+strings.ReplaceAll(uid, "-", "_")+".slice"
	for name, files := range map[string]map[string]string{
		"version 1, cgroupfs": {
			"cpuacct/" + one + "/cpuacct.usage":                                    "2500000000\n",
			"cpuacct/" + one + "/" + id + "/cgroup.procs":                          "9\n10\n",
			"memory/" + one + "/memory.usage_in_bytes":                             "1000\n",
			"memory/" + one + "/memory.stat":                                       "cache 1\ntotal_cache 600\ntotal_inactive_file 200\n",
			"cpuacct/kubepods/burstable/pod" + uid[:30] + "/not-one/cpuacct.usage": "1\n",
			"cpuacct/kubepods/podffffffff-1111-2222-3333-444444444444/without-any": "",
		},
		"version 2, systemd": {
			two + "/cpu.stat":       "usage_usec 2500000\nuser_usec 1\n",
			two + "/memory.current": "1000\n",
			two + "/memory.stat":    "anon 1\nfile 600\ninactive_file 200\n",
			two + "/cri-containerd-" + id + ".scope/cgroup.procs": "9\n10\n",
		},
	} {
		n := node{cgroups: t.TempDir(), proc: t.TempDir()}
		write(t, n.cgroups, files)
		write(t, n.proc, proc)
		got, err := n.read(t.Context())
		want := map[subject]reading{
			{podOf, uid}:           {cpu: 2.5, memory: 400, text: 7168},
			{shimOf, uid}:          {cpu: 0.3, memory: 4096},
			{processOf, "kubelet"}: {cpu: 1.5, memory: 2048, text: 3072},
		}
		if diff := cmp.Diff(want, got, close9, cmp.AllowUnexported(subject{}, reading{})); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// The kubelet's metrics are read for whole pods.
func TestCadvisor_WholePods(t *testing.T) {
	t.Parallel()
	got := map[subject]reading{}
	cadvisor(`# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="",cpu="total",id="/kubepods/burstable/pod`+uid+`",image="",name="",namespace="a",pod="b"} 2.5 1700000000000
container_cpu_usage_seconds_total{container="",cpu="total",id="/kubepods/burstable/pod`+uid+`/ff",image="pause",name="ff",namespace="a",pod="b"} 1 1700000000000
container_cpu_usage_seconds_total{container="c",cpu="total",id="/kubepods/burstable/pod`+uid+`/ee",image="c",name="ee",namespace="a",pod="b"} 1 1700000000000
container_memory_mapped_file{container="",id="/kubepods/burstable/pod`+uid+`",image="",name="",namespace="a",pod="b"} 1.5e+06 1700000000000
container_memory_rss{container="",id="/kubepods/burstable/pod`+uid+`",image="",name="",namespace="a",pod="b"} 1e+06 1700000000000
container_memory_mapped_file{container="",id="/",image="",name="",namespace="",pod=""} 9e+09 1700000000000
`, got)
	if diff := cmp.Diff(map[subject]reading{{podOf, uid}: {2.5, 1e6, 1.5e6}}, got, cmp.AllowUnexported(subject{}, reading{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Every pod belongs to its part.
func TestPart_OfPods(t *testing.T) {
	t.Parallel()
	source, component := "eventing.knative.dev/source", "app.kubernetes.io/component"
	for _, c := range []struct{ namespace, name, label, value, want string }{
		{"expiry-resident-0", "expiry-1", "", "", resident},
		{"expiry-serverless-2", "expiry-00001-deployment-1", "", "", serverless},
		{"expiry-serverless-2", "apiserversource-1", source, "apiserver-source-controller", watcher},
		{"expiry-fed-0", "apiserversource-1", source, "apiserver-source-controller", watcher},
		{"expiry-shared-0", "apiserversource-1", source, "apiserver-source-controller", sharedWatcher},
		{"knative-eventing", "reschedule-adapter-0", component, "reschedule-adapter", adapter},
		{"knative-eventing", "reschedule-controller-1", component, "reschedule-controller", controller},
		{"knative-eventing", "eventing-webhook-1", "", "", eventing},
		{"knative-eventing", "mt-broker-filter-1", "", "", broker},
		{"knative-serving", "activator-1", "", "", activator},
		{"knative-serving", "autoscaler-1", "", "", autoscaler},
		{"knative-serving", "autoscaler-hpa-1", "", "", serving},
		{"knative-serving", "controller-1", "", "", serving},
		{"knative-serving", "traefik-1", "", "", ingress},
		{"kourier-system", "3scale-kourier-gateway-1", "", "", ingress},
		{"other", "expiry-1", "", "", ""},
	} {
		pod := metav1.ObjectMeta{Namespace: c.namespace, Name: c.name, Labels: map[string]string{c.label: c.value}}
		shim := strings.TrimSuffix("shim "+c.want, "shim ")
		if got := part(subject{podOf, ""}, pod); got != c.want || part(subject{shimOf, ""}, pod) != shim || part(subject{processOf, ""}, pod) != kubernetesItself {
			t.Errorf("%s/%s is of %q, want %q; its shim of %q", c.namespace, c.name, got, c.want, part(subject{shimOf, ""}, pod))
		}
	}
}

// The manifest of each form is made of the example.
func TestManifestOf_EachForm(t *testing.T) {
	t.Parallel()
	has := map[string][]string{ // with "-" in front: has not
		resident:   {"kind: Deployment", "namespace: ns", "  name: ns\n"},
		serverless: {"autoscaling.knative.dev/window", "timeoutSeconds", "name: expiry-watcher", "  watch:", "-warmUp"},
		warmed:     {"spec:\n  warmUp: 4s\n  sink:"},
		fed:        {"kind: ApiServerSource", "timeoutSeconds"},
		defaults:   {"kind: Service\n", "-autoscaling.knative.dev/window", "-timeoutSeconds:"},
		shared:     {"kind: Trigger", "name: changes", "kind: RescheduleSource", "-name: expiry\n  namespace: ns\nspec:\n  serviceAccountName"},
	}
	for _, form := range forms {
		text, err := os.ReadFile(filepath.Join("..", "..", "test", "expiry", "config", form.manifest))
		if err != nil {
			t.Fatal(err)
		}
		manifest := manifestOf(form.name, string(text), "ns")
		for _, want := range append(has[form.name], "-namespace: expiry\n") {
			unwanted, not := strings.CutPrefix(want, "-")
			if strings.Contains(manifest, unwanted) == not {
				t.Errorf("%s: want %q:\n%s", form.name, want, manifest)
			}
		}
	}
}

// No operator is woken before it is at zero again, or after the end.
func TestJobs_LeaveTimeToReachZero(t *testing.T) {
	t.Parallel()
	const long = 24 * time.Minute
	for name, plan := range map[string]func(operators, time.Duration) []job{"wakes": cycles, "run": sparse} {
		jobs := plan(operators{resident: 2, serverless: 3, defaults: 2, shared: 1}, long)
		last := map[string]time.Duration{}
		for _, j := range jobs {
			if before, woken := last[j.ns]; woken && j.after-before < 80*time.Second || j.lives < 80*time.Second {
				t.Errorf("%s: %s is woken at %s after %s, for %s", name, j.ns, j.after, before, j.lives)
			}
			if last[j.ns] = j.after + j.lives; last[j.ns] > long {
				t.Errorf("%s: %s is woken at %s", name, j.ns, last[j.ns])
			}
		}
		sum := 0
		for _, n := range deliveries(jobs) {
			sum += n
		}
		if len(last) != 8 || 2*len(jobs) != sum {
			t.Errorf("%s: %d operators have %d jobs, which count as %d", name, len(last), len(jobs), sum)
		}
	}
}

// history returns a record with one pod of each kind.
func history() *record {
	r := newRecord(nil)
	r.began = began
	add := func(name, namespace string, older bool, samples series) {
		r.pods[name] = metav1.ObjectMeta{Name: name, Namespace: namespace}
		r.series[subject{podOf, name}], r.older[subject{podOf, name}] = samples, older
	}
	add("stays", "expiry-resident-0", true, series{{0, reading{10, 50, 40}}, {1000, reading{11, 50, 40}}})
	add("comes-and-goes", "expiry-serverless-0", false, series{{100, reading{0.5, 20, 20}}, {140, reading{0.6, 20, 20}}})
	add("foreign", "other", true, series{{0, reading{10, 50, 40}}, {1000, reading{11, 50, 40}}})
	r.series[subject{shimOf, "comes-and-goes"}] = series{{100, reading{0.1, 2, 2}}, {140, reading{0.1, 2, 2}}}
	return r
}

// Idle usage and the cost of a wake are kept apart.
func TestResults_IdleAndWakes(t *testing.T) {
	t.Parallel()
	r, asked := history(), map[string]int{resident: 2, serverless: 1}
	from, to := at(0), at(1000)
	used := r.between(from, to)
	quiet := &idle{Parts: map[string]partIdle{resident: {Pods: 1, Rate: cost{50, 40, 0.0005}}}}
	results := &results{Idle: quiet, Wakes: wakesOf(used, from, to, quiet, asked), Run: runOf(used, from, to, asked)}
	for _, c := range []struct {
		what      string
		want, got any
	}{
		{"pods", map[string][]podLife{serverless: {{40, cost{800, 800, 0.6}, cost{80, 80, 0.1}}}}, results.Wakes.Pods},
		{"a wake of the resident", cost{CPU: 0.25}, results.Wakes.of(resident)},
		{"a wake from zero", cost{880, 880, 0.7}, results.Wakes.of(serverless)},
		{"an hour of the resident", cost{50 * 3600, 40 * 3600, 1.8 + 1}, results.hour(resident, 4)},
		{"the run", map[string]cost{resident: {50000, 40000, 1}, serverless: {880, 880, 0.7}}, results.Run.Used},
		{"foretold of the resident", results.Run.Used[resident], results.foretold(resident)},
		{"foretold from zero", results.Run.Used[serverless], results.foretold(serverless)},
		{"trace", [][2]float64{{0, 0}, {60, 0}, {120, 40}}, r.trace(from, at(120), 60, serverless, "expiry-serverless-0")},
		{"idle", cost{50, 40, 0.001}, idleOf(used, from, to).each(resident)},
		{"idle of a pod that was there for a while", cost{22, 22, 0.0175}, idleOf(used, from, to).each(serverless)},
	} {
		if diff := cmp.Diff(c.want, c.got, close9); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, diff)
		}
	}
}

// A failed reading leaves a gap.
func TestRecord_FailedReading(t *testing.T) {
	t.Parallel()
	failed := errors.New("no answer")
	r := newRecord(func(context.Context) (map[subject]reading, error) {
		return map[subject]reading{{podOf, uid}: {cpu: 1}}, failed
	})
	if err := r.once(t.Context()); err == nil {
		t.Error("nothing was read, and no error")
	}
	failed = nil
	if err := r.once(t.Context()); err != nil || len(r.series) != 1 || !r.older[subject{podOf, uid}] {
		t.Errorf("%v, %d series", err, len(r.series))
	}
}

// The least number of operators that pays.
func TestFrom_LeastOperators(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		saved, share float64
		want         int
		pays         bool
	}{{10, 0, 1, true}, {10, 95, 10, true}, {10, 100, 11, true}, {0, 0, 0, false}, {-1, 50, 0, false}} {
		if got, pays := from(c.saved, c.share); got != c.want || pays != c.pays {
			t.Errorf("from(%v, %v) = %d, %t, want %d, %t", c.saved, c.share, got, pays, c.want, c.pays)
		}
	}
}

// The committed page and plot are made of the committed results.
func TestRender_CommittedResults(t *testing.T) {
	t.Parallel()
	r, repo, page, plot := new(results), t.TempDir(), filepath.Join("docs", "scale-to-zero.md"), filepath.Join("docs", "images", "scale-to-zero.svg")
	if err := report.Load("results.json", r); err != nil {
		t.Fatal(err)
	}
	write(t, repo, map[string]string{page: strings.Join([]string{beginMark, "old", endMark}, "\n"), plot: ""})
	if err := render(repo, r); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{page, plot} {
		got, _ := os.ReadFile(filepath.Join(repo, file))
		want, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil || !bytes.Contains(want, bytes.TrimSpace(got)) {
			t.Errorf("%s, %v: it lacks\n%s", file, err, got)
		}
	}
	// A form that was not measured has no number either.
	r.Run, r.Wakes.Pods[defaults], r.Wakes.Pods[fed] = nil, nil, nil
	if err := render(repo, r); err != nil {
		t.Fatal(err)
	}
	got, _ := os.ReadFile(filepath.Join(repo, page))
	for _, bad := range []string{"NaN", "Inf", "%!", "Does it add up", "behind an ApiServerSource |"} {
		if bytes.Contains(got, []byte(bad)) {
			t.Errorf("%s in\n%s", bad, got)
		}
	}
}

const beginMark, endMark = "<!-- results:begin, generated by the driver: do not edit between here -->", "<!-- results:end -->"
