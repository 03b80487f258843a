package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
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
		"11/comm": "kube-apiserver\n", "11/stat": "11 (kube-apiserver) S 1 1 1 0 -1 0 0 0 0 0 300 0" + rest, "11/status": "RssAnon:\t6 kB\nRssFile:\t4 kB\n",
		"meminfo": "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable: 4 kB\n",
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
		want := map[string]reading{uid: {2.5, 400, 7168}, shimOf + uid: {0.3, 4096, 0}, kubernetesItself: {1.5, 2048, 3072}, apiServer: {3, 6144, 4096}, nodeItself: {0, 5120, 0}}
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
		resident: {Pod: cost{100*50 + 40*60 + 60*70, 200 * 40, 0.5}, Pods: 1, There: 200, Peak: 110},
		serverless: {
			Pod: cost{40 * 30, 40 * 10, 0.75 + 0.5}, Shim: cost{40 * 2, 40 * 1, 0.1}, Pods: 2, There: 40, Peak: 50,
			Lives: []life{{40, cost{40*30 + 40*2, 40*10 + 40*1, 0.85}}},
		},
	}
	if diff := cmp.Diff(want, r.bill().Used, close9); diff != "" || len(r.traces[resident]) != 1 || r.traces[resident][0] != [2]float64{0, 90} {
		t.Errorf("%v (-want +got):\n%s", r.traces, diff)
	}
}

