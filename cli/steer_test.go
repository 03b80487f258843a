package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// between is a server before the adapter that sees each answer before the caller does.
func between(t *testing.T, see func(w http.ResponseWriter, r *http.Request, forward func())) string {
	t.Helper()
	to, err := url.Parse(adapterURL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		see(w, r, func() { proxy.ServeHTTP(w, r) })
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return server.URL
}

// A redrive of many that is interrupted says what was done, and of which one it does not
// know; the rest is unchanged. It said that the rest was unchanged of one that was redriven.
func TestRedrive_Interrupted(t *testing.T) {
	t.Parallel()
	const n = 10
	for i := range n {
		ok(t, "key", "set", "broken", fmt.Sprint("k", i), "--in", "0s")
	}
	var list struct{ Items []sdk.DeadLetter }
	letters := func() (bool, string) {
		out := ok(t, "deadletter", "list", "broken", "-o", "json")
		list.Items = nil
		return json.Unmarshal([]byte(out), &list) == nil && len(list.Items) == n, out
	}
	eventually(t, letters)
	first := map[string]time.Time{}
	for _, l := range list.Items {
		first[l.Key] = l.At
	}
	interrupt := make(chan func(), 1)
	redriven := 0
	address := between(t, func(w http.ResponseWriter, r *http.Request, forward func()) {
		if strings.HasSuffix(r.URL.Path, "/redrive") {
			if redriven++; redriven == 4 { // it is done, and the answer is lost
				forwardTo(t, r)
				(<-interrupt)()
				<-r.Context().Done()
				return
			}
		}
		forward()
	})
	c := program(t, "kn-source-reschedule", "deadletter", "redrive", "broken", "--all", "--yes", "--server", address, "--token-file", tokenFile)
	var out, errs strings.Builder
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	interrupt <- func() { _ = c.Process.Signal(os.Interrupt) }
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != 1 || out.String() != "3 redriven\n" || !strings.Contains(errs.String(), `interrupted: 3 done, 0 failed, of "k3" it is not known, the rest is unchanged`) {
		t.Errorf("%d: %s%s", code, &out, &errs)
	}
	eventually(t, func() (bool, string) { // the sink refuses them again
		done, seen := letters()
		for _, l := range list.Items {
			again := l.Key < "k4"
			done = done && again == l.At.After(first[l.Key])
		}
		return done, seen
	})
}

// forwardTo makes a call of a proxy, and drops the answer.
func forwardTo(t *testing.T, r *http.Request) {
	t.Helper()
	call, err := http.NewRequestWithContext(t.Context(), r.Method, adapterURL+r.URL.RequestURI(), nil)
	if err != nil {
		t.Error(err)
		return
	}
	call.Header.Set("Authorization", r.Header.Get("Authorization"))
	resp, err := http.DefaultClient.Do(call)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%v, %v", resp, err)
		return
	}
	_ = resp.Body.Close()
}

// A key that changes between the look and the act is a conflict, and stays as it was changed.
func TestKeys_ChangedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"run", "delete", "set"} {
		key := "race-" + verb
		ok(t, "key", "set", "still", key, "--in", "1h", "--reason", "first")
		var k sdk.Schedule
		if err := json.Unmarshal([]byte(ok(t, "key", "describe", "still", key, "-o", "json")), &k); err != nil {
			t.Fatal(err)
		}
		var change sync.Once
		address := between(t, func(_ http.ResponseWriter, r *http.Request, forward func()) {
			if r.Method != http.MethodGet { // the look is over
				change.Do(func() { ok(t, "key", "set", "still", key, "--in", "2h", "--reason", "second") })
			}
			forward()
		})
		args := []string{"key", verb, "still", key, "--server", address, "--token-file", tokenFile}
		if verb == "set" {
			args = append(args, "--in", "0s", "--if-match", fmt.Sprint(k.Revision))
		}
		if r := process(t, "kn-source-reschedule", "", args...); r.code != 5 || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%s: %d, %s%s", verb, r.code, r.stdout, r.err)
		}
		if got := ok(t, "key", "describe", "still", key, "-o", "jsonpath={.reason} {.state}"); got != "second waiting\n" {
			t.Errorf("after %s the key is %s", verb, got)
		}
	}
}

