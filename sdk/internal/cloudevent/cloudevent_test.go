package cloudevent

import (
	"errors"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

// An event is read in both modes, or is ErrUnreadable.
func TestRead_BothModes(t *testing.T) {
	t.Parallel()
	const structured = "application/cloudevents+json; charset=utf-8"
	for name, row := range map[string]struct {
		header map[string]string
		body   string
		want   *Event // nil: it is unreadable
	}{
		"binary": {map[string]string{"Ce-Type": "t", "Ce-Subject": "%C3%A9", "Ce-Raw": "é", "Content-Type": "text/plain", "Other": "x"}, "data",
			&Event{map[string]string{"type": "t", "subject": "é", "raw": "é", "datacontenttype": "text/plain"}, []byte("data")}},
		"no content type": {map[string]string{"Ce-Type": "t"}, "", &Event{map[string]string{"type": "t"}, []byte{}}},
		"no UTF-8":        {map[string]string{"Ce-Type": "%FF"}, "", nil},
		"structured": {map[string]string{"Content-Type": structured, "Ce-Type": "not this"}, `{"type":"t","n":1,"yes":true,"none":null,"word":"null","data":{"a": 1}}`,
			&Event{map[string]string{"type": "t", "n": "1", "yes": "true", "word": "null"}, []byte(`{"a": 1}`)}},
		"a string of JSON": {map[string]string{"Content-Type": structured}, `{"data":"a"}`, &Event{map[string]string{}, []byte(`"a"`)}},
		"a text": {map[string]string{"Content-Type": structured}, `{"datacontenttype":"text/plain","data":"a"}`,
			&Event{map[string]string{"datacontenttype": "text/plain"}, []byte("a")}},
		"base64":              {map[string]string{"Content-Type": structured}, `{"data_base64":"YQ=="}`, &Event{map[string]string{}, []byte("a")}},
		"bad base64":          {map[string]string{"Content-Type": structured}, `{"data_base64":"?"}`, nil},
		"base64 of no string": {map[string]string{"Content-Type": structured}, `{"data_base64":1}`, nil},
		"no object":           {map[string]string{"Content-Type": structured}, `[]`, nil},
		"as much as may be":   {nil, strings.Repeat("x", 100), &Event{map[string]string{}, []byte(strings.Repeat("x", 100))}},
		"too much":            {nil, strings.Repeat("x", 101), nil},
	} {
		r := httptest.NewRequest("POST", "/", strings.NewReader(row.body))
		for name, value := range row.header {
			r.Header.Set(name, value)
		}
		if got, err := Read(r, 100); !reflect.DeepEqual(got, row.want) || (row.want == nil) != errors.Is(err, ErrUnreadable) {
			t.Errorf("%s: read %v, %v", name, got, err)
		}
	}
	r := httptest.NewRequest("POST", "/", nil)
	r.Header["Ce-Type"] = []string{"a", "b"}
	if got, err := Read(r, 100); !errors.Is(err, ErrUnreadable) {
		t.Errorf("two of a header: %v, %v", got, err)
	}
}

// A header is read as the text that was encoded.
func TestPercentEncode_IsDecoded(t *testing.T) {
	t.Parallel()
	for text, header := range map[string]string{
		"ConfigMap/ns/a": "ConfigMap/ns/a", "é \"%": "%C3%A9%20%22%25", "\n\x7f": "%0A%7F",
	} {
		if got := PercentEncode(text); got != header || percentDecode(got) != text {
			t.Errorf("%q is encoded as %q, and decoded as %q", text, got, percentDecode(got))
		}
	}
	if got := percentDecode("100% %4 %zz"); got != "100% %4 %zz" {
		t.Errorf("what is not encoded becomes %q", got)
	}
}
