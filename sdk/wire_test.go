package sdk_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// schemas are the schemas in the adapter's /openapi.json.
func schemas(t *testing.T) map[string]map[string]any {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, adapterURL+"/openapi.json", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Components struct {
			Schemas map[string]map[string]any `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(b, &document); err != nil || len(document.Components.Schemas) == 0 {
		t.Fatalf("%v: %s", err, b)
	}
	return document.Components.Schemas
}

func wholeSchedule() sdk.Schedule {
	e := wholeEvent()
	e.ID, e.Source, e.Time = "1", "/shop", far
	return sdk.Schedule{
		Key: "k", Revision: 1 << 63, Result: sdk.Merged, State: sdk.InFlight, DueAt: far, PreviousDueAt: far.Add(1), ScheduledAt: far.Add(2),
		Attempt: 7, Tries: 3, NextAttemptAt: far, CompanyUntil: far, LastFailure: &sdk.Failure{At: far, Status: 503, Error: "e", Detail: "d"},
		InFlight: true, UID: "u", Reason: "r", MaxInterval: new(time.Duration(0)), Slack: new(time.Minute), ExpiresAt: far.Add(3), Event: e,
		Terms: sdk.Terms{Priority: sdk.LowPriority, Cron: "@daily", TimeZone: "Europe/Berlin", Jitter: 0.5},
	}
}

// filled reports whether every field of a struct is set, so that a field that is new
// cannot be forgotten here.
func filled(t *testing.T, v any, except ...string) {
	t.Helper()
	s := reflect.ValueOf(v)
	for _, f := range reflect.VisibleFields(s.Type()) {
		if s.FieldByIndex(f.Index).IsZero() && !slices.Contains(except, f.Name) {
			t.Errorf("%T: the test gives %s no value", v, f.Name)
		}
	}
}

// The types have the fields of the schema and no others.
func TestWire_FieldsAreTheSchemas(t *testing.T) {
	t.Parallel()
	schemas := schemas(t)
	request, event, schedule := wholeRequest(), wholeEvent(), wholeSchedule()
	request.Delay, request.Backoff = new(time.Duration(0)), &sdk.Backoff{Base: 1, Factor: 1.5, Cap: time.Hour, MaxAttempts: 3}
	request.Cron, request.TimeZone = "@daily", "Europe/Berlin"
	item := sdk.Item{Key: "k", Request: request}
	counts := sdk.Counts{CompanyUntil: far, Watched: 9, Retrying: 1, DeadLetters: 2, Pending: 1, Due: 1, InFlight: 1, NextDueAt: far, OldestDueAt: far}
	counts.Scale = &sdk.Scale{State: "Asleep", Since: new(far), Starts: 1, AwakeSeconds: 1, ObservedSeconds: 2, LastStart: "1s", QuietRuns: 2, QuietEverySeconds: 600, Requeues: 3, Reason: "r", Message: "m"}
	counts.Priorities = map[sdk.Priority]sdk.PriorityCounts{sdk.HighPriority: {Pending: 1}, sdk.NormalPriority: {Due: 1}, sdk.LowPriority: {}}
	filled(t, item)
	filled(t, *request.Backoff)
	filled(t, *event, "ID", "Source", "Time", "Base64")
	filled(t, schedule)
	filled(t, schedule.Terms)
	filled(t, *schedule.Event, "Base64")
	filled(t, counts)
	filled(t, *counts.Scale)
	answered, scheduled := schedule, schedule
	answered.Result = ""
	scheduled.NextAttemptAt, scheduled.CompanyUntil, scheduled.LastFailure = time.Time{}, time.Time{}, nil // an answer to a request has no attempts yet
	letter := sdk.DeadLetter{Key: "k", At: far, DueAt: far, Attempts: 4, Status: 503, Error: "e", Detail: "d", Event: schedule.Event}
	filled(t, letter)
	binary := sdk.Event{DataContentType: "x/y", Data: []byte{0xff}}

	for _, c := range []struct {
		schema string
		values []any // which have all fields together
	}{
		{"ScheduleRequest", []any{request}},
		{"BulkItem", []any{item}},
		{"Backoff", []any{request.Backoff}},
		{"Event", []any{event, binary}},
		{"EventShown", []any{schedule.Event, binary}},
		{"Schedule", []any{answered}},
		{"Scheduled", []any{scheduled}},
		{"DeadLetter", []any{letter}},
		{"History", []any{sdk.History{Items: []sdk.PastAttempt{}, Since: far}}},
		{"Counts", []any{counts, sdk.Counts{}}},
	} {
		properties, _ := schemas[c.schema]["properties"].(map[string]any)
		required, _ := schemas[c.schema]["required"].([]any)
		got := map[string]any{}
		for _, v := range c.values {
			var members map[string]any
			b, err := json.Marshal(v)
			if err != nil || json.Unmarshal(b, &members) != nil {
				t.Fatalf("%s: %v: %s", c.schema, err, b)
			}
			for name, value := range members {
				if !ofType(value, properties[name]) {
					t.Errorf("%s: %s is %v, which is not in %v", c.schema, name, value, properties[name])
				}
				got[name] = value
			}
			again := reflect.New(reflect.TypeOf(v))
			if err := json.Unmarshal(b, again.Interface()); err != nil {
				t.Errorf("%s: %v: %s", c.schema, err, b)
			} else if after, err := json.Marshal(again.Interface()); err != nil || string(after) != string(b) {
				t.Errorf("%s: %s is read as %s, %v", c.schema, b, after, err)
			}
		}
		if schemas[c.schema]["additionalProperties"] != false {
			for name := range wholeEvent().Extensions {
				delete(got, name)
			}
		}
		if got, want := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(properties)); !slices.Equal(got, want) {
			t.Errorf("%s: the type writes %q, the schema has %q", c.schema, got, want)
		}
		empty, err := json.Marshal(reflect.Zero(reflect.Indirect(reflect.ValueOf(c.values[0])).Type()).Interface())
		if err != nil {
			t.Fatal(c.schema, err)
		}
		for _, name := range required {
			if name != "result" && name != "event" && !strings.Contains(string(empty), `"`+name.(string)+`":`) {
				t.Errorf("%s: %s is required, but not in %s", c.schema, name, empty)
			}
		}
	}
}

// ofType reports whether a value of JSON has a type that the schema allows: one, or one of a list.
func ofType(value, schema any) bool {
	s, _ := schema.(map[string]any)
	name := map[reflect.Kind]string{
		reflect.String: "string", reflect.Bool: "boolean", reflect.Float64: "number", reflect.Map: "object", reflect.Slice: "array", reflect.Invalid: "null",
	}[reflect.ValueOf(value).Kind()]
	allowed := strings.Fields(strings.Trim(fmt.Sprint(s["type"]), "[]"))
	v, isNumber := value.(float64)
	return s["type"] == nil || slices.Contains(allowed, name) || isNumber && v == math.Trunc(v) && slices.Contains(allowed, "integer")
}

// The constants are the values that the schema lists.
func TestWire_ConstantsAreTheSchemas(t *testing.T) {
	t.Parallel()
	schemas := schemas(t)
	enum := func(schema, property string) []string {
		s := schemas[schema]
		if property != "" {
			s = s["properties"].(map[string]any)[property].(map[string]any)
		}
		var words []string
		for _, w := range s["enum"].([]any) {
			if w != nil { // a null is an absent field
				words = append(words, w.(string))
			}
		}
		slices.Sort(words)
		return words
	}
	for _, c := range []struct {
		schema, property string
		words            []string
	}{
		{"ScheduleRequest", "policy", words(sdk.Replace, sdk.Earliest, sdk.Latest, sdk.Keep, sdk.Fail)},
		{"ScheduleRequest", "priority", []string{sdk.HighPriority.String(), sdk.LowPriority.String(), sdk.NormalPriority.String()}},
		{"Schedule", "state", words(sdk.Waiting, sdk.Due, sdk.InFlight)},
		{"Scheduled", "result", words(sdk.Created, sdk.Replaced, sdk.Merged, sdk.Kept)},
		{"Code", "", words(
			sdk.ErrInvalid, sdk.ErrUnauthorized, sdk.ErrForbidden, sdk.ErrNotFound, sdk.ErrExists, sdk.ErrExhausted, sdk.ErrConflict,
			sdk.ErrTooLarge, sdk.ErrFull, sdk.ErrUnavailable, sdk.ErrStorageFull, sdk.ErrMethodNotAllowed, sdk.ErrMediaType,
		)},
	} {
		if want := enum(c.schema, c.property); !slices.Equal(c.words, want) {
			t.Errorf("%s %s: the words are %q, in the schema %q", c.schema, c.property, c.words, want)
		}
	}
}

func words[S ~string](list ...S) []string {
	var words []string
	for _, w := range list {
		words = append(words, string(w))
	}
	slices.Sort(words)
	return words
}

// Values are written and read as exactly this JSON.
func TestWire_ExactJSON(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]any{
		`{}`:               sdk.Request{},
		`{"delay":"5m0s"}`: sdk.After(5 * time.Minute),
		`{"delay":"0s"}`:   sdk.After(-time.Hour),
		`{"dueAt":"2090-01-02T03:04:05.000000006Z"}`: sdk.At(far),
		`{"backoff":{}}`:                                  sdk.Request{Backoff: &sdk.Backoff{}},
		`{"key":"","maxInterval":"0s"}`:                   sdk.Item{Request: sdk.Request{MaxInterval: new(time.Duration(0))}},
		`{"slack":"10m0s"}`:                               sdk.Request{Slack: new(10 * time.Minute)},
		`{"cron":"0 3 * * *","timeZone":"Europe/Berlin"}`: sdk.Every("0 3 * * *", "Europe/Berlin"),
		`{"cron":"@hourly"}`:                              sdk.Every("@hourly", ""),
		`{"priority":"high"}`:                             sdk.Request{Priority: sdk.HighPriority},
		`{"event":{}}`:                                    sdk.Request{Event: &sdk.Event{}},
		`{"jitter":0.1,"event":{"type":"t","data":[1]}}`:  sdk.Request{Jitter: 0.1, Event: &sdk.Event{Type: "t", Data: []byte(`[1]`)}},
		`{"pending":1,"due":0,"inFlight":0,"nextDueAt":"2090-01-02T03:04:05.000000006Z","oldestDueAt":null,"watched":7,"retrying":1,"deadLetters":2}`: sdk.Counts{Pending: 1, NextDueAt: far, Watched: 7, Retrying: 1, DeadLetters: 2},
		`{"pending":0,"due":0,"inFlight":0,"nextDueAt":null,"oldestDueAt":null,"watched":0,"retrying":0,"deadLetters":0}`:                             sdk.Counts{},
		`{"datacontenttype":"Application/X+JSON; charset=utf-8","data":[1]}`:                                                                          sdk.Event{DataContentType: "Application/X+JSON; charset=utf-8", Data: []byte(`[1]`)},
		`{"data":"{ \"a\":1}","datacontenttype":"text/plain"}`:                                                                                        sdk.Event{DataContentType: "text/plain", Data: []byte(`{ "a":1}`)},
		`{"data_base64":"AP8=","datacontenttype":"x/y"}`:                                                                                              sdk.Event{DataContentType: "x/y", Data: []byte{0, 0xff}},
		`{"at":"2090-01-02T03:04:05.000000006Z","result":"kept","status":400,"attempt":2,"cause":"c","lateness":"1s","duration":"2ms"}`: sdk.PastAttempt{
			At: far, Result: "kept", Status: 400, Attempt: 2, Cause: "c", Lateness: time.Second, Duration: 2 * time.Millisecond,
		},
		`{"id":"e-1","kind":"outcome","key":"k","at":"2090-01-02T03:04:05.000000006Z","revision":1,"dueAt":"2090-01-02T03:04:05.000000006Z","attempt":2,"result":"delivered","status":204,"missed":true}`: sdk.Live{
			ID: "e-1", Kind: sdk.KeyOutcome, Key: "k", At: far, Revision: 1, DueAt: far, Attempt: 2, Result: "delivered", Status: 204, Missed: true,
		},
		`{"pending":3,"due":2,"inFlight":0,"nextDueAt":null,"oldestDueAt":null,"watched":0,"retrying":0,"deadLetters":0,"priorities":{"low":{"pending":1,"due":0},"normal":{"pending":2,"due":2}}}`: sdk.Counts{
			Pending: 3, Due: 2, Priorities: map[sdk.Priority]sdk.PriorityCounts{sdk.NormalPriority: {Pending: 2, Due: 2}, sdk.LowPriority: {Pending: 1}},
		},
		`{"data_base64":"aGVsbG8="}`:                    sdk.Event{Data: []byte("hello"), Base64: true}, // as it may have come in
		`{"event":{"data":"","datacontenttype":"x/y"}}`: &sdk.Request{Event: &sdk.Event{DataContentType: "x/y", Data: []byte{}}},
		`{"pending":0,"due":0,"inFlight":0,"nextDueAt":null,"oldestDueAt":null,"watched":0,"retrying":0,"deadLetters":0,"scale":{"state":"Awake","since":"2090-01-02T03:04:05.000000006Z","starts":3,"awakeSeconds":0,"observedSeconds":7,"lastStart":"1.3s"}}`: sdk.Counts{
			Scale: &sdk.Scale{State: "Awake", Since: new(far), Starts: 3, ObservedSeconds: 7, LastStart: "1.3s"},
		},
	} {
		b, err := json.Marshal(v)
		if err != nil || string(b) != want {
			t.Errorf("%+v is %s, %v, want %s", v, b, err, want)
		}
		again := reflect.New(reflect.Indirect(reflect.ValueOf(v)).Type())
		if err := json.Unmarshal(b, again.Interface()); err != nil || !reflect.DeepEqual(again.Elem().Interface(), reflect.Indirect(reflect.ValueOf(v)).Interface()) {
			t.Errorf("%s is read as %+v, %v", b, again.Elem(), err)
		}
	}
}

// Members of the answers of a newer source are ignored.
func TestWire_UnknownMembersAreIgnored(t *testing.T) {
	t.Parallel()
	var s sdk.Schedule
	err := json.Unmarshal([]byte(`{"key":"k","revision":18446744073709551615,"new":{"a":1},"event":{"size":1.5,"big":12345678901,"none":null}}`), &s)
	want := sdk.Schedule{Key: "k", Revision: 1<<64 - 1, Event: &sdk.Event{Extensions: map[string]any{"size": 1.5, "big": 12345678901.0}}}
	if err != nil || !reflect.DeepEqual(s, want) {
		t.Errorf("it is %+v, %v", s, err)
	}
}
