package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// why names the faults that only the cluster shows.
func TestWhy_InACluster(t *testing.T) {
	t.Parallel()
	spec := func(o map[string]any) map[string]any { return o["spec"].(map[string]any) }
	conditions := func(list ...string) func(o map[string]any) {
		return func(o map[string]any) {
			var all []any
			for _, text := range list {
				f := strings.SplitN(text, " ", 4)
				all = append(all, map[string]any{"type": f[0], "status": f[1], "reason": f[2], "message": f[3]})
			}
			o["status"].(map[string]any)["conditions"] = all
		}
	}
	for name, p := range map[string]struct {
		stage func(c *cluster)
		args  string
		cause string
		says  string
	}{
		"healthy":   {func(*cluster) {}, "web", "Healthy", "3 keys wait"},
		"no source": {func(*cluster) {}, "nix", "NoSource", "no RescheduleSource nix in namespace ops"},
		"no sink": {func(c *cluster) {
			c.source("ops", "web", conditions("Ready False NotFound x", "SinkProvided False NotFound there is no Service"))
		}, "web", "SourceNotReady", "SinkProvided is False (NotFound): there is no Service."},
		"adapter at zero": {func(c *cluster) {
			c.objects[setPath]["spec"] = map[string]any{"replicas": 0}
			c.objects[setPath]["status"] = map[string]any{}
		}, "web", "AdapterAtZero", "0 replicas"},
		"adapter missing": {func(c *cluster) { delete(c.objects, setPath) }, "web", "AdapterMissing", "not installed"},
		"adapter restarts": {func(c *cluster) {
			c.objects[setPath]["status"] = map[string]any{}
			c.put(podPath, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"reschedule-adapter-0"},"status":{"containerStatuses":[
				{"restartCount":4,"state":{"waiting":{"reason":"CrashLoopBackOff"}},"lastState":{"terminated":{"reason":"OOMKilled","finishedAt":"2026-11-22T03:00:00Z"}}}]}}`)
		}, "web", "AdapterNotReady", "4 restarts so far, CrashLoopBackOff"},
		"adapter, by the condition": {func(c *cluster) {
			c.refuse["GET /statefulsets/"] = 403
			c.source("ops", "web", conditions("Ready Unknown AdapterScalingUp x", "Deployed Unknown AdapterScalingUp no replicas yet"))
		}, "web", "AdapterAtZero", "no replicas yet."},
		"another server":         {func(c *cluster) { c.answers["GET /ops/web"] = "200 <!DOCTYPE html>" }, "web", "APIFails", "leads to another server"},
		"no right to a token":    {func(c *cluster) { c.refuse["POST /token"] = 403 }, "web", "Denied", "the ClusterRole edit of Kubernetes has that right"},
		"no account for a token": {func(c *cluster) { c.refuse["POST /token"] = 404 }, "web", "Unauthenticated", "There is no token to call the schedule API with: requesting a token of service account ops/default: "},
		"token refused": {func(c *cluster) {
			c.answers["GET /ops/web"] = `401 {"status":401,"code":"unauthenticated","detail":"not signed by this cluster"}`
		}, "web", "Unauthenticated", "not signed by this cluster"},
		"suspended": {func(c *cluster) { c.source("ops", "web", func(o map[string]any) { spec(o)["suspend"] = true }) }, "web", "Suspended", "is suspended"},
		"disk full": {func(c *cluster) {
			c.answers["GET /metrics"] = "200 # HELP x\nreschedule_storage_free_bytes{otel_scope_name=\"a\"} 1.5e+07\nreschedule_storage_reserve_bytes 1.6e+07\n"
		}, "web", "StorageFull", "507"},
		"unreadable": {func(c *cluster) { c.answers["GET /metrics"] = "200 reschedule_storage_corrupt_total 2\n" }, "web k", "Unreadable", "2 records"},
		"has a slot since": {func(c *cluster) {
			c.answers["GET /ops/web/schedules/k"] = `200 {"key":"k","revision":1,"state":"inFlight","inFlight":true,"dueAt":"2026-01-01T00:00:00Z"}`
			c.answers["GET /ops/web/events"] = "200 : following\nid: e-0\n\nid: e-1\nevent: started\ndata: {\"key\":\"k\",\"at\":\"" + time.Now().Add(-20*time.Second).Format(time.RFC3339) + "\"}\n\n"
		}, "web k", "SinkSlow", "the delivery began 2"},
		"all deliveries hang": {func(c *cluster) {
			c.answers["GET /ops/web"] = `200 {"pending":0,"due":0,"inFlight":1,"retrying":0,"deadLetters":0,"nextDueAt":null,"oldestDueAt":null}`
			c.answers["GET /ops/web/schedules"] = `200 {"items":[{"key":"k","revision":1,"state":"inFlight","inFlight":true,"dueAt":"2026-01-01T00:00:00Z"}],"continue":""}`
			c.answers["GET /ops/web/events"] = "200 : following\nid: e-0\n\nid: e-1\nevent: started\ndata: {\"key\":\"k\",\"at\":\"" + time.Now().Add(-20*time.Second).Format(time.RFC3339) + "\"}\n\n"
		}, "web", "SinkSlow", "Key \"k\" is being delivered and the sink has not answered: the delivery began 2"},
		"all slots": {func(c *cluster) {
			c.answers["GET /ops/web"] = `200 {"pending":9,"due":9,"inFlight":7,"retrying":0,"deadLetters":0,"nextDueAt":"2026-01-01T00:00:00Z","oldestDueAt":"2026-01-01T00:00:00Z"}`
			c.answers["GET /ops/web/schedules/k"] = `200 {"key":"k","revision":1,"state":"due","dueAt":"2026-01-01T00:00:00Z","scheduledAt":"2026-01-01T00:00:00Z"}`
			c.answers["GET /ops/web/schedules"] = `200 {"items":[{"key":"j","revision":1,"state":"due","dueAt":"2025-01-01T00:00:00Z"},{"key":"k","revision":1,"state":"due","dueAt":"2026-01-01T00:00:00Z"}],"continue":""}`
		}, "web k", "AtMaxInFlight", "all 7 slots of limits.maxInFlight are taken; 1 key is before it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			p.stage(c)
			code, out, errs := c.run(false, append([]string{"why", "-o", "json"}, strings.Fields(p.args)...)...)
			var a struct{ Cause, Sentence string }
			want := exitProblem
			switch p.cause {
			case "Healthy":
				want = 0
			case "NoSource":
				want = exitNotFound
			}
			if err := json.Unmarshal([]byte(out), &a); err != nil || a.Cause != p.cause || !strings.Contains(a.Sentence, p.says) || code != want {
				t.Errorf("%d, %v, %s%s\nwant %s: %s", code, err, out, errs, p.cause, p.says)
			}
		})
	}
}

// Whatever hangs, why ends in time and says what hangs.
func TestWhy_EndsInTime(t *testing.T) {
	t.Parallel()
	for hangs, p := range map[string]struct {
		code int
		says string
	}{
		"/reschedulesources/":        {exitUnavailable, "the API server did not answer within 2s (--timeout)"},
		"/statefulsets/":             {exitUnavailable, "the API server did not answer within 2s (--timeout)"},
		"/pods/reschedule-adapter-0": {exitUnavailable, "the API server did not answer within 2s (--timeout)"},
		"/token":                     {exitUnavailable, "the API server did not answer within 2s (--timeout)"},
		"-adapter-0/portforward":     {exitProblem, "no answer came in time"},
		"/ops/web":                   {exitProblem, "no answer came in time"},
		"/metrics":                   {0, "3 keys wait"},
	} {
		t.Run(hangs, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.hangs = hangs
			begin := time.Now()
			// The calls that do not hang must end within it on a busy machine.
			code, out, errs := c.run(true, "why", "web", "--timeout", "2s")
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
			if code != p.code || !strings.Contains(out+errs, p.says) {
				t.Errorf("%d: %s%s\nwant %d: %s", code, out, errs, p.code, p.says)
			}
		})
	}
}

// The port-forward stays inside the process, and carries all calls, over WebSocket or, with
// older API servers, over SPDY.
func TestTunnel_WebSocketAndSPDY(t *testing.T) {
	t.Parallel()
	for over, onlySPDY := range map[string]bool{"websocket": false, "SPDY/3.1": true} {
		c := newCluster(t)
		c.onlySPDY = onlySPDY
		c.answers["GET /metrics"] = "200 reschedule_storage_corrupt_total 2\n"
		for range 2 {
			if code, out, errs := c.run(true, "why", "web", "k"); code != exitProblem || !strings.Contains(out, "Unreadable") {
				t.Fatalf("%s: %d, %s%s", over, code, out, errs)
			}
		}
		c.mu.Lock()
		if !slices.Contains(c.calls, "forwarded over "+over) {
			t.Errorf("not %s: %q", over, c.calls)
		}
		c.mu.Unlock()
	}
}

// A port that is closed, a pod that is away and a missing right are named.
func TestTunnel_Failures(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.source("ops", "tls", func(o map[string]any) {
		o["status"].(map[string]any)["address"] = map[string]any{"url": "https://reschedule-adapter.knative-eventing.svc.cluster.local/ops/tls"}
	})
	if code, out, _ := c.run(true, "why", "tls"); code != exitProblem || !strings.Contains(out, "nothing listens on port 8443") {
		t.Errorf("a closed port: %d, %s", code, out)
	}
	c.refuse["GET /statefulsets/"] = 403
	if code, out, _ := c.run(true, "why", "web", "--system-namespace", "elsewhere"); code != exitProblem || !strings.Contains(out, "AdapterNotReady") || !strings.Contains(out, "no connection to a pod") {
		t.Errorf("no pod: %d, %s", code, out)
	}
	c.refuse["POST /portforward"] = 403
	c.refuse["GET /portforward"] = 403
	if code, out, _ := c.run(true, "why", "web", "--system-namespace", "elsewhere"); code != exitProblem || !strings.Contains(out, "Denied") || !strings.Contains(out, "config/cli") {
		t.Errorf("no right to forward: %d, %s", code, out)
	}
	if code, _, errs := c.run(true, "key", "list", "web", "--system-namespace", "elsewhere"); code != exitDenied {
		t.Errorf("no right to forward: %d, %s", code, errs)
	}
}

// One token request serves all sources of a namespace.
func TestTop_OneTokenForANamespace(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.source("ops", "mail", nil)
	c.source("other", "web", nil)
	c.answers["GET /ops/mail"] = `503 {"status":503,"code":"unavailable","detail":"not now"}`
	code, out, errs := c.run(false, "top", "-A", "-o", "json")
	var list struct {
		Items []struct {
			Namespace, Name, Error string
			Counts                 *sdk.Counts
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != exitSome || len(list.Items) != 3 || list.Items[0].Name != "mail" || list.Items[0].Error == "" || list.Items[1].Counts.Pending != 3 {
		t.Errorf("%d, %v, %s%s", code, err, out, errs)
	}
	want := "[[sources.reschedule.dev/reschedulesource/ops/mail sources.reschedule.dev/reschedulesource/ops/web] [sources.reschedule.dev/reschedulesource/other/web]]"
	for _, audiences := range c.tokens { // the source that is asked first comes first
		slices.Sort(audiences)
	}
	slices.SortFunc(c.tokens, func(a, b []string) int { return slices.Compare(a, b) })
	if got := fmt.Sprint(c.tokens); got != want {
		t.Errorf("tokens for %s, want %s", got, want)
	}
	for _, call := range c.asked {
		if strings.Contains(call, "/other/") && !strings.Contains(call, "Bearer token-for-sources.reschedule.dev/reschedulesource/other/web") {
			t.Errorf("the token of another namespace: %s", call)
		}
	}
}

// Keys by priority are shown where some are not normal: in a column of top, and by describe and why.
func TestTop_ByPriority(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	if _, out, errs := c.run(false, "top"); strings.Contains(out, "HIGH") {
		t.Errorf("all are normal: %s%s", out, errs)
	}
	c.source("ops", "mail", nil)
	c.answers["GET /ops/web"] = "200 " + strings.Replace(healthy, "{", `{"priorities":{"high":{"pending":0,"due":0},"normal":{"pending":1,"due":1},"low":{"pending":2,"due":2}},`, 1)
	for args, parts := range map[string][]string{
		"top":          {"NAME PENDING DUE HIGH/NORMAL/LOW RETRYING", "web 3 0 0/1/2 0", "mail 3 0 - 0"},
		"describe web": {"By priority: 1 normal, 1 due; 2 low, 2 due"}, "why web": {"by priority: 1 normal, 1 due; 2 low, 2 due"},
	} {
		_, out, errs := c.run(false, strings.Fields(args)...)
		for _, part := range parts {
			if !strings.Contains(strings.Join(strings.Fields(out), " "), part) {
				t.Errorf("%s does not say %q: %s%s", args, part, out, errs)
			}
		}
	}
}

// Sources are listed, described, suspended, resumed, drained and deleted.
func TestSources_ListAndSteer(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.source("other", "mail", nil)
	for _, step := range []struct {
		args string
		code int
		says string // parts of the output or the error, with | between them
		spec string // a part of the spec of ops/web after it
	}{
		{"list", 0, "NAME|web", ""},
		{"list -A -o name", 0, "reschedulesource.sources.reschedule.dev/web\nreschedulesource.sources.reschedule.dev/mail\n", ""},
		{"list -A -o jsonpath={.items[*].spec.delivery.timeout}", 0, "PT30S PT30S\n", ""},
		{"describe web", 0, "http://sink|3 pending", ""},
		{"suspend web", 0, "", `"suspend":true`},
		{"resume --all --yes", 0, "", `"suspend":false`},
		{"drain web", 0, "nothing is in flight", `"suspend":true`},
		{"token web", 0, "token-for-sources.reschedule.dev/reschedulesource/ops/web\n", ""},
		{"delete web --yes", 0, "", ""},
		{"describe web", exitNotFound, "", ""},
	} {
		code, out, errs := c.run(false, strings.Fields(step.args)...)
		if code != step.code || !strings.Contains(c.spec("ops", "web"), step.spec) || step.args == "list" && strings.Contains(out, "mail") {
			t.Fatalf("%s: %d, %s%s; the spec is %s", step.args, code, out, errs, c.spec("ops", "web"))
		}
		for text := range strings.SplitSeq(step.says, "|") {
			if !strings.Contains(out+errs, text) {
				t.Errorf("%s: it does not say %q: %s%s", step.args, text, out, errs)
			}
		}
	}
}

// create, update and apply set what their flags name, and leave the rest.
func TestSources_CreateUpdateApply(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	run := func(want int, args ...string) string {
		t.Helper()
		code, out, errs := c.run(false, args...)
		if code != want {
			t.Fatalf("%q: %d, %s%s", args, code, out, errs)
		}
		return errs
	}
	run(0, "create", "new", "--sink", "ksvc:op", "--dl-sink", "svc:dead:other", "--delay", "1m", "--max-in-flight", "5", "--retry", "2", "--timeout", "PT1M", "--ce-override", "team=a", "--suspend")
	want := `{"ceOverrides":{"extensions":{"team":"a"}},"delay":"1m","delivery":{"deadLetterSink":{"ref":{"apiVersion":"v1","kind":"Service","name":"dead","namespace":"other"}},"retry":2,"timeout":"PT1M"},` +
		`"limits":{"maxInFlight":5},"sink":{"ref":{"apiVersion":"serving.knative.dev/v1","kind":"Service","name":"op","namespace":"ops"}},"suspend":true}`
	if got := c.spec("ops", "new"); got != want {
		t.Errorf("created\n%s, want\n%s", got, want)
	}
	run(0, "update", "new", "--no-suspend", "--ce-override", "team-", "--sink", "http://there/x")
	want = strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(want, `{"team":"a"}`, `{}`), `"suspend":true`, `"suspend":false`),
		`{"ref":{"apiVersion":"serving.knative.dev/v1","kind":"Service","name":"op","namespace":"ops"}}`, `{"uri":"http://there/x"}`)
	if got := c.spec("ops", "new"); got != want {
		t.Errorf("updated\n%s, want\n%s", got, want)
	}
	run(0, "apply", "new", "--max-pending", "9")
	if got := c.spec("ops", "new"); !strings.Contains(got, `"limits":{"maxInFlight":5,"maxPending":9}`) {
		t.Errorf("applied\n%s", got)
	}
	run(0, "apply", "second", "--sink", "broker:default")
	run(exitUsage, "apply", "third")
	run(exitUsage, "create", "third")
	run(exitNotFound, "update", "third", "--delay", "1s")
	c.refuse["PUT /"] = 409
	run(exitConflict, "update", "new", "--delay", "1s")
	c.refuseOnce = true // its status was written in between
	run(0, "update", "new", "--delay", "1s")
	if errs := run(exitUnavailable, "create", "slow", "--sink", "x", "--wait", "--wait-timeout", "50ms"); !strings.Contains(errs, "is not Ready after 50ms") {
		t.Errorf("waited: %s", errs)
	}
}

// kn's examples of sinks, and what is none.
func TestSinks_AsInKn(t *testing.T) {
	t.Parallel()
	ref := func(apiVersion, kind, name, namespace string) string {
		return fmt.Sprint(map[string]any{"ref": map[string]any{"apiVersion": apiVersion, "kind": kind, "name": name, "namespace": namespace}})
	}
	for text, want := range map[string]string{
		"mysvc":            ref("serving.knative.dev/v1", "Service", "mysvc", "ops"),
		"ksvc:mysvc":       ref("serving.knative.dev/v1", "Service", "mysvc", "ops"),
		"ksvc:mysvc:there": ref("serving.knative.dev/v1", "Service", "mysvc", "there"),
		"svc:mysvc":        ref("v1", "Service", "mysvc", "ops"),
		"broker:default":   ref("eventing.knative.dev/v1", "Broker", "default", "ops"),
		"channel:pipe":     ref("messaging.knative.dev/v1", "Channel", "pipe", "ops"),
		"messaging.knative.dev/v1/InMemoryChannel:pipe:x": ref("messaging.knative.dev/v1", "InMemoryChannel", "pipe", "x"),
		"https://event.receiver.uri":                      fmt.Sprint(map[string]any{"uri": "https://event.receiver.uri"}),
		"HTTPS://event.receiver.uri":                      fmt.Sprint(map[string]any{"uri": "HTTPS://event.receiver.uri"}),
	} {
		got, err := parseSink(text, "ops")
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s is %v, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "nix:a", "ksvc:", "ksvc:a:b:c"} {
		if got, err := parseSink(text, "ops"); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// doctor looks at the adapter, the rights and the sources.
func TestDoctor_InACluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	findings := func(args ...string) (int, []finding) {
		t.Helper()
		code, out, errs := c.run(false, append([]string{"doctor", "-o", "json"}, args...)...)
		var list struct{ Items []finding }
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatalf("%d, %v, %s%s", code, err, out, errs)
		}
		return code, list.Items
	}
	code, all := findings()
	if code != 0 || len(all) != 5 || all[0].Subject != "adapter" || all[4].Cause != "Healthy" {
		t.Errorf("%d, %+v", code, all)
	}
	c.refuse["GET /review"] = 1
	c.objects[setPath]["status"] = map[string]any{}
	code, all = findings("web")
	if code != exitProblem || slices.ContainsFunc(all, func(f finding) bool { return f.OK }) || all[4].Cause != "AdapterNotReady" {
		t.Errorf("%d, %+v", code, all)
	}
}

// doctor does not call good what it could not look at. It said "ok" of an adapter that its user
// may not read.
func TestDoctor_SaysWhatItCouldNotSee(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.refuse["GET /statefulsets/"], c.refuse["POST /selfsubjectaccessreviews"] = 403, 500
	code, out, errs := c.run(false, "doctor", "web")
	if code != 0 {
		t.Errorf("%d: %s", code, errs)
	}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if want := map[bool]string{true: "ok", false: "unknown"}[strings.Contains(line, "source ops/web")]; fields[0] != "NAME" && fields[0] != "SUBJECT" && fields[0] != want {
			t.Errorf("want %s: %s", want, line)
		}
	}
	_, out, _ = c.run(false, "doctor", "web", "-o", "json")
	if n := strings.Count(out, `"unknown":true`); n != 4 { // the adapter, and three rights
		t.Errorf("%d: %s", n, out)
	}
}

// fullDisk are the metrics of an adapter whose disk is full.
const fullDisk = "reschedule_storage_free_bytes 1\nreschedule_storage_reserve_bytes 2\n"

// group makes the adapter a group of three, and returns what sets the metrics of a member.
func (c *cluster) group() (says func(pod, owner, majority, applied int, behind float64)) {
	c.put(setPath, `{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"reschedule-adapter"},"spec":{"replicas":3},"status":{"readyReplicas":3}}`)
	return func(pod, owner, majority, applied int, behind float64) {
		c.put(fmt.Sprintf("%s/pods/reschedule-adapter-%d", system, pod), `{"apiVersion":"v1","kind":"Pod","metadata":{}}`)
		c.answers[metricsOf(pod)] = fmt.Sprintf(
			"200 reschedule_group_owner %d\nreschedule_group_majority %d\nreschedule_group_applied %d\nreschedule_group_behind_seconds %v\n", owner, majority, applied, behind)
	}
}

// metricsOf is the call of the metrics of a member.
func metricsOf(pod int) string {
	return fmt.Sprintf("GET reschedule-adapter-%d.knative-eventing:9090/metrics", pod)
}

// why asks the owner of the group for its metrics: a standby knows of no refusal, and its
// disk is another one.
func TestWhy_AsksTheOwnerOfAGroup(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	says := c.group()
	for pod := range 3 {
		says(pod, 0, 1, 100, 0)
	}
	says(1, 1, 1, 100, 0)
	const refused = "reschedule_quota_refused_total{kn_source_namespace=\"ops\",kn_source_name=\"web\",quota=\"max-pending\"} 3\n"
	c.answers[metricsOf(0)] += fullDisk
	c.answers[metricsOf(1)] += refused
	code, out, errs := c.run(true, "why", "web", "k")
	if code != exitProblem || !strings.Contains(out, "3 changes were refused with 429") {
		t.Errorf("%d: %s%s", code, out, errs)
	}
	c.answers[metricsOf(1)] += fullDisk
	if code, out, errs := c.run(true, "why", "web", "k"); code != exitProblem || !strings.Contains(out, "disk") {
		t.Errorf("with a full disk of the owner: %d: %s%s", code, out, errs)
	}
}

// doctor and top show the members of a group, who owns the group, and how far the others are behind.
func TestDoctor_MembersOfAGroup(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	says := c.group()
	expect := func(exit int, top string, texts ...string) {
		t.Helper()
		code, out, errs := c.run(true, "doctor")
		for _, text := range texts {
			if code != exit || !strings.Contains(out, text) {
				t.Errorf("%d, no %q in\n%s%s", code, text, out, errs)
			}
		}
		if code, out, errs := c.run(true, "top"); code != 0 || !strings.Contains(out, top) {
			t.Errorf("top: %d, no %q in\n%s%s", code, top, out, errs)
		}
	}
	says(0, 0, 1, 98, 0.1)
	says(1, 1, 1, 100, 0)
	says(2, 0, 1, 40, 90)
	expect(exitProblem, "Members of reschedule-adapter: 0 is 100ms behind, 1 owns the group, 2 is 1m30s behind.",
		"reschedule-adapter-1 owns the group.", "It is a standby: it lacks 2 entries of the log, and may lack the changes of the last 100ms.",
		"It is a standby, and may lack the changes of the last 1m30s.")

	says(2, 0, 1, 100, 0.1)
	c.source("ops", "other", nil)
	c.asked = nil
	expect(0, "2 is 100ms behind.", "It owns the group, and has entry 100 of the log.")

	says(1, 0, 0, 100, 7)
	c.answers[metricsOf(2)] = "500 "
	for pod := range 3 {
		if at := fmt.Sprintf("forwarded %s/pods/reschedule-adapter-%d/portforward", system, pod); !slices.Contains(c.calls, at) {
			t.Errorf("no %q in %q", at, c.calls)
		}
		if n := strings.Count(strings.Join(c.asked, "\n"), metricsOf(pod)); n != 2 { // by doctor and by top, for all sources together
			t.Errorf("member %d was asked %d times: %q", pod, n, c.asked)
		}
	}
	expect(exitProblem, "1 has no majority, 2 does not answer.", "It is not known which member owns the group: 1 of 3 did not answer.",
		"It is in touch with no majority of the group, and may lack the changes of the last 7s.", "It did not answer: GET /metrics was answered 500")
	says(2, 0, 0, 100, 7)
	expect(exitProblem, "2 has no majority.", "No member owns the group")

	says(1, 1, 1, 100, 0)
	says(2, 0, 1, 100, 0.1)
	c.refuse["GET "+podPath+"/portforward"] = 500 // the pod does not run: sources are asked through the next one
	expect(exitProblem, "0 does not answer, 1 owns the group", "Source web is healthy")
}

// An interruption ends a command that waits for input: an import, and a question.
func TestInterrupt_EndsAWaitForInput(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{"import web -f -": "interrupted", "key delete web --all": "nothing was changed"} {
		c := newCluster(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		in, typed := io.Pipe()
		var said strings.Builder
		e := c.program(false, io.Discard, &said)
		e.in, e.asks = in, true
		code := make(chan int, 1)
		go func() { code <- e.run(ctx, append(strings.Fields(args), "--kubeconfig", c.kubeconfig())) }()
		if _, err := typed.Write([]byte(" ")); err != nil { // it is read, so the command waits
			t.Fatal(err)
		}
		cancel()
		if got := <-code; got != exitOther || !strings.Contains(said.String(), want) {
			t.Errorf("%s: %d, %s", args, got, said.String())
		}
	}
}

// A file that holds no token is the caller's mistake, and not taken for an adapter that does not answer.
func TestTokenFile_HoldsOneToken(t *testing.T) {
	t.Parallel()
	c, file := newCluster(t), filepath.Join(t.TempDir(), "token")
	for _, text := range []string{"", " \n", "two tokens\n"} {
		err := os.WriteFile(file, []byte(text), 0o600)
		if code, _, errs := c.run(false, "why", "web", "--server", c.adapter.URL, "--token-file", file); err != nil || code != exitUsage || !strings.Contains(errs, "does not hold one token") {
			t.Errorf("%q: %d, %s", text, code, errs)
		}
	}
}
