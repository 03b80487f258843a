package manifests

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	strictjson "sigs.k8s.io/json"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// A field of the spec, and where its value stands in one; SINK is a sink that is valid.
type specField struct{ path, spec string }

var specFields = []specField{
	{"sink", `"sink":%s`},
	{"sink.uri", `"sink":{"uri":%s}`},
	{"sink.CACerts", `"sink":{"uri":"http://x","CACerts":%s}`},
	{"ceOverrides", `SINK,"ceOverrides":%s`},
	{"ceOverrides.extensions", `SINK,"ceOverrides":{"extensions":%s}`},
	{"ceOverrides.extensions", `SINK,"ceOverrides":{"extensions":{"a":%s}}`},
	{"delivery", `SINK,"delivery":%s`},
	{"delivery.retry", `SINK,"delivery":{"retry":%s}`},
	{"delivery.backoffPolicy", `SINK,"delivery":{"backoffPolicy":%s}`},
	{"delivery.backoffDelay", `SINK,"delivery":{"backoffDelay":%s}`},
	{"delivery.timeout", `SINK,"delivery":{"timeout":%s}`},
	{"delivery.retryAfterMax", `SINK,"delivery":{"retryAfterMax":%s}`},
	{"delivery.backoffMax", `SINK,"delivery":{"backoffMax":%s}`},
	{"delivery.format", `SINK,"delivery":{"format":%s}`},
	{"delivery.deadLetterSink", `SINK,"delivery":{"deadLetterSink":%s}`},
	{"delivery.deadLetterSink.uri", `SINK,"delivery":{"deadLetterSink":{"uri":%s}}`},
	{"delay", `SINK,"delay":%s`},
	{"maxInterval", `SINK,"maxInterval":%s`},
	{"conflictPolicy", `SINK,"conflictPolicy":%s`},
	{"ingest", `SINK,"ingest":%s`},
	{"ingest.key", `SINK,"ingest":{"key":%s}`},
	{"ingest.when", `SINK,"ingest":{"when":%s}`},
	{"ingest.conflictPolicy", `SINK,"ingest":{"conflictPolicy":%s}`},
	{"ingest.policies", `SINK,"ingest":{"policies":%s}`},
	{"ingest.policies", `SINK,"ingest":{"policies":[%s]}`},
	{"ingest.maxDelay", `SINK,"ingest":{"maxDelay":%s}`},
	{"ingest.authentication", `SINK,"ingest":{"authentication":%s}`},
	{"deadLetters", `SINK,"deadLetters":%s`},
	{"deadLetters.keep", `SINK,"deadLetters":{"keep":%s}`},
	{"deadLetters.maxAge", `SINK,"deadLetters":{"maxAge":%s}`},
	{"warmUp", `SINK,"warmUp":%s`},
	{"jitter", `SINK,"jitter":%s`},
	{"limits", `SINK,"limits":%s`},
	{"limits.maxInFlight", `SINK,"limits":{"maxInFlight":%s}`},
	{"limits.maxPerSecond", `SINK,"limits":{"maxPerSecond":%s}`},
	{"limits.maxPending", `SINK,"limits":{"maxPending":%s}`},
	{"limits.maxBytes", `SINK,"limits":{"maxBytes":%s}`},
	{"access", `SINK,"access":%s`},
	{"audit", `SINK,"audit":%s`},
	{"suspend", `SINK,"suspend":%s`},
}

