package command

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

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
	const want = `{"maxInterval":"10h","scale":{"cooldown":"45s","mode":"Observe","targetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"websites"}},` +
		`"watch":{"namespaceSelector":{},"resources":[{"apiVersion":"apps/v1","changes":"Any","kind":"Deployment"},{"apiVersion":"example.com/v1","changes":"Any","kind":"Website"}],"serviceAccountName":"operator"}}`
	if got := c.spec("ops", "seen"); code != 0 || got != want {
		t.Errorf("%d, %s%s: the spec is\n%s, want\n%s", code, out, errs, got, want)
	}
	for _, part := range []string{
		"Not known: ClusterRole wide allows *", "Not known: ClusterRole gone cannot be read", "Not known: events is left out: operators write", "Not known: leases.coordination.k8s.io is left out: operators write",
		"Not known: gadgets.example.com is left out: the API server has no such kind", "Not known: secrets is left out: it may be watched in namespaces ops only",
		"Not known: Where the workload serves metrics: no argument, port or annotation names it. So it stays awake for cooldown",
		"Not known: Whether leader election is on: no argument says so, but ServiceAccount operator may write Leases.", "So cooldown is 45s",
		"Note: Service websites selects its pods: nothing answers there",
	} {
		if !strings.Contains(errs, part) {
			t.Errorf("it does not say %q: %s", part, errs)
		}
	}
	if strings.Contains(errs, "Timers inside") {
		t.Errorf("--max-interval is set: %s", errs)
	}

	// Rights in the own namespace alone need no selector.
	delete(c.objects, "/apis/rbac.authorization.k8s.io/v1/clusterroles/operator")
	code, out, errs = c.run(false, "create", "dry", "--observe", "deploy/websites", "--dry-run", "--sink", "http://operator/hook")
	if code != 0 || !strings.Contains(out, "kind: Secret") || !strings.Contains(out, "uri: http://operator/hook") || !strings.Contains(out, "retry: 0") ||
		strings.Contains(out, "Selector") || strings.Contains(out, "changes") || strings.Contains(out, "created") || c.spec("ops", "dry") != "" {
		t.Errorf("--dry-run: %d, %s%s", code, out, errs)
	}
	for _, bad := range []string{"websites", "deployment/", "pod/x", "apps/v1/Deployment"} {
		if code, _, errs := c.run(false, "create", "x", "--observe", bad); code != exitUsage || !strings.Contains(errs, "deployment/NAME") {
			t.Errorf("%s: %d, %s", bad, code, errs)
		}
	}
}

// Without metrics the cooldown is longer than the Lease that a pod of the operator holds: after a kill -9 each start waits
// for all of it, and with less the operator never worked again.
func TestObserve_CooldownOutlastsTheLease(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	withOperator(c)
	lease := func(holder string, seconds int) string {
		return fmt.Sprintf(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"l"},"spec":{"holderIdentity":%q,"leaseDurationSeconds":%d}}`, holder, seconds)
	}
	c.put("/apis/coordination.k8s.io/v1/leases", `{"apiVersion":"coordination.k8s.io/v1","kind":"LeaseList","items":[`+lease("websites-5d8f-x_uuid", 60)+`,`+lease("other-1", 600)+`]}`)
	code, _, errs := c.run(false, "create", "seen", "--observe", "deployment/websites")
	if got := c.spec("ops", "seen"); code != 0 || !strings.Contains(got, `"cooldown":"2m15s"`) || !strings.Contains(errs, "wait 1m0s for the Lease") {
		t.Errorf("%d, %s, %s", code, got, errs)
	}
}

// An account that may do everything is refused, because the adapter never uses its token; another one watches what it may.
func TestObserve_NotAsAnAdministrator(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	withOperator(c)
	c.put("/apis/rbac.authorization.k8s.io/v1/clusterroles/wide", `{"kind":"ClusterRole","rules":[{"apiGroups":["*"],"resources":["*"],"verbs":["*"]}]}`)
	c.put("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"kind":"ClusterRoleBindingList","items":[
		{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"a"},"roleRef":{"kind":"ClusterRole","name":"wide"},"subjects":[{"kind":"ServiceAccount","name":"operator","namespace":"ops"}]},
		{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"b"},"roleRef":{"kind":"ClusterRole","name":"operator"},"subjects":[{"kind":"ServiceAccount","name":"watcher","namespace":"ops"}]}]}`)
	if code, _, errs := c.run(false, "create", "seen", "--observe", "deployment/websites"); code != exitUsage || !strings.Contains(errs, "ServiceAccount operator may do everything") || !strings.Contains(errs, "--scale-service-account") {
		t.Errorf("%d, %s", code, errs)
	}
	code, _, errs := c.run(false, "create", "seen", "--observe", "deployment/websites", "--scale-service-account", "watcher")
	if got := c.spec("ops", "seen"); code != 0 || !strings.Contains(got, `"kind":"Website"}],"serviceAccountName":"watcher"}`) || !strings.Contains(got, `"serviceAccountName":"watcher","targetRef"`) {
		t.Errorf("%d, %s, %s", code, errs, got)
	}
}

