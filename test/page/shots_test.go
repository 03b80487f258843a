package page

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
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

// at is the address of a view.
func at(view string, pairs ...string) string {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	return adapter.Page + view + "?" + q.Encode()
}

// scheme makes a tab light or dark.
func scheme(name string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
		return err
	})
}

// The pictures of the documentation are made of the page as it is.
func TestScreenshots_Written(t *testing.T) {
	dir := *screenshots
	if dir == "" {
		dir = t.TempDir()
	}
	for _, shot := range []struct {
		name, address, scheme string
		wide, high            int64
	}{
		{"page-sources", at(""), "light", 1180, 660},
		{"page-source", at("source", "ns", "ops", "name", "git-repos"), "light", 1180, 1080},
		{"page-source-dark", at("source", "ns", "ops", "name", "git-repos"), "dark", 1180, 1080},
		{"page-key", at("key", "ns", "ops", "name", "git-repos", "key", "GitRepo/team-a/shop"), "light", 1180, 760},
		{"page-key-dark", at("key", "ns", "ops", "name", "git-repos", "key", "GitRepo/team-a/shop"), "dark", 1180, 760},
		{"page-dead", at("source", "ns", "shop", "name", "mail", "tab", "dead"), "light", 1180, 860},
		{"page-phone", at("source", "ns", "ops", "name", "git-repos"), "light", 320, 1400},
		{"page-live", at("live", "ns", "ops", "name", "git-repos"), "dark", 1180, 560},
		{"page-letter", at("letter", "ns", "shop", "name", "mail", "key", "mail/bounces-1"), "light", 1180, 760},
		{"page-hostile", at("source", "ns", "team-a", "name", "hostile", "tab", "dead"), "light", 1180, 1280},
		{"page-suspended", at("source", "ns", "ops", "name", "backups"), "dark", 1180, 900},
		{"page-queue", at("source", "ns", "ops", "name", "builds"), "light", 1180, 900},
		{"page-confirm", at("confirm", "ns", "shop", "name", "mail", "what", "redrive"), "light", 1180, 500},
		{"page-missing", at("source", "ns", "shop", "name", "none"), "light", 1180, 500},
		{"page-key-phone", at("key", "ns", "ops", "name", "git-repos", "key", "GitRepo/team-a/shop"), "dark", 320, 1400},
	} {
		ctx := tabOf(t)
		must(ctx, t, chromedp.EmulateViewport(shot.wide, shot.high), scheme(shot.scheme), chromedp.Navigate(shot.address), chromedp.WaitReady("main"))
		picture := get(ctx, t, chromedp.CaptureScreenshot())
		if err := os.WriteFile(filepath.Join(dir, shot.name+".png"), picture, 0o644); err != nil {
			t.Fatal(err)
		}
		if len(picture) > 150<<10 {
			t.Errorf("%s has %d bytes, more than 150 kB", shot.name, len(picture))
		}
	}
}
