package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// patience is the generous upper bound of everything that is waited for.
const patience = 60 * time.Second

// asCommand makes the test binary be the command line itself, so that the tests run the
// program as its users do, without building it twice.
const asCommand = "RESCHEDULE_TEST_AS_COMMAND"

// The adapter of the tests. It is built when ADAPTER_BINARY names none.
var built, adapterURL, metricsURL, tokenFile string

// ceilings are the administrator's limits of namespaces.
const ceilings = `
namespaces:
  slots: {max-in-flight: 1}
  full: {max-pending: 1}
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
		{"still", server.URL + "/ok", "", ", suspend: true"},
		{"small", server.URL + "/ok", "", ", suspend: false, limits: {maxPending: 1}"},
		{"tiny", server.URL + "/ok", "", ", suspend: false, limits: {maxPending: 1}"},
		{"from", server.URL + "/ok", "", ", suspend: true"},
		{"to", server.URL + "/ok", "", ", suspend: true"},
		{"one", server.URL + "/ok", "", ", suspend: true"},
		{"two", server.URL + "/ok", "", ", suspend: true"},
		{"letters", server.URL + "/400"},
		{"tls", "https" + strings.TrimPrefix(server.URL, "http") + "/ok"},
		{"lost", server.URL + "/400", "", ", deadLetters: {keep: 0}"},
		{"returned", server.URL + "/400", ", deadLetterSink: {uri: '" + server.URL + "/400'}"},
		{"slots/a", server.URL + "/slow", ", timeout: PT1H"},
		{"slots/b", server.URL + "/ok"},
		{"full/a", server.URL + "/ok"},
		{"full/b", server.URL + "/ok"},
	} {
		namespace, name, found := strings.Cut(s[0], "/")
		if !found {
			namespace, name = "default", s[0]
		}
		fmt.Fprintf(sources, manifests, name, namespace, s[1], s[2], s[3])
	}
	file := filepath.Join(dir, "sources.yaml")
	tokenFile = filepath.Join(dir, "token")
	config := filepath.Join(dir, "config.yaml")
	err = errors.Join(os.WriteFile(file, []byte(sources.String()), 0o600), os.WriteFile(config, []byte(ceilings), 0o600), os.WriteFile(tokenFile, []byte("secret\n"), 0o600))
	if err != nil {
		return 0, err
	}
	var stop func() error
	adapterURL, metricsURL, stop, err = start("--standalone", "--sources", file, "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0",
		"--admin-listen", "127.0.0.1:0", "--token-file", tokenFile, "--config", config)
	if err != nil {
		return 0, err
	}
	code = tests()
	server.CloseClientConnections() // a sink that hangs
	return code, stop()
}

// start starts an adapter in a shell that ends it when the shell's input ends, which it
// does also when this process is killed.
func start(args ...string) (api, admin string, stop func() error, err error) {
	shell := exec.Command("sh", append([]string{"-c", `"$@" </dev/null & cat >/dev/null; kill $!; wait $!`, "sh", cmp.Or(os.Getenv("ADAPTER_BINARY"), built)}, args...)...)
	log := &strings.Builder{}
	shell.Stderr = log
	stdin, err := shell.StdinPipe()
	if err != nil {
		return "", "", nil, err
	}
	stdout, err := shell.StdoutPipe()
	if err != nil {
		return "", "", nil, err
	}
	if err := shell.Start(); err != nil {
		return "", "", nil, err
	}
	stop = func() error {
		_ = stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		if err := shell.Wait(); err != nil {
			return fmt.Errorf("the adapter ended with %w:\n%s", err, log)
		}
		return nil
	}
	late := time.AfterFunc(patience, func() { _ = stdin.Close() })
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	late.Stop()
	m := regexp.MustCompile(`^ready: schedule API on (http://\S+), probes and metrics on (http://\S+)`).FindStringSubmatch(line)
	if m == nil {
		return "", "", nil, fmt.Errorf("the adapter said %q: %w:\n%s", line, stop(), log)
	}
	return m[1], m[2], stop, nil
}

// result is what a run of the command line did.
type result struct {
	code        int
	stdout, err string
}