// operates changes the Deployment of the operator: its replicas, annotations of its pods, and its containers.
func (c *cluster) operates(replicas int, annotations, containers string) {
	const path = "/apis/apps/v1/namespaces/ops/deployments/websites"
	spec := c.objects[path]["spec"].(map[string]any)
	template := spec["template"].(map[string]any)
	spec["replicas"] = replicas
	template["metadata"].(map[string]any)["annotations"] = decode(annotations)
	template["spec"].(map[string]any)["containers"] = decode(`{"c":` + containers + `}`)["c"]
}

// The arguments of the operator say where its metrics are and whether it elects a leader, and the source has the replicas.
func TestObserve_ReadsTheArguments(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	withOperator(c)
	c.operates(2, `{"prometheus.io/path":"/m"}`, `[{"name":"manager","args":["--leader-elect","--metrics-bind-address=:8443"]}]`)
	code, _, errs := c.run(false, "create", "seen", "--observe", "deployment/websites")
	const want = `"scale":{"busy":{"path":"/m","port":8443},"mode":"Observe","replicas":2,`
	if got := c.spec("ops", "seen"); code != 0 || !strings.Contains(got, want) {
		t.Errorf("%d, %s: the spec is %s, want %s", code, errs, got, want)
	}
	for _, part := range []string{
		"Note: Its metrics on port 8443 (--metrics-bind-address of container manager) say when it works.",
		"Port 8443 may ask for a token. Then ServiceAccount operator needs get on the nonResourceURL /metrics",
		"Leader election is on. A start may then wait 15s", "--leader-elect=false switches it off.",
		"Timers inside of the workload", "--max-interval wakes it. After an hour savings says",
	} {
		if !strings.Contains(errs, part) {
			t.Errorf("it does not say %q: %s", part, errs)
		}
	}
	c.operates(1, `{}`, `[{"name":"manager","args":["--leader-elect"]}]`)
	if code, _, errs = c.run(false, "create", "own", "--observe", "deployment/websites", "--scale-cooldown", "5m"); code != 0 || strings.Contains(errs, "So cooldown") ||
		!strings.Contains(c.spec("ops", "own"), `"scale":{"cooldown":"5m","mode":"Observe","targetRef"`) || !strings.Contains(errs, "Without scale.busy nothing finds them") {
		t.Errorf("%d, %s: %s", code, errs, c.spec("ops", "own"))
	}
	c.operates(1, `{}`, `[{"name":"manager","args":["--leader-elect=false"]}]`)
	if code, _, errs = c.run(false, "create", "leads", "--observe", "deployment/websites"); code != 0 || strings.Contains(errs, "eader election") || strings.Contains(c.spec("ops", "leads"), "cooldown") {
		t.Errorf("%d, %s: %s", code, errs, c.spec("ops", "leads"))
	}
	if code, _, errs = c.run(false, "create", "told", "--observe", "deployment/websites", "--scale-busy-port", "99", "--scale-busy-path", "/m"); code != 0 || strings.Contains(errs, "serves metrics") ||
		!strings.Contains(c.spec("ops", "told"), `"scale":{"busy":{"path":"/m","port":99},"mode"`) {
		t.Errorf("%d, %s: %s", code, errs, c.spec("ops", "told"))
	}
}

// deployment is a workload with containers and annotations of its pods, in JSON.
func deployment(containers, annotations string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: numbers(decode(`{"spec":{"template":{"metadata":{"annotations":` + annotations + `},"spec":{"containers":` + containers + `}}}}`)).(map[string]any)}
}

