package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/reschedule-dev/reschedule/sdk"
)

// own are the schemas of what is no object of the schedule API. The others are in its own
// description.
const own = `{
	"Keys": {"type":"object","required":["items"],"additionalProperties":false,"properties":{"items":{"type":"array","items":{"$ref":"Schedule"}}}},
	"Letters": {"type":"object","required":["items"],"additionalProperties":false,"properties":{"items":{"type":"array","items":{"$ref":"DeadLetter"}}}},
	"Source": {"type":"object","required":["apiVersion","kind","metadata","spec"],"properties":{"apiVersion":{"enum":["sources.reschedule.dev/v1alpha1"]},"kind":{"enum":["RescheduleSource"]}}},
	"Sources": {"type":"object","required":["items"],"additionalProperties":false,"properties":{"items":{"type":"array","items":{"$ref":"Source"}}}},
	"Top": {"type":"object","required":["items"],"additionalProperties":false,"properties":{"items":{"type":"array","items":{"$ref":"Topped"}}}},
	"Topped": {"type":"object","required":["namespace","name"],"additionalProperties":false,"properties":{"namespace":{"type":"string"},"name":{"type":"string"},"counts":{"$ref":"Counts"},"error":{"type":"string"}}},
	"Findings": {"type":"object","required":["items"],"additionalProperties":false,"properties":{"items":{"type":"array","items":{"$ref":"Finding"}}}},
	"Finding": {"type":"object","required":["subject","ok","detail"],"additionalProperties":false,"properties":{"subject":{"type":"string"},"ok":{"type":"boolean"},"unknown":{"type":"boolean"},"cause":{"type":"string"},"detail":{"type":"string"}}},
	"Why": {"type":"object","required":["cause","sentence","problem","evidence"],"properties":{"cause":{"type":"string"},"sentence":{"type":"string"},"problem":{"type":"boolean"},
		"evidence":{"type":"array","items":{"type":"object","required":["name","value"],"additionalProperties":false,"properties":{"name":{"type":"string"},"value":{"type":"string"}}}}}},
	"Version": {"type":"object","required":["version","api"],"additionalProperties":false,"properties":{"version":{"type":"string"},"api":{"type":"string"}}},
	"Live": {"type":"object","required":["id","kind","key","at","attempt"],"additionalProperties":false,"properties":{"id":{"type":"string"},"kind":{"enum":["scheduled","started","outcome"]},"key":{"type":"string"},
		"at":{"type":"string","format":"date-time"},"revision":{"type":"integer"},"dueAt":{"type":"string","format":"date-time"},"attempt":{"type":"integer"},"result":{"$ref":"Result"},"status":{"$ref":"Status"},"missed":{"type":"boolean"}}}
}`

// schemas are the schemas by name.
type schemas map[string]map[string]any

func readSchemas(t *testing.T) schemas {
	t.Helper()
	b, err := os.ReadFile("testdata/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var api struct{ Components struct{ Schemas schemas } }
	all := schemas{}
	if err := json.Unmarshal(b, &api); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(own), &all); err != nil {
		t.Fatal(err)
	}
	maps.Copy(all, api.Components.Schemas)
	return all
}

