package command

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// scaled lets a source scale a Deployment, with the adapter's figures.
func scaled(mode, status string) func(map[string]any) {
	return func(o map[string]any) {
		o["spec"].(map[string]any)["scale"] = map[string]any{"targetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "websites"}, "mode": mode}
		if status != "" {
			o["status"].(map[string]any)["scale"] = decode(status)
		}
	}
}

func decode(text string) map[string]any {
	v, err := decoded([]byte(text))
	if err != nil {
		panic(err)
	}
	return v.(map[string]any)
}

// numbers are the numbers of a decoded object as a client of the API server has them.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = numbers(v[name])
		}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case json.Number:
		n, _ := v.Int64()
		return n
	}
	return v
}

// A source without a sink is not woken by what counts the pods of its own workload.
func TestAnyChange_LeavesOutOwnObjects(t *testing.T) {
	t.Parallel()
	each := anyChange("ops", []string{"web", "hooks"})
	const here = "object.metadata.namespace == 'ops'"
	for of, want := range map[schema.GroupResource]string{
		{Resource: "endpoints"}:                                 here + " && object.metadata.name in ['web', 'hooks']",
		{Group: "discovery.k8s.io", Resource: "endpointslices"}: here + " && has(object.metadata.labels) && 'kubernetes.io/service-name' in object.metadata.labels && object.metadata.labels['kubernetes.io/service-name'] in ['web', 'hooks']",
		{Resource: "resourcequotas"}:                            here,
		{Group: "policy", Resource: "poddisruptionbudgets"}:     here,
		{Resource: "pods"}:                                      "",
	} {
		got := each(of, "v", "Kind")
		key, _ := got["key"].(string)
		if want != "" {
			want += " ? '' : 'Kind/' + object.metadata.namespace + '/' + object.metadata.name"
		}
		if key != want || got["changes"] != "Any" || got["apiVersion"] != "v" || got["kind"] != "Kind" {
			t.Errorf("%s: %v, want %s", of, got, want)
		}
	}
}

// A workload alone is no source: the kinds to watch have no flag.
func TestCreate_ScaleWithoutSink(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, verb := range []string{"create", "apply"} {
		if code, _, errs := c.run(false, verb, "x", "--scale", "deployment/websites"); code != exitUsage || !strings.Contains(errs, "use create --observe") || !strings.Contains(errs, "kubectl apply") {
			t.Errorf("%s: %d, %s", verb, code, errs)
		}
	}
}

// A source without a sink goes from Observe to Auto and back.
func TestUpdate_ModeOfTheWorkload(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	withOperator(c)
	c.run(false, "create", "seen", "--observe", "deployment/websites")
	for _, mode := range []string{"Auto", "Awake", "Observe"} {
		if code, _, errs := c.run(false, "update", "seen", "--scale-mode", mode); code != 0 || !strings.Contains(c.spec("ops", "seen"), `"mode":"`+mode+`"`) || strings.Contains(c.spec("ops", "seen"), "sink") {
			t.Errorf("%s: %d, %s: %s", mode, code, errs, c.spec("ops", "seen"))
		}
	}
}

// The flags of spec.scale set its fields.
func TestCreate_ScaleFlags(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	code, _, errs := c.run(false, "create", "x", "--sink", "http://x", "--scale", "argoproj.io/v1alpha1/Rollout/web", "--scale-cooldown", "5s", "--scale-mode", "Awake", "--scale-replicas", "2", "--scale-start-timeout", "1m", "--scale-service-account", "scaler")
	const want = `{"scale":{"cooldown":"5s","mode":"Awake","replicas":2,"serviceAccountName":"scaler","startTimeout":"1m","targetRef":{"apiVersion":"argoproj.io/v1alpha1","kind":"Rollout","name":"web"}},"sink":{"uri":"http://x"}}`
	if got := c.spec("ops", "x"); code != 0 || got != want {
		t.Errorf("%d, %s: %s", code, errs, got)
	}
	if code, _, errs := c.run(false, "update", "x", "--scale", "none"); code != 0 || strings.Contains(c.spec("ops", "x"), "scale") {
		t.Errorf("%d, %s: %s", code, errs, c.spec("ops", "x"))
	}
}

