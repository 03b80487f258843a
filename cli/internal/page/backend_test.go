package page

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// An API that does not answer is a sentence on the page, not an empty one.
func TestViews_WithoutTheAPI(t *testing.T) {
	api := httptest.NewServer(http.NotFoundHandler())
	api.Close()
	page := Handler(Backend{Base: api.URL, Sources: func(context.Context) ([]Source, error) { return []Source{ops}, nil }})
	for _, target := range []string{"/", "/source?ns=ops&name=repos", "/key?ns=ops&name=repos&key=k"} {
		if body := do(page, "GET", target, "").Body.String(); !strings.Contains(body, "cannot be reached") {
			t.Errorf("%s: %s", target, body)
		}
	}
}

// A server that answers, but is no adapter, is not taken for an adapter that does not answer.
func TestSource_AnotherServer(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"a page":    func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<!DOCTYPE html>") },
		"not found": http.NotFound,
	} {
		api := httptest.NewServer(answer)
		page := Handler(Backend{Base: api.URL, Sources: func(context.Context) ([]Source, error) { return []Source{ops}, nil }})
		if body := do(page, "GET", "/source?ns=ops&name=repos", "").Body.String(); !strings.Contains(body, "leads to another server") {
			t.Errorf("%s: %s", name, body)
		}
		api.Close()
	}
}
