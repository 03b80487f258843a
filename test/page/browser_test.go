package page

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// tabOf opens a tab that ends with the test.
func tabOf(t *testing.T) context.Context {
	t.Helper()
	ctx, end := chromedp.NewContext(browser)
	t.Cleanup(end)
	if err := chromedp.Do(ctx); err != nil { // a timeout on the first call would end the browser
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	t.Cleanup(stop)
	return ctx
}

// must does steps in a tab.
func must(ctx context.Context, t *testing.T, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

// get does a step that has a value.
func get[T any](ctx context.Context, t *testing.T, step chromedp.Action[T]) T {
	t.Helper()
	v, err := chromedp.Run(ctx, step)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// opening opens the page by the address that was printed, which leads to the sources.
func opening(printed string) []chromedp.Action[chromedp.Void] {
	return []chromedp.Action[chromedp.Void]{chromedp.Navigate(printed), chromedp.WaitReady(chromedp.ID("sources"))}
}

// at is the address of a view.
func at(view string, pairs ...string) string {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	return page + view + "?" + q.Encode()
}

// scheme makes a tab light or dark.
func scheme(name string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
		return err
	})
}

// views are the addresses of all views, with hostile texts among them.
func views() map[string]string {
	return map[string]string{
		"sources": at(""), "overdue": at("source", "ns", "ops", "name", "git-repos"), "waiting": at("source", "ns", "ops", "name", "git-repos", "tab", "waiting"),
		"queue": at("source", "ns", "ops", "name", "builds"), "suspended": at("source", "ns", "ops", "name", "backups"),
		"dead": at("source", "ns", "shop", "name", "mail", "tab", "dead"), "hostile": at("source", "ns", "team-a", "name", "hostile", "tab", "dead"),
		"key": at("key", "ns", "ops", "name", "git-repos", "key", "GitRepo/team-a/shop"), "hostile key": at("key", "ns", "team-a", "name", "hostile", "key", hostile[1]),
		"absent key": at("key", "ns", "ops", "name", "git-repos", "key", "none"), "letter": at("letter", "ns", "shop", "name", "mail", "key", "mail/bounces-1"),
		"long key":       at("key", "ns", "team-a", "name", "hostile", "key", strings.Repeat("w", 512)), // breaks nowhere by itself
		"hostile letter": at("letter", "ns", "team-a", "name", "hostile", "key", hostile[0]), "live": at("live", "ns", "ops", "name", "git-repos"),
		"confirm": at("confirm", "ns", "shop", "name", "mail", "what", "discard"), "missing": at("source", "ns", "no", "name", "none"),
	}
}

// opened checks that a view is there, and not an error in its place.
func opened(ctx context.Context, t *testing.T, name, address string) {
	t.Helper()
	response := get(ctx, t, chromedp.NavigateResponse(address))
	if want := int64(200); response.Status != want && name != "missing" {
		t.Fatalf("%s: status %d", name, response.Status)
	}
}

// An operator finds an overdue key and runs it without a mouse. The focus can be seen at
// each stop.
func TestPage_KeyboardRunsAnOverdueKey(t *testing.T) {
	const key = "GitRepo/team-a/site"
	ctx := tabOf(t)
	must(ctx, t, chromedp.EmulateViewport(1180, 900), chromedp.Navigate(page))
	enter := func() {
		t.Helper()
		if response, err := chromedp.RunResponse(ctx, chromedp.KeyEvent(kb.Enter)); err != nil || response.Status != 200 {
			t.Fatalf("Enter: %v %v", response, err)
		}
	}
	tabTo(ctx, t, "ops/git-repos")
	enter()
	tabTo(ctx, t, "Overdue 5")
	enter()
	tabTo(ctx, t, "Keys beginning with")
	must(ctx, t, chromedp.KeyEvent("GitRepo/team-a/si"))
	enter()
	if keys := get(ctx, t, chromedp.Evaluate[[]string](`[...document.querySelectorAll("#rows a.keyname")].map((a) => a.textContent)`)); len(keys) != 1 || keys[0] != key {
		t.Fatalf("the keys with the prefix are %q", keys)
	}
	sink.Answer("git-repos", key, harness.Status(http.StatusNoContent))
	tabTo(ctx, t, "Run now "+key)
	enter()
	if h1 := get(ctx, t, chromedp.Text(chromedp.CSS("h1"))); h1 != key {
		t.Errorf("it leads to %q", h1)
	}
	sink.Find(t, "the key runs again", func(all []*harness.Delivery) bool { return len(sinkOf(all, key)) == 2 })
	if err := await(adapter.URL+"/ops/git-repos"+harness.KeyPath(key)+"/history", `"result":"delivered"`); err != nil {
		t.Fatal(err)
	}
	// The view follows by itself.
	must(ctx, t, chromedp.WaitReady(chromedp.CSS("#key .timeline .badge.good")))
}

func sinkOf(all []*harness.Delivery, key string) (found []*harness.Delivery) {
	for _, d := range all {
		if d.Key == key {
			found = append(found, d)
		}
	}
	return found
}

// tabTo presses Tab until the control with the text has the focus.
func tabTo(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	var passed []string
	for range 80 {
		must(ctx, t, chromedp.KeyEvent(kb.Tab))
		stop := get(ctx, t, chromedp.Evaluate[struct{ Text, Outline string }](`(() => { const e = document.activeElement;
			return { Text: (e.labels?.[0] ?? e).textContent.replace(/\s+/g, " ").trim(), Outline: getComputedStyle(e).outlineStyle } })()`))
		if stop.Outline == "none" {
			t.Errorf("the focus on %q cannot be seen", stop.Text)
		}
		if stop.Text == text {
			return
		}
		passed = append(passed, stop.Text)
	}
	t.Fatalf("Tab does not reach %q, only %q", text, passed)
}

// A screen reader has a name for each control, one main landmark and one first heading. Hostile keys, events and answers stay
// text: no script of theirs runs, and none is tried.
func TestPage_AccessibilityTree(t *testing.T) {
	ctx := tabOf(t)
	var mu sync.Mutex
	var said []string
	if err := chromedp.Listen(ctx, func(ev any) {
		if e, ok := ev.(*log.EventEntryAdded); ok {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, e.Entry.Text)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, log.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	for name, address := range views() {
		opened(ctx, t, name, address)
		tree, err := chromedp.Call(ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
		if err != nil {
			t.Fatal(err)
		}
		roles := map[string]int{}
		for _, n := range tree.Nodes {
			if n.Ignored || n.Role == nil {
				continue
			}
			role := strings.Trim(string(n.Role.Value), `"`)
			roles[role]++
			switch role {
			case "button", "link", "searchbox", "textbox", "checkbox", "combobox", "image", "navigation", "table", "heading", "DisclosureTriangle", "columnheader":
				if n.Name == nil || strings.TrimSpace(strings.Trim(string(n.Name.Value), `"`)) == "" {
					t.Errorf("%s: a %s has no name", name, role)
				}
			}
		}
		first := get(ctx, t, chromedp.Evaluate[int](`document.querySelectorAll("h1").length`))
		if roles["main"] != 1 || roles["banner"] != 1 || first != 1 || roles["link"] == 0 {
			t.Errorf("%s: %d main, %d banner, %d first headings, %d links", name, roles["main"], roles["banner"], first, roles["link"])
		}
		labels := get(ctx, t, chromedp.Evaluate[[]string](`[...document.querySelectorAll("th:not([scope]), table:not(:has(caption)), [id]")].filter((e) => !e.id || document.querySelectorAll("[id='" + e.id + "']").length > 1).map((e) => e.outerHTML.slice(0, 80))`))
		if len(labels) > 0 {
			t.Errorf("%s: cells without a scope, tables without a caption, or ids that are there twice: %q", name, labels)
		}
		scripts := get(ctx, t, chromedp.Evaluate[int](`document.scripts.length + document.querySelectorAll("main img, main script, main iframe, [onerror]").length`))
		if title := get(ctx, t, chromedp.Title()); title == "owned" || scripts != 1 {
			t.Errorf("%s: title %q, %d scripts and pictures", name, title, scripts)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	said = slices.DeleteFunc(said, func(text string) bool { return strings.Contains(text, "404") })
	if len(said) > 0 {
		t.Errorf("the browser complains: %q", said)
	}
}

// On a telephone no view is wider than the screen.
func TestPage_FitsIn320Pixels(t *testing.T) {
	ctx := tabOf(t)
	must(ctx, t, chromedp.EmulateViewport(320, 640))
	for name, address := range views() {
		opened(ctx, t, name, address)
		if wide := get(ctx, t, chromedp.Evaluate[int](`document.documentElement.scrollWidth`)); wide > 320 {
			out := get(ctx, t, chromedp.Evaluate[[]string](`[...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > 321).map((e) => e.outerHTML.slice(0, 120)).slice(0, 5)`))
			t.Errorf("%s: %d pixels wide: %q", name, wide, out)
		}
	}
}

// contrast finds texts that have less contrast with their ground than WCAG's AA asks for.
const contrast = `(() => {
	const rgb = (c) => { const m = c.match(/[\d.]+/g).map(Number); return { c: m.slice(0, 3), a: m[3] ?? 1 } };
	const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
	const behind = (e) => { for (; e; e = e.parentElement) { const b = rgb(getComputedStyle(e).backgroundColor); if (b.a === 1) return b.c } return [255, 255, 255] };
	const bad = [];
	let seen = 0;
	for (const e of document.querySelectorAll("body *")) {
		if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility() || e.closest("noscript, svg")) continue;
		const s = getComputedStyle(e), a = light(rgb(s.color).c), b = light(behind(e));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		const large = parseFloat(s.fontSize) >= 24 || parseFloat(s.fontSize) >= 18.66 && s.fontWeight >= 700;
		seen++;
		if (ratio < (large ? 3 : 4.5)) bad.push(ratio.toFixed(2) + " " + e.outerHTML.slice(0, 100));
	}
	return { Bad: [...new Set(bad)], Seen: seen, Ground: getComputedStyle(document.documentElement).backgroundColor };
})()`

// Each text can be read, light and dark.
func TestPage_Contrast(t *testing.T) {
	ctx := tabOf(t)
	grounds := map[string]bool{}
	for _, mode := range []string{"light", "dark"} {
		must(ctx, t, scheme(mode))
		for name, address := range views() {
			opened(ctx, t, name, address)
			found := get(ctx, t, chromedp.Evaluate[struct {
				Bad    []string
				Seen   int
				Ground string
			}](contrast))
			grounds[found.Ground] = true
			if len(found.Bad) > 0 || found.Seen < 5 {
				t.Errorf("%s, %s: of %d texts these have too little contrast:\n%s", name, mode, found.Seen, strings.Join(found.Bad, "\n"))
			}
		}
	}
	if len(grounds) != 2 {
		t.Errorf("light and dark have the grounds %v", grounds)
	}
}

// Events appear while they happen. Paused, the view stands still and counts.
func TestPage_LiveAndPaused(t *testing.T) {
	ctx := tabOf(t)
	must(ctx, t, chromedp.Navigate(at("live", "ns", "shop", "name", "mail")), chromedp.WaitVisible(chromedp.ID("pause")))
	scheduled := func(key string) {
		t.Helper()
		if err := put("shop/mail", slow("live/%s", "1h", key)); err != nil {
			t.Fatal(err)
		}
	}
	scheduled("<b>first</b>")
	got := get(ctx, t, chromedp.Poll[string](`document.querySelector("#stream tr a")?.textContent.startsWith("live/") && document.querySelector("#stream tr a").textContent`))
	if got != "live/<b>first</b>" {
		t.Errorf("the first row is of %q", got)
	}
	must(ctx, t, chromedp.Click(chromedp.ID("pause")))
	scheduled("second")
	get(ctx, t, chromedp.Poll[bool](`document.getElementById("stream-state").textContent === "Paused. 1 new."`))
	if got := get(ctx, t, chromedp.TextContent(chromedp.CSS("#stream tr a"))); got != "live/<b>first</b>" {
		t.Errorf("paused, the first row is of %q", got)
	}
	must(ctx, t, chromedp.Click(chromedp.ID("pause")))
	if got := get(ctx, t, chromedp.TextContent(chromedp.CSS("#stream tr a"))); got != "live/second" {
		t.Errorf("again, the first row is of %q", got)
	}
}

// The pictures of docs/cli.md are there, and small. make screenshots writes them.
func TestPage_Pictures(t *testing.T) {
	for name, colours := range map[string]string{"page-source": "light", "page-source-dark": "dark"} {
		file := filepath.Join("../../docs/images", name+".png")
		if *screenshots {
			ctx := tabOf(t)
			must(ctx, t, chromedp.EmulateViewport(1180, 960), scheme(colours), chromedp.Navigate(at("source", "ns", "ops", "name", "git-repos")), chromedp.WaitReady(chromedp.CSS("main")))
			if err := os.WriteFile(file, get(ctx, t, chromedp.CaptureScreenshot()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		picture, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(picture, []byte("\x89PNG")) || len(picture) > 150_000 {
			t.Errorf("%s has %d bytes: want a PNG of at most 150 kB", file, len(picture))
		}
	}
}
