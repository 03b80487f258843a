package sources

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// manifestOf is a document with the given name and further lines of spec.
func manifestOf(name, spec string) string {
	return "apiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\nmetadata: {name: " + name + "}\nspec:\n" +
		"  sink: {uri: 'http://sink.example'}\n" + indent(spec)
}

func indent(lines string) string {
	if lines == "" {
		return ""
	}
	return "  " + strings.ReplaceAll(strings.TrimSuffix(lines, "\n"), "\n", "\n  ") + "\n"
}

// defaults is what manifestOf(name, "") comes to.
func defaults(name string) *schedule.Spec {
	return &schedule.Spec{
		UID: "default/" + name, Namespace: "default", Name: name,
		Targets: schedule.Targets{Sink: schedule.Target{URL: "http://sink.example"}},
		Delivery: schedule.Delivery{
			BackoffDelay: schedule.DefaultBackoffDelay, Timeout: schedule.DefaultTimeout,
		},
		Policy: schedule.Replace, Ingest: schedule.Ingest{Policy: schedule.Earliest, Policies: []schedule.Policy{schedule.Earliest, schedule.Keep}, MaxDelay: 365 * 24 * time.Hour},
		Waking:  schedule.Waking{Company: schedule.DefaultCompany},
		Letters: schedule.Letters{Keep: 100, MaxAge: 168 * time.Hour},
		Limits:  schedule.Limits{MaxInFlight: schedule.DefaultMaxInFlight, MaxPending: schedule.DefaultMaxPending},
	}
}

func fullExample() *schedule.Spec {
	retry, max, longest := 20, 5*time.Minute, 15*time.Minute
	return &schedule.Spec{
		UID: "ops/git-repos", Namespace: "ops", Name: "git-repos",
		Targets:    schedule.Targets{Sink: schedule.Target{URL: "https://git-repo-operator.example:8443/run"}, DeadLetter: &schedule.Target{URL: "http://dead-letters.example"}},
		Extensions: map[string]string{"team": "platform"},
		Delivery: schedule.Delivery{
			Retry: &retry, BackoffDelay: time.Second, Timeout: 10 * time.Minute, RetryAfterMax: &max, BackoffMax: &longest,
		},
		Policy: schedule.Replace, MaxInterval: 10 * time.Hour, Waking: schedule.Waking{Company: schedule.DefaultCompany},
		Ingest: schedule.Ingest{
			Key: "event.kind + '/' + event.namespace + '/' + event.name", When: "event.data.metadata.generation != event.data.status.observedGeneration",
			Policy: schedule.Earliest, Policies: []schedule.Policy{schedule.Earliest, schedule.Keep}, MaxDelay: 365 * 24 * time.Hour,
		},
		Letters: schedule.Letters{Keep: 100, MaxAge: 168 * time.Hour},
		Limits:  schedule.Limits{MaxInFlight: 100, MaxPending: 1000000, MaxBytes: 10 << 30},
	}
}