// Fields that only a cluster serves: a file with one is refused.
var clusterFields = []specField{
	{"sink.ref", `"sink":{"ref":%s}`},
	{"sink.ref.apiVersion", `"sink":{"ref":{"apiVersion":%s,"kind":"Service","name":"x"}}`},
	{"sink.ref.kind", `"sink":{"ref":{"apiVersion":"v1","kind":%s,"name":"x"}}`},
	{"sink.ref.name", `"sink":{"ref":{"apiVersion":"v1","kind":"Service","name":%s}}`},
	{"sink.ref.namespace", `"sink":{"ref":{"apiVersion":"v1","kind":"Service","name":"x","namespace":%s}}`},
	{"sink.ref.address", `"sink":{"ref":{"apiVersion":"v1","kind":"Service","name":"x","address":%s}}`},
	{"sink.uri", `"sink":{"ref":{"apiVersion":"v1","kind":"Service","name":"x"},"uri":%s}`},
	{"sink.audience", `"sink":{"uri":"http://x","audience":%s}`},
	{"watch", `SINK,"watch":%s`},
	{"watch.serviceAccountName", `SINK,"watch":{"serviceAccountName":%s,"resources":[{"apiVersion":"v1","kind":"Secret"}]}`},
	{"watch.resources", `SINK,"watch":{"resources":%s}`},
	{"watch.resources", `SINK,"watch":{"resources":[%s]}`},
	{"watch.resources[0].apiVersion", `SINK,"watch":{"resources":[{"apiVersion":%s,"kind":"Secret"}]}`},
	{"watch.resources[0].kind", `SINK,"watch":{"resources":[{"apiVersion":"v1","kind":%s}]}`},
	{"watch.resources[0].key", `SINK,"watch":{"resources":[{"apiVersion":"v1","kind":"Secret","key":%s}]}`},
	{"watch.resources[0].changes", `SINK,"watch":{"resources":[{"apiVersion":"v1","kind":"Secret","changes":%s}]}`},
	{"watch.resources[0].owner", `SINK,"watch":{"resources":[{"apiVersion":"v1","kind":"Secret","owner":%s}]}`},
	{"watch.resources[0].selector", `SINK,"watch":{"resources":[{"apiVersion":"v1","kind":"Secret","selector":%s}]}`},
	{"watch.resync", `SINK,"watch":{"resources":[{"apiVersion":"v1","kind":"Secret"}],"resync":%s}`},
	{"watch.resync.onRevision", `SINK,"watch":{"resources":[{"apiVersion":"v1","kind":"Secret"}],"resync":{"onRevision":%s}}`},
	{"watch.resync.over", `SINK,"watch":{"resources":[{"apiVersion":"v1","kind":"Secret"}],"resync":{"over":%s}}`},
}

func (f specField) manifest(value string) string {
	return `{"apiVersion":"sources.reschedule.dev/v1alpha1","kind":"RescheduleSource","metadata":{"name":"git-repos","namespace":"ops"},"spec":{` +
		fmt.Sprintf(strings.ReplaceAll(f.spec, "SINK", `"sink":{"uri":"http://x"}`), value) + "}}"
}

// urls are tried in every field that is a URL: an object that a Go program cannot decode would stop every informer of the
// sources, so whatever URL the API server takes has to be readable.
var urls = []string{
	":", "::", ":a", "1:a", "a:b:c", "%", "%zz", "a%", "a%2", "/%zz", "?%zz", "#%zz", "a#%", "a?b#%zz", "/a:b", "a b", "a\tb", "a\x7fb", "\n", "ü", "//", "///", "//[", "//[::1", "?", "#",
	"http:", "http:/", "http://", "http://[", "http://]", "http://[::1", "http://[::1]]", "http://[::1]:", "http://[::1]:a", "http://[fe80::1%25eth0]/", "http://[1:2]", "http://[::1#]", "http://[v1.x]",
	"http://x:y", "http://x:", "http://x:-1", "http://%41", "http://%zz", "http://a<b", "http://a\\b", "http://u:p@", "http://u#@[::1", "http://u%zz@x", "http://x#%zz", "http://x/#%", "http://x?#%zz",
	"http://x\x00", "http://ü", "http://x/\x7f", "http://x y", "http://x/a b", "http://[::1]x", "http://[::ffff:1.2.3.4]/", "http://x:080", "HTTP://X", "ht tp://x", "-http://x", "http//x",
	"http://:80", "http:///path", "mailto:x@y", "x.example", "http://x:80:80", "http://[::1]:80/", "path", "?a=b", "//x/path",
}

// strictURLs are URLs that the API server's reader refuses and Go's does not, which no user will miss.
var strictURLs = []string{`"http://]"`, `"http://[fe80::1%25eth0]/"`, `"http://u#@[::1"`, `"http://[::ffff:1.2.3.4]/"`, `"http://x:080"`, `"//"`, `"///"`}

// centuries are a hundred years in every unit, and a little more: the rules add up durations in floating point, unit by
// unit. They are tried in every field that is a duration.
var centuries = []string{
	"876600h1s", "52596000m", "52596000m1s", "3155760000s", "3155760001s", "876599h59m59s999ms", "876599h59m59s1001ms",
	"876599h59m59s999000us", "876599h59m59s1001000us", "876599h59m59s999000µs", "876599h59m59s1001000µs", // U+00B5
	"876599h59m59s999000μs", "876599h59m59s1001000μs", // U+03BC
	"876599h59m59s999000000ns", "876599h59m59s1001000000ns", "P5217W6D", "P5217W6DT1S", "PT876600H", "PT876600H1S", "PT52596000M", "PT52596000M1S",
	"PT3155760000S", "PT3155760000.1S", "P36524DT23H59M59,9S", "P36524DT23H59M60,1S",
}

