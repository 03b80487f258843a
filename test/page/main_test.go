// Package page tests the web page in a real browser: by keyboard, narrow, dark, without
// JavaScript, with hostile keys, and with more keys and sources than a page could show.
package page

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// major is the version of Chromium that the tests are written for; see hack/chromium.sh.
const major = "156"

// screenshots writes the pictures of the documentation; see make screenshots.
var screenshots = flag.Bool("screenshots", false, "write the pictures of the documentation")

// What all tests share: a browser, an adapter with sources in trouble, their sink, and the address of the page.
var (
	browser context.Context
	adapter *harness.Adapter
	sink    = harness.NewSink()
	page    string
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "reschedule-page-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := setUp(dir); err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		return 1
	}
	defer sink.Close()
	defer adapter.Kill() // first: the sink answers some deliveries only when the adapter is gone
	printed, stopPage, err := serve("-A", "--server", adapter.URL, "--metrics-server", adapter.Admin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		return 1
	}
	defer stopPage()
	page, _, _ = strings.Cut(printed, "?")
	allocator, stop := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.Flag("hide-scrollbars", true), chromedp.Flag("force-device-scale-factor", "1"))...)
	defer stop()
	var end context.CancelFunc
	browser, end = chromedp.NewContext(allocator)
	defer end()
	if err := chromedp.Do(browser, opening(printed)...); err != nil {
		fmt.Fprintln(os.Stderr, "page: the browser does not start:", err)
		return 1
	}
	if err := fill(); err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		return 1
	}
	return m.Run()
}

// serve starts kn source reschedule ui, and returns the address that it prints, which opens the page once.
func serve(args ...string) (printed string, stop func(), err error) {
	ui := exec.Command(os.Getenv("CLI_BINARY"), append([]string{"ui"}, args...)...)
	ui.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ui.Stderr = os.Stderr
	out, err := ui.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := ui.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = ui.Process.Kill()
		_ = ui.Wait() // it was killed
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if printed, found := strings.CutPrefix(strings.TrimSpace(line), "The page is on "); found {
		return printed, stop, nil
	}
	stop()
	return "", nil, fmt.Errorf("the page said %q: %w", line, err)
}

var chromium = func() string {
	if path := os.Getenv("CHROMIUM"); path != "" {
		return path
	}
	return "chromium-headless-shell"
}()

// setUp checks the browser, and starts the adapter with sources that show each state.
func setUp(dir string) error {
	out, err := exec.Command(chromium, "--version").Output()
	if err != nil || !regexp.MustCompile(` `+major+`\.`).Match(out) {
		return fmt.Errorf("there is no chromium-headless-shell %s (found %q, %w): hack/chromium.sh installs it", major, out, err)
	}
	for _, p := range []struct{ name, module, pkg string }{{"ADAPTER_BINARY", "../..", "./cmd/adapter"}, {"CLI_BINARY", "../../cli", "."}} {
		if os.Getenv(p.name) != "" {
			continue
		}
		binary := filepath.Join(dir, p.name)
		build := exec.Command("go", "-C", p.module, "build", "-trimpath", "-tags=grpcnotrace", "-o", binary, p.pkg)
		build.Stderr = os.Stderr
		if err := errors.Join(build.Run(), os.Setenv(p.name, binary)); err != nil {
			return fmt.Errorf("building %s: %w", p.pkg, err)
		}
	}
	file := filepath.Join(dir, "sources.yaml")
	if err := os.WriteFile(file, []byte(manifests()), 0o600); err != nil {
		return err
	}
	adapter, err = harness.Launch(harness.Flags(file, filepath.Join(dir, "data"))...)
	return err
}

// manifests are the sources: namespace, name, and the rest of the spec.
func manifests() string {
	var b strings.Builder
	for _, s := range [][3]string{
		{"ops", "git-repos", "delivery: {backoffDelay: PT5M}, maxInterval: 30m, jitter: 0.9"},
		{"ops", "certificates", ""},
		{"ops", "backups", "suspend: true"},
		{"ops", "builds", "limits: {maxInFlight: 2}"},
		{"shop", "mail", "delivery: {retry: 1, backoffDelay: PT0.1S}"},
		{"shop", "invoices", ""},
		{"team-a", "hostile", "delivery: {retry: 0}"},
	} {
		sep := ""
		if s[2] != "" {
			sep = ", "
		}
		fmt.Fprintf(&b, "---\napiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\nmetadata: {namespace: %s, name: %s}\nspec: {sink: {uri: '%s/%s'}%s%s}\n", s[0], s[1], sink.URL, s[1], sep, s[2])
	}
	return b.String()
}

// hostile are keys that break pages which are made with less care.
var hostile = []string{
	"<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "..", ".", "a/../../b", "%2F%2e%2e%2F", "safe\u202egnp.exe", "\u200bhidden", "?a=b&c#d",
	"javascript:alert(1)", " blanks ", strings.Repeat("語", 170), strings.Repeat("w", 512), `{{.}}'"&amp;`,
}

const evil = `<script>document.title="owned"</script><img src=x onerror="document.title='owned'">`

