package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/reschedule-dev/reschedule/bench/report"
)

var (
	close9 = cmpopts.EquateApprox(0, 1e-9)
	start  = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

// The cost of a time is the part of the series within it.
func TestSeries_CostOfATime(t *testing.T) {
	t.Parallel()
	s := series{
		{at(10), reading{cpu: 1, memory: 100, text: 50}}, {at(12), reading{cpu: 2, memory: 200, text: 50}}, {at(20), reading{cpu: 2, memory: 200, text: 50}},
	}
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
		if diff := cmp.Diff(c.want, s.between(at(c.from), at(c.to), c.older), close9); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

const uid = "00000000-1111-2222-3333-444444444444"

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Both versions of control groups are read.
func TestNode_BothCgroupVersions(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("ab", 32)
	proc := map[string]string{
		"7/comm": "containerd-shim\n", "7/cmdline": "containerd-shim-runc-v2\x00-id\x00" + id + "\x00", "7/stat": "7 (containerd-shim) S 1 1 1 0 -1 0 0 0 0 0 20 10 0 0",
		"7/smaps_rollup": "Rss: 9000 kB\nPrivate_Clean: 1 kB\nPrivate_Dirty: 3 kB\n",
		"8/comm":         "kubelet\n", "8/stat": "8 (kubelet) S 1 1 1 0 -1 0 0 0 0 0 100 50 0 0", "8/status": "VmRSS: 5 kB\nRssAnon: 2 kB\nRssFile: 3 kB\n",
		"9/comm": "operator\n", "9/status": "RssFile: 7 kB\n",
	}
	for name, files := range map[string]map[string]string{
		"version 1, cgroupfs": {
			"cpuacct/kubepods/burstable/pod" + uid + "/cpuacct.usage":              "2500000000\n",
			"cpuacct/kubepods/burstable/pod" + uid + "/" + id + "/cgroup.procs":    "9\n10\n",
			"memory/kubepods/burstable/pod" + uid + "/memory.usage_in_bytes":       "1000\n",
			"memory/kubepods/burstable/pod" + uid + "/memory.stat":                 "cache 1\ntotal_cache 600\ntotal_inactive_file 200\n",
			"cpuacct/kubepods/burstable/pod" + uid[:30] + "/not-one/cpuacct.usage": "1\n",
			"cpuacct/kubepods/podffffffff-1111-2222-3333-444444444444/without-any": "",
		},
		"version 2, systemd": {
			"kubepods.slice/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cpu.stat":                                     "usage_usec 2500000\nuser_usec 1\n",
			"kubepods.slice/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/memory.current":                               "1000\n",
			"kubepods.slice/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/memory.stat":                                  "anon 1\nfile 600\ninactive_file 200\n",
			"kubepods.slice/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd-" + id + ".scope/cgroup.procs": "9\n10\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := node{cgroups: t.TempDir(), proc: t.TempDir()}
			write(t, n.cgroups, files)
			write(t, n.proc, proc)
			got, err := n.read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := map[subject]reading{
				{podOf, uid}:           {cpu: 2.5, memory: 400, text: 7168},
				{shimOf, uid}:          {cpu: 0.3, memory: 4096},
				{processOf, "kubelet"}: {cpu: 1.5, memory: 2048, text: 3072},
			}
			if diff := cmp.Diff(want, got, close9, cmp.AllowUnexported(subject{}, reading{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
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
	for _, c := range []struct {
		namespace, name string
		labels          map[string]string
		want            string
	}{
		{"expiry-resident-0", "expiry-1", nil, resident},
		{"expiry-serverless-2", "expiry-00001-deployment-1", nil, serverless},
		{"expiry-serverless-2", "apiserversource-1", map[string]string{"eventing.knative.dev/source": "apiserver-source-controller"}, watcher},
		{"expiry-fed-0", "apiserversource-1", map[string]string{"eventing.knative.dev/source": "apiserver-source-controller"}, watcher},
		{"expiry-shared-0", "apiserversource-1", map[string]string{"eventing.knative.dev/source": "apiserver-source-controller"}, sharedWatcher},
		{"knative-eventing", "reschedule-adapter-0", map[string]string{"app.kubernetes.io/component": "reschedule-adapter"}, adapter},
		{"knative-eventing", "reschedule-controller-1", map[string]string{"app.kubernetes.io/component": "reschedule-controller"}, controller},
		{"knative-eventing", "eventing-webhook-1", nil, eventing},
		{"knative-eventing", "mt-broker-filter-1", nil, broker},
		{"knative-serving", "activator-1", nil, activator},
		{"knative-serving", "autoscaler-1", nil, autoscaler},
		{"knative-serving", "autoscaler-hpa-1", nil, serving},
		{"knative-serving", "controller-1", nil, serving},
		{"knative-serving", "traefik-1", nil, ingress},
		{"kourier-system", "3scale-kourier-gateway-1", nil, ingress},
		{"other", "expiry-1", nil, ""},
	} {
		pod := metadata{Namespace: c.namespace, Name: c.name, Labels: c.labels}
		if got := part(subject{podOf, ""}, pod); got != c.want {
			t.Errorf("%s/%s is of %q, want %q", c.namespace, c.name, got, c.want)
		}
		if got := part(subject{shimOf, ""}, pod); c.want != "" && got != "shim "+c.want || c.want == "" && got != "" {
			t.Errorf("the shim of %s/%s is of %q", c.namespace, c.name, got)
		}
	}
}

// The manifest of each form is made of the example.
func TestManifestOf_EachForm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		form, file    string
		with, without []string
	}{
		{resident, "resident.yaml", []string{"kind: Deployment", "namespace: ns", "  name: ns\n"}, nil},
		{serverless, "serverless.yaml", []string{"autoscaling.knative.dev/window", "timeoutSeconds", "name: expiry-watcher", "  watch:"}, []string{"warmUp"}},
		{warmed, "serverless.yaml", []string{"spec:\n  warmUp: 4s\n  sink:"}, nil},
		{fed, "apiserversource.yaml", []string{"kind: ApiServerSource", "timeoutSeconds"}, nil},
		{defaults, "serverless.yaml", []string{"kind: Service\n"}, []string{"autoscaling.knative.dev/window", "timeoutSeconds:"}},
		{shared, "apiserversource.yaml", []string{"kind: Trigger", "name: changes", "kind: RescheduleSource"}, []string{"name: expiry\n  namespace: ns\nspec:\n  serviceAccountName"}},
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "test", "expiry", "config", c.file))
		if err != nil {
			t.Fatal(err)
		}
		manifest := manifestOf(c.form, string(text), "ns")
		for _, want := range c.with {
			if !strings.Contains(manifest, want) {
				t.Errorf("%s lacks %q:\n%s", c.form, want, manifest)
			}
		}
		for _, unwanted := range append(c.without, "namespace: expiry\n") {
			if strings.Contains(manifest, unwanted) {
				t.Errorf("%s has %q:\n%s", c.form, unwanted, manifest)
			}
		}
	}
}

// No operator is woken before it is at zero again, or after the end.
func TestJobs_LeaveTimeToReachZero(t *testing.T) {
	t.Parallel()
	n := operators{resident: 2, serverless: 3, defaults: 2, shared: 1}
	const long = 24 * time.Minute
	for name, plan := range map[string]func(operators, time.Duration) ([]job, map[string]int){"wakes": cycles, "run": sparse} {
		jobs, asked := plan(n, long)
		woken := map[string][]time.Duration{}
		for _, j := range jobs {
			woken[j.ns] = append(woken[j.ns], j.after, j.after+j.lives)
		}
		total := 0
		for ns, times := range woken {
			total += len(times)
			slices.Sort(times)
			for i := range times {
				if i > 0 && times[i]-times[i-1] < 80*time.Second {
					t.Errorf("%s: %s is woken at %s and %s", name, ns, times[i-1], times[i])
				}
			}
			if end := times[len(times)-1]; end > long {
				t.Errorf("%s: %s is woken at %s", name, ns, end)
			}
		}
		sum := 0
		for v := range maps.Values(asked) {
			sum += v
		}
		if len(woken) != 8 || total != sum {
			t.Errorf("%s: %d operators are woken %d times, which counts as %d", name, len(woken), total, sum)
		}
	}
}

// history returns a record with one pod of each kind.
func history() (*record, time.Time, time.Time) {
	r := newRecord(nil)
	add := func(name, namespace string, older bool, samples series) {
		r.pods[name] = metadata{UID: name, Name: name, Namespace: namespace}
		r.series[subject{podOf, name}] = samples
		r.older[subject{podOf, name}] = older
	}
	add("stays", "expiry-resident-0", true, series{{at(0), reading{10, 50, 40}}, {at(1000), reading{11, 50, 40}}})
	add("comes-and-goes", "expiry-serverless-0", false, series{{at(100), reading{0.5, 20, 20}}, {at(140), reading{0.6, 20, 20}}})
	add("foreign", "other", true, series{{at(0), reading{10, 50, 40}}, {at(1000), reading{11, 50, 40}}})
	r.series[subject{shimOf, "comes-and-goes"}] = series{{at(100), reading{0.1, 2, 2}}, {at(140), reading{0.1, 2, 2}}}
	return r, at(0), at(1000)
}

// Idle usage and the cost of a wake are kept apart.
func TestResults_IdleAndWakes(t *testing.T) {
	t.Parallel()
	r, from, to := history()
	used := r.between(from, to)
	quiet := &idle{Parts: map[string]partIdle{resident: {Pods: 1, Rate: cost{50, 40, 0.0005}}}}
	w := wakesOf(used, from, to, quiet, map[string]int{resident: 2, serverless: 1})
	if diff := cmp.Diff(map[string][]podLife{serverless: {{40, cost{800, 800, 0.6}, cost{80, 80, 0.1}}}}, w.Pods, close9); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(cost{CPU: 0.25}, w.of(resident), close9); diff != "" {
		t.Errorf("a wake of the resident (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(cost{880, 880, 0.7}, w.of(serverless), close9); diff != "" {
		t.Errorf("a wake from zero (-want +got):\n%s", diff)
	}
	results := &results{Idle: quiet, Wakes: w}
	if diff := cmp.Diff(cost{50 * 3600, 40 * 3600, 1.8 + 1}, results.hour(resident, 4), close9); diff != "" {
		t.Errorf("an hour of the resident (-want +got):\n%s", diff)
	}
	results.Run = runOf(used, from, to, map[string]int{resident: 2, serverless: 1})
	if diff := cmp.Diff(map[string]cost{resident: {50000, 40000, 1}, serverless: {880, 880, 0.7}}, results.Run.Used, close9); diff != "" {
		t.Errorf("the run (-want +got):\n%s", diff)
	}
	for name, used := range results.Run.Used {
		if diff := cmp.Diff(used, results.foretold(name), close9); diff != "" {
			t.Errorf("foretold of %s (-measured +got):\n%s", name, diff)
		}
	}
	points := r.trace(from, at(120), 60*time.Second, func(s subject, pod metadata) bool { return pod.Namespace == "expiry-serverless-0" && s.kind == podOf })
	if diff := cmp.Diff([][2]float64{{0, 0}, {60, 0}, {120, 40}}, points, close9); diff != "" {
		t.Errorf("trace (-want +got):\n%s", diff)
	}
}

// A failed reading leaves a gap.
func TestRecord_FailedReading(t *testing.T) {
	t.Parallel()
	fails := true
	r := newRecord(func(context.Context) (map[subject]reading, error) {
		if fails {
			return nil, errors.New("no answer")
		}
		return map[subject]reading{{podOf, uid}: {cpu: 1}}, nil
	})
	if err := r.once(t.Context(), nil, false); err == nil {
		t.Error("nothing was read, and no error")
	}
	fails = false
	if err := r.once(t.Context(), nil, false); err != nil || len(r.series) != 1 || !r.older[subject{podOf, uid}] {
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

// The page and the charts have numbers only.
func TestPage_NumbersOnly(t *testing.T) {
	t.Parallel()
	r := &results{
		Idle: &idle{Parts: map[string]partIdle{
			resident: {Pods: 2, Rate: cost{10e6, 40e6, 0.001}}, shimOf + " " + resident: {Pods: 2, Rate: cost{Memory: 6e6}}, watcher: {Pods: 1, Rate: cost{8e6, 39e6, 0.001}},
			adapter: {Pods: 1, Rate: cost{18e6, 33e6, 0.001}}, controller: {Pods: 1, Rate: cost{17e6, 47e6, 0.001}},
		}},
		Wakes: &wakes{
			Asked: map[string]int{serverless: 2, resident: 2}, Extra: map[string]float64{kubernetes: 2, activator: 0.1}, CPU: map[string]float64{resident: 0.01},
			Pods: map[string][]podLife{serverless: {{40, cost{400e6, 1600e6, 0.2}, cost{120e6, 0, 0}}, {44, cost{400e6, 1600e6, 0.2}, cost{120e6, 0, 0}}}},
			Late: map[string][]float64{serverless: {1.5}},
		},
	}
	for _, run := range []*sparseRun{nil, {Seconds: 1440, Asked: map[string]int{serverless: 4}, Traces: map[string][][2]float64{serverless: {{0, 0}, {60, 1e6}}}}} {
		r.Run = run
		text := page(r) + drawn(t, overOperators(r))
		if run != nil {
			text += drawn(t, overTime(r))
		}
		for _, bad := range []string{"NaN", "Inf", "%!"} {
			if strings.Contains(text, bad) {
				t.Errorf("%s in\n%s", bad, text)
			}
		}
		for _, want := range []string{
			"| the operator, resident | each operator | 1 | 5 | 20 | 3 |", "| 2 | 2 | 42 (40 to 44) | 2120 (2120 to 2120) |", "controllers of Kubernetes 2000;",
			"Resident it takes 100.8 GB·s", "from 48 deliveries an hour on", "| 25 MB, measured | 4 | 1 | 5 |",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("the page lacks %q:\n%s", want, text)
			}
		}
	}
}

// drawn returns a chart as SVG.
func drawn(t *testing.T, chart *report.Chart) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "plot.svg")
	if err := report.Draw(file, chart); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
