package sources

import (
	"strings"
	"testing"
)

// A bad file is refused, and the error names the fault.
func TestFile_RefusalNamesTheFault(t *testing.T) {
	t.Parallel()
	a := manifestOf("a", "")
	with := func(old, text string) string { return strings.Replace(a, old, text, 1) }
	for _, c := range []struct {
		name, text string
		want       []string // parts of the error, which has as many lines
	}{
		{"broken YAML", "a: [", []string{"f: document 1: yaml: line 1"}},
		{"broken JSON", `{"a": ]`, []string{"f: document 1: "}},
		{"a scalar", "hello", []string{"document 1: is not an object"}},
		{"a sequence", "[1]", []string{"document 1: is not an object"}},
		{"no kind", "metadata: {name: a}", []string{`document 1 (a): kind: "" is not RescheduleSource`}},
		{"another kind", with("RescheduleSource", "Service"), []string{`document 1 (a): kind: "Service"`}},
		{"another version", with("v1alpha1", "v1"), []string{`apiVersion: "sources.reschedule.dev/v1"`}},
		{"another group", with("sources.reschedule.dev", "sources.knative.dev"), []string{`apiVersion: "sources.knative.dev/v1alpha1"`}},
		{"no metadata", with("metadata: {name: a}\n", ""), []string{"metadata.name: is missing"}},
		{"a generated name", with("{name: a}", "{generateName: a}"), []string{"metadata.name: is missing"}},
		{"a name with a slash", with("{name: a}", "{name: a/b}"), []string{`(a/b): metadata.name: "a/b"`}},
		{"a name in capitals", with("{name: a}", "{name: Abc}"), []string{`metadata.name: "Abc"`}},
		{"a name that is a dot", with("{name: a}", "{name: ..}"), []string{`metadata.name: ".."`}},
		{"a name with a line break", with("{name: a}", `{name: "a\nb"}`), []string{`("a\nb"): metadata.name: "a\nb"`}},
		{"a namespace with a dot", with("{name: a}", "{name: a, namespace: x.y}"), []string{`(x.y/a): metadata.namespace: "x.y"`}},
		{"a uid with a slash", with("{name: a}", "{name: a, uid: default/b}"), []string{`metadata.uid: "default/b"`}},
		{"unknown metadata", with("{name: a}", "{name: a, nmaespace: x}"), []string{`unknown field "metadata.nmaespace"`}},
		{"an unknown field", a + "more: 1\n", []string{`document 1 (a): unknown field "more"`}},
		{"unknown fields of spec", manifestOf("a", "delai: 5s\nSuspend: true\nlimits: {max: 1}"), []string{
			`unknown field "spec.Suspend"`, `unknown field "spec.delai"`, `unknown field "spec.limits.max"`}},
		{"an unknown field of a sink", with("{uri: 'http://sink.example'}", "{uri: 'http://x', url: x}"), []string{`unknown field "spec.sink.url"`}},
		{"a key twice", manifestOf("a", "delay: 1s\ndelay: 2s"), []string{`document 1: line 7: key "delay" already set`}},
		{"many keys twice", strings.Repeat("a: 1\n", 100), []string{`document 1: line 2: key "a" already set in map; line 3: key "a" already set in map; line 4: key "a" already set in map; line 5: key "a" already set in map; line 6: key "a" already set in map; and 94 more`}},
		{"a key twice in JSON", `{"apiVersion":"sources.reschedule.dev/v1alpha1","kind":"RescheduleSource","metadata":{"name":"a","name":"b"}}`, []string{`duplicate field "metadata.name"`}},
		{"a key that is a sequence", "? [a]\n: b", []string{"document 1: yaml: invalid map key"}},
		{"a key that is null", "~: b", []string{"document 1: has a key that is null"}},
		{"a key written two ways", "1: a\n'1': b", []string{`document 1: has the key "1" twice`}},
		{"a value that JSON has not", manifestOf("a", "delay: .inf"), []string{"document 1: has a value that JSON does not know"}},
		{"a bare number as delay", manifestOf("a", "delay: 30"), []string{"spec.delay: is a number where a string belongs"}},
		{"a bare number as maxInterval", manifestOf("a", "maxInterval: 0"), []string{"spec.maxInterval: is a number"}},
		{"a numeric string", manifestOf("a", "delay: '30'"), []string{`spec.delay: "30" is not a duration`}},
		{"a number as extension", manifestOf("a", "ceOverrides: {extensions: {priority: 5}}"), []string{"spec.ceOverrides.extensions: is a number"}},
		{"a fraction as limit", manifestOf("a", "limits: {maxInFlight: 1.5}"), []string{"spec.limits.maxInFlight: is a number 1.5"}},
		{"a limit that overflows", manifestOf("a", "limits: {maxPerSecond: 3000000000}"), []string{"spec.limits.maxPerSecond: is a number 3000000000"}},
		{"a string as retry", manifestOf("a", "delivery: {retry: '5'}"), []string{"spec.delivery.retry: is a string"}},
		{"a word as suspend", manifestOf("a", "suspend: maybe"), []string{"spec.suspend: is a string where a bool belongs"}},
		{"more than 100 years", manifestOf("a", "delay: 876601h\nmaxInterval: P36526D\ndelivery: {timeout: P36526D}"), []string{
			`spec.delivery.timeout: "P36526D" is more than 100 years`, `spec.delay: "876601h" is more than 100 years`, `spec.maxInterval: "P36526D" is more than 100 years`}},
		{"no spec", "apiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\nmetadata: {name: a}", []string{"spec.sink.ref, spec.sink.uri: expected at least one"}},
		{"a reference", with("{uri: 'http://sink.example'}", "{ref: {apiVersion: v1, kind: Service, name: x}}"), []string{"spec.sink.ref: needs a cluster"}},
		{"a reference for dead letters", manifestOf("a", "delivery: {deadLetterSink: {ref: {apiVersion: v1, kind: Service, name: x}}}"), []string{"spec.delivery.deadLetterSink.ref: needs a cluster"}},
		{"an audience", with("example'}", "example', audience: x}"), []string{"spec.sink.audience: needs a cluster"}},
		{"a relative uri", with("http://sink.example", "/path"), []string{`spec.sink.uri: "/path" is not an absolute http`}},
		{"a uri without a scheme", with("http://sink.example", "//x"), []string{`spec.sink.uri: "//x" is not an absolute http`}},
		{"a uri with spaces", with("http://sink.example", "http://a b"), []string{`spec.sink.uri: invalid character " "`}},
		{"a dead letter uri with spaces", manifestOf("a", "delivery: {deadLetterSink: {uri: 'http://a b'}}"), []string{`spec.delivery.deadLetterSink.uri: invalid character " "`}},
		{"a uri of another scheme", with("http://sink.example", "ftp://x"), []string{`spec.sink.uri: "ftp://x" is not an absolute http or https URL`}},
		{"a dead letter uri of another scheme", manifestOf("a", "delivery: {deadLetterSink: {uri: 'ftp://x'}}"), []string{`spec.delivery.deadLetterSink.uri: "ftp://x"`}},
		{"a uri with a port and no host", with("http://sink.example", "http://:80"), []string{`spec.sink.uri: "http://:80" is not`}},
		{"a uri with a port that is none", with("http://sink.example", "http://x:65536"), []string{`spec.sink.uri: "http://x:65536" is not`}},
		{"a password in a bad uri", with("http://sink.example", "ftp://u:secret@x"), []string{"ftp://u:xxxxx@x"}},
		{"a uri that is a number", with("'http://sink.example'", "5"), []string{"spec.sink.uri: is a number"}},
		{"watch", manifestOf("a", "watch: {resources: [{apiVersion: v1, kind: Secret}]}"), []string{"spec.watch: needs a cluster"}},
		{"scale", manifestOf("a", "scale: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: a}}"), []string{"spec.scale: needs a cluster"}},
		{"a watch that is bad in itself", manifestOf("a", "watch: {namespaceSelector: {matchLabels: {a: ' '}}, resources: [{apiVersion: a/b/c, kind: Secret}], resync: {over: soon}}"),
			[]string{"spec.watch: needs a cluster", "spec.watch.namespaceSelector: ", "spec.watch.resources[0].apiVersion: ", "spec.watch.resync.over: "}},
		{"an override of id", manifestOf("a", "ceOverrides: {extensions: {id: x}}"), []string{"spec.ceOverrides.extensions.id: "}},
		{"the same name twice", a + "---\n" + a, []string{"document 2 (a): metadata.name: default/a already belongs to document 1 (a)"}},
		{"the same name, once spelt out", a + "---\n" + with("{name: a}", "{name: a, namespace: default, uid: x}"), []string{"document 2 (default/a): metadata.name: default/a already"}},
		{"the same uid twice", with("{name: a}", "{name: a, uid: x}") + "---\n" + with("{name: a}", "{name: b, uid: x}"), []string{`document 2 (b): metadata.uid: "x" already belongs to document 1 (a)`}},
		{"a bad item of a list", `{"apiVersion":"v1","kind":"List","items":[{"kind":"Pod"},null]}`, []string{`document 1, item 1: kind: "Pod"`, "document 1, item 2: is not an object"}},
		{"a list in a list", `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"List"}]}`, []string{`document 1, item 1: kind: "List"`}},
		{"an unknown field of a list", `{"apiVersion":"v1","kind":"List","itmes":[]}`, []string{`document 1: unknown field "itmes"`}},
		{"a list whose items are none", `{"apiVersion":"v1","kind":"List","items":5}`, []string{"document 1: items: is a number"}},
		{"what follows an end marker", a + "...\nmore\n", []string{"document 2: yaml: line 6: did not find expected <document start>"}},
		{"faults of several documents", manifestOf("a", "delay: x") + "---\n" + manifestOf("b", "") + "---\n" + manifestOf("c", "delay: v\nsuspend: true\nmaxInterval: w"), []string{
			`document 1 (a): spec.delay: "x"`, `document 3 (c): spec.delay: "v"`, `document 3 (c): spec.maxInterval: "w"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse("f", []byte(c.text), nil)
			if err == nil {
				t.Fatalf("accepted: %+v", got)
			}
			if got != nil {
				t.Errorf("an error and %d sources", len(got))
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(c.want) {
				t.Errorf("%d problems reported, want %d:\n%v", len(lines), len(c.want), err)
			}
			for _, line := range lines {
				if !strings.HasPrefix(line, "sources: f: document ") {
					t.Errorf("%q does not say where", line)
				}
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error lacks %q:\n%v", want, err)
				}
			}
		})
	}
}

// The number of reported problems is bounded.
func TestFile_ReportsABoundedNumber(t *testing.T) {
	t.Parallel()
	_, err := Parse("f", []byte(strings.Repeat("--- x\n", 1000)), nil)
	if err == nil {
		t.Fatal("accepted")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != maxProblems+1 || lines[maxProblems] != "sources: f: and 950 problems more" {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
}

// A long value is cut in the error.
func TestFile_CutsALongValueInErrors(t *testing.T) {
	t.Parallel()
	_, err := Parse("f", []byte(manifestOf("a", "delay: "+strings.Repeat("x", 1<<20))), nil)
	if err == nil || len(err.Error()) > 500 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}

// Aliases that multiply are refused.
func TestFile_RefusesMultiplyingAliases(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nested":  "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n",
		"long":    "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a,", 100) + "]\n",
		"endless": "a: &a [*a]\n",
	} {
		if _, err := Parse("f", []byte(text), nil); err == nil || !(strings.Contains(err.Error(), "alias") || strings.Contains(err.Error(), "anchor")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