// The example of the contract is read from a file.
func TestFile_ReadsTheExample(t *testing.T) {
	t.Parallel()
	got, _, err := ReadFile("testdata/full.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]*schedule.Spec{fullExample()}, got); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
}

// The example means the same in JSON.
func TestFile_ReadsJSON(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if data, err = yaml.YAMLToJSON(data); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"an object": string(data),
		"a list":    `{"apiVersion":"v1","kind":"List","metadata":{"resourceVersion":""},"items":[` + string(data) + `]}`,
	} {
		got, err := Parse("f", []byte("\n "+text+"\n"), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff([]*schedule.Spec{fullExample()}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A file is read document by document.
func TestFile_IsReadDocumentByDocument(t *testing.T) {
	t.Parallel()
	a, b := manifestOf("a", ""), manifestOf("b", "")
	item := func(m string) string { return "- " + indent(m)[2:] }
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"one", a, []string{"a"}},
		{"two", a + "---\n" + b, []string{"a", "b"}},
		{"two in the file's order", "---\n" + b + "--- # next\n" + a + "---\n", []string{"b", "a"}},
		{"an end marker", a + "...\n" + "---\n" + b + "...\n", []string{"a", "b"}},
		{"a directive", "%YAML 1.1\n---\n" + a, []string{"a"}},
		{"carriage returns", strings.ReplaceAll(a+"---\n"+b, "\n", "\r\n"), []string{"a", "b"}},
		{"carriage returns alone", strings.ReplaceAll(a+"---\n"+b, "\n", "\r"), []string{"a", "b"}},
		{"a byte order mark", "\ufeff" + a, []string{"a"}},
		{"a list", "apiVersion: v1\nkind: List\nitems:\n" + item(a) + item(b), []string{"a", "b"}},
		{"an empty list", "apiVersion: v1\nkind: List\nitems: []\n", nil},
		{"a list of the kind", "apiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSourceList\nitems:\n" + item(a), []string{"a"}},
		{"a list beside an object", "apiVersion: v1\nkind: List\nitems:\n" + item(a) + "---\n" + b, []string{"a", "b"}},
		{"what looks like a separator", manifestOf("a", "ingest:\n  when: |\n    ---\n    true\n"), []string{"a"}},
		{"other metadata", strings.Replace(a, "{name: a}", "{name: a, labels: {x: 'y'}, annotations: {x: 'y'}, generation: 3, resourceVersion: '5', creationTimestamp: '2026-01-01T00:00:00Z', managedFields: [{manager: m}]}", 1), []string{"a"}},
		{"an anchor and its alias", manifestOf("a", "delay: &d 5s\nmaxInterval: *d"), []string{"a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse("f", []byte(c.text), nil)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, src := range got {
				names = append(names, src.Name)
			}
			if diff := cmp.Diff(c.want, names); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
		})
	}
}

// Every field of the spec has its meaning.
func TestFile_EveryFieldHasItsMeaning(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		spec string
		set  func(*schedule.Spec)
	}{
		{"", func(*schedule.Spec) {}},
		{"delivery: {}\ningest: {}\nlimits: {}\nceOverrides: {}\n", func(*schedule.Spec) {}},
		{"delivery: null\ndelay: null", func(*schedule.Spec) {}},
		{"delivery: {retry: 0}", func(s *schedule.Spec) { s.Delivery.Retry = new(int) }},
		{"delivery: {backoffPolicy: linear}", func(s *schedule.Spec) { s.Delivery.Linear = true }},
		{"delivery: {backoffPolicy: exponential}", func(*schedule.Spec) {}},
		{"delivery: {backoffDelay: PT0.2S}", func(s *schedule.Spec) { s.Delivery.BackoffDelay = 200 * time.Millisecond }},
		{"delivery: {timeout: P1DT1H}", func(s *schedule.Spec) { s.Delivery.Timeout = 25 * time.Hour }},
		{"delivery: {backoffMax: PT15M}", func(s *schedule.Spec) { most := 15 * time.Minute; s.Delivery.BackoffMax = &most }},
		{"delivery: {retryAfterMax: PT0S}", func(s *schedule.Spec) { s.Delivery.RetryAfterMax = new(time.Duration) }},
		{"delivery: {format: json}", func(s *schedule.Spec) { s.Delivery.Structured = true }},
		{"delivery: {format: binary}", func(*schedule.Spec) {}},
		{"delivery: {deadLetterSink: {uri: 'https://[::1]:9/x?y=z'}}", func(s *schedule.Spec) {
			s.DeadLetter = &schedule.Target{URL: "https://[::1]:9/x?y=z"}
		}},
		{"delay: 5m30s", func(s *schedule.Spec) { s.Delay = 330 * time.Second }},
		{"delay: PT5M30S", func(s *schedule.Spec) { s.Delay = 330 * time.Second }},
		{"delay: 0.1ns", func(s *schedule.Spec) { s.Delay = 1 }},
		{"maxInterval: P36525D", func(s *schedule.Spec) { s.MaxInterval = schedule.MaxDuration }},
		{"conflictPolicy: latest", func(s *schedule.Spec) { s.Policy = schedule.Latest }},
		{"ingest: {conflictPolicy: keep}", func(s *schedule.Spec) { s.Ingest.Policy = schedule.Keep }},
		{"ingest: {key: event.id, when: 'false'}", func(s *schedule.Spec) { s.Ingest.Key, s.Ingest.When = "event.id", "false" }},
		{"ingest: {policies: []}", func(s *schedule.Spec) { s.Ingest.Policies = []schedule.Policy{} }},
		{"ingest: {policies: [latest, fail]}", func(s *schedule.Spec) { s.Ingest.Policies = []schedule.Policy{schedule.Latest, schedule.Fail} }},
		{"deadLetters: {keep: 0}", func(s *schedule.Spec) { s.Letters.Keep = 0 }},
		{"deadLetters: {maxAge: P1D}", func(s *schedule.Spec) { s.Letters.MaxAge = 24 * time.Hour }},
		{"slack: 10m", func(s *schedule.Spec) { s.Slack = 10 * time.Minute }},
		{"schedule: {cron: '@hourly'}", func(s *schedule.Spec) { s.Calendar = &schedule.Calendar{Cron: "@hourly"} }},
		{"schedule: {cron: 0 9 * * MON, timeZone: Europe/Berlin}", func(s *schedule.Spec) {
			s.Calendar = &schedule.Calendar{Cron: "0 9 * * MON", TimeZone: "Europe/Berlin"}
		}},
		{"warmUp: 3s", func(s *schedule.Spec) { s.WarmUp = 3 * time.Second }},
		{"jitter: 0.25", func(s *schedule.Spec) { s.Jitter = 0.25 }},
		{"ingest: {maxDelay: PT1H}", func(s *schedule.Spec) { s.Ingest.MaxDelay = time.Hour }},
		{"ingest: {authentication: required}", func(s *schedule.Spec) { s.Ingest.NeedsToken = true }},
		{"ingest: {authentication: cluster}", func(*schedule.Spec) {}},
		{"access: rbac", func(s *schedule.Spec) { s.RBACOnly = true }},
		{"audit: true", func(s *schedule.Spec) { s.Audit = true }},
		{"limits: {maxBytes: 10Gi}", func(s *schedule.Spec) { s.MaxBytes = 10 << 30 }},
		{"limits: {maxBytes: 4096}", func(s *schedule.Spec) { s.MaxBytes = 4096 }},
		{"limits: {maxInFlight: 1}", func(s *schedule.Spec) { s.MaxInFlight = 1 }},
		{"limits: {maxPerSecond: 7}", func(s *schedule.Spec) { s.MaxPerSecond = 7 }},
		{"limits: {maxPending: 5000000000}", func(s *schedule.Spec) { s.MaxPending = 5000000000 }},
		{"suspend: true", func(s *schedule.Spec) { s.Suspend = true }},
		{"ceOverrides: {extensions: {a: b, c: ''}}", func(s *schedule.Spec) { s.Extensions = map[string]string{"a": "b", "c": ""} }},
	} {
		t.Run(c.spec, func(t *testing.T) {
			t.Parallel()
			got, err := Parse("f", []byte(manifestOf("a", c.spec)), nil)
			if err != nil {
				t.Fatal(err)
			}
			want := defaults("a")
			c.set(want)
			if diff := cmp.Diff([]*schedule.Spec{want}, got); diff != "" {
				t.Errorf("source (-want +got):\n%s", diff)
			}
		})
	}
}

