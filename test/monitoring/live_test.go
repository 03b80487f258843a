package monitoring

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// specs are the sources of the adapter: one that works, and one for each fault. SINK is
// the address of the source's inbox.
var specs = map[string]string{
	"ok":        "{sink: {uri: SINK}, limits: {maxBytes: 1Mi}, ingest: {when: 'event.type == \"wanted\"'}}",
	"slow":      "{sink: {uri: SINK}, limits: {maxInFlight: 1}}",
	"hangs":     "{sink: {uri: SINK}, delivery: {timeout: PT0.2S}}",
	"busy":      "{sink: {uri: SINK}, delivery: {backoffDelay: PT0.2S}}",
	"broken":    "{sink: {uri: SINK}, delivery: {retry: 1, backoffDelay: PT0.1S, deadLetterSink: {uri: LETTERS}}}",
	"stuck":     "{sink: {uri: SINK}, delivery: {backoffDelay: PT0.2S, deadLetterSink: {uri: 'http://127.0.0.1:1'}}}",
	"refused":   "{sink: {uri: SINK}}",
	"lost":      "{sink: {uri: SINK}, deadLetters: {keep: 0}}",
	"down":      "{sink: {uri: 'http://127.0.0.1:1'}, delivery: {backoffDelay: PT0.2S}}",
	"suspended": "{sink: {uri: SINK}, suspend: true}",
	"quota":     "{sink: {uri: SINK}, limits: {maxPending: 2}}",
	"warm":      "{sink: {uri: SINK}, warmUp: 1s}",
	"late":      "{sink: {uri: SINK}, limits: {maxInFlight: 1}}",
	"quota-a":   "{sink: {uri: SINK}}",
	"quota-b":   "{sink: {uri: SINK}}",
}

// ceilings are the adapter's ceilings: the namespace shared has a limit of keys.
const ceilings = "max-in-flight: 2048\nnamespaces:\n  shared: {max-pending: 3}\n"

// namespace is the namespace of a source: lateness is known of namespaces alone.
func namespace(name string) string {
	switch name {
	case "late":
		return name
	case "quota-a", "quota-b":
		return "shared"
	}
	return "tests"
}

// answers are what the sinks of faults answer.
var answers = map[string]harness.Answer{
	"slow":    slow,
	"late":    slow,
	"hangs":   func(_ http.ResponseWriter, r *http.Request, _ *harness.Delivery) { <-r.Context().Done() },
	"busy":    harness.Status(http.StatusTooManyRequests),
	"broken":  harness.Status(http.StatusInternalServerError),
	"stuck":   harness.Status(http.StatusBadRequest),
	"refused": harness.Status(http.StatusBadRequest),
	"lost":    harness.Status(http.StatusBadRequest),
}

func slow(_ http.ResponseWriter, r *http.Request, _ *harness.Delivery) {
	select {
	case <-time.After(300 * time.Millisecond):
	case <-r.Context().Done():
	}
}

func launch(t *testing.T) *harness.Adapter {
	t.Helper()
	sink := harness.NewSink()
	t.Cleanup(sink.Close)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		if answers[name] != nil {
			sink.Answer(name, "", answers[name])
		}
		spec := strings.NewReplacer("SINK", "'"+sink.URL+"/"+name+"'", "LETTERS", "'"+sink.URL+"/letters'").Replace(specs[name])
		fmt.Fprintf(&text, "---\napiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\nmetadata: {name: %s, namespace: %s}\nspec: %s\n", name, namespace(name), spec)
	}
	dir := t.TempDir()
	file, config := filepath.Join(dir, "sources.yaml"), filepath.Join(dir, "config.yaml")
	for name, text := range map[string]string{file: text.String(), config: ceilings} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return harness.Start(t, append(harness.Flags(file, filepath.Join(dir, "data")), "--config", config)...)
}

