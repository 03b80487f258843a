package command

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/reschedule-dev/reschedule/sdk"
)

// The shapes of what is no object of the schedule API. Those are the types of sdk, whose tests compare them with its schemas.
type (
	items[T any] struct {
		Items []T `json:"items"`
	}
	sourceShape struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       map[string]any `json:"spec"`
		Status     map[string]any `json:"status,omitempty"`
	}
	countsShape struct {
		Namespace string      `json:"namespace"`
		Name      string      `json:"name"`
		Counts    *sdk.Counts `json:"counts,omitempty"`
		Error     string      `json:"error,omitempty"`
	}
	findingShape struct {
		Subject string `json:"subject"`
		OK      bool   `json:"ok"`
		Unknown bool   `json:"unknown,omitempty"`
		Cause   string `json:"cause,omitempty"`
		Detail  string `json:"detail"`
	}
	whyShape struct {
		Cause    string `json:"cause"`
		Sentence string `json:"sentence"`
		Problem  bool   `json:"problem"`
		Evidence []struct {
			Name  string `json:"name"`
			Value string `json:"value"`
		} `json:"evidence"`
	}
	savingShape struct {
		Namespace       string  `json:"namespace"`
		Name            string  `json:"name"`
		Workload        string  `json:"workload"`
		Mode            string  `json:"mode"`
		ObservedSeconds int64   `json:"observedSeconds"`
		AsleepShare     float64 `json:"asleepShare"`
		Starts          int64   `json:"starts"`
		StartsAnHour    float64 `json:"startsAnHour"`
		LastStart       string  `json:"lastStart,omitempty"`
		MemoryBytes     int64   `json:"memoryBytes,omitempty"`
		MemoryFrom      string  `json:"memoryFrom"`
		SavedMB         float64 `json:"savedMB"`
		SavedMBh        float64 `json:"savedMBh"`

		QuietRuns         int64  `json:"quietRuns,omitempty"`
		QuietEverySeconds int64  `json:"quietEverySeconds,omitempty"`
		Requeues          int64  `json:"requeues,omitempty"`
		Advice            string `json:"advice,omitempty"`
	}
	versionShape struct {
		Version string `json:"version"`
		API     string `json:"api"`
	}
)