// Every pod belongs to its part.
func TestPodPart_OfEach(t *testing.T) {
	const component = "app.kubernetes.io/component"
	for _, c := range []struct{ namespace, name, label, value, want string }{
		{"expiry-resident-0", "expiry-1", "", "", resident},
		{"expiry-serverless-2", "expiry-00001-deployment-1", "", "", serverless},
		{"expiry-dense-asleep-59", "expiry-1", "", "", denseAsleep},
		{"knative-eventing", "reschedule-adapter-0", component, "reschedule-adapter", adapter},
		{"knative-eventing", "reschedule-controller-1", component, "reschedule-controller", controller},
		{"reschedule-system", "reschedule-adapter-0", component, "reschedule-adapter", adapter},
		{"reschedule-system", "reschedule-controller-1", component, "reschedule-controller", controller},
		{"knative-eventing", "eventing-webhook-1", "", "", eventing},
		{"knative-eventing", "mt-broker-filter-1", "", "", ""},
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

// No operator is woken before it is at zero again, or after the end, and all have their turn.
func TestJobs_LeaveTimeToReachZero(t *testing.T) {
	check := func(jobs []job, gap, long time.Duration, operators int) {
		t.Helper()
		last := map[string]time.Duration{}
		for _, j := range jobs {
			if before, woken := last[j.ns]; woken && j.after-before < gap || j.lives < gap || j.after+j.lives+gap > long {
				t.Errorf("%+v comes after %s, and all ends after %s", j, before, long)
			}
			last[j.ns] = j.after + j.lives
		}
		if len(last) != operators {
			t.Errorf("only %v have jobs", last)
		}
	}
	check(sparse(24*time.Minute), 80*time.Second, 24*time.Minute, len(namespaces()))
	for _, f := range forms {
		jobs, long := cycles(f, 40)
		check(jobs, f.gap, long, f.count)
		if len(jobs) != 20 || long > 14*time.Minute {
			t.Errorf("%s: %d timers in %s", f.name, len(jobs), long)
		}
	}
}

// measured returns round figures of each step. Whole MB and seconds of a form are easy to follow
// to the rows.
func measured() *results {
	of := func(seconds float64, used map[string]use) *bill {
		return &bill{TakenAt: began, Seconds: seconds, Used: used, Asked: map[string]int{}, Late: map[string][]float64{}, Traces: map[string][][2]float64{}}
	}
	mb := func(own, program, cpu, seconds float64) use {
		return use{Pod: cost{own * 1e6 * seconds, program * 1e6 * seconds, cpu}, There: seconds, Pods: 1, Peak: 3e6 * (own + program)}
	}
	shim := func(u use) use {
		u.Shim = cost{3e6 * u.There, 0, 0}
		return u
	}
	r := &results{Conditions: "made up", Wakes: map[string]woken{}, Thin: thinner{"made up", 10, 1000, map[string]crowd{}}, Density: &dense{"made up", 60, map[string]crammed{}}}
	r.Idle = of(1000, map[string]use{
		resident: shim(mb(5, 20, 1, 1000)), thin: shim(mb(4, 11, 1, 1000)),
		adapter: mb(50, 0, 1, 1000), controller: mb(70, 0, 1, 1000), eventing: mb(700, 0, 1, 1000),
	})
	r.Run = of(1000, r.Idle.Used)
	for i, f := range forms {
		w := woken{of(100, map[string]use{kubernetesItself: {Pod: cost{CPU: 1}}, resident: {Pod: cost{CPU: 1}}}), of(400, map[string]use{
			kubernetesItself: {Pod: cost{CPU: 4 + 20}}, resident: {Pod: cost{CPU: 4}}, eventing: {Pod: cost{CPU: 4 * float64(i)}},
		})}
		w.Wakes.Asked[f.name] = 40
		for n := range 20 {
			w.Wakes.Late[f.name] = append(w.Wakes.Late[f.name], float64(20-n)/10)
		}
		own := use{Pod: cost{CPU: 4}, Shim: cost{CPU: 2}}
		if seconds := map[string]float64{asleep: 12, serverless: 43}[f.name]; seconds > 0 {
			for range 40 {
				own.Lives = append(own.Lives, life{seconds, cost{8e6 * seconds, 20e6 * seconds, 0.15}})
			}
		}
		if f.name != resident {
			w.Wakes.Used[f.name] = own
		}
		r.Wakes[f.name], r.Run.Traces[f.name] = w, [][2]float64{{0, 0}, {60, 25e6}}
	}
	for _, form := range []string{resident, thin} {
		b := of(100, map[string]use{form: mb(40, 10, 1, 100), apiServer: mb(600, 50, 5, 100)})
		r.Thin.Forms[form] = crowd{b, b, b, []float64{1, 2}}
	}
	for i, form := range []string{denseResident, denseAsleep} {
		node := func(mbs float64) *bill {
			b := of(100, map[string]use{nodeItself: {Pod: cost{Memory: mbs * 1e6 * 100}, Peak: 2e6 * mbs}, form: mb(400, 20, 1, 100)})
			b.Traces[nodeItself] = [][2]float64{{0, mbs * 1e6}, {100, mbs * 1e6}}
			return b
		}
		r.Density.Forms[form] = crammed{node(2000), node(2500), node(3000 - 800*float64(i)), node(3000), []float64{1, 2, 3}, 30}
	}
	return r
}

// page renders the results into a directory, and returns the generated part of a page.
func page(t *testing.T, r *results, name string) string {
	t.Helper()
	repo, files := t.TempDir(), map[string]string{"docs/images/scale-to-zero.svg": "", "docs/images/density.svg": ""}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join("..", "..", page))
		if err != nil {
			t.Fatal(err)
		}
		files[page] = string(text)
	}
	write(t, repo, files)
	if err := render(repo, r); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(repo, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The rows have what the forms were measured to cost.
func TestRows_OfMeasuredForms(t *testing.T) {
	r := measured()
	for want, got := range map[string]string{
		// 28 MB over an hour are 300 times 12 s of 28 MB. CPU: 20 s of Kubernetes, and 0.5 s above idle of the form.
		"28 | 0 | – | 1.00 | 1.90 | 0.500 | –":                     r.FormRow(resident),
		"18 | 0 | – | 1.00 | 1.90 | 0.750 | –":                     r.FormRow(thin),
		"0 | 336 | 12.0 | 1.00 | 1.90 | 0.850 | 300":               r.FormRow(asleep),
		"0 | 1204 | 43.0 | 1.00 | 1.90 | 0.950 | 84":               r.FormRow(serverless),
		"0.150 | 0.500 | 0.000 | 0.300 | 0.950":                    r.CPURow(serverless),
		"5 | 5 | 31":                                               r.pays(25e6, 4, cost.bytes), // 120 and 820 MB shared; 26.9 and 26.7 saved
		"50 | 150 | 650 | 650 | 1950 | 1.50 (1.00 to 2.00) | 2.50": r.Thin.Row(thin),
		"2000 | 2200 | 200 | 400 | 4000 | 30 | 2.00 | 3.00":        r.Density.Row(denseAsleep),
		"820": r.Shared(serverless),
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for _, name := range append(pages, "docs/images/density.svg", "docs/images/scale-to-zero.svg") {
		if text := page(t, r, name); strings.Contains(text, "NaN") || strings.Contains(text, "Inf") || len(text) < 1000 {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}

// The committed pages and plots are made of the committed results.
func TestRender_CommittedResults(t *testing.T) {
	r, err := load("results.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(pages, "docs/images/density.svg", "docs/images/scale-to-zero.svg") {
		got := page(t, r, name)
		if got == "" { // it is of a step that is not measured
			continue
		}
		want, err := os.ReadFile(filepath.Join("..", "..", name))
		if diff := cmp.Diff(string(want), got); diff != "" || err != nil {
			t.Errorf("%s, %v (-committed +rendered):\n%s", name, err, diff)
		}
	}
}

// The commands of the page compute what the tables say.
func TestPage_Calculator(t *testing.T) {
	r := measured()
	_, block, _ := strings.Cut(page(t, r, "docs/scale-to-zero.md"), "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	for _, size := range []float64{25, 50, 100, 250} {
		for _, k := range []float64{1, 4, 12, 100} {
			numbers := strings.NewReplacer("operator=100", fmt.Sprintf("operator=%g", size), "starts=4", fmt.Sprintf("starts=%g", k))
			got, err := exec.CommandContext(t.Context(), "sh", "-c", numbers.Replace(block)).CombinedOutput()
			want := ""
			for _, c := range []struct {
				name, form string
				shared     [][]string
			}{
				{"by its source", asleep, [][]string{ours}},
				{"by Knative, if it is there", serverless, [][]string{ours}},
				{"by Knative, only for this", serverless, [][]string{ours, knative}},
			} {
				home, zero := r.sized(c.form, size*1e6, k, cost.bytes)
				pays := strings.Replace(from(home-zero, r.all(c.shared...).bytes()), "never", "no number of", 1)
				if want == "" {
					want = fmt.Sprintf("resident: %.0f MB\n", home/1e6)
				}
				want += fmt.Sprintf("%s: %.0f MB, pays from %s operators\n", c.name, zero/1e6, pays)
			}
			if err != nil || string(got) != want {
				t.Errorf("%g MB, %g starts: %v, %s, want %s", size, k, err, got, want)
			}
		}
	}
}

// Each form builds, with the objects that make it the form; many operators have a kind each.
func TestForms_Build(t *testing.T) {
	for form, want := range map[string]struct{ has, lacks []string }{
		resident:      {[]string{"kind: Deployment", "- resident"}, []string{"kind: RescheduleSource", "serving.knative.dev"}},
		thin:          {[]string{"kind: Deployment", "- serverless", "kind: RescheduleSource", "  sink:\n    ref:\n      apiVersion: v1\n"}, []string{"scale:", "serving.knative.dev"}},
		asleep:        {[]string{"kind: Deployment", "  scale:\n    cooldown: 10s\n", "deployments/scale"}, []string{"serving.knative.dev"}},
		serverless:    {[]string{"apiVersion: serving.knative.dev/v1", "kind: RescheduleSource"}, []string{"scale:", "kind: Deployment"}},
		denseResident: {[]string{"value: kind7s.v1.density.reschedule.dev", "  - kind7s\n", "- resident"}, []string{"configmaps", "kind: RescheduleSource"}},
		denseAsleep:   {[]string{"value: kind7s.v1.density.reschedule.dev", "      kind: Kind7\n", "  - kind7s\n", "  scale:\n"}, []string{"configmaps", "kind: ConfigMap"}},
	} {
		built, err := exec.CommandContext(t.Context(), "go", "-C", "../..", "run", "-modfile=tools/go.mod", "sigs.k8s.io/kustomize/kustomize/v5", "build",
			"--load-restrictor=LoadRestrictionsNone", "bench/scaletozero/forms/"+form).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", form, err, built)
		}
		manifest := ofKind(inNamespace(string(built), namespace(form, 7)), 7)
		for _, text := range append(want.has, "kind: Namespace\nmetadata:\n", "  name: "+namespace(form, 7)+"\n") {
			if !strings.Contains(manifest, text) {
				t.Errorf("%s lacks %q:\n%s", form, text, manifest)
			}
		}
		for _, text := range append(want.lacks, "kind0", "Kind0", "namespace: expiry\n") {
			if strings.Contains(manifest, text) {
				t.Errorf("%s has %q:\n%s", form, text, manifest)
			}
		}
	}
}

// A storm ends when each operator has deleted its object. It counts the pods that start meanwhile.
func TestStorm_UntilTheLastHasRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const operators = 3
		c := &cluster{live: cache.NewStore(cache.MetaNamespaceKeyFunc)}
		c.live.Add(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace(denseAsleep, 0), Name: "ready"},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
		var objects []runtime.Object
		for i := range operators {
			objects = append(objects, &metav1.PartialObjectMetadata{
				TypeMeta:   metav1.TypeMeta{APIVersion: densityGroup + "/v1", Kind: fmt.Sprintf("Kind%d", i)},
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace(denseAsleep, i), Name: "one"},
			})
		}
		scheme := metadatafake.NewTestScheme()
		if err := metav1.AddMetaToScheme(scheme); err != nil {
			t.Fatal(err)
		}
		client := metadatafake.NewSimpleMetadataClient(scheme, objects...)
		client.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			var number int
			fmt.Sscanf(action.GetResource().Resource, "kind%ds", &number)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: action.GetNamespace(), Name: "operator"}}
			c.live.Add(pod)
			time.AfterFunc(time.Duration(number+1)*time.Second, func() {
				c.live.Delete(pod)
				client.Tracker().Delete(action.GetResource(), action.GetNamespace(), "one")
			})
			return false, nil, nil
		})
		c.metadata = client
		ran, starting := c.storm(t.Context(), denseAsleep, operators)
		if diff := cmp.Diff([]float64{1, 2, 3}, ran, close9); diff != "" || starting != operators {
			t.Errorf("%d start at a time, and run after (-want +got):\n%s", starting, diff)
		}
	})
}

