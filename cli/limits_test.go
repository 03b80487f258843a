package main

import (
	"fmt"
	"strings"
	"testing"
)

// Limits that the sources of a namespace share are named with the ConfigMap that has them:
// for a key, for a source, by doctor, and where a source's own limit is cut to one.
func TestWhy_LimitsOfTheNamespace(t *testing.T) {
	t.Parallel()
	set := func(namespace, source, key, in string, code int) {
		t.Helper()
		if r := run(t, "key", "set", "-n", namespace, source, key, "--in", in); r.code != code {
			t.Fatalf("key set %s/%s %s: %d, %s", namespace, source, key, r.code, r.err)
		}
	}
	says := func(code int, cause, says string, args ...string) {
		t.Helper()
		eventually(t, func() (bool, string) {
			r := run(t, args...)
			return r.code == code && strings.Contains(r.stdout, cause) && strings.Contains(r.stdout, says), fmt.Sprint(args, r.code, r.stdout, r.err)
		})
	}
	const slot = "because the only slot of max-in-flight of ConfigMap config-reschedule is taken, which all sources of namespace slots share"
	set("slots", "a", "k", "0s", 0)
	says(0, "InFlight", "being delivered now", "why", "-n", "slots", "a", "k")
	set("slots", "b", "k", "0s", 0)
	says(8, "AtMaxInFlight", slot, "why", "-n", "slots", "b", "k")
	says(8, "AtMaxInFlight", slot, "why", "-n", "slots", "b")

	set("full", "a", "k", "1h", 0)
	set("full", "b", "k", "1h", 0)
	set("full", "b", "k2", "1h", 6)
	const full = "The sources of namespace full have together reached max-pending of ConfigMap config-reschedule (2 keys)"
	says(8, "Quota", full, "why", "-n", "full", "a")
	says(8, "Quota", full, "why", "-n", "full", "b", "k2")
	says(8, "PROBLEM", full, "doctor", "-n", "full", "a", "b")

	set("busy", "a", "k", "0s", 0) // a key in flight counts
	says(8, "Quota", "reached max-pending of ConfigMap config-reschedule (1 key)", "why", "-n", "busy", "a")

	set("cut", "a", "k", "1h", 0)
	says(8, "Quota", "reached max-pending of ConfigMap config-reschedule (1 key)", "why", "-n", "cut", "a")

	keys := strings.Builder{}
	for i := range 40 {
		fmt.Fprintf(&keys, `{"key":"k%d","dueAt":"2026-01-01T00:00:00Z"}`+"\n", i)
	}
	if r := process(t, "kn-source-reschedule", keys.String(), "import", "-n", "rate", "a", "-f", "-", "--server", adapterURL, "--token-file", tokenFile); r.code != 0 {
		t.Fatalf("import: %d, %s%s", r.code, r.stdout, r.err)
	}
	says(8, "AtMaxPerSecond", "because max-per-second of ConfigMap config-reschedule lets only 1 delivery start a second, of all sources of namespace rate together",
		"why", "-n", "rate", "a")
}