// run runs the command line as a process, with the adapter of the tests.
func run(t *testing.T, args ...string) result {
	t.Helper()
	return runWith(t, "", args...)
}

// runWith gives it an input. It reads ADAPTER_BINARY again: go test reuses a result only while the variables that tests read are
// the same, and it does not see what TestMain reads.
func runWith(t *testing.T, input string, args ...string) result {
	t.Helper()
	_ = os.Getenv("ADAPTER_BINARY")
	return process(t, "kn-source-reschedule", input, append(args, "--server", adapterURL, "--token-file", tokenFile, "--metrics-server", metricsURL)...)
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

// why names the faults that it knows by the words and the metrics of the real adapter. The others are in the tables of
// packages why and command.
func TestWhy_NamesEachFault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set     []string // arguments of key set, one after the other
		refused string   // the same, and it is over a quota
		why     string
		cause   string
		code    int
		says    string
	}{
		"delivered":         {[]string{"ok now --in 0s"}, "", "ok now", "Delivered", 0, "the sink answered 200"},
		"in flight":         {[]string{"hangs k --in 0s"}, "", "hangs k", "InFlight", 0, "being delivered now"},
		"sink down":         {[]string{"down k --in 0s"}, "", "down", "SinkDown", 8, "connection refused"},
		"sink slow":         {[]string{"slow k --in 0s"}, "", "slow", "SinkSlow", 8, "did not answer within delivery.timeout"},
		"sink without TLS":  {[]string{"tls k --in 0s"}, "", "tls k", "SinkDown", 8, "the port of the sink speaks no TLS"},
		"dropped":           {[]string{"lost k --in 0s"}, "", "lost", "GivenUp", 8, "has dropped 1 event since the adapter started"},
		"letter refused":    {[]string{"returned k --in 0s"}, "", "returned", "SinkRefuses", 8, "the dead letter sink refuses or does not answer"},
		"quota":             {[]string{"small one --in 1h"}, "small two --in 1h", "small two", "Quota", 8, "limits.maxPending"},
		"quota, the source": {[]string{"tiny one --in 1h"}, "", "tiny", "Quota", 8, "has reached limits.maxPending (1 key)"},
		"namespace's quota": {[]string{"-n full a k --in 1h"}, "-n full b k2 --in 1h", "-n full b k2", "Quota", 8, "The sources of namespace full have together reached max-pending of ConfigMap config-reschedule (1 key)"},
		"namespace's slots": {[]string{"-n slots a k --in 0s", "-n slots b k --in 0s"}, "", "-n slots b k", "AtMaxInFlight", 8, "the only slot of max-in-flight of ConfigMap config-reschedule is taken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, args := range c.set {
				ok(t, append([]string{"key", "set"}, strings.Fields(args)...)...)
			}
			if c.refused != "" {
				if r := run(t, append([]string{"key", "set"}, strings.Fields(c.refused)...)...); r.code != 6 {
					t.Fatalf("over the quota: %d, %s", r.code, r.err)
				}
			}
			eventually(t, func() (bool, string) {
				r := run(t, append([]string{"why"}, strings.Fields(c.why)...)...)
				return r.code == c.code && strings.Contains(r.stdout, " "+c.cause+"\n") && strings.Contains(strings.SplitN(r.stdout, "\n", 2)[0], c.says), r.stdout + r.err
			})
		})
	}
}

// step is a run of the command line: its arguments, the code with which it ends, and what it prints: all of it after a success,
// if that is given, and a part of the error otherwise.
type step struct {
	args string
	code int
	says string
}

func follow(t *testing.T, steps ...step) {
	t.Helper()
	for _, s := range steps {
		args := strings.Fields(s.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "EMPTY", "")
		}
		r := run(t, args...)
		if r.code != s.code || s.says != "" && r.code == 0 && r.stdout != s.says || r.code != 0 && !strings.Contains(r.err, s.says) {
			t.Fatalf("%s: %d, %q, %s; want %d, %q", s.args, r.code, r.stdout, r.err, s.code, s.says)
		}
	}
}

