package command

import (
	"fmt"
	"strings"
	"testing"
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

// withOperator adds a Deployment, a Service in front of it, and what its account may do.
func withOperator(c *cluster) {
	c.put("/apis/apps/v1", `{"kind":"APIResourceList","groupVersion":"apps/v1","resources":[{"name":"deployments/scale","kind":"Scale","namespaced":true,"verbs":["get"]},{"name":"deployments","kind":"Deployment","namespaced":true,"verbs":["list","watch"]}]}`)
	c.put("/api/v1", `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"secrets","kind":"Secret","namespaced":true,"verbs":["list","watch"]},{"name":"events","kind":"Event","namespaced":true,"verbs":["list","watch"]}]}`)
	c.put("/apis/coordination.k8s.io/v1", `{"kind":"APIResourceList","groupVersion":"coordination.k8s.io/v1","resources":[{"name":"leases","kind":"Lease","namespaced":true,"verbs":["list","watch"]}]}`)
	c.put("/apis/example.com/v1", `{"kind":"APIResourceList","groupVersion":"example.com/v1","resources":[{"name":"websites","kind":"Website","namespaced":true,"verbs":["list","watch"]}]}`)
	c.put("/api", `{"kind":"APIVersions","versions":["v1"]}`)
	groups := []string{}
	for _, group := range []string{"apps", "coordination.k8s.io", "example.com"} {
		groups = append(groups, fmt.Sprintf(`{"name":%q,"versions":[{"groupVersion":"%s/v1","version":"v1"}],"preferredVersion":{"groupVersion":"%s/v1","version":"v1"}}`, group, group, group))
	}
	c.put("/apis", `{"kind":"APIGroupList","groups":[`+strings.Join(groups, ",")+`]}`)
	c.put("/apis/apps/v1/namespaces/ops/deployments/websites", `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"websites","namespace":"ops"},"spec":{"selector":{"matchLabels":{"app":"websites"}},
		"template":{"metadata":{"labels":{"app":"websites","x":"y"}},"spec":{"serviceAccountName":"operator","containers":[{"resources":{"requests":{"memory":"30M"}}},{"resources":{"requests":{"memory":"10M"}}}]}}}}`)
	c.put("/api/v1/namespaces/ops/services", `{"apiVersion":"v1","kind":"ServiceList","items":[
		{"apiVersion":"v1","kind":"Service","metadata":{"name":"websites"},"spec":{"selector":{"app":"websites"}}},{"apiVersion":"v1","kind":"Service","metadata":{"name":"other"},"spec":{"selector":{"app":"other"}}},{"apiVersion":"v1","kind":"Service","metadata":{"name":"none"}}]}`)
	const rbac = "/apis/rbac.authorization.k8s.io/v1"
	binding := func(kind, namespace, role, subject string) string {
		return fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":%q,"metadata":{"name":"b","namespace":%q},"roleRef":{"kind":%q,"name":%q},"subjects":[%s]}`,
			kind, namespace, map[bool]string{true: "Role", false: "ClusterRole"}[role == "local"], role, subject)
	}
	const operator = `{"kind":"ServiceAccount","name":"operator","namespace":"ops"}`
	c.put(rbac+"/clusterrolebindings", `{"kind":"ClusterRoleBindingList","items":[`+strings.Join([]string{
		binding("ClusterRoleBinding", "", "operator", operator), binding("ClusterRoleBinding", "", "admin", `{"kind":"ServiceAccount","name":"admin","namespace":"ops"}`),
		binding("ClusterRoleBinding", "", "wide", `{"kind":"Group","name":"system:serviceaccounts:ops"}`), binding("ClusterRoleBinding", "", "gone", operator),
	}, ",")+`]}`)
	c.put(rbac+"/rolebindings", `{"kind":"RoleBindingList","items":[`+binding("RoleBinding", "ops", "local", operator)+`]}`)
	c.put(rbac+"/clusterroles/operator", `{"kind":"ClusterRole","rules":[{"apiGroups":["example.com"],"resources":["websites","websites/status","gadgets"],"verbs":["get","list"]},{"apiGroups":["example.com"],"resources":["websites","gadgets"],"verbs":["watch"]},
		{"apiGroups":["apps"],"resources":["deployments"],"verbs":["*"]},{"apiGroups":[""],"resources":["events"],"verbs":["list","watch"]},{"apiGroups":["apps"],"resources":["statefulsets"],"verbs":["list"]}]}`)
	c.put(rbac+"/clusterroles/admin", `{"kind":"ClusterRole","rules":[{"apiGroups":["x"],"resources":["y"],"verbs":["*"]}]}`)
	c.put(rbac+"/clusterroles/wide", `{"kind":"ClusterRole","rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["list","watch"]}]}`)
	c.put(rbac+"/namespaces/ops/roles/local", `{"kind":"ClusterRole","rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["list","watch"]},{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["*"]},{"apiGroups":[""],"resources":["secrets"],"resourceNames":["a"],"verbs":["*"]}]}`)
}