// values are what is tried in the field.
func (f specField) values() []string {
	values, texts := specValues(), []string(nil)
	switch name := f.path[strings.LastIndexByte(f.path, '.')+1:]; name {
	case "uri":
		texts = urls
	case "extensions":
		for _, name := range []string{"source", "type", "specversion", "subject", "time", "datacontenttype", "dataschema", "data", "reschedulekey", "Id", "a-b", "ä", "a\\n", ""} {
			values = append(values, `{"a":"x","`+name+`":"x"}`)
		}
	case "backoffDelay", "timeout", "retryAfterMax", "backoffMax", "delay", "maxInterval", "maxDelay", "maxAge", "warmUp", "over":
		texts = centuries
	}
	for _, text := range texts {
		raw, _ := json.Marshal(text) // a text
		values = append(values, string(raw))
	}
	return values
}

// specValues are tried in every field: whatever is at a bound or beyond it somewhere, in JSON.
func specValues() []string {
	values := []string{
		"null", "true", "false", "[]", "{}", `{"a":"b"}`, `{"a":1}`, `{"a":"b","a":"c"}`, `{"id":"b"}`, `["keep"]`, `["keep","keep"]`, `["keep",null]`,
		`["replace","earliest","latest","keep","fail"]`, `["replace","earliest","latest","keep","fail","keep"]`, `{"uri":"https://y:65535"}`, `{"over":"1h"}`,
		`{"matchLabels":{"a":"b"}}`, `{"matchLabels":{"a":"-"}}`, `{"apiVersion":"v1","kind":"Secret"}`, `[{"apiVersion":"v1","kind":"Secret"}]`,
		"0", "-0", "1", "-1", "2", "5", "0.5", "1.5", "1000", "1001", "2147483647", "2147483648", "-2147483648", "-2147483649",
		"9007199254740991", "9007199254740992", "9223372036854775807", "9223372036854775808", "1e-400", "1e400", "1e30", "1.0000000000000002", "0.9999999999999999",
	}
	texts := []string{
		"", " ", "0", "1", "-1", "1.5", "true", "null",
		"0s", "-0s", "+1s", "1ns", "0.1ns", "1s", " 1s", "1s ", "1s\n", "1e3s", "1,5s", "1d", "1µs", "1μs", "1s1h", "5.s", ".5s", ".s", "1h1h",
		"876600h", "876600h1ns", "876600h0.0000000001ns", "876600h1ms", "876600h1s", "876601h", "2562047h47m16.854775807s", "2562047h47m16.854775808s", "9223372036854775808ns", strings.Repeat("9", 40) + "s",
		"PT0S", "PT1S", "PT0.000000001S", "PT0.0000000001S", "P0W", "P36525D", "P36525DT1S", "P36525DT0.000000001S", "P5217W", "P5218W", "P1Y", "P1M", "P", "PT", "PT,5S", "P1.5DT1S", "p1d", "-PT1S", "P1DT",
		"replace", "earliest", "latest", "keep", "fail", "Keep", "namespace", "rbac", "cluster", "required", "linear", "exponential", "binary", "json", "Spec", "Metadata", "Any",
		"10Gi", "1n", "1m", "0n", "9Ei", "16Ei", "1e30", "1e-30", "1E", "1Ki5", "0.5", "-1Gi", "Gi",
		"http://x", "HTTP://x", "http://x:65535/", "http://x:65536", "http://x:0", "http://x:", "https://u:p@[::1]:8/a?b#c", "ftp://x", "//x", "/path", "http:", "http://x/%zz", "http://x/\u00e9",
		"default", "a.b-c", "A", "v1", "apps/v1", "Secret", "a\x00b", "\x7f", "\u0085", "\u2028", "\ufffe", "\U0001F600", "event.id", "'a'",
	}
	// At and beyond the bounds on length, in characters of one byte and of two.
	for _, length := range []int{63, 64, 253, 317, 2048, 4096} {
		for _, n := range []int{length, length + 1} {
			texts = append(texts, strings.Repeat("a", n), strings.Repeat("é", n), "http://x/"+strings.Repeat("a", n-len("http://x/")), strings.Repeat("0", n-2)+"1s", "PT"+strings.Repeat("0", n-4)+"1S")
		}
	}
	for _, text := range texts {
		raw, _ := json.Marshal(text) // a text
		values = append(values, string(raw))
	}
	for _, n := range []int{64, 65} {
		many := map[string]string{}
		for i := range n {
			many[fmt.Sprint("x", i)] = "v"
		}
		raw, _ := json.Marshal(many) // texts
		values = append(values, string(raw))
	}
	return append(values, `"\ud800"`, `"\u0031s"`, "\"\xff\"", `"`+strings.Repeat("1", 1<<20)+`s"`)
}