// JSON is the schedule API's own.
func TestKeys_ListRunDelete(t *testing.T) {
	t.Parallel()
	follow(t,
		step{`key set still list/a --in 0s --data {"n":1} --type com.example.t`, 0, ""},
		step{"key set still list/b --in 1h --uid u", 0, ""},
		step{"key list still --prefix list/ -o jsonpath={.items[*].key},{.items[*].state},{.items[0].event.type},{.items[1].uid}", 0, "list/a list/b,due waiting,com.example.t,u\n"},
		step{"key list still --prefix list/ --state waiting -o name", 0, "list/b\n"},
		step{"key list still --prefix list/ --overdue=1ms -o name", 0, "list/a\n"},
		step{"key describe still list/a -o jsonpath={.key},{.state},{.event.data.n}{.none}", 0, "list/a,due,1\n"},
		step{"key run still list/b", 0, "list/b is due now\n"},
		step{"key set still list/b --in 2h --if-match 1", 5, ""},
		step{"key delete still --prefix list/", 2, "Cancel 2 keys"}, // without a terminal
		step{"key delete still --prefix list/ --dry-run", 0, "list/a (dry run)\nlist/b (dry run)\n"},
		step{"key delete still --prefix list/ --yes", 0, "2 cancelled\n"},
		step{"key delete still list/a", 3, ""},
	)
}

// key set moves a key and keeps what no flag names: a uid that was lost made the finalizer's DELETE fail. --policy replace drops
// it, and --data "" the event.
func TestKeySet_KeepsUnnamedFields(t *testing.T) {
	t.Parallel()
	const kept = "key describe still kept -o jsonpath={.uid},{.reason},{.maxInterval},{.slack},{.expiresAt},{.event.type}{.priority}"
	follow(t,
		step{"key set still kept --in 1h --uid U --reason why --max-interval 1h --slack 10m --expires-at 2050-01-01T00:00:00Z --data {} --type t --priority low", 0, ""},
		step{"key set still kept --in 5m", 0, ""},
		step{kept, 0, "U,why,1h0m0s,10m0s,2050-01-01T00:00:00Z,tlow\n"},
		step{"key set still kept --in 6m --reason EMPTY --max-interval 2h", 0, ""},
		step{kept, 0, "U,,2h0m0s,10m0s,2050-01-01T00:00:00Z,tlow\n"},
		step{"key set still kept --in 7m --data EMPTY --priority high", 0, ""},
		step{kept, 0, "U,,2h0m0s,10m0s,2050-01-01T00:00:00Z,high\n"},
		step{"key set still kept --in 8m --policy replace", 0, ""},
		step{kept, 0, ",,,,,high\n"}, // a request does not lower it
	)
	if r := run(t, "key", "set", "still", "kept", "--in", "1h", "--expires-at", "2030-01-01T00:00:00Z"); r.code != 0 || strings.Contains(r.err, "expires") {
		t.Errorf("it expires later: %d, %s", r.code, r.err)
	}
	if r := run(t, "key", "set", "still", "kept", "--at", "2031-01-01t00:00:00z"); r.code != 0 || !strings.Contains(r.err, "It expires ") {
		t.Errorf("it expires first: %d, %s", r.code, r.err)
	}
}

