package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// patience is the generous upper bound of everything that is waited for.
const patience = 60 * time.Second

// asCommand makes the test binary be the command line itself, so that the tests run the
// program as its users do, without building it twice.
const asCommand = "RESCHEDULE_TEST_AS_COMMAND"

// The adapter that the tests share.
var adapterURL, metricsURL, tokenFile, sourcesDir string

// ceilings are the administrator's limits of namespaces.
const ceilings = `
namespaces:
  slots: {max-in-flight: 1}
  rate: {max-per-second: 1}
  full: {max-pending: 2}
  cut: {max-pending: 1}
  busy: {max-pending: 1}
`

// manifests are the sources of the tests, each with a sink that has one fault.
const manifests = `
apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: %s, namespace: %s}
spec: {sink: {uri: "%s"}, delivery: {backoffDelay: PT0.2S%s}%s}
---
`

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	code, err := withAdapter(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cli:", err)
		code = 1
	}
	os.Exit(code)
}

// sink answers as its path says.
func sink(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	switch r.URL.Path {
	case "/slow":
		<-r.Context().Done()
	case "/429":
		w.WriteHeader(http.StatusTooManyRequests)
	case "/503":
		w.WriteHeader(http.StatusServiceUnavailable)
	case "/401":
		w.WriteHeader(http.StatusUnauthorized)
	case "/302":
		w.Header().Set("Location", "/ok")
		w.WriteHeader(http.StatusFound)
	case "/400":
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, "no such \x1b[31muser")
	}
}