// A start is from the new pod to the line of its log, whatever the pod before it does.
func TestRestart_UntilTheLogSaysReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ns = "expiry-thin-0"
		pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Status: corev1.PodStatus{Phase: phase}}
		}
		client, pods := fake.NewClientset(pod("old", corev1.PodRunning)), corev1.SchemeGroupVersion.WithResource("pods")
		began := time.Now()
		client.PrependReactor("delete-collection", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.AfterFunc(time.Second, func() { client.Tracker().Create(pods, pod("new", corev1.PodPending), ns) })
			time.AfterFunc(2*time.Second, func() { client.Tracker().Update(pods, pod("old", corev1.PodRunning), ns) })
			time.AfterFunc(3*time.Second, func() { client.Tracker().Update(pods, pod("new", corev1.PodRunning), ns) })
			return true, nil, nil
		})
		client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			at := func(after time.Duration) string { return began.Add(after).Format(time.RFC3339Nano) }
			return true, &runtime.Unknown{Raw: []byte(at(2*time.Second) + " not ready yet\n" + at(3500*time.Millisecond) + " 2026/11/30 07:33:22 ready\n")}, nil
		})
		if took := (&cluster{Interface: client}).restart(t.Context(), ns); took != 2500*time.Millisecond || time.Since(began) != 3*time.Second {
			t.Errorf("%s, known after %s", took, time.Since(began))
		}
	})
}