// savings multiplies the time asleep by the memory of a flag, of metrics.k8s.io or of the requests, and says which.
func TestSavings_MemoryAndAdvice(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	withOperator(c)
	const figures = `{"state":"Asleep","starts":40,"awakeSeconds":1800,"observedSeconds":7200,"lastStart":"1.3s"}`
	c.source("ops", "web", scaled("Auto", figures))
	c.source("ops", "plain", nil)
	c.source("ops", "new", scaled("Observe", ""))
	says := func(args string, want ...string) {
		t.Helper()
		code, out, errs := c.run(false, strings.Fields("savings "+args)...)
		for _, w := range want {
			if code != 0 || !strings.Contains(strings.Join(strings.Fields(out), " "), w) {
				t.Errorf("savings %s: %d, %s%s: want %q", args, code, out, errs, w)
			}
		}
		if strings.Contains(out, "plain") {
			t.Errorf("a source without a workload is shown: %s", out)
		}
	}
	says("", "web Deployment/websites Auto 75.0% 2h0m 40 20.0 1.3s 40.0 MB (request) 30.0 60.0 slack: 3m would halve the wakes", "new Deployment/websites Observe 0.0% 0s 0 0.0 - 40.0 MB (request) 0.0 0.0 nothing was observed yet")
	says("web --memory 100M", "100.0 MB (flag) 75.0 150.0")
	c.answers["GET /ops/web"] = "200 " + strings.TrimSuffix(healthy, "}") + `,"scale":{"state":"Asleep","starts":40,"awakeSeconds":1800,"observedSeconds":18000}}`
	says("web --memory 100M", "90.0% 5h0m 40 8.0 - 100.0 MB (flag) 90.0 450.0")
	c.answers["GET /ops/web"] = "503 {}"
	c.put("/apis/metrics.k8s.io/v1beta1/namespaces/ops/pods", `{"kind":"PodMetricsList","items":[{"kind":"PodMetrics","containers":[{"usage":{"memory":"20M"}},{"usage":{"memory":"5M"}}]},{"kind":"PodMetrics","containers":[{"usage":{"memory":"1M"}}]}]}`)
	says("web -o json", `"memoryFrom":"metrics"`, `"savedMB":18.75`)
	delete(c.objects, "/apis/metrics.k8s.io/v1beta1/namespaces/ops/pods")
	delete(c.objects, "/apis/apps/v1/namespaces/ops/deployments/websites")
	says("web", "1.3s unknown - -")
	for args, want := range map[string]string{"plain": "has no spec.scale", "web --memory much": "--memory", "web --memory 0": "--memory", "web -A": "names"} {
		if code, _, errs := c.run(false, strings.Fields("savings "+args)...); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("savings %s: %d, %s", args, code, errs)
		}
	}
}

// sinkless makes a source one without a sink.
func sinkless(mode, status string) func(map[string]any) {
	return func(o map[string]any) {
		scaled(mode, status)(o)
		delete(o["spec"].(map[string]any), "sink")
		delete(o["status"].(map[string]any), "sinkUri")
	}
}

// savings finds timers inside of an observed workload without a sink, and says which maxInterval wakes it instead.
func TestSavings_TimersInside(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	withOperator(c)
	const figures = `{"state":"Asleep","starts":4,"awakeSeconds":1800,"observedSeconds":7200`
	for name, row := range map[string]struct {
		mode, more, interval, want string
		sink                       bool
	}{
		"every 10m":           {"Observe", `,"quietRuns":12,"quietEverySeconds":598,"requeues":12`, "", "reconciles every 10m without a change: set maxInterval to 10m", false},
		"every 2h":            {"Observe", `,"quietRuns":2,"quietEverySeconds":7200`, "10h", "reconciles every 2h without a change: set maxInterval to 2h", false},
		"it is set":           {"Observe", `,"quietRuns":12,"quietEverySeconds":598,"requeues":12`, "10m", "", false},
		"once":                {"Observe", `,"quietRuns":1,"requeues":3`, "", "its reconciles ask for RequeueAfter: observe longer", false},
		"none yet":            {"Observe", `,"requeues":3`, "", "its reconciles ask for RequeueAfter: observe longer", false},
		"none, and it is set": {"Observe", `,"requeues":3`, "10m", "", false},
		"no timer":            {"Observe", ``, "", "", false},
		"it sleeps already":   {"Auto", `,"quietRuns":12,"quietEverySeconds":598`, "", "", false},
		"with a sink":         {"Observe", `,"quietRuns":12,"quietEverySeconds":598`, "", "", true},
	} {
		change := sinkless
		if row.sink {
			change = scaled
		}
		c.source("ops", "web", func(o map[string]any) {
			change(row.mode, figures+row.more+`}`)(o)
			if row.interval != "" {
				o["spec"].(map[string]any)["maxInterval"] = row.interval
			}
		})
		_, out, errs := c.run(false, "savings", "web", "-o", "json")
		var got struct {
			Items []saving `json:"items"`
		}
		if json.Unmarshal([]byte(out), &got) != nil || len(got.Items) != 1 || got.Items[0].Advice != row.want {
			t.Errorf("%s: %s%s: want %q", name, out, errs, row.want)
		}
		if name == "every 10m" && !strings.Contains(out, `"quietRuns":12,"quietEverySeconds":598,"requeues":12`) {
			t.Errorf("%s", out)
		}
	}
	c.source("ops", "web", sinkless("Observe", `{"state":"Asleep","starts":40,"awakeSeconds":1800,"observedSeconds":7200,"quietRuns":9,"quietEverySeconds":90}`))
	if _, out, _ := c.run(false, "savings", "web"); !strings.Contains(out, "set maxInterval to 1m30s; slack: 3m would halve the wakes") {
		t.Error(out)
	}
}