// withAdapter runs the tests with an adapter of this checkout, or of ADAPTER_BINARY.
func withAdapter(tests func() int) (code int, err error) {
	dir, err := os.MkdirTemp("", "reschedule-cli-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	built = filepath.Join(dir, "adapter")
	if os.Getenv("ADAPTER_BINARY") == "" {
		build := exec.Command("go", "build", "-C", "..", "-trimpath", "-tags", "grpcnotrace", "-o", built, "./cmd/adapter")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make test builds it, so that it is there already
		if out, err := build.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("building the adapter: %w\n%s", err, out)
		}
	}
	server := httptest.NewServer(http.HandlerFunc(sink))
	defer server.Close()
	defer server.CloseClientConnections()
	sources := &strings.Builder{}
	for _, s := range [][4]string{
		{"ok", server.URL + "/ok"},
		{"down", "http://127.0.0.1:1/"},
		{"slow", server.URL + "/slow", ", timeout: PT0.3S"},
		{"hangs", server.URL + "/slow", ", timeout: PT1H"},
		{"throttled", server.URL + "/429"},
		{"fails", server.URL + "/503"},
		{"refuses", server.URL + "/400"},
		{"denies", server.URL + "/401"},
		{"still", server.URL + "/ok", "", ", suspend: true"},
		{"small", server.URL + "/ok", "", ", suspend: false, limits: {maxPending: 1}"},
		{"tiny", server.URL + "/ok", "", ", suspend: false, limits: {maxPending: 1}"},
		{"from", server.URL + "/ok", "", ", suspend: true"},
		{"to", server.URL + "/ok", "", ", suspend: true"},
		{"letters", server.URL + "/400"},
		{"moved", server.URL + "/302"},
		{"tls", "https" + strings.TrimPrefix(server.URL, "http") + "/ok"},
		{"lost", server.URL + "/400", "", ", deadLetters: {keep: 0}"},
		{"passed", server.URL + "/400", ", deadLetterSink: {uri: '" + server.URL + "/ok'}"},
		{"returned", server.URL + "/400", ", deadLetterSink: {uri: '" + server.URL + "/400'}"},
		{"slots/a", server.URL + "/slow", ", timeout: PT1H"},
		{"busy/a", server.URL + "/slow", ", timeout: PT1H"},
		{"slots/b", server.URL + "/ok"},
		{"rate/a", server.URL + "/ok"},
		{"full/a", server.URL + "/ok"},
		{"full/b", server.URL + "/ok"},
		{"cut/a", server.URL + "/ok", "", ", suspend: false, limits: {maxPending: 5}"},
		{"broken", server.URL + "/400"},
	} {
		namespace, name, found := strings.Cut(s[0], "/")
		if !found {
			namespace, name = "default", s[0]
		}
		fmt.Fprintf(sources, manifests, name, namespace, s[1], s[2], s[3])
	}
	sourcesDir = dir
	file := filepath.Join(dir, "sources.yaml")
	tokenFile = filepath.Join(dir, "token")
	config := filepath.Join(dir, "config.yaml")
	err = errors.Join(os.WriteFile(file, []byte(sources.String()), 0o600), os.WriteFile(config, []byte(ceilings), 0o600), os.WriteFile(tokenFile, []byte("secret\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "wrong"), []byte("wrong\n"), 0o600))
	if err != nil {
		return 0, err
	}
	args := []string{
		"--standalone", "--sources", file, "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
		"--token-file", tokenFile, "--config", config,
	}
	started, stop, err := start(args...)
	if err != nil {
		return 0, err
	}
	adapterURL, metricsURL = started.api, started.admin
	code = tests()
	server.CloseClientConnections() // a sink that hangs
	return code, stop()
}

// result is what a run of the command line did.
type result struct {
	code        int
	stdout, err string
}

// run runs the command line as a process, with the adapter of the tests.
func run(t *testing.T, args ...string) result {
	t.Helper()
	return process(t, "kn-source-reschedule", "", append(args, "--server", adapterURL, "--token-file", tokenFile, "--metrics-server", metricsURL)...)
}

// process runs the command line under a name, and with an input.
func process(t *testing.T, name, input string, args ...string) result {
	t.Helper()
	c := program(t, name, args...)
	c.Stdin = strings.NewReader(input)
	var out, errs strings.Builder
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{c.ProcessState.ExitCode(), out.String(), errs.String()}
}

// program is the command line as a process, under a name, without a cluster of the machine.
func program(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, args...)
	c.Args[0] = name
	c.Env = append(os.Environ(), asCommand+"=1", "KUBECONFIG="+filepath.Join(t.TempDir(), "none"), "HOME="+t.TempDir(), "KUBERNETES_SERVICE_HOST=")
	return c
}

// ok runs the command line and requires success.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	r := run(t, args...)
	if r.code != 0 {
		t.Fatalf("%q ended with %d:\n%s%s", args, r.code, r.stdout, r.err)
	}
	return r.stdout
}

// eventually repeats a look until it is true.
func eventually(t *testing.T, look func() (done bool, seen string)) {
	t.Helper()
	deadline, tick := time.After(patience), time.NewTicker(100*time.Millisecond)
	defer tick.Stop()
	for {
		done, seen := look()
		if done {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not after %s: %s", patience, seen)
		}
	}
}

// why alone names each fault, with the real adapter and the real sinks.
func TestWhy_NamesEachFault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set   []string // arguments of key set
		why   []string
		cause string
		code  int
		says  string
	}{
		"sink down":           {[]string{"down", "k", "--in", "0s"}, []string{"down"}, "SinkDown", 8, "connection refused"},
		"sink down, a key":    {[]string{"down", "a/b", "--in", "0s"}, []string{"down", "a/b"}, "SinkDown", 8, "waits for its next attempt"},
		"sink slow":           {[]string{"slow", "k", "--in", "0s"}, []string{"slow"}, "SinkSlow", 8, "did not answer within delivery.timeout"},
		"sink throttles":      {[]string{"throttled", "k", "--in", "0s"}, []string{"throttled", "k"}, "SinkThrottles", 8, "429"},
		"sink fails":          {[]string{"fails", "k", "--in", "0s"}, []string{"fails"}, "SinkFails", 8, "503"},
		"sink refuses":        {[]string{"refuses", "k", "--in", "0s"}, []string{"refuses"}, "SinkRefuses", 8, "given up"},
		"sink refuses a key":  {[]string{"refuses", "k2", "--in", "0s"}, []string{"refuses", "k2"}, "SinkRefuses", 8, "kept as a dead letter"},
		"sink redirects":      {[]string{"moved", "k", "--in", "0s"}, []string{"moved", "k"}, "SinkRefuses", 8, "the sink answered 302 Found: redirects are not followed"},
		"sink without TLS":    {[]string{"tls", "k", "--in", "0s"}, []string{"tls", "k"}, "SinkDown", 8, "the port of the sink speaks no TLS"},
		"dropped":             {[]string{"lost", "k", "--in", "0s"}, []string{"lost"}, "GivenUp", 8, "has dropped 1 event since the adapter started"},
		"to the letter sink":  {[]string{"passed", "k", "--in", "0s"}, []string{"passed"}, "GivenUp", 8, "they went to the dead letter sink"},
		"letter refused":      {[]string{"returned", "k", "--in", "0s"}, []string{"returned"}, "SinkRefuses", 8, "the dead letter sink refuses or does not answer"},
		"letter refused, key": {[]string{"returned", "k2", "--in", "0s"}, []string{"returned", "k2"}, "SinkRefuses", 8, "as the dead letter sink refused it"},
		"sink denies":         {[]string{"denies", "k", "--in", "0s"}, []string{"denies", "k"}, "SinkDenies", 8, "token or the identity"},
		"suspended":           {[]string{"still", "k", "--in", "0s"}, []string{"still"}, "Suspended", 8, "is suspended"},
		"suspended, a key":    {[]string{"still", "k2", "--in", "0s"}, []string{"still", "k2"}, "Suspended", 8, "is not delivered because"},
		"in flight":           {[]string{"hangs", "k", "--in", "0s"}, []string{"hangs", "k"}, "InFlight", 0, "being delivered now"},
		"waiting":             {[]string{"ok", "later", "--in", "1h", "--reason", "tea"}, []string{"ok", "later"}, "Waiting", 0, "tea"},
		"delivered":           {[]string{"ok", "now", "--in", "0s"}, []string{"ok", "now"}, "Delivered", 0, "the sink answered 200"},
		"expired":             {[]string{"down", "old", "--in", "0s", "--expires-at", "soon"}, []string{"down", "old"}, "Expired", 8, "expiresAt had passed"},
		"cancelled":           {[]string{"ok", "gone", "--in", "1h"}, []string{"ok", "gone"}, "Deleted", 0, "was cancelled"},
		"never seen":          {nil, []string{"ok", "never"}, "NeverSeen", 8, "was never scheduled"},
		"quota":               {[]string{"small", "one", "--in", "1h"}, []string{"small", "two"}, "Quota", 8, "limits.maxPending"},
		"quota, the source":   {[]string{"tiny", "one", "--in", "1h"}, []string{"tiny"}, "Quota", 8, "has reached limits.maxPending (1 key)"},
		"no such source":      {nil, []string{"nowhere"}, "NoSource", 3, "The adapter has no source nowhere in namespace default."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if i := slices.Index(c.set, "soon"); i >= 0 {
				c.set[i] = time.Now().Add(5 * time.Second).Format(time.RFC3339Nano)
			}
			if c.set != nil {
				ok(t, append([]string{"key", "set"}, c.set...)...)
			}
			if c.cause == "Deleted" {
				ok(t, "key", "delete", c.why[0], c.why[1])
			}
			if c.cause == "Quota" && len(c.why) == 2 {
				if r := run(t, "key", "set", c.why[0], c.why[1], "--in", "1h"); r.code != 6 {
					t.Fatalf("over the quota: %d, %s", r.code, r.err)
				}
			}
			eventually(t, func() (bool, string) {
				r := run(t, append([]string{"why"}, c.why...)...)
				return r.code == c.code && strings.Contains(r.stdout, "cause: ") && strings.Contains(r.stdout, " "+c.cause+"\n") &&
					strings.Contains(strings.SplitN(r.stdout, "\n", 2)[0], c.says), r.stdout + r.err
			})
		})
	}
}