// admitted is the object as an API server stores it and a client reads it; nil when the API server refuses it.
func admitted(t *testing.T, manifest string) *v1alpha1.RescheduleSource {
	t.Helper()
	var tree map[string]any
	if strict, err := strictjson.UnmarshalStrict([]byte(manifest), &tree); err != nil || len(strict) > 0 {
		return nil
	}
	stored, refused := server(t).admit(t.Context(), tree)
	if len(refused) > 0 {
		return nil
	}
	raw, err := json.Marshal(stored)
	if err != nil {
		t.Fatal(err)
	}
	o := &v1alpha1.RescheduleSource{}
	if err := json.Unmarshal(raw, o); err != nil {
		t.Errorf("%.300s: stored, and no client can read it: %v", manifest, err)
		return nil
	}
	return o
}

// written says which values a file alone may have: how a quantity or a null is written is gone when
// the adapter sees it.
func written(path, value string) bool {
	number := !strings.HasPrefix(value, `"`)
	switch path {
	case "sink.uri", "delivery.deadLetterSink.uri":
		return slices.Contains(strictURLs, value)
	case "limits.maxBytes":
		return number && strings.ContainsAny(value, ".e") || value == "9223372036854775808" || !number && (strings.Contains(value, " ") || len(value) > 64)
	}
	return false
}

// nullOverride is an empty value in a file, and in a cluster none: an API server drops what is null.
const nullOverride = `SINK,"ceOverrides":{"extensions":{"a":%s}}null`

// To a schema such a number is an integer. It is stored as it is, and then no Go program can list the sources:
// one author stopped the controller and the adapter for all.
func TestCRD_NearlyWholeNumberStopsNoClient(t *testing.T) {
	t.Parallel()
	for _, f := range specFields {
		switch f.path {
		case "delivery.retry", "deadLetters.keep", "limits.maxInFlight", "limits.maxPerSecond", "limits.maxPending":
			if admitted(t, f.manifest("1.0000000000000002")) != nil || t.Failed() {
				t.Errorf("%s: accepted", f.path)
			}
			if admitted(t, f.manifest("1")) == nil {
				t.Errorf("%s: 1 is refused", f.path)
			}
		}
	}
}

// The API server, and an adapter that reads a file, take the same specs, and make the same source of them. A
// file's refusal names the field.
func TestSpec_FileAndClusterAgree(t *testing.T) {
	t.Parallel()
	ignored := cmpopts.IgnoreFields(schedule.Spec{}, "Sink", "DeadLetter") // in a cluster the status has them
	taken := 0
	for _, f := range specFields {
		for _, value := range f.values() {
			manifest := f.manifest(value)
			o := admitted(t, manifest)
			read, err := sources.Parse("f", []byte(manifest), nil)
			switch {
			case o == nil && err == nil:
				if !written(f.path, value) {
					t.Errorf("%s: %.100s: only a file may have it", f.path, value)
				}
			case o == nil:
				if !strings.Contains(err.Error(), "spec."+f.path) && json.Valid([]byte(manifest)) {
					t.Errorf("%s: %.100s: %v: does not name the field", f.path, value, err)
				}
			case err != nil:
				t.Errorf("%s: %.100s: only a cluster takes it: %v", f.path, value, err)
			default:
				taken++
				served, err := sources.FromObject(o, schedule.Targets{}, nil)
				if err != nil {
					t.Errorf("%s: %.100s: the API server takes it, the adapter does not: %v", f.path, value, err)
				} else if diff := cmp.Diff(read[0], served, ignored); diff != "" && f.spec+value != nullOverride {
					t.Errorf("%s: %.100s: a file and a cluster make two sources of it: %s", f.path, value, diff)
				}
			}
		}
	}
	if taken < 10*len(specFields) {
		t.Errorf("only %d specs were taken", taken)
	}
}

// The adapter serves whatever of these fields the API server takes.
func TestSpec_AdapterServesWhatIsAdmitted(t *testing.T) {
	t.Parallel()
	taken := 0
	for _, f := range clusterFields {
		for _, value := range f.values() {
			manifest := f.manifest(value)
			o := admitted(t, manifest)
			if o == nil {
				var same v1alpha1.RescheduleSource
				strict, err := strictjson.UnmarshalStrict([]byte(manifest), &same)
				if err != nil || len(strict) > 0 || written(f.path, value) || f.path == "watch.serviceAccountName" && value == `""` { // in Go as if it were absent
					continue
				}
				if _, err := sources.FromObject(&same, schedule.Targets{}, nil); err == nil {
					t.Errorf("%s: %.100s: the API server refuses it, the adapter does not", f.path, value)
				}
				continue
			}
			taken++
			if _, err := sources.FromObject(o, schedule.Targets{}, nil); err != nil {
				t.Errorf("%s: %.100s: the API server takes it, the adapter does not: %v", f.path, value, err)
			}
		}
	}
	if taken < 5*len(clusterFields) {
		t.Errorf("only %d specs were taken", taken)
	}
}
