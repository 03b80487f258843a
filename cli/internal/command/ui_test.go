package command

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// page starts the command and returns the address that it prints, and what ends it.
func (c *cluster) page(forwarded bool, args ...string) (address string, end func()) {
	t := c.t
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r, w := io.Pipe()
	var stderr strings.Builder
	e := c.program(forwarded, w, &stderr)
	if !slices.Contains(args, "--server") {
		args = append(args, "--kubeconfig", c.kubeconfig())
	}
	code := make(chan int, 1)
	go func() {
		code <- e.run(ctx, append([]string{"ui"}, args...))
		_ = w.Close()
	}()
	line, _ := bufio.NewReader(r).ReadString('\n')
	address, found := strings.CutPrefix(strings.TrimSpace(line), "The page is on ")
	if !found {
		t.Fatalf("it says %q, status %d, and %s", line, <-code, &stderr)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	return address, func() {
		t.Helper()
		cancel()
		if code := <-code; code != 0 {
			t.Errorf("it ends with status %d", code)
		}
	}
}

// visit gets an address, and returns the status and the body.
func visit(t *testing.T, c *http.Client, address, host string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if host != "" {
		r.Host = host
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// newBrowser keeps cookies.
func newBrowser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar}
}

// open is a browser with the page open, the address of the page, and what ends the command.
func (c *cluster) open(forwarded bool, args ...string) (browser *http.Client, base string, end func()) {
	c.t.Helper()
	address, end := c.page(forwarded, args...)
	browser = newBrowser(c.t)
	visit(c.t, browser, address, "")
	base, _, _ = strings.Cut(address, "?")
	return browser, base, end
}

// The page shows the sources of the namespace, and the members of a group, through the port-forward. Only the browser
// that opened the printed address sees it, and no token reaches it.
func TestUI_InACluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.source("ops", "shop", func(o map[string]any) { o["spec"].(map[string]any)["suspend"] = true })
	c.source("other", "web", nil)
	c.answers["GET /ops/web/schedules"] = `200 {"items":[],"continue":""}`
	says := c.group()
	says(0, 0, 1, 98, 0.1)
	says(1, 1, 1, 100, 0)
	c.answers[metricsOf(0)] += fullDisk // of a standby: the page shows the owner's
	address, end := c.page(true)
	base, _, _ := strings.Cut(address, "?")
	browser := newBrowser(t)
	if status, _ := visit(t, browser, base, ""); status != http.StatusUnauthorized {
		t.Errorf("before the printed address: status %d", status)
	}
	if status, _ := visit(t, browser, address, "evil.example"); status != http.StatusMisdirectedRequest {
		t.Errorf("by another name: status %d", status)
	}
	if status, body := visit(t, browser, address, ""); status != http.StatusOK {
		t.Fatalf("the printed address: %d %s", status, body)
	}
	status, body := visit(t, browser, base, "")
	if status != http.StatusOK || !strings.Contains(body, "2 sources") || !strings.Contains(body, "ns=ops") || strings.Contains(body, "ns=other") || !strings.Contains(body, "suspended") || !strings.Contains(body, "reschedule-adapter-1 owns the group.") {
		t.Errorf("the sources: %d %s", status, body)
	}
	if _, view := visit(t, browser, base+"source?ns=ops&name=web", ""); !strings.Contains(view, "3 keys wait") || strings.Contains(view+body, "token-for") {
		t.Errorf("the source: %s", view)
	}
	if status, _ := visit(t, browser, base+"source?ns=other&name=web", ""); status != http.StatusNotFound {
		t.Errorf("a source of another namespace: status %d", status)
	}
	if status, _ := visit(t, &http.Client{}, address, ""); status != http.StatusForbidden {
		t.Errorf("the printed address in another browser: status %d", status)
	}
	end()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.tokens) != 1 || len(c.tokens[0]) != 2 {
		t.Errorf("the tokens are for %q, want one for both sources", c.tokens)
	}
	if !slices.ContainsFunc(c.asked, func(call string) bool { return strings.HasPrefix(call, "GET /ops/web Bearer token-for-") }) {
		t.Errorf("the adapter had %q", c.asked)
	}
}

