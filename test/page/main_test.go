// Package page tests the web page in a real browser: by keyboard, narrow, dark, without
// JavaScript, with hostile keys, and with more keys and sources than a page could show.
package page

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	web "github.com/reschedule-dev/reschedule/pkg/page"
	"github.com/reschedule-dev/reschedule/pkg/why"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// major is the version of Chromium that the tests are written for; see hack/chromium.sh.
const major = "156"

// screenshots writes the pictures of the documentation; see make screenshots.
var screenshots = flag.Bool("screenshots", false, "write the pictures of the documentation")

// What all tests share: a browser, an adapter with sources in trouble, and their sink.
var (
	browser context.Context
	adapter *harness.Adapter
	sink    = harness.NewSink()
	// group is the page of a replicated group, whose third member does not answer.
	group *httptest.Server
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
	defer group.Close()
	defer adapter.Kill() // first: the sink answers some deliveries only when the adapter is gone
	allocator, stop := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.Flag("hide-scrollbars", true), chromedp.Flag("force-device-scale-factor", "1"))...)
	defer stop()
	var end context.CancelFunc
	browser, end = chromedp.NewContext(allocator)
	defer end()
	if err := chromedp.Do(browser); err != nil {
		fmt.Fprintln(os.Stderr, "page: the browser does not start:", err)
		return 1
	}
	return m.Run()
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
	if os.Getenv("ADAPTER_BINARY") == "" {
		binary := filepath.Join(dir, "adapter")
		build := exec.Command("go", "-C", "../..", "build", "-trimpath", "-tags=grpcnotrace", "-o", binary, "./cmd/adapter")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("building the adapter: %w", err)
		}
		if err := os.Setenv("ADAPTER_BINARY", binary); err != nil {
			return err
		}
	}
	file := filepath.Join(dir, "sources.yaml")
	if err := os.WriteFile(file, []byte(manifests()), 0o600); err != nil {
		return err
	}
	adapter, err = harness.Launch(harness.Flags(file, filepath.Join(dir, "data"), "--ui")...)
	if err != nil {
		return err
	}
	group = httptest.NewServer(web.Loopback(web.Guard{}, web.Handler(web.Backend{Base: adapter.URL, Sources: sources, Members: members})))
	return fill()
}

// sources are a few of the adapter's sources.
func sources(context.Context) (found []web.Source, err error) {
	for _, name := range []string{"backups", "builds", "certificates"} {
		found = append(found, web.Source{Namespace: "ops", Name: name})
	}
	return found, nil
}

// members are a standby, the owner, and a member that does not answer.
func members(context.Context) why.Group {
	return why.Group{
		{Pod: "reschedule-adapter-0", Majority: true, Applied: 184_460, Behind: 40 * time.Millisecond},
		{Pod: "reschedule-adapter-1", Majority: true, Owner: true, Applied: 184_467},
		{Pod: "reschedule-adapter-2", Silence: errors.New("dial tcp 10.42.2.17:9090: connection refused")},
	}
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
		if reply, err := harness.Do(context.Background(), http.MethodGet, at("source", "ns", s[0], "name", s[1]), ""); err != nil || reply.Status != http.StatusOK {
			return fmt.Errorf("the first look: %v %w", reply, err)
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
		bad = append(bad, map[string]any{"key": key, "delay": fmt.Sprintf("%ds", 3600*(i%2)), "reason": evil, "event": map[string]any{"type": evil, "subject": "\u202e" + evil, "data": map[string]any{"html": evil, "big": json.RawMessage("184467440737095516150")}}})
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
