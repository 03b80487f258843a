package adapter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// seeded is the generator of a test, and prints its seed when the test fails.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("ROUNDTRIP_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("ROUNDTRIP_SEED: %v", err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("replay with ROUNDTRIP_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// text is one that a caller may send, most often a harmless one.
func text(r *rand.Rand) string {
	if r.IntN(3) > 0 {
		return pick(r, "a", "dev.example.sync", "café", "a b", "x/y", "1", "true", "/s")
	}
	if r.IntN(4) == 0 {
		var b strings.Builder
		for range r.IntN(12) {
			b.WriteRune(rune(r.IntN(pick(r, 0x80, 0x100, 0x3000, 0x110000))))
		}
		return strings.ToValidUTF8(b.String(), "?")
	}
	return pick(r, "", " ", " a", "a ", "%", "%41", "%zz", `"`, `"a"`, `a\`, "\x00", "\n", "a\r\nB: c", "\x7f", "\u0085", "\ufffe", "\U0001F600", "\u2028",
		"http://[::1", "HTTP://X/~?#", ":", "://", "%25", strings.Repeat("é", 600), strings.Repeat("x", 5000), "application/cloudevents+json", "\u00a0")
}

func contentTypeOf(r *rand.Rand) string {
	if r.IntN(3) > 0 {
		return pick(r, "", "application/json", "text/plain", "application/octet-stream", "application/x+json", "text/json", "text/plain; charset=utf-8")
	}
	return pick(r, "application/cloudevents+json", " application/cloudevents+json", "APPLICATION/CloudEvents+JSON; charset=utf-8", "application/cloudevents-batch+json",
		"text", "what ever", "text/plain; a=\"\x01\"", "text/plain; a=\"\x7f\"", "text/plain;\n a=b", "text/plain; a=\"é\"", "text/plain ", "application/json;", "a/b/c", text(r))
}

func timeOf(r *rand.Rand) string {
	return pick(r, "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123456789+01:00", "0001-01-01T00:00:00Z", "0001-01-01T00:00:01Z", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
		"9999-12-31T23:59:59-01:00", "2026-01-01T00:00:00+24:30", "2026-01-01T00:00:00+24:00", "2026-01-01T00:00:00-23:59", "2026-01-01T00:00:00+00:60", "2026-01-01T1:00:00Z",
		"1969-12-31T23:59:59.999999999Z", "2026-06-30T23:59:60Z", "2026-06-30t23:59:60.5z", "2026-06-30T12:59:60Z", "2026-01-01t00:00:00z", "2026-01-01T00:00:00,5Z", text(r))
}

// supply is an event as its sender means it; data is nil without any.
type supply struct {
	attributes map[string]any
	data       []byte
}

func newSupply(r *rand.Rand) supply {
	s := supply{attributes: map[string]any{"specversion": "1.0", "id": "i", "source": "/s", "type": "t"}}
	for range r.IntN(6) {
		switch name := pick(r, "id", "source", "type", "subject", "dataschema", "time", "datacontenttype", "x", "team", "traceparent", "knativeerrordest", "Odd",
			"rescheduleattempt", "rescheduledueat", "reschedulerevision", "data", "data_base64", "datacontentencoding", "schemaurl", "a-b", "é", "partitionkey"); name {
		case "time":
			s.attributes[name] = timeOf(r)
		case "datacontenttype":
			s.attributes[name] = contentTypeOf(r)
		case "id", "source", "type", "subject", "dataschema", "data", "data_base64":
			s.attributes[name] = text(r)
		default:
			s.attributes[name] = pick[any](r, text(r), text(r), r.IntN(2) == 0, int32(r.Uint32()))
		}
	}
	delete(s.attributes, "data")
	delete(s.attributes, "data_base64")
	if r.IntN(3) > 0 {
		s.data = pick(r, []byte(`{"a" : [1, "é"]}`), []byte(`"text"`), []byte("null"), []byte("plain é"), []byte{0, 255, 10}, []byte("{"), []byte(" 1 "), bytes.Repeat([]byte("x"), 70_000))
	}
	return s
}

func (s *supply) contentType() string {
	ct, _ := s.attributes["datacontenttype"].(string)
	return ct
}

// asRequest leaves out what a request cannot set.
func (s *supply) asRequest() {
	for _, name := range []string{"specversion", "id", "source", "time"} {
		delete(s.attributes, name)
	}
	if s.contentType() == "" {
		delete(s.attributes, "datacontenttype")
	}
}

// object is the JSON form; only says which attributes it has.
func (s *supply) object(r *rand.Rand, only func(name string) bool) []byte {
	o := map[string]any{}
	for name, value := range s.attributes {
		if only(name) {
			o[name] = value
		}
	}
	isJSON := (&schedule.Event{DataContentType: strings.TrimSpace(s.contentType())}).IsJSON()
	media, _, _ := strings.Cut(strings.ToLower(s.contentType()), ";")
	switch {
	case s.data == nil:
	case isJSON && json.Valid(s.data) && !strings.HasSuffix(strings.TrimSpace(media), "+json"): // a string there is read in two ways
		o["data"] = json.RawMessage(s.data)
	case !isJSON && utf8.Valid(s.data) && r.IntN(2) == 0:
		o["data"] = string(s.data)
	default:
		o["data_base64"] = s.data
	}
	var b bytes.Buffer // not json.Marshal: it rewrites raw data
	for name, value := range o {
		raw, isRaw := value.(json.RawMessage)
		if !isRaw {
			raw, _ = json.Marshal(value)
		}
		fmt.Fprintf(&b, ",%q:%s", name, raw)
	}
	return append([]byte("{"), append(bytes.TrimPrefix(b.Bytes(), []byte(",")), '}')...)
}

func isHTTP(h http.Header) bool {
	for name, values := range h {
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(values[0]) {
			return false
		}
	}
	return true
}

func all(string) bool { return true }

// message is the HTTP form in one of the modes.
func (s *supply) message(r *rand.Rand) (http.Header, []byte) {
	switch r.IntN(3) {
	case 0:
		return http.Header{"Content-Type": {"application/cloudevents+json"}}, s.object(r, all)
	case 1:
		return http.Header{"Content-Type": {"application/cloudevents-batch+json"}}, slices.Concat([]byte("["), s.object(r, all), []byte("]"))
	}
	h := http.Header{}
	encodes := r.IntN(2) == 0
	for name, value := range s.attributes {
		text := fmt.Sprint(value)
		encoded := cloudevent.EncodeHeader(text)
		meant, err := cloudevent.DecodeHeader(text)
		switch {
		case name == "datacontenttype":
			h["Content-Type"] = []string{text}
			continue
		case !encodes && err == nil && httpguts.ValidHeaderFieldValue(text) && text == strings.TrimSpace(text):
			// As senders do that do not encode: what it means is what is decoded.
			s.attributes[name], encoded = meant, text
		}
		h["Ce-"+name] = []string{encoded}
	}
	return h, s.data
}