// normal is a text in JSON or YAML as JSON of one form.
func normal(t *testing.T, text []byte) string {
	t.Helper()
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Each command with -o prints its shape and nothing else, the same in JSON and in YAML. A command that has -o and is not in
// the table fails.
func TestOutput_HasItsShape(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const key = `{"key":"k","revision":7,"state":"due","dueAt":"2026-01-01T00:00:00Z","scheduledAt":"2026-01-01T00:00:00Z","attempt":2,"inFlight":false,"uid":"u","reason":"r","maxInterval":"1h0m0s","slack":"10m0s","cron":"0 3 * * *","timeZone":"Europe/Berlin","jitter":0.1,"priority":"low",
		"expiresAt":"2050-01-01T00:00:00Z","tries":2,"nextAttemptAt":"2050-01-01T00:00:00Z","lastFailure":{"at":"2026-01-01T00:00:00Z","status":503,"error":"e","detail":"d \u001b"},
		"event":{"id":"i","source":"s","type":"t","subject":"\u202e","time":"2026-01-01T00:00:00Z","n":1,"yes":true,"data":{"big":12345678901234567890}}}`
	const letter = `{"key":"k","at":"2026-01-01T00:00:00Z","dueAt":"2026-01-01T00:00:00Z","attempts":1,"status":400,"error":"e","detail":"d","event":{"data_base64":"AAEC"}}`
	c.answers["GET /ops/web/schedules/k"], c.answers["GET /ops/web/schedules"] = "200 "+key, `200 {"items":[`+key+`],"continue":""}`
	c.answers["GET /ops/web/schedules/k/history"] = `200 {"items":[],"since":"2026-01-01T00:00:00Z"}`
	c.answers["GET /ops/web/deadletters/k"], c.answers["GET /ops/web/deadletters"] = "200 "+letter, `200 {"items":[`+letter+`],"continue":""}`
	c.answers["PUT /ops/web/schedules/k"] = `201 {"key":"k","revision":8,"result":"created","state":"waiting","dueAt":"2050-01-01T00:00:00Z","scheduledAt":"2026-01-01T00:00:00Z","attempt":0,"inFlight":false}`
	c.answers["GET /ops/web/events"] = "200 id: e-1\nevent: started\ndata: {\"key\":\"k\",\"at\":\"2026-01-01T00:00:00Z\",\"attempt\":1}\n\n"
	c.source("dev", "scaled", scaled("Auto", `{"state":"Asleep","starts":40,"awakeSeconds":1800,"observedSeconds":7200,"lastStart":"1.3s"}`))
	c.answers["GET /ops/web"] = "200 " + strings.Replace(healthy, "{", `{"priorities":{"high":{"pending":1,"due":0},"normal":{"pending":1,"due":0},"low":{"pending":1,"due":0}},`, 1)
	alone := " -n ops --server " + c.adapter.URL
	type row struct {
		args  string
		shape any
	}
	table := map[string][]row{
		"list":                {{"list", items[sourceShape]{}}, {"list -A", items[sourceShape]{}}},
		"describe":            {{"describe web", sourceShape{}}, {"describe web" + alone, sdk.Counts{}}},
		"top":                 {{"top", items[countsShape]{}}, {"top web" + alone, items[countsShape]{}}},
		"savings":             {{"savings -A", items[savingShape]{}}, {"savings -n dev scaled --memory 40Mi", items[savingShape]{}}},
		"why":                 {{"why web", whyShape{}}, {"why web k", whyShape{}}, {"why nix", whyShape{}}, {"why nix" + alone, whyShape{}}},
		"doctor":              {{"doctor", items[findingShape]{}}, {"doctor web" + alone, items[findingShape]{}}},
		"key list":            {{"key list web", items[sdk.Schedule]{}}, {"key list web --overdue", items[sdk.Schedule]{}}},
		"key describe":        {{"key describe web k", sdk.Schedule{}}, {"key describe web k k", items[sdk.Schedule]{}}, {"key describe web --all", items[sdk.Schedule]{}}},
		"key set":             {{"key set web k --in 1h", sdk.Schedule{}}},
		"key watch":           {{"key watch web", sdk.Live{}}},
		"deadletter list":     {{"deadletter list web", items[sdk.DeadLetter]{}}},
		"deadletter describe": {{"deadletter describe web k", sdk.DeadLetter{}}, {"deadletter describe web --all", items[sdk.DeadLetter]{}}},
		"version":             {{"version", versionShape{}}},
	}
	printed := func(args, format string) []byte {
		_, out, _ := c.run(false, append(strings.Fields(args), "-o", format)...)
		return []byte(out)
	}
	judge := func(about string, text []byte, shape reflect.Type) {
		t.Helper()
		is := reflect.New(shape)
		got, err := normal(t, text), json.Unmarshal([]byte(normal(t, text)), is.Interface())
		again, _ := json.Marshal(is.Interface())
		if want := normal(t, again); err != nil || got != want || got == "null" {
			t.Errorf("%s prints %s, %v, and its shape has %s", about, got, err, want)
		}
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
				shape := reflect.TypeOf(p.shape)
				if strings.Contains(f.Usage, "yaml") {
					asJSON, asYAML := printed(p.args, "json"), printed(p.args, "yaml")
					judge(p.args+" -o json", asJSON, shape)
					judge(p.args+" -o yaml", asYAML, shape)
					if timeless := path != "why" && path != "doctor"; timeless && normal(t, asJSON) != normal(t, asYAML) {
						t.Errorf("%s is in JSON\n%s, and in YAML\n%s", p.args, asJSON, asYAML)
					}
				}
				if list, ok := shape.FieldByName("Items"); strings.Contains(f.Usage, "ndjson") && ok {
					first, _, _ := bytes.Cut(printed(p.args, "ndjson"), []byte("\n"))
					judge(p.args+" -o ndjson", first, list.Type.Elem())
				}
			}
		}
	}
	look("", (&program{connection: connection{version: "dev"}}).root())
}
