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

// The page shows the sources of the namespace through the port-forward. Only the browser
// that opened the printed address sees it, and no token reaches it.
func TestUI_InACluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.source("ops", "shop", func(o map[string]any) { o["spec"].(map[string]any)["suspend"] = true })
	c.source("other", "web", nil)
	c.answers["GET /ops/web/schedules"] = `200 {"items":[],"continue":""}`
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
	if status != http.StatusOK || !strings.Contains(body, "2 sources") || !strings.Contains(body, "ns=ops") || strings.Contains(body, "ns=other") || !strings.Contains(body, "suspended") {
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

// Without a right the page says which one is missing, as why does. It said that the adapter does
// not answer.
func TestUI_WithoutTheRight(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.refuse["POST /token"] = http.StatusForbidden
	browser, base, end := c.open(true)
	if _, view := visit(t, browser, base+"source?ns=ops&name=web", ""); !strings.Contains(view, "the ClusterRole edit of Kubernetes has that right") || !strings.Contains(view, "Denied") || strings.Contains(view, "The adapter does not answer") {
		t.Errorf("the source: %s", view)
	}
	end()
}

// The page shows the members of a group, who owns the group, and who does not answer.
func TestUI_MembersOfAGroup(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	says := c.group()
	says(0, 0, 1, 98, 0.1)
	says(1, 1, 1, 100, 0)
	says(2, 0, 1, 100, 0)
	c.answers[metricsOf(2)] = "500 "
	c.answers[metricsOf(0)] += fullDisk
	c.answers["GET /ops/web/schedules"] = `200 {"items":[],"continue":""}`
	browser, base, end := c.open(true)
	_, view := visit(t, browser, base, "")
	for _, text := range []string{
		"reschedule-adapter-1 owns the group.", "It owns the group, and has entry 100 of the log.",
		"It is a standby: it lacks 2 entries of the log", "GET /metrics was answered 500",
	} {
		if !strings.Contains(view, text) {
			t.Errorf("no %q in %s", text, view)
		}
	}
	// The page shows the disk of the owner.
	if _, view := visit(t, browser, base+"source?ns=ops&name=web", ""); !strings.Contains(view, "3 keys wait") {
		t.Errorf("the source, while the disk of a standby is full: %s", view)
	}
	end()
}

// The page knows a full disk and quotas from the metrics, which it reads once for some seconds.
func TestUI_AFullDisk(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.answers["GET /ops/web/schedules"] = `200 {"items":[],"continue":""}`
	c.answers["GET /metrics"] = "200 " + fullDisk
	browser, base, end := c.open(true)
	for range 2 {
		if _, view := visit(t, browser, base+"source?ns=ops&name=web", ""); !strings.Contains(view, "disk is full") {
			t.Errorf("the source: %s", view)
		}
	}
	end()
	if n := strings.Count(strings.Join(c.asked, "\n"), "GET /metrics"); n != 1 {
		t.Errorf("the metrics were read %d times: %q", n, c.asked)
	}
}

// Without a cluster the page shows the sources that are named, with the token of the file.
func TestUI_WithoutACluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.answers["GET /ops/web/schedules"] = `200 {"items":[],"continue":""}`
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	browser, base, end := c.open(false, "web", "--server", c.adapter.URL, "--namespace", "ops", "--token-file", token)
	if _, view := visit(t, browser, base+"source?ns=ops&name=web", ""); !strings.Contains(view, "3 keys wait") {
		t.Errorf("the source: %s", view)
	}
	end()
	if !slices.Contains(c.asked, "GET /ops/web Bearer mine") {
		t.Errorf("the adapter had %q", c.asked)
	}
	if code, _, errs := c.run(false, "ui", "--server", c.adapter.URL); code != exitUsage || !strings.Contains(errs, "--metrics-server") {
		t.Errorf("without a name: status %d: %s", code, errs)
	}
}

// Without a cluster only the metrics show that a source is suspended, and its limits: it is
// not late then.
func TestUI_SuspendedWithoutACluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.answers["GET /ops/web"] = `200 {"pending":3,"due":3,"inFlight":0,"retrying":0,"deadLetters":0,"nextDueAt":null,"oldestDueAt":"2026-01-01T00:00:00Z"}`
	c.answers["GET /ops/web/schedules"] = `200 {"items":[],"continue":""}`
	c.answers["GET /metrics"] = "200 reschedule_source_suspended{kn_source_name=\"web\",kn_source_namespace=\"ops\"} 1\n"
	browser, base, end := c.open(false, "web", "--server", c.adapter.URL, "--namespace", "ops", "--metrics-server", c.adapter.URL)
	if _, view := visit(t, browser, base, ""); !strings.Contains(view, ">suspended<") || strings.Contains(view, ">late<") {
		t.Errorf("the sources: %s", view)
	}
	if _, view := visit(t, browser, base+"source?ns=ops&name=web", ""); !strings.Contains(view, "is suspended, so it delivers nothing: 3 keys are due") {
		t.Errorf("the source: %s", view)
	}
	end()
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

// With the address of one source the page needs no name.
func TestUI_AddressOfOneSource(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.answers["GET /ops/web/schedules"] = `200 {"items":[],"continue":""}`
	_, _, end := c.open(false, "--server", c.adapter.URL+"/ops/web")
	end()
}
