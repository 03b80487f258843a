package cloudevent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/internal/heap"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func binaryHeader(pairs ...string) http.Header {
	h := header("Ce-Specversion", "1.0", "Ce-Id", "i", "Ce-Source", "/s", "Ce-Type", "t")
	for i := 0; i < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

func jsonHeader() http.Header { return header("Content-Type", "application/cloudevents+json") }

func ext(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

// Read keeps the event as it came.
func TestRead_KeepsTheEventAsItCame(t *testing.T) {
	t.Parallel()
	minimal := schedule.Event{ID: "i", Source: "/s", Type: "t"}
	with := func(f func(*schedule.Event)) *schedule.Event {
		e := minimal
		f(&e)
		return &e
	}
	const required = `"specversion":"1.0","id":"i","source":"/s","type":"t"`
	const old = `"specversion":"0.3","id":"i","source":"/s","type":"t"`
	for name, tt := range map[string]struct {
		h    http.Header
		body string
		want *schedule.Event
	}{
		"binary, minimal": {binaryHeader(), "", &minimal},
		"binary, everything": {
			binaryHeader("Ce-Subject", "caf%C3%A9 1", "Ce-Time", "2026-01-02T03:04:05.6+01:00", "Ce-Dataschema", "http://d/", "Content-Type", "text/plain; charset=utf-8", "Ce-Team", "a%20b"), "hello",
			with(func(e *schedule.Event) {
				e.Subject, e.DataSchema, e.DataContentType, e.Data = "café 1", "http://d/", "text/plain; charset=utf-8", []byte("hello")
				e.Time, e.Extensions = time.Date(2026, 1, 2, 2, 4, 5, 600000000, time.UTC), ext("team", "a b")
			}),
		},
		"binary, an empty extension": {binaryHeader("Ce-Namespace", ""), "", with(func(e *schedule.Event) { e.Extensions = ext("namespace", "") })},
		"binary, an empty subject":   {binaryHeader("Ce-Subject", ""), "", &minimal},
		"binary, JSON without type":  {binaryHeader(), `{}`, with(func(e *schedule.Event) { e.Data = []byte(`{}`) })},
		"binary, bytes without type": {binaryHeader(), "\x00\xff", with(func(e *schedule.Event) {
			e.Data, e.DataContentType = []byte("\x00\xff"), "application/octet-stream"
		})},
		"binary, 0.3": {binaryHeader("Ce-Specversion", "0.3", "Ce-Schemaurl", "/rel"), "", with(func(e *schedule.Event) { e.DataSchema = "/rel" })},
		"binary, 0.3, base64": {binaryHeader("Ce-Specversion", "0.3", "Ce-Datacontentencoding", "base64", "Content-Type", "text/plain"), "aGk=",
			with(func(e *schedule.Event) { e.DataContentType, e.Data, e.DataBase64 = "text/plain", []byte("hi"), true })},
		"a URI is not rewritten": {binaryHeader("Ce-Source", "HTTP://Ex.com/~a?#"), "", with(func(e *schedule.Event) { e.Source = "HTTP://Ex.com/~a?#" })},
		"structured, minimal":    {jsonHeader(), `{` + required + `}`, &minimal},
		"structured, types of extensions": {jsonHeader(), ` {` + required + `,"b":true,"n":-7,"e":1e2,"s":"x\n","nil":null,"Upper":"u"} `,
			with(func(e *schedule.Event) {
				e.Extensions = ext("b", true, "n", int32(-7), "e", int32(100), "s", "x\n", "upper", "u")
			})},
		"structured, JSON data byte for byte": {jsonHeader(), `{"data" :  { "a" : [1.0, 1e400, "\u003c\ud800", {"x":1,"x":2}] } ,` + required + `}`,
			with(func(e *schedule.Event) { e.Data = []byte(`{ "a" : [1.0, 1e400, "\u003c\ud800", {"x":1,"x":2}] }`) })},
		"structured, a JSON string": {jsonHeader(), `{` + required + `,"data":"x"}`, with(func(e *schedule.Event) { e.Data = []byte(`"x"`) })},
		"structured, text": {jsonHeader(), `{` + required + `,"data":"x\u00e9","datacontenttype":"text/plain"}`,
			with(func(e *schedule.Event) { e.DataContentType, e.Data = "text/plain", []byte("xé") })},
		"structured, a suffix with a value": {jsonHeader(), `{` + required + `,"data":{"a":1},"datacontenttype":"application/x+json"}`,
			with(func(e *schedule.Event) { e.DataContentType, e.Data = "application/x+json", []byte(`{"a":1}`) })},
		"structured, a suffix with a string, as the SDK writes it": {jsonHeader(), `{` + required + `,"data":"{\"a\":1}","datacontenttype":"application/x+json"}`,
			with(func(e *schedule.Event) { e.DataContentType, e.Data = "application/x+json", []byte(`{"a":1}`) })},
		"structured, base64 with space and escapes before the rest": {jsonHeader(), `{"data_base64":  "\/\/8=" ,` + required + `}`,
			with(func(e *schedule.Event) {
				e.Data, e.DataBase64, e.DataContentType = []byte{255, 255}, true, "application/octet-stream"
			})},
		"structured, base64 of JSON without type": {jsonHeader(), `{"data_base64":"e30=","datacontenttype":"",` + required + `}`,
			with(func(e *schedule.Event) { e.Data, e.DataBase64 = []byte("{}"), true })},
		"structured, 0.3, base64 without type": {jsonHeader(), `{` + old + `,"data":"/wA=","datacontentencoding":"base64"}`,
			with(func(e *schedule.Event) {
				e.Data, e.DataBase64, e.DataContentType = []byte{255, 0}, true, "application/octet-stream"
			})},
		"a time in lower case, at a leap second": {binaryHeader("Ce-Time", "2026-12-31t23:59:60z"), "",
			with(func(e *schedule.Event) { e.Time = time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC) })},
		"structured, 0.3": {jsonHeader(), `{` + old + `,"schemaurl":"http://d","data":"aGk=","datacontentencoding":"base64","datacontenttype":"text/plain"}`,
			with(func(e *schedule.Event) {
				e.DataSchema, e.DataContentType, e.Data, e.DataBase64 = "http://d", "text/plain", []byte("hi"), true
			})},
		"structured, charset in the media type": {header("Content-Type", "Application/CloudEvents+JSON; charset=UTF-8", "Ce-Specversion", "junk"), `{` + required + `}`, &minimal},
	} {
		got, err := Read(tt.h, []byte(tt.body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff([]*schedule.Event{tt.want}, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// Read refuses invalid events.
func TestRead_Refuses(t *testing.T) {
	t.Parallel()
	const required = `"specversion":"1.0","id":"i","source":"/s","type":"t"`
	without := func(name string) http.Header {
		h := binaryHeader()
		h.Del(name)
		return h
	}
	for name, tt := range map[string]struct {
		h     http.Header
		body  string
		field string
	}{
		"no event":                {header("Content-Type", "application/json"), "{}", "specversion"},
		"no headers":              {header(), "", "specversion"},
		"a version to come":       {binaryHeader("Ce-Specversion", "2.0"), "", "specversion"},
		"an empty version":        {binaryHeader("Ce-Specversion", ""), "", "specversion"},
		"no id":                   {without("Ce-Id"), "", "id"},
		"an empty id":             {binaryHeader("Ce-Id", ""), "", "id"},
		"no source":               {without("Ce-Source"), "", "source"},
		"a source that is no URI": {binaryHeader("Ce-Source", "http://[::1"), "", "source"},
		"no type":                 {without("Ce-Type"), "", "type"},
		"a bad time":              {binaryHeader("Ce-Time", "yesterday"), "", "time"},
		"a time beyond RFC 3339":  {binaryHeader("Ce-Time", "9999-12-31T23:59:59-01:00"), "", "time"},
		"an offset of a day":      {binaryHeader("Ce-Time", "2026-01-01T00:00:00+24:00"), "", "time"},
		"an offset above a day":   {binaryHeader("Ce-Time", "2026-01-01T00:00:00+24:30"), "", "time"},
		"an offset of 60 minutes": {binaryHeader("Ce-Time", "2026-01-01T00:00:00-01:60"), "", "time"},
		"an hour of one digit":    {binaryHeader("Ce-Time", "2026-01-01T1:00:00Z"), "", "time"},
		"no time":                 {binaryHeader("Ce-Time", "0001-01-01T00:00:00Z"), "", "time"},
		"a time as a number":      {jsonHeader(), `{` + required + `,"time":1}`, "time"},
		"structured, an offset":   {jsonHeader(), `{` + required + `,"time":"2026-01-01T00:00:00+24:30"}`, "time"},
		"a control in the type":   {jsonHeader(), `{` + required + `,"datacontenttype":"text/plain; a=\"\u0001\""}`, "datacontenttype"},
		"a delete in the type":    {jsonHeader(), `{` + required + `,"datacontenttype":"text/plain; a=\"\u007f\""}`, "datacontenttype"},
		"a line in the type":      {jsonHeader(), `{` + required + `,"datacontenttype":"text/plain;\n a=b"}`, "datacontenttype"},
		"half a media type":       {binaryHeader("Content-Type", "text"), "x", "datacontenttype"},
		"a relative dataschema":   {binaryHeader("Ce-Dataschema", "/rel"), "", "dataschema"},
		"a bad content type":      {binaryHeader("Content-Type", "what ever"), "x", "datacontenttype"},
		"a header for the data":   {binaryHeader("Ce-Data", "x"), "{}", "data"},
		"data in other letters":   {header("Content-Type", "application/cloudevents+json"), `{` + required + `,"Data":"x"}`, "data"},
		"a version as a number":   {header("Content-Type", "application/cloudevents+json"), `{"specversion":1.0,"id":"i","source":"/s","type":"t"}`, "specversion"},
		"a bad name":              {binaryHeader("Ce-Foo-Bar", "x"), "", "foo-bar"},
		"bytes that are no UTF-8": {binaryHeader("Ce-Subject", "%FF"), "", "subject"},
		"0.3 with bad base64":     {binaryHeader("Ce-Specversion", "0.3", "Ce-Datacontentencoding", "base64"), "!", "data_base64"},
		"an empty body":           {jsonHeader(), "", "event"},
		"half an object":          {jsonHeader(), `{` + required, "event"},
		"an array":                {jsonHeader(), `[]`, "event"},
		"something after it":      {jsonHeader(), `{` + required + `}{}`, "event"},
		"raw bytes":               {jsonHeader(), "{" + required + ",\"x\":\"\xff\"}", "event"},
		"JSON without a version":  {jsonHeader(), `{"id":"i"}`, "specversion"},
		"a version that is null":  {jsonHeader(), `{"specversion":null}`, "specversion"},
		"an id as a number":       {jsonHeader(), `{"specversion":"1.0","id":1,"source":"/s","type":"t"}`, "id"},
		"an object as extension":  {jsonHeader(), `{` + required + `,"x":{}}`, "x"},
		"a fraction":              {jsonHeader(), `{` + required + `,"x":1.5}`, "x"},
		"33 bits":                 {jsonHeader(), `{` + required + `,"x":2147483648}`, "x"},
		"an infinite number":      {jsonHeader(), `{` + required + `,"x":1e999}`, "x"},
		"a lone surrogate":        {jsonHeader(), `{` + required + `,"x":"\ud800"}`, "x"},
		"twice":                   {jsonHeader(), `{` + required + `,"x":"a","X":"b"}`, "x"},
		"data twice":              {jsonHeader(), `{` + required + `,"data":1,"data":1}`, "data"},
		"data in both forms":      {jsonHeader(), `{` + required + `,"data":1,"data_base64":"aGk="}`, "data_base64"},
		"base64 as a number":      {jsonHeader(), `{"data_base64":1,` + required + `}`, "data_base64"},
		"bad base64":              {jsonHeader(), `{` + required + `,"data_base64":"!"}`, "data_base64"},
		"text data as an object":  {jsonHeader(), `{` + required + `,"data":{},"datacontenttype":"text/plain"}`, "data"},
		"an empty name":           {jsonHeader(), `{"":1,` + required + `}`, ""},
		"0.3 with data_base64":    {jsonHeader(), `{"specversion":"0.3","id":"i","source":"/s","type":"t","data_base64":"aGk="}`, "data_base64"},
		"0.3, unknown encoding":   {jsonHeader(), `{"specversion":"0.3","id":"i","source":"/s","type":"t","datacontentencoding":"gzip","data":"x"}`, "datacontentencoding"},
	} {
		_, err := Read(tt.h, []byte(tt.body))
		var refused *schedule.Error
		if !errors.As(err, &refused) || refused.Code != schedule.CodeInvalid || refused.Field != tt.field {
			t.Errorf("%s: %#v, want one about %q", name, err, tt.field)
		}
	}
	for _, media := range []string{"application/cloudevents", "application/cloudevents+xml", "application/cloudevents-batch+xml"} {
		_, err := Read(header("Content-Type", media), []byte("{}"))
		var refused *schedule.Error
		if !errors.As(err, &refused) || refused.Code != schedule.CodeMediaType {
			t.Errorf("%s: %v", media, err)
		}
	}
}

// What an event is sent as is bounded, whatever it came as.
func TestCheckSize_CountsWhatIsSent(t *testing.T) {
	t.Parallel()
	base := MaxAttributeBytes - len("id"+"i"+"source"+"/s"+"type"+"t"+"x")
	many := func(n int) map[string]string { // 20 bytes each, and 27 as a line
		all := map[string]string{}
		for i := range n {
			all[fmt.Sprintf("many%03d", i)] = "thirteenbytes"
		}
		return all
	}
	fill := func(n int) string { // with many(n), as many lines as may be
		return strings.Repeat("x", MaxHeaderBytes-len("Ce-id: i\r\n"+"Ce-source: /s\r\n"+"Ce-type: t\r\n"+"Ce-x: \r\n")-27*n)
	}
	for name, tt := range map[string]struct {
		value string
		more  map[string]string
		field string // at fault
	}{
		"the most":               {value: strings.Repeat("x", base)},
		"a byte more":            {value: strings.Repeat("x", base+1), field: "x"},
		"the most, escaped":      {value: strings.Repeat("é", base/6) + strings.Repeat("x", base%6)},
		"a byte more, escaped":   {value: strings.Repeat("é", base/6) + strings.Repeat("x", base%6+1), field: "x"},
		"a short one beside it":  {value: strings.Repeat("x", base), more: map[string]string{"a": ""}, field: "x"},
		"a time beside it":       {value: strings.Repeat("x", base), more: map[string]string{"time": "2026-01-02T03:04:05Z"}, field: "x"},
		"the key counts":         {value: strings.Repeat("x", base), more: map[string]string{"reschedulekey": "k"}, field: "x"},
		"the largest is named":   {value: strings.Repeat("x", base/2), more: map[string]string{"a": "1", "subject": strings.Repeat("s", base/2+5)}, field: "subject"},
		"the most lines":         {value: fill(300), more: many(300)},
		"a byte more in lines":   {value: fill(300) + "x", more: many(300), field: "x"},
		"far more than the most": {value: strings.Repeat("x", maxText-200), field: "x"},
	} {
		attributes, body := []string{"Ce-X", strings.ReplaceAll(tt.value, "é", "%c3%a9")}, map[string]string{"specversion": "1.0", "id": "i", "source": "/s", "type": "t", "x": tt.value}
		for name, value := range tt.more {
			attributes, body[name] = append(attributes, "Ce-"+name, value), value
		}
		structured, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		for mode, read := range map[string]func() ([]*schedule.Event, error){
			"binary":     func() ([]*schedule.Event, error) { return Read(binaryHeader(attributes...), nil) },
			"structured": func() ([]*schedule.Event, error) { return Read(jsonHeader(), structured) },
		} {
			events, err := read()
			if err != nil {
				t.Errorf("%s, %s: %v", name, mode, err)
				continue
			}
			var refused *schedule.Error
			err = CheckSize("event.", events[0])
			if (err == nil) != (tt.field == "") || err != nil && (!errors.As(err, &refused) || refused.Code != schedule.CodeInvalid || refused.Field != "event."+tt.field) {
				t.Errorf("%s, %s: %v", name, mode, err)
			}
		}
	}
}

// An event of very many small attributes is refused before all are read.
func TestRead_ManyAttributesTakeLittleMemory(t *testing.T) {
	var body strings.Builder
	body.WriteString(`{"specversion":"1.0","id":"i","source":"/s","type":"t"`)
	for i := range 100_000 {
		fmt.Fprintf(&body, `,"x%d":1`, i)
	}
	body.WriteString("}")
	event := []byte(body.String())
	var err error
	taken := heap.Allocated(func() { _, err = Read(jsonHeader(), event) }) // no other test runs meanwhile
	var refused *schedule.Error
	if !errors.As(err, &refused) || refused.Code != schedule.CodeInvalid {
		t.Errorf("%v", err)
	}
	if taken > 2<<20 {
		t.Errorf("%d bytes are allocated for an event of %d", taken, len(event))
	}
}

// A batch has up to MaxBatch events of both versions. With one bad event it is refused whole, and the error names it.
func TestRead_Batches(t *testing.T) {
	t.Parallel()
	h := header("Content-Type", "application/cloudevents-batch+json; charset=utf-8")
	one := `{"specversion":"1.0","id":"i","source":"/s","type":"t"}`
	old := `{"specversion":"0.3","id":"j","source":"/s","type":"t"}`
	got, err := Read(h, []byte("["+one+","+old+"]"))
	want := []*schedule.Event{{ID: "i", Source: "/s", Type: "t"}, {ID: "j", Source: "/s", Type: "t"}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v %s", err, d)
	}
	if got, err := Read(h, []byte(" [ ] ")); err != nil || len(got) != 0 {
		t.Errorf("an empty batch: %v %v", got, err)
	}
	full := strings.Repeat(one+",", MaxBatch-1) + one
	if got, err := Read(h, []byte("["+full+"]")); err != nil || len(got) != MaxBatch {
		t.Errorf("a full batch: %d %v", len(got), err)
	}
	for name, body := range map[string]string{
		"too many": "[" + full + "," + one + "]", "one bad": "[" + one + `,{"specversion":"1.0"}]`, "an object": one,
		"open": "[" + one, "more": "[]]", "a number": "[1]", "bytes": "[\"\xff\"]", "nothing": "",
	} {
		_, err := Read(h, []byte(body))
		var refused *schedule.Error
		if !errors.As(err, &refused) || refused.Code != schedule.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
		if name == "one bad" && !strings.HasPrefix(err.Error(), "events[1]: ") {
			t.Errorf("%s: %v does not say which", name, err)
		}
	}
}

// Read returns complete events or a *schedule.Error, and its time and memory are bounded by the size of its input.
func FuzzRead(f *testing.F) {
	f.Add("application/cloudevents+json", "", "", `{"specversion":"1.0","id":"i","source":"/s","type":"t","data_base64":1}`)
	f.Add("application/cloudevents-batch+json", "", "", `[{"specversion":"0.3","id":"i","source":"/s","type":"t","datacontentencoding":"base64","data":"aGk="}]`)
	f.Add("text/plain", "1.0", "%C3", "x")
	f.Add("application/cloudevents-batch+json", "", "", "["+strings.Repeat(`{"specversion":"1.0","id":"i","source":"/s","type":"t"},`, 900)+"1]")
	f.Add("application/cloudevents+json", "", "", `{"specversion":"1.0","id":"i","source":"/s","type":"t","data":`+strings.Repeat("[", 9000)+strings.Repeat("]", 9000)+"}")
	f.Add("application/cloudevents+json", "", "", `{`+strings.Repeat(`"x":1,`, 9000)+`"y":2}`)
	f.Add("text/plain; a=\"\x01\"", "1.0", "2026-01-01T00:00:00+24:30", "x")
	f.Fuzz(func(t *testing.T, media, version, value, body string) {
		h := header("Content-Type", media, "Ce-Id", value, "Ce-Source", value, "Ce-Type", value, "Ce-X", value, "Ce-Time", value)
		if version != "" {
			h.Set("Ce-Specversion", version)
		}
		var events []*schedule.Event
		var err error
		start := time.Now()
		n := heap.Allocated(func() { events, err = Read(h, []byte(body)) })
		// Coarse, for a busy machine: what grows faster than the body takes seconds.
		if took, most := time.Since(start), time.Second+time.Duration(len(body)+len(value))*10*time.Microsecond; took > most {
			t.Fatalf("%s for a body of %d bytes", took, len(body))
		}
		// An event and a reply cost memory by their size, whatever is in them.
		if n > int64(1<<20+256*(len(body)+len(value))) {
			t.Fatalf("%d bytes allocated for a body of %d", n, len(body))
		}
		var refused *schedule.Error
		if err != nil && !errors.As(err, &refused) {
			t.Fatalf("%v is no *schedule.Error", err)
		}
		for _, e := range events {
			if e.ID == "" || e.Source == "" || e.Type == "" {
				t.Fatalf("accepted %+v", e)
			}
		}
	})
}