// A key of a calendar stays one when its next occurrence is moved, to sooner and to later; only --policy replace ends it.
func TestKeySet_KeepsTheCalendar(t *testing.T) {
	t.Parallel()
	const yearly, shown = "key set still cron --time-zone Europe/Berlin --cron ", "key describe still cron -o jsonpath={.cron},{.timeZone},{.dueAt}"
	sooner, later := time.Now().Add(time.Hour).UTC().Format(time.RFC3339), time.Now().AddDate(9, 0, 0).UTC().Format(time.RFC3339)
	follow(t,
		step{"key set still cron --cron @yearly --in 5m", 2, "cron"},
		step{"key set still cron --cron @yearly --time-zone Mars", 2, "timeZone"},
		step{"key set still cron --in 5m --time-zone UTC", 2, "timeZone"},
		step{yearly + "@yearly --priority low", 0, ""},
		step{"key set still cron --at " + sooner, 0, ""},
		step{shown, 0, "@yearly,Europe/Berlin," + sooner + "\n"},
		step{"key set still cron --at " + later, 0, ""},
		step{shown, 0, "@yearly,Europe/Berlin," + later + "\n"},
		step{"key set still cron --cron @monthly", 0, ""},
	)
	if got := ok(t, strings.Fields(shown)...); !strings.HasPrefix(got, "@monthly,Europe/Berlin,") || strings.Contains(got, later) {
		t.Errorf("moved: %s", got)
	}
	if got := ok(t, "key", "list", "still", "--prefix", "cron"); !strings.Contains(got, " low ") || !strings.Contains(got, " @monthly in Europe/Berlin ") {
		t.Errorf("listed: %s", got)
	}
	if got := ok(t, "key", "describe", "still", "cron"); !strings.Contains(got, "@monthly in Europe/Berlin\n") || !strings.Contains(got, "low\n") {
		t.Errorf("described: %s", got)
	}
	follow(t, step{"key set still cron --in 5m --policy replace", 0, ""}, step{"key describe still cron -o jsonpath={.cron}{.timeZone}", 0, "\n"})
}

// Dead letters are listed, described without control characters, redriven and discarded.
func TestDeadLetters_RedriveAndDelete(t *testing.T) {
	t.Parallel()
	kept := func() (bool, string) {
		out := ok(t, "deadletter", "list", "letters", "-o", "name")
		return out == "a\nb\n", out
	}
	follow(t, step{"key set letters a --in 0s --data secret --type com.example.t", 0, ""}, step{"key set letters b --in 0s", 0, ""})
	eventually(t, kept)
	text := ok(t, "deadletter", "describe", "letters", "a") + ok(t, "deadletter", "list", "letters", "-o", "wide")
	if strings.Contains(text, "\x1b") || strings.Contains(text, "secret") || !strings.Contains(text, "no such") {
		t.Errorf("described as %q", text)
	}
	if !strings.Contains(ok(t, "deadletter", "describe", "letters", "a", "-v"), "secret") {
		t.Error("-v does not show the data")
	}
	follow(t, step{"deadletter redrive letters a", 0, "a redriven\n"})
	eventually(t, kept)
	follow(t,
		step{"key set letters b --in 1h", 0, ""},
		step{"deadletter redrive letters b", 1, "something newer"},
		step{"deadletter redrive letters b --replace", 0, ""},
	)
	eventually(t, kept)
	follow(t,
		step{"deadletter delete letters --all --older-than 1h --yes", 0, "0 discarded\n"},
		step{"deadletter delete letters --all --yes", 0, "2 discarded\n"},
		step{"deadletter delete letters a", 3, ""},
	)
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
}

// An output that is not written is no success: a closed pipe ends the command as it ends others, and a full device is one
// message. Each command is in TestOutput_FullDevice of package command.
func TestOutput_IsNotWritten(t *testing.T) {
	t.Parallel()
	ok(t, "key", "set", "still", "written", "--in", "1h")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range []string{"why still", "export still", "key list --help"} {
		for name, limit := range map[string]func(c *exec.Cmd) (done func()){
			"full": func(c *exec.Cmd) func() { c.Stdout = full; return func() {} },
			"closed": func(c *exec.Cmd) func() {
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				_ = r.Close()
				c.Stdout = w
				return func() { _ = w.Close() }
			},
		} {
			c := program(t, "kn-source-reschedule", append(strings.Fields(args), "--server", adapterURL, "--token-file", tokenFile)...)
			var errs bytes.Buffer
			c.Stderr = &errs
			done := limit(c)
			_ = c.Run()
			done()
			state := c.ProcessState
			status, _ := state.Sys().(syscall.WaitStatus)
			switch {
			case name == "closed" && status.Signaled() && status.Signal() == syscall.SIGPIPE && errs.Len() == 0:
			case name == "full" && state.ExitCode() == 1 && strings.Count(errs.String(), "Error:") == 1 && strings.Contains(errs.String(), "no space left on device"):
			default:
				t.Errorf("%s, %s: %s: %s", args, name, state, &errs)
			}
		}
	}
}