// check returns what is wrong with a value. It knows the words of JSON Schema that the
// schemas use for answers.
func (s schemas) check(at string, schema map[string]any, v any) (wrong []string) {
	if ref, ok := schema["$ref"].(string); ok {
		name := ref[strings.LastIndex(ref, "/")+1:]
		if s[name] == nil {
			return []string{at + ": no schema " + name}
		}
		return s.check(at, s[name], v)
	}
	fail := func(format string, args ...any) {
		wrong = append(wrong, at+": "+fmt.Sprintf(format, args...))
	}
	if types := schema["type"]; types != nil && !slices.Contains(listed(types), any(typeOf(v))) && !(typeOf(v) == "integer" && slices.Contains(listed(types), any("number"))) {
		fail("%v is not a %v", v, types)
	}
	if enum, ok := schema["enum"].([]any); ok && !slices.Contains(enum, v) {
		fail("%v is none of %v", v, enum)
	}
	if text, ok := v.(string); ok && schema["format"] == "date-time" {
		if _, err := time.Parse(time.RFC3339Nano, text); err != nil {
			fail("%v", err)
		}
	}
	if n, ok := v.(float64); ok && schema["minimum"] != nil && n < schema["minimum"].(float64) {
		fail("%v is too small", n)
	}
	if list, ok := v.([]any); ok {
		items, _ := schema["items"].(map[string]any)
		for i, item := range list {
			wrong = append(wrong, s.check(fmt.Sprintf("%s[%d]", at, i), items, item)...)
		}
	}
	object, ok := v.(map[string]any)
	if !ok {
		return wrong
	}
	required, _ := schema["required"].([]any)
	for _, name := range required {
		if _, there := object[name.(string)]; !there {
			fail("%s is missing", name)
		}
	}
	properties, _ := schema["properties"].(map[string]any)
	for name, member := range object {
		of, known := properties[name].(map[string]any)
		if !known {
			if schema["additionalProperties"] == false {
				fail("%s is not in the schema", name)
			}
			of, _ = schema["additionalProperties"].(map[string]any)
		}
		wrong = append(wrong, s.check(at+"."+name, of, member)...)
	}
	return wrong
}

func listed(v any) []any {
	if list, ok := v.([]any); ok {
		return list
	}
	return []any{v}
}

func typeOf(v any) any {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case float64:
		if v == float64(int64(v)) {
			return "integer"
		}
		return "number"
	}
	return "object"
}

