package manifests

import (
	"cmp"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	crdv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	strictjson "sigs.k8s.io/json"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// specField is a field of the spec in the schema, or what stands in one that is a list or a map.
type specField struct {
	path   string
	schema *schema.Structural
	spec   string // a spec that is valid but for the field's value, %s
	entry  bool   // of a map
}

// specFields are all of them, those inside of a field after it.
func specFields(t *testing.T) (all []specField) {
	t.Helper()
	root := server(t).schema.Properties["spec"]
	var walk func(specField)
	walk = func(f specField) {
		s := f.schema
		if f.path != "" {
			all = append(all, f)
		}
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			property := s.Properties[name]
			path := strings.TrimPrefix(f.path+"."+name, ".")
			spec := fmt.Sprintf(f.spec, "{"+beside(s, name)+fmt.Sprintf("%q:%%s}", name))
			if path == "scale.busy" { // only without a sink, and then a source must watch
				sink, watch := root.Properties["sink"], root.Properties["watch"]
				spec = strings.Replace(spec, `"sink":`+example(&sink, ""), `"watch":`+example(&watch, ""), 1)
			}
			walk(specField{path, &property, spec, false})
		}
		if s.Items != nil {
			item := specField{f.path, s.Items, fmt.Sprintf(f.spec, "[%s]"), false}
			if len(s.Items.Properties) > 0 {
				item.path += "[0]"
			}
			walk(item)
		}
		if s.AdditionalProperties != nil {
			walk(specField{f.path, s.AdditionalProperties.Structural, fmt.Sprintf(f.spec, `{"a":%s}`), true})
		}
	}
	walk(specField{"", &root, "%s", false})
	return all
}

// examples are values of the fields that others need, by name.
var examples = map[string]string{
	"uri": `"http://x"`, "apiVersion": `"v1"`, "kind": `"Secret"`, "name": `"x"`, "key": `"a"`, "operator": `"In"`, "values": `["b"]`, "port": "1",
	"cron": `"@hourly"`,
}

// beside is the start of an object in which the field of that name is valid: the fields that it needs.
func beside(s *schema.Structural, name string) string {
	var text strings.Builder
	for _, other := range slices.Sorted(maps.Keys(s.Properties)) {
		needed := other == "values" || other == "sink" || other == "uri" && name != "ref" ||
			s.ValueValidation != nil && slices.Contains(s.ValueValidation.Required, other)
		if needed && other != name {
			property := s.Properties[other]
			fmt.Fprintf(&text, "%q:%s,", other, example(&property, other))
		}
	}
	return text.String()
}

func example(s *schema.Structural, name string) string {
	switch {
	case examples[name] != "":
		return examples[name]
	case s.Items != nil:
		return "[" + example(s.Items, "") + "]"
	}
	return "{" + strings.TrimSuffix(beside(s, ""), ",") + "}"
}

// inside says whether a field is one of these or inside of one.
func (f specField) inside(fields ...string) bool {
	return slices.ContainsFunc(fields, func(field string) bool {
		return f.path == field || strings.HasPrefix(f.path, field+".")
	})
}

// resolved are the fields from which the controller makes the targets in the status.
func (f specField) resolved() bool {
	return f.inside("sink.ref", "sink.audience", "delivery.deadLetterSink.ref", "delivery.deadLetterSink.audience")
}

// inCluster says whether only a cluster serves the field: a file with one is refused.
func (f specField) inCluster() bool { return f.resolved() || f.inside("watch", "scale") }

