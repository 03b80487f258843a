package controller

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// FuzzEvent reads anything as an event: it is one, or nothing that a repetition
// mends.
func FuzzEvent(f *testing.F) {
	for _, seed := range []struct{ typ, body string }{
		{"dev.knative.apiserver.ref.add", `{"apiVersion":"v1","kind":"Pod","name":"a"}`},
		{"dev.knative.apiserver.resource.delete", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`},
		{"", `{"type":"dev.reschedule.due","reschedulekey":"a","n":1,"data_base64":"e30="}`},
		{"", `{"type":null,"data":[]}`},
		{"%zz%4", ""},
	} {
		f.Add(seed.typ, seed.body)
	}
	f.Fuzz(func(t *testing.T, typ, body string) {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/cloudevents+json")
		if typ != "" {
			r.Header.Set("Content-Type", "application/json")
			r.Header["Ce-Type"] = []string{typ}
		}
		e, err := readEvent(r)
		if err == nil {
			var c *change
			if c, err = readChange(e); c != nil && (c.name.Name == "" || c.gvk.Kind == "") {
				t.Errorf("a change of nothing: %v", c)
			}
		}
		if err != nil && !errors.Is(err, errUnreadable) {
			t.Error(err)
		}
	})
}

func TestHeadersAreEncodedAndDecoded(t *testing.T) {
	t.Parallel()
	for text, header := range map[string]string{
		"ConfigMap/ns/a": "ConfigMap/ns/a", "é \"%": "%C3%A9%20%22%25", "\n": "%0A",
	} {
		if got := percentEncode(text); got != header || percentDecode(got) != text {
			t.Errorf("%q is encoded as %q, and decoded as %q", text, got, percentDecode(got))
		}
	}
	if got := percentDecode("100% %4"); got != "100% %4" {
		t.Errorf("what is not encoded becomes %q", got)
	}
}