// An object keeps its own uid.
func TestFile_KeepsAUID(t *testing.T) {
	t.Parallel()
	const id = "0b7f7d0e-6a4f-4f39-9f2e-3f1f7c1f0f11"
	text := strings.Replace(manifestOf("a", ""), "{name: a}", "{name: a.b, namespace: ops, uid: "+id+"}", 1)
	got, err := Parse("f", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].UID != id || got[0].Path() != "ops/a.b" {
		t.Errorf("uid %q of %q", got[0].UID, got[0].Path())
	}
}

// JSON may hold what YAML cannot.
func TestFile_ReadsJSONThatIsNoYAML(t *testing.T) {
	t.Parallel()
	raw, err := json.Marshal(map[string]any{
		"apiVersion": "sources.reschedule.dev/v1alpha1", "kind": "RescheduleSource", "metadata": map[string]any{"name": "a"},
		"spec": map[string]any{"sink": map[string]any{"uri": "http://x"}, "ceOverrides": map[string]any{"extensions": map[string]any{"a": "EMOJI"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse("f", []byte(strings.Replace(string(raw), "EMOJI", `\ud83d\ude00`, 1)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Extensions["a"] != "😀" {
		t.Errorf("extension is %q", got[0].Extensions["a"])
	}
}

// A file that is empty or cut says nothing about which sources are wanted.
func TestFile_EmptyOrCutIsRefused(t *testing.T) {
	t.Parallel()
	a := manifestOf("a", "")
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "items"},
		{"only blanks", "\n \n", "items"},
		{"only comments", "# nothing\n", "items"},
		{"only separators", "---\n---\n# nothing\n---\n", "items"},
		{"null", "null\n", "items"},
		{"an empty list", "apiVersion: v1\nkind: List\nitems: []\n", ""},
		{"an empty list in JSON", `{"apiVersion": "v1", "kind": "List", "items": []}` + "\n", ""},
		{"whole JSON, without a line end", `{"apiVersion": "v1", "kind": "List", "items": []}`, ""},
		{"JSON and a second document, cut", `{"apiVersion": "v1", "kind": "List", "items": []}` + "\n---", "no end"},
		{"a list cut before its items", "apiVersion: v1\nkind: List\nitems:\n", "items: is missing"},
		{"a list cut before that", "apiVersion: v1\nkind: List\n", "items: is missing"},
		{"a document cut in a line", a + "---\n" + strings.TrimSuffix(a, "\n"), "no end"},
		{"a second document cut after its head", a + "---\napiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\n", "metadata"},
		{"JSON cut", `{"apiVersion": "v1", "kind": "List", "items": [`, "no end"},
	} {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, _, err := ReadFile(path, nil)
		switch {
		case c.want == "" && (err != nil || len(got) != 0):
			t.Errorf("%s: %v %v", c.name, got, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// A file is read up to its bound.
func TestFile_IsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "big.yaml")
	text := manifestOf("a", "")
	big := text + "#" + strings.Repeat("x", MaxFileBytes-len(text)-2) + "\n"
	for _, c := range []struct {
		text string
		ok   bool
	}{{big, true}, {big + "\n", false}} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := ReadFile(path, nil)
		if (err == nil) != c.ok {
			t.Errorf("%d bytes: %v", len(c.text), err)
		}
		if err != nil && !strings.Contains(err.Error(), "16 MiB") {
			t.Errorf("%q does not name the bound", err)
		}
	}
}

// The error of a file that cannot be read names it.
func TestFile_ErrorNamesIt(t *testing.T) {
	t.Parallel()
	for _, path := range []string{filepath.Join(t.TempDir(), "absent.yaml"), t.TempDir()} {
		if _, _, err := ReadFile(path, nil); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// For any file Parse returns an error alone, or complete sources with distinct UIDs.
func FuzzParse(f *testing.F) {
	full, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	for _, seed := range []string{
		"", "---\n", "null", "[]", "{", "\x00", "%YAML 1.1\n---\n", "a: &a [*a]", "? [a]\n: b\n", "!!binary /w==: 1", "a: .inf",
		manifestOf("a", "delay: 30\nlimits: {maxPending: -1}"), manifestOf("a", "") + "---\n" + manifestOf("a", ""),
		"apiVersion: v1\nkind: List\nitems: [1, {}, null]\n",
		fmt.Sprintf(`{"apiVersion":"v1","kind":"List","items":[%q]}`, "x"),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := Parse("f", data, nil)
		if err != nil && got != nil {
			t.Fatal("an error and sources")
		}
		seen := map[string]bool{}
		for _, src := range got {
			if src.Path() == "/" || seen[src.UID] || src.Sink.URL == "" || src.MaxInFlight < 1 || src.MaxPending < 1 ||
				src.Delivery.Timeout <= 0 || src.Delay < 0 || src.Delay > schedule.MaxDuration || src.Policy == "" || src.Ingest.Policy == "" {
				t.Fatalf("a source that is none: %+v", src)
			}
			seen[src.UID] = true
		}
	})
}