// Each command with -o prints what the schemas say, the same in JSON and in YAML. A command
// that has -o and is not in the table fails.
func TestOutput_IsInTheSchemas(t *testing.T) {
	t.Parallel()
	all := readSchemas(t)
	c := newCluster(t)
	const key = `{"key":"k","revision":7,"state":"due","dueAt":"2026-01-01T00:00:00Z","scheduledAt":"2026-01-01T00:00:00Z","attempt":2,"inFlight":false,"uid":"u","reason":"r","maxInterval":"1h0m0s",
		"expiresAt":"2050-01-01T00:00:00Z","tries":2,"nextAttemptAt":"2050-01-01T00:00:00Z","lastFailure":{"at":"2026-01-01T00:00:00Z","status":503,"error":"e","detail":"d \u001b"},
		"event":{"id":"i","source":"s","type":"t","subject":"\u202e","time":"2026-01-01T00:00:00Z","n":1,"yes":true,"data":{"big":12345678901234567890}}}`
	const letter = `{"key":"k","at":"2026-01-01T00:00:00Z","dueAt":"2026-01-01T00:00:00Z","attempts":1,"status":400,"error":"e","detail":"d","event":{"data_base64":"AAEC"}}`
	c.answers["GET /ops/web/schedules/k"], c.answers["GET /ops/web/schedules"] = "200 "+key, `200 {"items":[`+key+`],"continue":""}`
	c.answers["GET /ops/web/schedules/k/history"] = `200 {"items":[],"since":"2026-01-01T00:00:00Z"}`
	c.answers["GET /ops/web/deadletters/k"], c.answers["GET /ops/web/deadletters"] = "200 "+letter, `200 {"items":[`+letter+`],"continue":""}`
	c.answers["PUT /ops/web/schedules/k"] = `201 {"key":"k","revision":8,"result":"created","state":"waiting","dueAt":"2050-01-01T00:00:00Z","scheduledAt":"2026-01-01T00:00:00Z","attempt":0,"inFlight":false}`
	c.answers["GET /ops/web/events"] = "200 id: e-1\nevent: started\ndata: {\"key\":\"k\",\"at\":\"2026-01-01T00:00:00Z\",\"attempt\":1}\n\n"
	table := map[string][]struct{ args, schema string }{
		"list":                {{"list", "Sources"}, {"list -A", "Sources"}},
		"describe":            {{"describe web", "Source"}, {"describe web -n ops --server " + c.adapter.URL, "Counts"}},
		"top":                 {{"top", "Top"}, {"top web -n ops --server " + c.adapter.URL, "Top"}},
		"why":                 {{"why web", "Why"}, {"why web k", "Why"}, {"why nix", "Why"}, {"why nix -n ops --server " + c.adapter.URL, "Why"}},
		"doctor":              {{"doctor", "Findings"}, {"doctor web -n ops --server " + c.adapter.URL, "Findings"}},
		"key list":            {{"key list web", "Keys"}, {"key list web --overdue", "Keys"}},
		"key describe":        {{"key describe web k", "Schedule"}, {"key describe web k k", "Keys"}, {"key describe web --all", "Keys"}},
		"key set":             {{"key set web k --in 1h", "Scheduled"}},
		"key watch":           {{"key watch web", "Live"}},
		"deadletter list":     {{"deadletter list web", "Letters"}},
		"deadletter describe": {{"deadletter describe web k", "DeadLetter"}, {"deadletter describe web --all", "Letters"}},
		"version":             {{"version", "Version"}},
	}
	verify := func(args, format, schema string, read func([]byte, any) error) any {
		t.Helper()
		_, out, errs := c.run(false, append(strings.Fields(args), "-o", format)...)
		var v any
		if err := read([]byte(out), &v); err != nil {
			t.Errorf("%s -o %s: %v\n%s%s", args, format, err, out, errs)
			return nil
		}
		for _, wrong := range all.check("", map[string]any{"$ref": schema}, v) {
			t.Errorf("%s -o %s: %s", args, format, wrong)
		}
		return v
	}
	var look func(path string, c *cobra.Command)
	look = func(path string, c *cobra.Command) {
		for _, sub := range commands(c) {
			path := strings.TrimSpace(path + " " + sub.Name())
			look(path, sub)
			f := sub.Flags().Lookup("output")
			if f == nil {
				continue
			}
			if table[path] == nil {
				t.Errorf("%s has -o, and is not in the table", path)
			}
			for _, p := range table[path] {
				if strings.Contains(f.Usage, "yaml") {
					asJSON := verify(p.args, "json", p.schema, json.Unmarshal)
					asYAML := verify(p.args, "yaml", p.schema, func(b []byte, v any) error { return yaml.Unmarshal(b, v) })
					if timeless := p.schema != "Why" && p.schema != "Findings"; timeless && !reflect.DeepEqual(asJSON, asYAML) {
						t.Errorf("%s is in JSON\n%v, and in YAML\n%v", p.args, asJSON, asYAML)
					}
				}
				if strings.Contains(f.Usage, "ndjson") && path != "key watch" {
					item := map[string]string{"Keys": "Schedule", "Letters": "DeadLetter", "Top": "Topped", "Findings": "Finding"}[p.schema]
					verify(p.args, "ndjson", item, func(b []byte, v any) error { return json.Unmarshal([]byte(strings.SplitAfter(string(b), "\n")[0]), v) })
				}
			}
		}
	}
	look("", (&program{connection: connection{version: "dev"}}).root())
}

// What follows has no end: its first line is in the schema.
func TestWatch_IsInTheSchema(t *testing.T) {
	t.Parallel()
	b, err := json.Marshal(&sdk.Live{ID: "e-1", Kind: sdk.KeyOutcome, Key: "k", At: time.Now(), DueAt: time.Now(), Revision: 1, Attempt: 2, Result: "delivered", Status: 204})
	var v any
	if err := errors.Join(err, json.Unmarshal(b, &v)); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range readSchemas(t).check("", map[string]any{"$ref": "Live"}, v) {
		t.Error(wrong)
	}
}