// The source of create --observe watches what the operator's account may watch, and the command says what it left out.
func TestObserve_KindsOfTheAccount(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	withOperator(c)
	code, out, errs := c.run(false, "create", "seen", "--observe", "deployment/websites", "--max-interval", "10h")
	const want = `{"deadLetters":{"keep":0},"delivery":{"retry":0},"maxInterval":"10h","scale":{"mode":"Observe","targetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"websites"}},` +
		`"sink":{"ref":{"apiVersion":"v1","kind":"Service","name":"websites"}},` +
		`"watch":{"namespaceSelector":{},"resources":[{"apiVersion":"apps/v1","kind":"Deployment"},{"apiVersion":"example.com/v1","kind":"Website"}],"serviceAccountName":"operator"}}`
	if got := c.spec("ops", "seen"); code != 0 || got != want {
		t.Errorf("%d, %s%s: the spec is\n%s, want\n%s", code, out, errs, got, want)
	}
	for _, part := range []string{
		"ClusterRole wide allows *", "ClusterRole gone cannot be read", "events is left out: operators write", "leases.coordination.k8s.io is left out: operators write",
		"gadgets.example.com is left out: the API server has no such kind", "secrets is left out: it may be watched in namespaces ops only", "Timers inside",
	} {
		if !strings.Contains(errs, "Not known: "+part) && !strings.Contains(errs, part) {
			t.Errorf("it does not say %q: %s", part, errs)
		}
	}

	// Rights in the own namespace alone need no selector.
	delete(c.objects, "/apis/rbac.authorization.k8s.io/v1/clusterroles/operator")
	code, out, errs = c.run(false, "create", "dry", "--observe", "deploy/websites", "--dry-run", "--sink", "http://operator/hook")
	if code != 0 || !strings.Contains(out, "kind: Secret") || !strings.Contains(out, "uri: http://operator/hook") || strings.Contains(out, "Selector") || strings.Contains(out, "created") || c.spec("ops", "dry") != "" {
		t.Errorf("--dry-run: %d, %s%s", code, out, errs)
	}
	delete(c.objects, "/api/v1/namespaces/ops/services")
	c.put("/api/v1/namespaces/ops/services", `{"apiVersion":"v1","kind":"ServiceList","items":[]}`)
	if code, _, errs = c.run(false, "create", "seen", "--observe", "deployment/websites"); code != exitUsage || !strings.Contains(errs, "give --sink") {
		t.Errorf("without a Service: %d, %s", code, errs)
	}
	for _, bad := range []string{"websites", "deployment/", "pod/x", "apps/v1/Deployment"} {
		if code, _, errs := c.run(false, "create", "x", "--observe", bad); code != exitUsage || !strings.Contains(errs, "deployment/NAME") {
			t.Errorf("%s: %d, %s", bad, code, errs)
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

// A suggested slack is the mean time between two starts, in a form that a person would write.
func TestSavings_Slack(t *testing.T) {
	t.Parallel()
	for rate, want := range map[float64]string{13: "5m", 20: "3m", 40: "1m30s", 400: "10s", 10000: "10s", 61: "1m"} {
		if got := slack(rate); got != want {
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