func (f specField) manifest(value string) string {
	return `{"apiVersion":"sources.reschedule.dev/v1alpha1","kind":"RescheduleSource","metadata":{"name":"git-repos","namespace":"ops"},"spec":` +
		fmt.Sprintf(f.spec, value) + "}"
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
	if f.entry {
		values = slices.DeleteFunc(values, func(v string) bool { return v == "null" }) // an API server drops the entry
	}
	if f.schema.Type == "object" {
		values = append(values, example(f.schema, ""))
	}
	bounds := cmp.Or(f.schema.ValueValidation, &schema.ValueValidation{})
	for _, allowed := range bounds.Enum {
		texts = append(texts, allowed.Object.(string))
	}
	if most := bounds.MaxLength; most != nil {
		for n := int(*most); n <= int(*most)+1; n++ { // in characters of one byte and of two
			texts = append(texts, strings.Repeat("a", n), strings.Repeat("é", n), "http://x/"+strings.Repeat("a", n-len("http://x/")),
				strings.Repeat("0", n-2)+"1s", "PT"+strings.Repeat("0", n-4)+"1S", certificate+strings.Repeat("\n", max(0, n-len(certificate))))
		}
	}
	for _, bound := range []*float64{bounds.Minimum, bounds.Maximum} {
		for _, beyond := range []float64{-1, 0, 1} {
			if bound != nil {
				values = append(values, strconv.FormatFloat(*bound+beyond, 'f', -1, 64))
			}
		}
	}
	if most := bounds.MaxItems; most != nil {
		one := example(f.schema.Items, "")
		if f.schema.Items.Type == "string" {
			one = `"b"`
		}
		for n := int(*most); n <= int(*most)+1; n++ {
			values = append(values, "["+strings.Repeat(one+",", n-1)+one+"]")
		}
	}
	if most := bounds.MaxProperties; most != nil {
		many := map[string]string{"x": "v"}
		for n := int(*most); n <= int(*most)+1; n++ {
			for len(many) < n {
				many[fmt.Sprint("x", len(many))] = "v"
			}
			raw, _ := json.Marshal(many) // texts
			values = append(values, string(raw))
		}
	}
	switch f.path[strings.LastIndexByte(f.path, '.')+1:] {
	case "cron":
		texts = append(texts, "@hourly", "@daily", "@every 5m", "0 9 * * MON-FRI", "*/5 0-23/2 1,15 JAN ?", "* * * *", "* * * * * *", "TZ=UTC 0 9 * * *", "0 9 * * *\n", strings.Repeat(" ", 247)+"* * * * *", strings.Repeat(" ", 248)+"* * * * *")
	case "timeZone":
		texts = append(texts, "UTC", "Europe/Berlin", "Europe/Bonn", "Etc/GMT+1", "Local", "localtime", "+02:00", "02:00", "../UTC", "Europe//Berlin", "right/UTC")
	case "uri":
		texts = append(texts, urls...)
	case "extensions":
		for _, name := range []string{"source", "type", "specversion", "subject", "time", "datacontenttype", "dataschema", "data", "reschedulekey", "Id", "a-b", "ä", "a\\n", ""} {
			values = append(values, `{"a":"x","`+name+`":"x"}`)
		}
	}
	if slices.ContainsFunc(f.schema.XValidations, func(rule crdv1.ValidationRule) bool { return strings.Contains(rule.Message, "100 years") }) {
		texts = append(texts, centuries...)
	}
	for _, text := range texts {
		raw, _ := json.Marshal(text) // a text
		values = append(values, string(raw))
	}
	return values
}