// A wrong token and an adapter that is away are causes, not errors.
func TestWhy_WithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for cause, args := range map[string][]string{
		"Unauthenticated": {"--server", adapterURL, "--token-file", filepath.Join(sourcesDir, "wrong")},
		"AdapterNotReady": {"--server", "http://127.0.0.1:1"},
	} {
		r := process(t, "kn-source-reschedule", "", append([]string{"why", "ok", "-o", "json"}, args...)...)
		var a struct {
			Cause    string
			Problem  bool
			Evidence []struct{ Name, Value string }
		}
		if err := json.Unmarshal([]byte(r.stdout), &a); err != nil || r.code != 8 || a.Cause != cause || !a.Problem || len(a.Evidence) == 0 {
			t.Errorf("%s: %d, %v, %s%s", cause, r.code, err, r.stdout, r.err)
		}
	}
}

// JSON is the schedule API's own, and control characters of a sink stay out of text.
func TestKeys_ListRunDelete(t *testing.T) {
	t.Parallel()
	ok(t, "key", "set", "still", "list/a", "--in", "0s", "--data", `{"n":1}`, "--type", "com.example.t")
	ok(t, "key", "set", "still", "list/b", "--in", "1h", "--uid", "u")
	var list struct{ Items []sdk.Schedule }
	if err := json.Unmarshal([]byte(ok(t, "key", "list", "still", "--prefix", "list/", "-o", "json")), &list); err != nil || len(list.Items) != 2 ||
		list.Items[0].Event.Type != "com.example.t" || list.Items[1].UID != "u" {
		t.Errorf("the list is %+v, %v", list, err)
	}
	if got := ok(t, "key", "list", "still", "--prefix", "list/", "-o", "jsonpath={range .items[*]}{.key} {.state}{\"\\n\"}{end}"); got != "list/a due\nlist/b waiting\n" {
		t.Errorf("JSONPath prints %q", got)
	}
	if got := ok(t, "key", "describe", "still", "list/a", "-o", "jsonpath={.event.data.n}{.none}"); got != "1\n" {
		t.Errorf("JSONPath prints %q", got)
	}
	if r := run(t, "key", "list", "still", "-o", "jsonpath={.items"); r.code != 2 {
		t.Errorf("a broken JSONPath: %d, %s", r.code, r.err)
	}
	if got := ok(t, "key", "list", "still", "--prefix", "list/", "--state", "waiting", "-o", "name"); got != "list/b\n" {
		t.Errorf("waiting are %q", got)
	}
	if got := ok(t, "key", "list", "still", "--prefix", "list/", "--overdue=1ms", "-o", "name"); got != "list/a\n" {
		t.Errorf("overdue are %q", got)
	}
	if got := ok(t, "key", "list", "still", "--prefix", "nothing/", "-o", "json"); json.Unmarshal([]byte(got), &list) != nil || len(list.Items) != 0 {
		t.Errorf("an empty list is %q", got)
	}
	var k sdk.Schedule
	if err := json.Unmarshal([]byte(ok(t, "key", "describe", "still", "list/b", "-o", "json")), &k); err != nil || k.Key != "list/b" || k.State != sdk.Waiting {
		t.Errorf("the key is %+v, %v", k, err)
	}
	if got := ok(t, "key", "run", "still", "list/b"); got != "list/b is due now\n" {
		t.Errorf("run says %q", got)
	}
	if r := run(t, "key", "set", "still", "list/b", "--in", "2h", "--if-match", fmt.Sprint(k.Revision)); r.code != 5 {
		t.Errorf("an old revision: %d, %s", r.code, r.err)
	}
	if r := run(t, "key", "delete", "still", "--prefix", "list/"); r.code != 2 || !strings.Contains(r.err, "Cancel 2 keys") || !strings.Contains(r.err, "--yes") {
		t.Errorf("without a terminal: %d, %s", r.code, r.err)
	}
	if got := ok(t, "key", "delete", "still", "--prefix", "list/", "--dry-run"); got != "list/a (dry run)\nlist/b (dry run)\n" {
		t.Errorf("a dry run says %q", got)
	}
	if got := ok(t, "key", "delete", "still", "--prefix", "list/", "--yes"); got != "2 cancelled\n" {
		t.Errorf("delete says %q", got)
	}
	if r := run(t, "key", "delete", "still", "list/a"); r.code != 3 {
		t.Errorf("an absent key: %d, %s", r.code, r.err)
	}
}