func fill() error {
	for _, s := range [][2]string{{"ops", "git-repos"}, {"shop", "mail"}} { // events are remembered from the first look on
		if err := chromedp.Do(browser, chromedp.Navigate(at("source", "ns", s[0], "name", s[1]))); err != nil {
			return fmt.Errorf("the first look: %w", err)
		}
	}
	sink.Answer("git-repos", "", func(w http.ResponseWriter, _ *http.Request, d *harness.Delivery) {
		if strings.HasPrefix(d.Key, "GitRepo/team-b/") {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, "clone of https://git.example.com/team-a failed: no space left on device")
	})
	sink.Answer("builds", "", func(_ http.ResponseWriter, r *http.Request, _ *harness.Delivery) { <-r.Context().Done() })
	sink.Answer("mail", "", func(w http.ResponseWriter, _ *http.Request, d *harness.Delivery) {
		if !strings.Contains(d.Key, "bounces") {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, "mailbox unavailable")
	})
	sink.Answer("hostile", "", func(w http.ResponseWriter, _ *http.Request, d *harness.Delivery) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, evil)
	})
	for source, keys := range map[string][]map[string]any{
		"ops/git-repos":    slow("GitRepo/team-a/%s", "0s", "web", "shop", "infra", "docs", "site"),
		"ops/builds":       slow("Build/%d", "0s", 101, 102, 103, 104, 105, 106),
		"ops/backups":      slow("Volume/%s", "0s", "postgres-0", "postgres-1", "grafana"),
		"ops/certificates": slow("Certificate/%s", "720h", "api", "web", "intern"),
		"shop/mail":        slow("mail/%d", "0s", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
	} {
		if err := put(source, keys); err != nil {
			return err
		}
	}
	var spread, bad []map[string]any
	for i := range 240 {
		spread = append(spread, map[string]any{"key": fmt.Sprintf("GitRepo/team-b/repo-%03d", i), "delay": fmt.Sprintf("%ds", 120+(i*i*7)%1900+(i%11)*130), "reason": "poll interval 1h"})
	}
	spread = append(spread, slow("GitRepo/team-b/%s", "0s", "api", "cli", "www", "blog")...)
	for i, key := range hostile {
		bad = append(bad, map[string]any{"key": key, "reason": evil, "event": map[string]any{"type": evil, "subject": "\u202e" + evil, "data": map[string]any{"html": evil, "big": json.RawMessage("184467440737095516150")}}})
		if i%2 == 1 { // its minutes break nowhere by themselves
			bad[i]["cron"], bad[i]["timeZone"], bad[i]["priority"] = "0"+strings.Repeat(",59", 75)+" 3 29 2 *", "America/Argentina/ComodRivadavia", "low"
		}
	}
	letters := slow("mail/bounces-%d", "0s", 1, 2, 3)
	for i, l := range letters {
		l["event"] = map[string]any{"type": "dev.example.mail", "data": map[string]any{"to": fmt.Sprintf("user-%d@example.com", i), "template": "welcome", "order": 184467}}
	}
	for source, keys := range map[string][]map[string]any{"ops/git-repos": spread, "team-a/hostile": bad, "shop/mail": letters} {
		if err := put(source, keys); err != nil {
			return err
		}
	}
	if err := await(adapter.URL+"/team-a/hostile", `"deadLetters":7`); err != nil || !*screenshots {
		return err
	}
	// Pictures show a source that has worked for a while.
	work := map[string][]map[string]any{}
	for i := range 90 {
		after := fmt.Sprintf("%dms", 300*i+(i*i*37)%9000)
		work["shop/mail"] = append(work["shop/mail"], map[string]any{"key": fmt.Sprintf("mail/%d", 100+i), "delay": after})
		work["ops/git-repos"] = append(work["ops/git-repos"], map[string]any{"key": fmt.Sprintf("GitRepo/team-b/late-%d", i), "delay": after})
	}
	for source, keys := range work {
		if err := put(source, keys); err != nil {
			return err
		}
	}
	<-time.After(40 * time.Second)
	return nil
}

func slow[T any](pattern, delay string, parts ...T) (keys []map[string]any) {
	for _, p := range parts {
		keys = append(keys, map[string]any{"key": fmt.Sprintf(pattern, p), "delay": delay})
	}
	return keys
}

func put(source string, keys []map[string]any) error {
	body, err := json.Marshal(map[string]any{"items": keys})
	if err != nil {
		return err
	}
	reply, err := harness.Do(context.Background(), http.MethodPost, adapter.URL+"/"+source+"/schedules", string(body))
	if err == nil && (reply.Status != http.StatusOK || strings.Contains(string(reply.Body), `"detail"`)) {
		err = fmt.Errorf("scheduling keys of %s: %d %s", source, reply.Status, reply.Body)
	}
	return err
}

// await repeats a GET until its answer has the text.
func await(address, text string) error {
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		reply, err := harness.Do(ctx, http.MethodGet, address, "")
		switch {
		case err != nil:
			return err
		case strings.Contains(string(reply.Body), text):
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("%s never had %s: %s", address, text, reply.Body)
		}
	}
}