// certificate is one in PEM.
var certificate = func() string {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}()

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
		"keep", "Keep",
		"10Gi", "1n", "1m", "0n", "9Ei", "16Ei", "1e30", "1e-30", "1E", "1Ki5", "0.5", "-1Gi", "Gi",
		"http://x", "HTTP://x", "http://x:65535/", "http://x:65536", "http://x:0", "http://x:", "https://u:p@[::1]:8/a?b#c", "ftp://x", "//x", "/path", "http:", "http://x/%zz", "http://x/\u00e9",
		"default", "a.b-c", "A", "v1", "apps/v1", "Secret", "a\x00b", "\x7f", "\u0085", "\u2028", "\ufffe", "\U0001F600", "event.id", "'a'",
	}
	for _, text := range texts {
		raw, _ := json.Marshal(text) // a text
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

// written says which values the API server alone refuses: how a quantity or a null is written is gone when the
// adapter sees it. Of a selector the schema bounds the parts, and Go the text.
func written(path, value string) bool {
	number := !strings.HasPrefix(value, `"`)
	switch path {
	case "sink.uri", "sink.ref.uri", "delivery.deadLetterSink.uri":
		return slices.Contains(strictURLs, value)
	case "limits.maxBytes":
		return number && strings.ContainsAny(value, ".e") || value == "9223372036854775808" || !number && (strings.Contains(value, " ") || len(value) > 64)
	}
	return strings.Contains(path, "elector.") && (value == "null" || strings.ContainsAny(value[:1], "[{"))
}

// To a schema such a number is an integer. It is stored as it is, and then no Go program can list the sources:
// one author stopped the controller and the adapter for all.
func TestCRD_NearlyWholeNumberStopsNoClient(t *testing.T) {
	t.Parallel()
	for _, f := range specFields(t) {
		if f.schema.Type == "integer" {
			if admitted(t, f.manifest("1.0000000000000002")) != nil || t.Failed() {
				t.Errorf("%s: accepted", f.path)
			}
			if admitted(t, f.manifest("1")) == nil {
				t.Errorf("%s: 1 is refused", f.path)
			}
		}
	}
}

// The API server stores each default that SetDefaults sets, so that a file means what an object means.
func TestSpec_DefaultsAreStored(t *testing.T) {
	t.Parallel()
	for _, f := range specFields(t) {
		for _, value := range []string{"null", "{}"} {
			stored := admitted(t, f.manifest(value))
			if stored == nil || f.entry {
				continue
			}
			var ours v1alpha1.RescheduleSource
			if err := json.Unmarshal([]byte(f.manifest(value)), &ours); err != nil {
				t.Fatal(err)
			}
			ours.Spec.SetDefaults(t.Context()) // as if there were no namespace that references could get
			if diff := gocmp.Diff(ours.Spec, stored.Spec); diff != "" {
				t.Fatalf("%s: %s: SetDefaults and the API server (-ours +theirs):\n%s", f.path, value, diff)
			}
		}
	}
}

// settings collects the sources that the values of a field make. A field inside of which there is none makes at least
// two, or the adapter does not read it.
type settings map[string]bool

func (s settings) add(t *testing.T, spec *schedule.Spec) {
	t.Helper()
	raw, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	s[string(raw)] = true
}

func (s settings) check(t *testing.T, f specField) {
	t.Helper()
	switch {
	case len(s) == 0:
		t.Errorf("%s: no value is taken in %s: it needs one of examples", f.path, f.spec)
	case len(s) == 1 && f.schema.Properties == nil && (f.schema.Items == nil || f.schema.Items.Properties == nil) && !f.resolved():
		t.Errorf("%s: every value makes the same schedule.Spec: convert of pkg/adapter/sources does not read it", f.path)
	}
}

// The API server, and an adapter that reads a file, take the same specs, and make the same source of them. A
// file's refusal names the field.
func TestSpec_FileAndClusterAgree(t *testing.T) {
	t.Parallel()
	ignored := cmpopts.IgnoreFields(schedule.Spec{}, "Sink", "DeadLetter") // in a cluster the status has them
	for _, f := range specFields(t) {
		if f.inCluster() {
			continue
		}
		taken := settings{}
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
				taken.add(t, read[0])
				served, err := sources.FromObject(o, schedule.Targets{}, nil)
				if err != nil {
					t.Errorf("%s: %.100s: the API server takes it, the adapter does not: %v", f.path, value, err)
				} else if diff := gocmp.Diff(read[0], served, ignored); diff != "" {
					t.Errorf("%s: %.100s: a file and a cluster make two sources of it: %s", f.path, value, diff)
				}
			}
		}
		taken.check(t, f)
	}
}

// The adapter serves whatever of the other fields the API server takes, and no more.
func TestSpec_AdapterServesWhatIsAdmitted(t *testing.T) {
	t.Parallel()
	// A path relative to the address of a ref.
	const relative = `{"sink":{"ref":{"apiVersion":"v1","kind":"Service","name":"x"},"uri":%s}}`
	sink := server(t).schema.Properties["spec"].Properties["sink"]
	uri := sink.Properties["uri"]
	for _, f := range append(specFields(t), specField{"sink.ref.uri", &uri, relative, false}) {
		if !f.inCluster() {
			continue
		}
		taken := settings{}
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
			spec, err := sources.FromObject(o, schedule.Targets{}, nil)
			if err != nil {
				t.Errorf("%s: %.100s: the API server takes it, the adapter does not: %v", f.path, value, err)
				continue
			}
			taken.add(t, spec)
		}
		taken.check(t, f)
	}
}