// Dead letters are listed, described without control characters, redriven and discarded.
func TestDeadLetters_RedriveAndDelete(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"a", "b"} {
		ok(t, "key", "set", "letters", key, "--in", "0s", "--data", "secret", "--type", "com.example.t")
	}
	var list struct{ Items []sdk.DeadLetter }
	kept := func() (bool, string) {
		out := ok(t, "deadletter", "list", "letters", "-o", "json")
		list.Items = nil
		return json.Unmarshal([]byte(out), &list) == nil && len(list.Items) == 2, out
	}
	eventually(t, kept)
	text := ok(t, "deadletter", "describe", "letters", "a") + ok(t, "deadletter", "list", "letters", "-o", "wide")
	if strings.Contains(text, "\x1b") || strings.Contains(text, "secret") || !strings.Contains(text, "no such") {
		t.Errorf("described as %q", text)
	}
	if !strings.Contains(ok(t, "deadletter", "describe", "letters", "a", "-v"), "secret") {
		t.Error("-v does not show the data")
	}
	first := list.Items[0].At
	if got := ok(t, "deadletter", "redrive", "letters", "a"); got != "a redriven\n" {
		t.Errorf("redrive says %q", got)
	}
	eventually(t, func() (bool, string) {
		done, seen := kept()
		return done && list.Items[0].At.After(first), seen
	})
	ok(t, "key", "set", "letters", "b", "--in", "1h")
	if r := run(t, "deadletter", "redrive", "letters", "b"); r.code != 1 || !strings.Contains(r.err, "something newer") {
		t.Errorf("in the place of something newer: %d, %s", r.code, r.err)
	}
	ok(t, "deadletter", "redrive", "letters", "b", "--replace")
	eventually(t, kept)
	if r := run(t, "deadletter", "redrive", "letters", "--all"); r.code != 2 || !strings.Contains(r.err, "Redrive 2 dead letters") {
		t.Errorf("without a terminal: %d, %s", r.code, r.err)
	}
	if got := ok(t, "deadletter", "delete", "letters", "--all", "--older-than", "1h", "--yes"); got != "0 discarded\n" {
		t.Errorf("old ones: %q", got)
	}
	if got := ok(t, "deadletter", "delete", "letters", "--all", "--yes"); got != "2 discarded\n" {
		t.Errorf("delete says %q", got)
	}
	if r := run(t, "deadletter", "delete", "letters", "a"); r.code != 3 {
		t.Errorf("an absent one: %d, %s", r.code, r.err)
	}
}