// The metrics of an adapter without a cluster have its sources: the page, top and doctor need no names.
func TestUI_SourcesOfTheMetrics(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.answers["GET /shop/mail"] = c.answers["GET /ops/web"]
	c.answers["GET /metrics"] = "200 reschedule_source_suspended{kn_source_name=\"web\",kn_source_namespace=\"ops\"} 0\n" +
		"reschedule_source_suspended{kn_source_name=\"mail\",kn_source_namespace=\"shop\"} 0\n"
	at := []string{"--server", c.adapter.URL, "--metrics-server", c.adapter.URL}
	for more, want := range map[string][2]bool{"-nops": {true, false}, "-A": {true, true}} {
		args := append(at, more)
		browser, base, end := c.open(false, args...)
		_, view := visit(t, browser, base, "")
		_, top, errs := c.run(false, append([]string{"top"}, args...)...)
		_, doctor, _ := c.run(false, append([]string{"doctor"}, args...)...)
		for name, out := range map[string]string{"the page": view, "top": top + errs, "doctor": doctor} {
			if got := [2]bool{strings.Contains(out, "web"), strings.Contains(out, "mail")}; got != want {
				t.Errorf("%s %s: %s", name, more, out)
			}
		}
		end()
	}
}

// The page says of a source what why says, with a cluster and without one: the metrics, which are read once for some seconds,
// show a full disk, and without a cluster also whether a source is suspended.
func TestUI_SaysWhatWhySays(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		stage func(c *cluster)
		args  string // ADAPTER stands for the address of the adapter; "": the cluster
		says  string
		token string
	}{
		"without the right": {func(c *cluster) { c.refuse["POST /token"] = http.StatusForbidden }, "", "the ClusterRole edit of Kubernetes has that right", ""},
		"a full disk":       {func(c *cluster) { c.answers["GET /metrics"] = "200 " + fullDisk }, "", "disk is full", "token-for-sources.reschedule.dev/reschedulesource/ops/web"},
		"without a cluster": {func(*cluster) {}, "web --server ADAPTER --namespace ops --token-file " + token, "3 keys wait", "mine"},
		"with an address":   {func(*cluster) {}, "--server ADAPTER/ops/web", "3 keys wait", ""},
		"suspended": {func(c *cluster) {
			c.answers["GET /ops/web"] = `200 {"pending":3,"due":3,"inFlight":0,"retrying":0,"deadLetters":0,"nextDueAt":null,"oldestDueAt":"2026-01-01T00:00:00Z"}`
			c.answers["GET /metrics"] = "200 reschedule_source_suspended{kn_source_name=\"web\",kn_source_namespace=\"ops\"} 1\n"
		}, "web --server ADAPTER --namespace ops --metrics-server ADAPTER", "is suspended, so it delivers nothing: 3 keys are due", ""},
	} {
		c := newCluster(t)
		c.answers["GET /ops/web/schedules"] = `200 {"items":[],"continue":""}`
		row.stage(c)
		browser, base, end := c.open(row.args == "", strings.Fields(strings.ReplaceAll(row.args, "ADAPTER", c.adapter.URL))...)
		for range 2 {
			if _, view := visit(t, browser, base+"source?ns=ops&name=web", ""); !strings.Contains(view, row.says) || strings.Contains(view, "The adapter does not answer") {
				t.Errorf("%s: %s", name, view)
			}
		}
		if _, list := visit(t, browser, base, ""); name == "suspended" && (!strings.Contains(list, ">suspended<") || strings.Contains(list, ">late<")) {
			t.Errorf("the sources: %s", list)
		}
		end()
		if row.token != "" && !slices.Contains(c.asked, "GET /ops/web Bearer "+row.token) {
			t.Errorf("%s: the adapter had %q", name, c.asked)
		}
		if n := strings.Count(strings.Join(c.asked, "\n"), "GET /metrics"); n > 1 {
			t.Errorf("%s: the metrics were read %d times", name, n)
		}
	}
	c := newCluster(t)
	if code, _, errs := c.run(false, "ui", "--server", c.adapter.URL); code != exitUsage || !strings.Contains(errs, "--metrics-server") {
		t.Errorf("without a name: status %d: %s", code, errs)
	}
}
