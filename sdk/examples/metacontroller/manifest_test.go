package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What this bridge does not do is refused, with a sentence that says what to do.
func TestManifest_Refused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ from, to, says string }{
		"rolling":       {"InPlace", "RollingInPlace", "RollingInPlace is not supported: use Recreate or InPlace"},
		"unknown":       {"InPlace", "Sometimes", `"Sometimes" must be OnDelete, Recreate or InPlace`},
		"etag":          {"url: HOOK/sync", "url: HOOK/sync, etag: {enabled: true}", "webhook.etag is not supported"},
		"authorization": {"url: HOOK/sync", "url: HOOK/sync, authorization: {secretRef: {}}", `unknown field "hooks.sync.webhook.authorization"`},
		"timeout":       {"url: HOOK/sync", "url: HOOK/sync, timeout: 0s", "webhook.timeout must be above zero"},
		"version":       {"sync: {webhook", "sync: {version: v3, webhook", `version "v3" must be v1 or v2`},
		"no url":        {"url: HOOK/sync", "path: /sync", "webhook must have a url, or path and service"},
		"no hook":       {"    sync:", "    finalize:", "spec.hooks.sync is missing"},
		"no name":       {"name: previews", "labels: {}", "metadata.name is missing"},
		"typing error":  {"generateSelector", "generateselector", `unknown field "generateselector"`},
		"kind":          {"CompositeController", "MapController", "kind must be CompositeController or DecoratorController"},
		"as decorator":  {"CompositeController", "DecoratorController", "spec must have resources and attachments"},
		"period":        {"generateSelector: true", "resyncPeriodSeconds: -1", "must not be negative"},
		"selector":      {"resource: previews}", "resource: previews, labelSelector: {matchExpressions: [{key: a, operator: Like}]}}", "labelSelector"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !strings.Contains(previews, c.from) {
				t.Fatalf("no %q", c.from)
			}
			text := strings.Replace(previews, c.from, c.to, 1)
			if _, err := parseManifests([]byte(strings.ReplaceAll(text, "HOOK", "http://hook"))); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the error is %v, want %q", err, c.says)
			}
		})
	}
}

// The URL of a service, the defaults, and objects of other kinds beside a controller.
func TestManifest_IsRead(t *testing.T) {
	t.Parallel()
	text := strings.Replace(previews, "url: HOOK/sync", "path: /sync, service: {name: s, namespace: ops}", 1) +
		"---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: hook}\n---\n# nothing\n"
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := readManifests([]string{file})
	if err != nil || len(all) != 1 {
		t.Fatalf("%d: %v", len(all), err)
	}
	if h := all[0].Spec.Hooks.Sync; h.url != "http://s.ops:80/sync" || h.timeout != 10*time.Second || h.strict {
		t.Errorf("the hook is %+v", h)
	}
	if _, err := readManifests([]string{file, file}); err == nil || !strings.Contains(err.Error(), "is in "+file+" too") {
		t.Errorf("the error is %v", err)
	}
	if _, err := readManifests(nil); err == nil {
		t.Error("no manifests must be an error")
	}
}

// The period counts when it is shorter than what a hook asks for.
func TestResync_PeriodIsACeiling(t *testing.T) {
	t.Parallel()
	b := &bridge{manifest: &manifest{}}
	b.Spec.ResyncPeriodSeconds = 60
	for seconds, want := range map[float64]time.Duration{0: 0, -1: 0, 0.25: 250 * time.Millisecond, 90: time.Minute, 1e-12: 1, 1e300: time.Minute} {
		if got := b.after(seconds); got != want {
			t.Errorf("%v: %s, want %s", seconds, got, want)
		}
	}
}