// An export is imported elsewhere with times, events and uids; a broken one can be resumed.
func TestTransfer_ExportAndImport(t *testing.T) {
	t.Parallel()
	const n = 700
	lines := &strings.Builder{}
	for i := range n {
		fmt.Fprintf(lines, `{"key":"k%04d","dueAt":"2050-01-01T00:00:00Z","uid":"u%d","event":{"type":"a<&>b","id":"lost","reschedulecause":"ns/x <&>","rescheduleattempt":3,"data":{"n":%d,"text":"<&>"}}}`+"\n", i, i, i)
	}
	file := filepath.Join(t.TempDir(), "keys.ndjson")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(lines.String() + "{broken\n")
	if r := run(t, "import", "from", "-f", file); r.code != 2 || !strings.Contains(r.err, "line 701") || !strings.Contains(r.err, "500 lines are imported") {
		t.Fatalf("a broken line: %d, %s", r.code, r.err)
	}
	stale := file + ".resume"
	mark, err := os.ReadFile(stale)
	if err != nil {
		t.Fatal(err)
	}
	for text, says := range map[string]string{
		`[]`: "line 1: it is a JSON array, not an object", `{"key":"k","dueAt":"x"}`: `line 1: "x" is not an instant such as`,
		`{"key":1}`: "line 1: key: a JSON number does not belong there",
	} {
		write(text)
		if r := run(t, "import", "from", "-f", file, "--dry-run"); r.code != 2 || !strings.Contains(r.err, says) {
			t.Errorf("%s: %d, %s", text, r.code, r.err)
		}
	}
	write("{broken\n") // an import of other keys that stops at once leaves nothing to resume
	if r := run(t, "import", "from", "-f", file); r.code != 2 {
		t.Fatalf("a broken file: %d, %s", r.code, r.err)
	}
	if _, err := os.Stat(stale); err == nil {
		t.Error("the mark of another import is still there: --resume would skip keys")
	}
	if err := os.WriteFile(stale, mark, 0o600); err != nil {
		t.Fatal(err)
	}
	write(lines.String())
	if got := ok(t, "import", "from", "-f", file, "--resume"); got != "200 keys imported, 0 kept as they were\n" {
		t.Errorf("resuming says %q", got)
	}
	if r := run(t, "import", "from", "-f", file, "--resume"); r.code != 2 {
		t.Errorf("nothing is left to resume: %d, %s", r.code, r.err)
	}
	exported := ok(t, "export", "from")
	if strings.Contains(exported, "\\u00") {
		t.Error("the export escapes <, > or &")
	}
	// Bytes that are no JSON and have no type.
	exported += `{"key":"bytes","dueAt":"2050-01-01T00:00:00Z","event":{"type":"t","data_base64":"AAEC"}}` + "\n"
	write(exported + `{"key":"past","dueAt":"2020-01-01T00:00:00Z"}` + "\n")
	if got := ok(t, "import", "to", "-f", file, "--spread", "1h"); got != "702 keys imported, 0 kept as they were\n" {
		t.Errorf("import says %q", got)
	}
	if got := ok(t, "import", "to", "-f", file); got != "0 keys imported, 702 kept as they were\n" {
		t.Errorf("a second import says %q", got)
	}
	var k sdk.Schedule
	if err := json.Unmarshal([]byte(ok(t, "key", "describe", "to", "k0699", "-o", "json")), &k); err != nil || k.UID != "u699" || strings.Join(strings.Fields(string(k.Event.Data)), "") != `{"n":699,"text":"<&>"}` ||
		k.Event.Type != "a<&>b" || k.Event.Extensions["reschedulecause"] != "ns/x <&>" || k.Event.Extensions["rescheduleattempt"] != nil || k.DueAt.Year() != 2050 {
		t.Errorf("imported as %+v, %v", k, err)
	}
	if err := json.Unmarshal([]byte(ok(t, "key", "describe", "to", "past", "-o", "json")), &k); err != nil || time.Until(k.DueAt) > time.Hour || time.Until(k.DueAt) < -time.Minute {
		t.Errorf("spread to %s, %v", k.DueAt, err)
	}
}