// An output that is not written is no success: a closed pipe ends the command as it ends
// others, and a full device is one message. Each command that needs no cluster is here.
func TestOutput_IsNotWritten(t *testing.T) {
	t.Parallel()
	a := newAdapter(t, t.TempDir(), "s")
	a.ok(t, "", "key", "set", "s", "k", "--in", "1h")
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range []string{
		"why s", "why s k", "why nix", "doctor s", "top s", "describe s", "key list s", "key list s -o json", "key list s -o yaml", "key list s -o name", "key list s -o ndjson", "key list s -o jsonpath={.items[0].key}",
		"key describe s k", "key describe s --all", "key set s k2 --in 1h", "key run s k", "key delete s k2", "key delete s --prefix nix --yes", "key delete s --all --dry-run", "deadletter list s -o json",
		"deadletter redrive s --all --yes", "deadletter delete s --all --yes", "export s", "import s -f -", "ui s", "version", "completion bash", "completion zsh", "--help", "key", "key list --help",
	} {
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
			given := strings.Fields(args)
			if args == "key delete s k2" {
				a.ok(t, "", "key", "set", "s", "k2", "--in", "1h")
			}
			if !strings.HasPrefix(args, "--") && args != "key" {
				given = append(given, "--server", a.api)
			}
			c := program(t, "kn-source-reschedule", given...)
			c.Stdin = strings.NewReader(`{"key":"i","dueAt":"2050-01-01T00:00:00Z"}` + "\n")
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

// bashProgram completes a line as bash does: what the completions have in common is put on
// the line as it is, and the next Tab completes that line.
const bashProgram = `
_init_completion() { cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}; words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; }
compopt() { :; }
source <(kn-source-reschedule completion bash)
common=
for turn in 1 2; do
  COMP_WORDS=(kn-source-reschedule --server "$SERVER" key describe s "$common"); COMP_CWORD=6; COMP_LINE="${COMP_WORDS[*]}"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
  COMPREPLY=()
  __start_kn-source-reschedule
  printf '%s\n' "${COMPREPLY[@]}"
  common=${COMPREPLY[0]}
  for reply in "${COMPREPLY[@]}"; do while [[ $reply != "$common"* ]]; do common=${common%?}; done; done
done
`

// The keys of a tenant were put on the command line without quotes, which ran their
// commands at the next Tab.
func TestComplete_HostileKeysInBash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	for name, p := range map[string]struct{ keys, want []string }{
		"alone":     {[]string{"$(touch " + ran + ")a", "$(touch " + ran + ")b", "`touch " + ran + "`"}, nil},
		"beside":    {[]string{";touch " + ran, "a b", "a\u202eb", "-x", "good/one", "good/two"}, []string{"good/one", "good/two"}},
		"ordinary":  {[]string{"Git/\u00fc@x+y%2F_z.1"}, []string{"Git/\u00fc@x+y%2F_z.1"}},
		"reference": {[]string{"${HOME}", "~root", "*", "a!b", "a#b", "a&b", "a|b", "a>" + ran, "'", "\""}, nil},
	} {
		a := newAdapter(t, t.TempDir(), "s")
		for _, key := range p.keys {
			if r := process(t, "kn-source-reschedule", "", "key", "set", "--in", "1h", "--server", a.api, "s", "--", key); r.code != 0 {
				t.Fatalf("%q: %s", key, r.err)
			}
		}
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		bin := t.TempDir()
		if err := os.Symlink(self, filepath.Join(bin, "kn-source-reschedule")); err != nil {
			t.Fatal(err)
		}
		c := exec.CommandContext(t.Context(), "bash", "--norc", "-c", bashProgram)
		c.Env = append(os.Environ(), asCommand+"=1", "SERVER="+a.api, "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+filepath.Join(dir, "none"), "LC_ALL=C.UTF-8")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		offered := map[string]bool{}
		for line := range strings.Lines(string(out)) {
			if line = strings.TrimSuffix(line, "\n"); line != "" {
				offered[line] = true
			}
		}
		for _, want := range p.want {
			if !offered[want] {
				t.Errorf("%s: %q is not offered: %q", name, want, out)
			}
		}
		if len(offered) != len(p.want) {
			t.Errorf("%s: offered are %q, want %q", name, out, p.want)
		}
		if _, err := os.Stat(ran); err == nil {
			t.Fatalf("%s: a key ran a command: %s", name, out)
		}
	}
}

// key set moves a key and keeps what no flag names: a uid that was lost made the finalizer's
// DELETE fail. --policy replace drops it, and --data "" the event.
func TestKeySet_KeepsUnnamedFields(t *testing.T) {
	t.Parallel()
	a := newAdapter(t, t.TempDir(), "s")
	const all = "--uid U --reason why --max-interval 1h --expires-at 2050-01-01T00:00:00Z --data {} --type t"
	const kept = `{.uid} {.reason} {.maxInterval} {.expiresAt} {.event.type}`
	set := func(flags string) {
		t.Helper()
		args := strings.Fields(flags)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "EMPTY", "")
		}
		a.ok(t, "", append([]string{"key", "set", "s", "k", "--in"}, args...)...)
	}
	for _, c := range []struct{ flags, want string }{
		{"1h " + all, "U why 1h0m0s 2050-01-01T00:00:00Z t"},
		{"5m", "U why 1h0m0s 2050-01-01T00:00:00Z t"},
		{"6m --reason EMPTY --max-interval 2h", "U  2h0m0s 2050-01-01T00:00:00Z t"},
		{"7m --data EMPTY", "U  2h0m0s 2050-01-01T00:00:00Z "},
		{"8m --policy replace", "    "},
	} {
		set(c.flags)
		if got := a.ok(t, "", "key", "describe", "s", "k", "-o", "jsonpath="+kept); got != c.want+"\n" {
			t.Errorf("key set --in %s: the key has %q, want %q", c.flags, got, c.want)
		}
	}
	revision := strings.TrimSpace(a.ok(t, "", "key", "describe", "s", "k", "-o", "jsonpath={.revision}"))
	set("9m --if-match " + revision)
	if r := a.run(t, "", "key", "set", "s", "k", "--in", "9m", "--if-match", revision); r.code != 5 || strings.Contains(r.err, "sdk: ") {
		t.Errorf("at an old revision: %d, %s", r.code, r.err)
	}
	if r := a.run(t, "", "key", "set", "s", "k", "--in", "1h", "--expires-at", "2030-01-01T00:00:00Z"); r.code != 0 || strings.Contains(r.err, "expires") {
		t.Errorf("it expires later: %d, %s", r.code, r.err)
	}
	if r := a.run(t, "", "key", "set", "s", "k", "--at", "2031-01-01t00:00:00z"); r.code != 0 || !strings.Contains(r.err, "It expires ") {
		t.Errorf("it expires first: %d, %s", r.code, r.err)
	}
}