// kube-rbac-proxy says where the metrics are, or else an argument, an annotation, or the name of a port.
func TestFindMetrics_Ports(t *testing.T) {
	t.Parallel()
	const named = `"ports":[{"name":"health","containerPort":1},{"name":"http-metrics","containerPort":9402}]`
	for name, c := range map[string]struct {
		containers, annotations string
		port                    int64
		path                    string
		secure                  bool
		from                    string
	}{
		"nothing":           {`[{"name":"m"}]`, `{}`, 0, "", false, "no argument"},
		"equals":            {`[{"name":"m","args":["--metrics-bind-address=:8080"]}]`, `{}`, 8080, "", false, "--metrics-bind-address of container m"},
		"apart":             {`[{"name":"m","args":["--metrics-addr",":8080"]}]`, `{}`, 8080, "", false, "--metrics-addr"},
		"single dash":       {`[{"name":"m","command":["/m","-metrics-addr=0.0.0.0:81"]}]`, `{}`, 81, "", false, "--metrics-addr"},
		"in a shell":        {`[{"name":"m","command":["sh","-c","exec /m --metrics-port 82 --x"]}]`, `{}`, 82, "", false, "--metrics-port"},
		"an IPv6 address":   {`[{"name":"m","args":["--metrics-listen-address=[::]:83"]}]`, `{}`, 83, "", false, "--metrics-listen-address"},
		"secure":            {`[{"name":"m","args":["--metrics-bind-address=:84","--metrics-secure=true"]}]`, `{}`, 84, "", true, ""},
		"off":               {`[{"name":"m","args":["--metrics-bind-address=0"],` + named + `}]`, `{}`, 0, "", false, "switches them off"},
		"loopback":          {`[{"name":"m","args":["--metrics-bind-address=127.0.0.1:8080"]}]`, `{"prometheus.io/port":"9"}`, 0, "", false, "in the pod alone"},
		"a variable":        {`[{"name":"m","args":["--metrics-bind-address=$(ADDRESS)"],` + named + `}]`, `{}`, 9402, "", false, "port http-metrics of container m"},
		"named":             {`[{"name":"m",` + named + `}]`, `{}`, 9402, "", false, "port http-metrics of container m"},
		"the better name":   {`[{"name":"m","ports":[{"name":"https","containerPort":1}]},{"name":"n","ports":[{"name":"metrics","containerPort":2}]}]`, `{}`, 2, "", false, "container n"},
		"named https":       {`[{"name":"m","ports":[{"name":"https","containerPort":1}]}]`, `{}`, 1, "", true, ""},
		"annotated":         {`[{"name":"m",` + named + `}]`, `{"prometheus.io/port":"9403","prometheus.io/path":"/prom"}`, 9403, "/prom", false, "annotation prometheus.io/port"},
		"a path alone":      {`[{"name":"m",` + named + `}]`, `{"prometheus.io/path":"/prom"}`, 9402, "/prom", false, ""},
		"the usual path":    {`[{"name":"m",` + named + `}]`, `{"prometheus.io/path":"/metrics"}`, 9402, "", false, ""},
		"of another port":   {`[{"name":"m","args":["--metrics-addr=:85"]}]`, `{"prometheus.io/port":"9","prometheus.io/path":"/prom"}`, 85, "", false, ""},
		"proxy":             {`[{"name":"m","args":["--metrics-bind-address=127.0.0.1:8080"]},{"name":"kube-rbac-proxy","args":["--secure-listen-address=0.0.0.0:8443"]}]`, `{}`, 8443, "", true, "--secure-listen-address of container kube-rbac-proxy"},
		"proxy by its port": {`[{"name":"m",` + named + `},{"name":"p","image":"r/kube-rbac-proxy:v1","ports":[{"containerPort":86}]}]`, `{}`, 86, "", true, "port 86 of container p"},
	} {
		got := findMetrics(deployment(c.containers, c.annotations))
		if got.port != c.port || got.path != c.path || got.secure != c.secure || !strings.Contains(got.from, c.from) {
			t.Errorf("%s: %+v, want %+v", name, got, c)
		}
	}
}

// A flag of leader election decides with its value, or alone.
func TestFindElection_Flags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]election{
		`"--x"`:                             {},
		`"--leader-elect"`:                  {"--leader-elect", true},
		`"--leader-elect=false"`:            {"--leader-elect", false},
		`"-leader-elect=true"`:              {"--leader-elect", true},
		`"--enable-leader-election","run"`:  {"--enable-leader-election", true},
		`"--leader-election","false","run"`: {"--leader-election", true}, // as Go's flags read it
	} {
		if got := findElection(deployment(`[{"name":"m","args":[`+args+`]}]`, `{}`)); got != want {
			t.Errorf("%s: %+v, want %+v", args, got, want)
		}
	}
}

