package controller

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// FuzzEvent reads anything as an event: it is one, or errUnreadable.
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