// top, doctor and version print what programs read, with their exit codes.
func TestTop_DoctorAndVersion(t *testing.T) {
	t.Parallel()
	var list struct {
		Items []struct {
			Name   string
			Counts *sdk.Counts
		}
	}
	if err := json.Unmarshal([]byte(ok(t, "top", "ok", "to", "-o", "json")), &list); err != nil || len(list.Items) != 2 || list.Items[0].Counts == nil {
		t.Errorf("top is %+v, %v", list, err)
	}
	if r := run(t, "doctor", "still"); r.code != 8 || !strings.Contains(r.stdout, "PROBLEM") {
		t.Errorf("doctor: %d, %s", r.code, r.stdout)
	}
	if got := ok(t, "version"); !strings.Contains(got, "sources.reschedule.dev/v1alpha1") {
		t.Errorf("version is %q", got)
	}
}

// Wrong use is exit code 2 with a sentence that says what to do.
func TestUsage_SaysWhatToDo(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"why":                                    "accepts between 1 and 2 arg(s)",
		"nonsense":                               "has no command",
		"key nonsense":                           "has no command",
		"key run ok":                             "give KEY, --prefix or --all",
		"key run ok a --all":                     "give KEY, --prefix or --all",
		"key list ok --state slow":               "is not one of waiting, due, retrying, inflight",
		"key list ok --limit 0":                  "at least 1, or --all",
		"key list ok -o xml":                     "is not one of wide, json, yaml, name, ndjson",
		"key set ok k":                           "give --in or --at",
		"key set ok k --in soon":                 "is not a duration",
		"key set ok k --at soon":                 "is not an instant",
		"key set ok k --nonsense":                "unknown flag",
		"import ok":                              "give -f FILE",
		"import ok -f - --resume":                "--resume needs a file",
		"suspend ok":                             "suspend needs a cluster",
		"create ok --sink ksvc:x":                "create needs a cluster",
		"list":                                   "list needs a cluster",
		"deadletter delete ok a --older-than 1h": "goes with --prefix or --all",
	} {
		r := run(t, strings.Fields(args)...)
		if r.code != 2 || !strings.Contains(r.err, want) || r.stdout != "" {
			t.Errorf("%s: %d, %q, want 2 and %q", args, r.code, r.err, want)
		}
	}
}

// Without a cluster and without --server the error says what is missing.
func TestConnection_NoCluster(t *testing.T) {
	t.Parallel()
	if r := process(t, "kn-source-reschedule", "", "list"); r.code != 1 || !strings.Contains(r.err, "--server") {
		t.Errorf("%d, %s", r.code, r.err)
	}
}

// The three names of the program: the plugin of kn, of kubectl, and its completion.
func TestNames_OfTheProgram(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"kn-source-reschedule": "kn source reschedule why NAME [KEY]", "kubectl-reschedule_source": "kubectl reschedule-source why NAME [KEY]"} {
		if r := process(t, name, "", "why", "--help"); r.code != 0 || !strings.Contains(r.stdout, want) {
			t.Errorf("%s: %d, %s", name, r.code, r.stdout)
		}
	}
	if r := process(t, "kubectl_complete-reschedule_source", "", "key", "d"); r.code != 0 || !strings.Contains(r.stdout, "delete\t") || !strings.Contains(r.stdout, "describe\t") {
		t.Errorf("completion: %d, %q", r.code, r.stdout)
	}
	ok(t, "key", "set", "to", "complete/one", "--in", "1h")
	r := process(t, "kubectl_complete-reschedule_source", "", "--server", adapterURL, "--token-file", tokenFile, "key", "run", "to", "complete/")
	if !strings.Contains(r.stdout, "complete/one") {
		t.Errorf("completion of keys: %q, %s", r.stdout, r.err)
	}
}
