package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/reschedule-dev/reschedule/sdk"
)

// hostileKeys are keys that a path, a shell, a terminal or a parser may take for something else.
var hostileKeys = []string{
	" ", "\u00a0", "\u200b", "\ufeff", "%", "%2F", "%zz", "/", "//", "a//b", ".", "..", "../..", "a/../b", "a\u202eb", "\u2028", "a b", "'\"`$(id)", "\\", "?x=1&y#f", "a+b",
	"-x", "--all", "null", "{}", "<&>", "e\u0301", "\U0001f469\u200d\U0001f469\u200d\U0001f467", strings.Repeat("x", 512), strings.Repeat("\u00fc", 256),
}

// hostileLines are keys as an export has them, with every kind of event.
func hostileLines(t *testing.T) (lines string, want map[string]any) {
	t.Helper()
	events := []string{
		`{"type":"t","datacontenttype":"application/octet-stream","data_base64":"AAH/gA=="}`,
		`{"type":"t","data_base64":"AAEC"}`, // no type, and no JSON
		`{"data":{ "n" : 12345678901234567890, "x": [1, 2.50, 1e400] }}`,
		`{"datacontenttype":"text/plain","data":"a\u202e\u0000\n\"b"}`,
		`{"datacontenttype":"text/plain","data":""}`,
		`{"datacontenttype":"text/plain","data":"{ \"a\" : 1 }"}`,
		`{"data":"text"}`, `{"data":null}`, `{"data":false}`, `{}`,
		`{"subject":"<&>\u202e","dataschema":"http://x/y?a=b&c","team":"platform","yes":true,"n":-2147483648,"empty":""}`,
	}
	var all strings.Builder
	want = map[string]any{}
	for i, key := range append(slices.Clone(hostileKeys), make([]string, len(events))...) {
		if key == "" {
			key = fmt.Sprint("event-", i)
		}
		name, err := json.Marshal(key)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, `{"key":%s,"dueAt":"2050-01-02T03:04:05.123456789Z","uid":"u-%d","reason":"<r> \u202e","maxInterval":"1h30m0s","expiresAt":"2060-01-01T00:00:00Z","event":%s}`+"\n", name, i, events[i%len(events)])
		want[key] = nil
	}
	return all.String(), want
}

// exported are the keys of an export, by key, without what an import cannot keep.
func exported(t *testing.T, text string, lost ...string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for line := range strings.Lines(text) {
		var k map[string]any
		if err := json.Unmarshal([]byte(line), &k); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		var raw struct{ Event json.RawMessage } // numbers, escapes and blanks as they are
		if err := json.Unmarshal([]byte(line), &raw); err != nil {
			t.Fatal(err)
		}
		k["event"] = string(raw.Event)
		for _, name := range lost {
			delete(k, name)
		}
		all[k["key"].(string)] = k
	}
	return all
}

func differences(a, b map[string]any) (found []string) {
	for _, key := range slices.Sorted(maps.Keys(a)) {
		if !reflect.DeepEqual(a[key], b[key]) {
			found = append(found, fmt.Sprintf("%q was\n  %v, and is\n  %v", key, a[key], b[key]))
		}
	}
	if len(a) != len(b) {
		found = append(found, fmt.Sprintf("%d keys were, and %d are", len(a), len(b)))
	}
	return found
}

// export | import into another adapter keeps hostile keys and every kind of event.
func TestTransfer_HostileKeysAndEvents(t *testing.T) {
	t.Parallel()
	from, to := newAdapter(t, t.TempDir(), "s"), newAdapter(t, t.TempDir(), "s")
	lines, want := hostileLines(t)
	if got := from.ok(t, lines, "import", "s", "-f", "-"); got != fmt.Sprintf("%d keys imported, 0 kept as they were\n", len(want)) {
		t.Fatalf("import says %q", got)
	}
	first := from.ok(t, "", "export", "s")
	if got := to.ok(t, first, "import", "s", "-f", "-"); got != fmt.Sprintf("%d keys imported, 0 kept as they were\n", len(want)) {
		t.Errorf("import says %q", got)
	}
	second := to.ok(t, "", "export", "s")
	before, after := exported(t, first, "revision", "scheduledAt"), exported(t, second, "revision", "scheduledAt")
	for _, d := range differences(before, after) {
		t.Error(d)
	}
	for key := range want {
		if before[key] == nil {
			t.Errorf("%q is not in the export", key)
		}
	}
	// The blanks of JSON data are delivered as they came.
	var spaced sdk.Schedule
	for line := range strings.Lines(second) {
		if err := json.Unmarshal([]byte(line), &spaced); err != nil {
			t.Fatal(err)
		}
		if spaced.Event != nil && strings.Contains(string(spaced.Event.Data), "2.50") {
			break
		}
	}
	if got := string(spaced.Event.Data); got != `{ "n" : 12345678901234567890, "x": [1, 2.50, 1e400] }` {
		t.Errorf("the data is %s", got)
	}
	if got := to.ok(t, "", "key", "list", "s", "--all", "-o", "name"); len(strings.Split(strings.TrimSuffix(got, "\n"), "\n")) != len(want) || !strings.Contains(got, "a\u202eb\n") {
		t.Errorf("the names are %q", got)
	}
}