// A source without a sink says so where a sink is shown, and none of its due keys is late while the workload works.
func TestSinkless_IsShown(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.source("ops", "alone", sinkless("Auto", `{"state":"Awake","starts":4,"awakeSeconds":18,"observedSeconds":180}`))
	const due = `{"pending":1,"due":1,"inFlight":0,"retrying":0,"deadLetters":0,"nextDueAt":null,"oldestDueAt":"2026-01-01T00:00:00Z","watched":0`
	c.answers["GET /ops/alone"] = "200 " + due + `,"scale":{"state":"Awake","starts":5,"awakeSeconds":36,"observedSeconds":180}}`
	c.source("ops", "late", nil)
	c.answers["GET /ops/late"] = "200 " + due + "}"
	for args, want := range map[string]string{
		"list -o wide": "none: it wakes Deployment websites", "describe alone": "none: it wakes Deployment websites",
		"why alone": "1 key is due, and done when the workload was idle for 10s: Deployment websites is awake.", "doctor alone": "1 key is due, and done when",
	} {
		code, out, errs := c.run(false, strings.Fields(args)...)
		if !strings.Contains(out, want) || code != 0 && !strings.HasPrefix(args, "doctor") {
			t.Errorf("%s: %d, %s%s, want %q", args, code, out, errs, want)
		}
	}
	if _, out, _ := c.run(false, "top"); strings.Index(out, "late") > strings.Index(out, "alone") {
		t.Errorf("the one that works is first: %s", out)
	}
	c.answers["GET /ops/alone"] = "200 " + due + `,"scale":{"state":"Awake","starts":5,"awakeSeconds":36,"observedSeconds":180,"reason":"Crashed","message":"A container has ended."}}`
	if _, out, _ := c.run(false, "describe", "alone"); !strings.Contains(out, "it crashes (Crashed): A container has ended.") {
		t.Error(out)
	}
}

// A suggested slack is the mean time between two starts, in a form that a person would write.
func TestSavings_Slack(t *testing.T) {
	t.Parallel()
	for rate, want := range map[float64]string{0.5: "2h", 13: "5m", 20: "3m", 40: "1m30s", 400: "10s", 10000: "10s", 61: "1m"} {
		if got := rounded(time.Duration(float64(time.Hour) / rate)); got != want {
			t.Errorf("%g an hour: %s, want %s", rate, got, want)
		}
	}
}

// list, top, describe and why show the state of the workload: the adapter's answer, or else the status.
func TestScale_IsShown(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.source("ops", "web", scaled("Auto", `{"state":"Asleep","starts":4,"awakeSeconds":18,"observedSeconds":180}`))
	c.answers["GET /ops/web"] = "200 " + strings.TrimSuffix(healthy, "}") + `,"scale":{"state":"Starting","starts":5,"awakeSeconds":36,"observedSeconds":180,"lastStart":"1.3s"}}`
	for args, want := range map[string]string{
		"list": "Asleep", "top": "Starting", "describe web": "asleep for 80.0% of 3m0s; 5 starts, the last one took 1.3s", "why web": "Deployment websites: Starting",
	} {
		if _, out, errs := c.run(false, strings.Fields(args)...); !strings.Contains(out, want) {
			t.Errorf("%s: %s%s, want %q", args, out, errs, want)
		}
	}
	c.answers["GET /ops/web"] = "503 {}"
	if _, out, _ := c.run(false, "describe", "web"); !strings.Contains(out, "Asleep; asleep for 90.0% of 3m0s; 4 starts") {
		t.Error(out)
	}
}