// work makes the calls of callers again and again until ctx ends.
func work(ctx context.Context, t *testing.T, a *harness.Adapter) {
	t.Helper()
	call := func(method, path, body string, headers ...string) int {
		name, _, _ := strings.Cut(path, "/")
		r, err := harness.Do(ctx, method, a.URL+"/"+namespace(name)+"/"+path, body, headers...)
		if ctx.Err() != nil {
			return 0
		}
		if err != nil {
			t.Errorf("%s %s: %v", method, path, err)
			return 0
		}
		if r.Status >= 400 && !strings.HasPrefix(path, "quota") {
			t.Errorf("%s %s: %d %s", method, path, r.Status, r.Body)
		}
		return r.Status
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		for name := range specs {
			if name != "warm" { // a sink that has just had a delivery is not woken
				call(http.MethodPut, fmt.Sprintf("%s/schedules/key%d", name, i%40), `{"delay":0}`)
			}
			call(http.MethodPut, name+"/schedules/later", `{"delay":3600,"priority":"low"}`)
		}
		call(http.MethodPut, "warm/schedules/soon", `{"delay":2,"policy":"keep"}`)
		call(http.MethodPut, "ok/schedules/late", `{"expiresAt":"2001-01-01T00:00:00Z"}`)
		call(http.MethodPut, "quota/schedules/cancelled", `{"delay":60}`)
		call(http.MethodPut, "quota/schedules/tooMany", `{"delay":60}`)
		call(http.MethodPut, "quota-a/schedules/more", `{"delay":3600}`)
		call(http.MethodPut, "ok/schedules/cancelled", `{"delay":60}`)
		call(http.MethodDelete, "ok/schedules/cancelled", "")
		for _, kind := range []string{"wanted", "other"} {
			call(http.MethodPost, "ok", `{}`, "Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/test", "Ce-Type", kind)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// prometheus runs until the end of the test, scrapes the adapters each second, and returns
// its address.
func prometheus(t *testing.T, honorLabels bool, adapters ...*harness.Adapter) string {
	t.Helper()
	var targets []string
	for _, a := range adapters {
		targets = append(targets, strings.TrimPrefix(a.Admin, "http://"))
	}
	dir := t.TempDir()
	path, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
- job_name: reschedule-adapter
  honor_labels: %v
  static_configs:
  - targets: [%s]
    labels: {namespace: knative-eventing, service: reschedule-adapter, pod: reschedule-adapter-0, container: adapter}
`, path, honorLabels, strings.Join(targets, ", "))
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(programs, "prometheus"), "--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the context of the test has killed it
	return "http://" + address
}

// result is an answer of Prometheus.
type result struct {
	Status, Error string
	Data          struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
}

func ask(ctx context.Context, t *testing.T, address string) (r result) {
	t.Helper()
	reply, err := harness.Do(ctx, http.MethodGet, address, "")
	if err != nil {
		return r // it starts
	}
	if reply.Status == http.StatusServiceUnavailable {
		return r
	}
	reply.Into(t, &r)
	if r.Error != "" {
		t.Fatalf("%s: %s", address, r.Error)
	}
	return r
}

func query(ctx context.Context, t *testing.T, address, expr string) result {
	t.Helper()
	return ask(ctx, t, address+"/api/v1/query?query="+url.QueryEscape(expr))
}

// eventually asks until nothing is missing.
func eventually(t *testing.T, missing func() string) {
	t.Helper()
	deadline := time.After(2 * harness.Patience)
	for {
		what := missing()
		if what == "" {
			return
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-deadline:
			t.Fatalf("not within %s: %s", 2*harness.Patience, what)
		}
	}
}

// exposed are the families at /metrics.
func exposed(t *testing.T, a *harness.Adapter) string {
	t.Helper()
	r, err := harness.Do(t.Context(), http.MethodGet, a.Admin+"/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	return string(r.Body)
}

// A real Prometheus scrapes the real adapter, with each fault in a source of its own.
// Every query of every panel returns series, every rule can be evaluated, and the alerts
// that need no time fire for their sources alone. honor_labels makes no difference.
func TestLive_PanelsAndRules(t *testing.T) {
	t.Parallel()
	a := launch(t)
	working, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		work(working, t, a)
	}()
	t.Run("honor_labels", func(t *testing.T) {
		for _, honor := range []bool{true, false} {
			t.Run(fmt.Sprint(honor), func(t *testing.T) {
				t.Parallel()
				address := prometheus(t, honor, a)
				eventually(t, func() string { return emptyPanels(t, address, false) })
				eventually(t, func() string { return unhealthyRules(t, address) })
				eventually(t, func() string { return otherAlerts(t, address) })
			})
		}
	})
	text := exposed(t, a)
	promtool(t, text, "check", "metrics")
	documentedOnesAreExposed(t, text)
	end()
	<-done
}

var rateInterval = strings.NewReplacer("$__rate_interval", "10s", "$job", "reschedule-adapter", "$namespace", "tests")

// emptyPanels returns the panels without series, of the board of a group or of the others.
func emptyPanels(t *testing.T, address string, group bool) (empty string) {
	t.Helper()
	for file, board := range boards(t) {
		if group != strings.HasSuffix(file, "/reschedule-group.json") {
			continue
		}
		for _, p := range board.Panels {
			for _, q := range p.Targets {
				for _, source := range []string{"ok", "slow", "busy"} {
					expr := strings.ReplaceAll(rateInterval.Replace(q.Expr), "$source", source)
					r := query(t.Context(), t, address, expr)
					if len(r.Data.Result) == 0 || r.Data.Result[0].Value[1] == "NaN" {
						empty += fmt.Sprintf("%s, %s: no series: %s\n", board.Title, p.Title, expr)
					}
					if expr == rateInterval.Replace(q.Expr) {
						break // it is of no source
					}
				}
			}
		}
	}
	return empty
}

func unhealthyRules(t *testing.T, address string) (unhealthy string) {
	t.Helper()
	r := ask(t.Context(), t, address+"/api/v1/rules")
	if len(r.Data.Groups) == 0 {
		return "no rules"
	}
	for _, rule := range r.Data.Groups[0].Rules {
		if rule.Health != "ok" {
			unhealthy += rule.Name + ": " + rule.Health + " " + rule.LastError + "\n"
		}
	}
	return unhealthy
}

// alerts are the alerts that fire at once, and that wait for their time, with their sources.
var alerts = map[string][]string{
	"RescheduleEventsDropped":    {"firing lost"},
	"RescheduleDeadLetters":      {"firing broken", "firing refused", "firing stuck"},
	"RescheduleDeadLettersStuck": {"pending stuck"},
	"RescheduleQuotaRefused":     {"firing quota", "firing quota-a", "firing quota-b"},
	"RescheduleQuotaNear":        {"pending quota", "pending shared"},
	"RescheduleSinkFailing":      {"pending busy", "pending down", "pending hangs"},
	"RescheduleKeysRetrying":     {"pending busy", "pending down", "pending hangs"},
	"RescheduleLate":             {"pending late"},
}

// otherAlerts compares the alerts. RescheduleSlowDisk is left out: nothing makes the disk of
// an unprivileged process slow, and a busy machine's may be; rules_test.go has it with series
// that are made up.
func otherAlerts(t *testing.T, address string) string {
	t.Helper()
	got := map[string][]string{}
	for _, r := range query(t.Context(), t, address, `ALERTS{alertname!="RescheduleSlowDisk"}`).Data.Result {
		name, about := r.Metric["alertname"], cmp.Or(r.Metric["kn_source_name"], r.Metric["kn_source_namespace"])
		if about == "broken" && (name == "RescheduleSinkFailing" || name == "RescheduleKeysRetrying") {
			continue // it fails too, and its letters are delivered: these alerts come or not by when they are looked at
		}
		if name == "RescheduleLate" {
			if about != "late" {
				continue // on a busy machine
			}
		}
		got[name] = append(got[name], r.Metric["alertstate"]+" "+about)
	}
	for name := range got {
		slices.Sort(got[name])
	}
	if !maps.EqualFunc(got, alerts, slices.Equal) {
		return fmt.Sprintf("alerts %v, want %v", got, alerts)
	}
	return ""
}

// documentedOnesAreExposed compares /metrics with docs/monitoring.md, both ways. A
// standalone adapter watches and scales nothing.
func documentedOnesAreExposed(t *testing.T, text string) {
	t.Helper()
	docs, seen := inTable(t, ofEach), map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (reschedule_\S+)`).FindAllStringSubmatch(text, -1) {
		seen[m[1]] = true
		if !docs[m[1]] {
			t.Errorf("docs/monitoring.md has no %s", m[1])
		}
	}
	for name := range docs {
		if !seen[name] && !strings.HasPrefix(name, "reschedule_watch_") && !strings.HasPrefix(name, "reschedule_workload_") {
			t.Errorf("the adapter does not expose %s", name)
		}
	}
	if strings.Contains(text, `"key1"`) {
		t.Error("a key is a label")
	}
}