// Each hostile key is set, described, run and cancelled by its name.
func TestKeys_HostileNames(t *testing.T) {
	t.Parallel()
	a := newAdapter(t, t.TempDir(), "s")
	for _, key := range hostileKeys {
		flags := func(args ...string) result {
			return process(t, "kn-source-reschedule", "", append(append(args, "--server", a.api, "s", "--"), key)...)
		}
		for _, args := range [][]string{{"key", "set", "--in", "1h"}, {"key", "describe"}, {"key", "run"}, {"why"}, {"key", "delete"}} {
			r := flags(args...)
			if r.code != 0 {
				t.Errorf("%q %q: %d, %.500s%.500s", args, key, r.code, r.stdout, r.err)
			}
			if strings.ContainsAny(r.stdout+r.err, "\u202e\u200b\ufeff\u2028") {
				t.Errorf("%q %q prints marks: %q", args, key, r.stdout+r.err)
			}
		}
	}
	for _, key := range []string{"a\nb", "a\x1b", strings.Repeat("x", 513), "\xff"} {
		if r := a.run(t, "", "key", "set", "s", key, "--in", "1h"); r.code != 2 {
			t.Errorf("%q: %d, %s", key, r.code, r.err)
		}
	}
	if r := a.run(t, "", "key", "set", "s", "", "--in", "1h"); r.code != 2 {
		t.Errorf("an empty key: %d, %s", r.code, r.err)
	}
}

// A back-up by the command line, through the API server's exec, is restored into an adapter
// with the same export, revisions included.
func TestBackup_RestoredExportIsTheSame(t *testing.T) {
	t.Parallel()
	a := newAdapter(t, t.TempDir(), "s")
	lines, want := hostileLines(t)
	a.ok(t, lines, "import", "s", "-f", "-")
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { execute(t, w, r, a.data) }))
	defer api.Close()
	dir := t.TempDir()
	config, file, restored := filepath.Join(dir, "config"), filepath.Join(dir, "all.tar"), filepath.Join(dir, "restored")
	kubeconfig := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"t","clusters":[{"name":"t","cluster":{"server":%q}}],"contexts":[{"name":"t","context":{"cluster":"t","user":"t"}}],"users":[{"name":"t","user":{}}]}`, api.URL)
	if err := os.WriteFile(config, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := process(t, "kn-source-reschedule", "", "backup", "-f", file, "--kubeconfig", config); r.code != 0 {
		t.Fatalf("backup: %d, %s%s", r.code, r.stdout, r.err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info, err)
	}
	first := a.ok(t, "", "export", "s")
	if out, err := exec.CommandContext(t.Context(), adapterBinary(), "restore", "--data-dir", restored, "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	again := newAdapter(t, restored, "s")
	before, after := exported(t, first), exported(t, again.ok(t, "", "export", "s"))
	if len(before) != len(want) {
		t.Errorf("%d keys were exported, want %d", len(before), len(want))
	}
	for _, d := range differences(before, after) {
		t.Error(d)
	}
}

// execute is an API server with one adapter, and its exec: it runs the adapter's back-up, with the data
// directory of the test.
func execute(t *testing.T, w http.ResponseWriter, r *http.Request, data string) {
	if strings.HasSuffix(r.URL.Path, "/statefulsets/reschedule-adapter") {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"reschedule-adapter"},"spec":{"replicas":1}}`)
		return
	}
	if r.URL.Path != "/api/v1/namespaces/knative-eventing/pods/reschedule-adapter-0/exec" {
		t.Errorf("an unexpected call: %s", r.URL)
		w.WriteHeader(http.StatusNotFound)
		return
	}
	args := r.URL.Query()["command"]
	if want := []string{"/ko-app/adapter", "backup", "--data-dir", "/var/lib/reschedule", "-f", "-"}; !slices.Equal(args, want) {
		t.Errorf("the command is %q", args)
		return
	}
	socket, err := (&websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}).Upgrade(w, r, nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer socket.Close()
	c := exec.CommandContext(r.Context(), adapterBinary(), "backup", "--data-dir", data, "-f", "-")
	var writing sync.Mutex
	c.Stdout, c.Stderr = channel{&writing, socket, 1}, channel{&writing, socket, 2}
	status := `{"status":"Success"}`
	if err := c.Run(); err != nil {
		status = fmt.Sprintf(`{"status":"Failure","message":%q}`, err)
	}
	_, _ = channel{&writing, socket, 3}.Write([]byte(status))
	_ = socket.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
	_, _, _ = socket.ReadMessage() // until the client has it
}

// channel is a stream of a remote command in a WebSocket.
type channel struct {
	*sync.Mutex
	socket *websocket.Conn
	number byte
}

func (c channel) Write(b []byte) (int, error) {
	c.Lock()
	defer c.Unlock()
	return len(b), c.socket.WriteMessage(websocket.BinaryMessage, append([]byte{c.number}, b...))
}