// A workload that the API server calls is refused, and each call is named.
func TestObserve_RefusesWebhooks(t *testing.T) {
	t.Parallel()
	const webhook = `{"clientConfig":{"service":{"namespace":"ops","name":"websites"}}%s}`
	list := func(c *cluster, group, resource, kind string, items ...string) {
		c.put("/apis/"+group+"/v1/"+resource, fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"%sList","items":[%s]}`, group, kind, strings.Join(items, ",")))
	}
	for name, row := range map[string]struct {
		put  func(c *cluster)
		want string
	}{
		"validating": {func(c *cluster) {
			list(c, "admissionregistration.k8s.io", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", `{"metadata":{"name":"v"},"webhooks":[`+fmt.Sprintf(webhook, "")+`]}`)
		}, "ValidatingWebhookConfiguration v calls Service websites (failurePolicy Fail)"},
		"mutating": {func(c *cluster) {
			list(c, "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", `{"metadata":{"name":"m"},"webhooks":[`+fmt.Sprintf(webhook, `,"failurePolicy":"Ignore"`)+`]}`)
		}, "MutatingWebhookConfiguration m calls Service websites."},
		"aggregated": {func(c *cluster) {
			list(c, "apiregistration.k8s.io", "apiservices", "APIService", `{"metadata":{"name":"v1.x"},"spec":{"service":{"namespace":"ops","name":"websites"}}}`, `{"metadata":{"name":"v1."},"spec":{}}`)
		}, "APIService v1.x calls Service websites"},
		"conversion": {func(c *cluster) {
			list(c, "apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", `{"metadata":{"name":"x"},"spec":{"conversion":{"strategy":"Webhook","webhook":`+fmt.Sprintf(webhook, "")+`}}}`)
		}, "CustomResourceDefinition x calls Service websites"},
		"another namespace": {func(c *cluster) {
			list(c, "apiregistration.k8s.io", "apiservices", "APIService", `{"metadata":{"name":"v1.x"},"spec":{"service":{"namespace":"dev","name":"websites"}}}`)
		}, ""},
		"another Service": {func(c *cluster) {
			list(c, "apiregistration.k8s.io", "apiservices", "APIService", `{"metadata":{"name":"v1.x"},"spec":{"service":{"namespace":"ops","name":"other"}}}`)
		}, ""},
	} {
		c := newCluster(t)
		withOperator(c)
		row.put(c)
		code, out, errs := c.run(false, "create", "seen", "--observe", "deployment/websites", "--dry-run")
		if row.want == "" {
			if code != 0 || strings.Contains(errs, " calls ") {
				t.Errorf("%s: %d, %s", name, code, errs)
			}
			continue
		}
		if code != exitUsage || out != "" || !strings.Contains(errs, row.want) || !strings.Contains(errs, "--force") {
			t.Errorf("%s: %d, %s%s: want %s", name, code, out, errs, row.want)
		}
		code, out, errs = c.run(false, "create", "seen", "--observe", "deployment/websites", "--force")
		if code != 0 || !strings.Contains(errs, "Note: Deployment websites answers the API server") || !strings.Contains(errs, row.want) || strings.Contains(errs, "nothing answers there") {
			t.Errorf("%s with --force: %d, %s%s", name, code, out, errs)
		}
	}
	c := newCluster(t)
	withOperator(c)
	c.refuse["GET validatingwebhookconfigurations"] = 403
	if code, _, errs := c.run(false, "create", "seen", "--observe", "deployment/websites"); code != 0 || !strings.Contains(errs, "Not known: Whether the API server calls it: you may not list validatingwebhookconfigurations.") {
		t.Errorf("%d, %s", code, errs)
	}
}

// The command names what reads the metrics of the workload, which do not answer while it sleeps.
func TestObserve_NamesScrapes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	withOperator(c)
	c.operates(1, `{"prometheus.io/scrape":"true"}`, `[]`)
	c.objects["/api/v1/namespaces/ops/services"]["items"].([]any)[0].(map[string]any)["metadata"].(map[string]any)["labels"] = map[string]any{"team": "a"}
	const monitoring = "/apis/monitoring.coreos.com/v1"
	c.put(monitoring+"/podmonitors", `{"apiVersion":"monitoring.coreos.com/v1","kind":"PodMonitorList","items":[
		{"metadata":{"name":"own","namespace":"ops"},"spec":{"selector":{"matchLabels":{"app":"websites"}}}},{"metadata":{"name":"elsewhere","namespace":"dev"},"spec":{"selector":{"matchLabels":{"app":"websites"}}}},
		{"metadata":{"name":"others","namespace":"ops"},"spec":{"selector":{"matchLabels":{"app":"other"}}}}]}`)
	c.put(monitoring+"/servicemonitors", `{"apiVersion":"monitoring.coreos.com/v1","kind":"ServiceMonitorList","items":[
		{"metadata":{"name":"all","namespace":"dev"},"spec":{"namespaceSelector":{"any":true},"selector":{"matchExpressions":[{"key":"team","operator":"Exists"}]}}},
		{"metadata":{"name":"named","namespace":"dev"},"spec":{"namespaceSelector":{"matchNames":["ops"]},"selector":{"matchLabels":{"team":"a"}}}},
		{"metadata":{"name":"dev","namespace":"ops"},"spec":{"namespaceSelector":{"matchNames":["dev"]},"selector":{"matchLabels":{"team":"a"}}}}]}`)
	const want = "Its metrics are scraped (annotation prometheus.io/scrape, ServiceMonitor dev/all, ServiceMonitor dev/named, PodMonitor ops/own): "
	if code, _, errs := c.run(false, "create", "seen", "--observe", "deployment/websites"); code != 0 || !strings.Contains(errs, want) {
		t.Errorf("%d, %s: want %s", code, errs, want)
	}
}

// create --observe creates the Role of the account too, or prints it where it may not.
func TestObserve_GrantsTheRights(t *testing.T) {
	t.Parallel()
	const rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/ops/"
	const rules = `[{"apiGroups":["apps"],"resourceNames":["websites"],"resources":["deployments/scale"],"verbs":["get","patch"]},{"apiGroups":[""],"resources":["pods"],"verbs":["list"]}]`
	c := newCluster(t)
	withOperator(c)
	c.put(rbac+"roles/seen-scaler", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"seen-scaler","labels":{"sources.reschedule.dev/granted-for":"seen"}},"rules":[]}`) // of a source that was deleted
	if code, out, errs := c.run(false, "create", "seen", "--observe", "deployment/websites"); code != 0 || out != "Source seen created in namespace ops.\n" {
		t.Fatalf("%d, %s%s", code, out, errs)
	}
	got, _ := json.Marshal(c.objects[rbac+"roles/seen-scaler"]["rules"])
	var role, named any
	if json.Unmarshal(got, &role) != nil || json.Unmarshal([]byte(rules), &named) != nil || !reflect.DeepEqual(role, named) {
		t.Errorf("the Role has %s", got)
	}
	bound, _ := json.Marshal(c.objects[rbac+"rolebindings/seen-scaler"])
	if !strings.Contains(string(bound), `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"seen-scaler"},"subjects":[{"kind":"ServiceAccount","name":"operator","namespace":"ops"}]`) {
		t.Errorf("the RoleBinding is %s", bound)
	}
	// --dry-run prints all three.
	_, out, _ := c.run(false, "create", "dry", "--observe", "deployment/websites", "--dry-run")
	if documents := strings.Split(out, "---\n"); len(documents) != 3 || !strings.Contains(documents[1], "name: dry-scaler\n") || !strings.Contains(documents[2], "kind: RoleBinding\n") || strings.Contains(out, "created") {
		t.Errorf("--dry-run prints %s", out)
	}
	c.refuse["POST /roles"] = 403
	code, out, errs := c.run(false, "create", "bare", "--observe", "deployment/websites")
	if code != exitDenied || c.spec("ops", "bare") == "" || !strings.HasPrefix(out, "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\n") || strings.Count(out, "---\n") != 1 ||
		!strings.Contains(errs, "An administrator of namespace ops has to apply") {
		t.Errorf("without the right to create it: %d, %s%s", code, out, errs)
	}
	// The account default is shared.
	delete(c.objects["/apis/apps/v1/namespaces/ops/deployments/websites"]["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any), "serviceAccountName")
	c.objects["/apis/rbac.authorization.k8s.io/v1/rolebindings"]["items"].([]any)[0].(map[string]any)["subjects"].([]any)[0].(map[string]any)["name"] = "default"
	if _, _, errs := c.run(false, "create", "shared", "--observe", "deployment/websites", "--dry-run"); !strings.Contains(errs, "all of them get the rights of Role shared-scaler") {
		t.Errorf("the account default: %s", errs)
	}
}

// A Role of another owner is not replaced.
func TestObserve_KeepsARoleOfOthers(t *testing.T) {
	t.Parallel()
	const role = "/apis/rbac.authorization.k8s.io/v1/namespaces/ops/roles/seen-scaler"
	c := newCluster(t)
	withOperator(c)
	c.put(role, `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"seen-scaler","labels":{"app.kubernetes.io/managed-by":"Helm"}},"rules":[{"apiGroups":[""],"resources":["secrets"],"verbs":["get"]}]}`)
	_, _, _ = c.run(false, "create", "seen", "--observe", "deployment/websites")
	if got, _ := json.Marshal(c.objects[role]["rules"]); !strings.Contains(string(got), "secrets") {
		t.Errorf("the Role of Helm has now %s", got)
	}
}
