package main

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func newRecorder(t *testing.T, file string) *recorder {
	t.Helper()
	r := &recorder{answers: map[string]answer{}}
	if err := r.open(file); err != nil {
		t.Fatal(err)
	}
	return r
}

// post sends a body to a path and returns the status of the answer.
func post(r *recorder, path, body string) int {
	w := httptest.NewRecorder()
	r.keep(w, httptest.NewRequest("POST", path, strings.NewReader(body)))
	return w.Code
}

// Answered calls outlive a container that was killed in the middle of a write.
func TestRecorder_KilledInAWriteLosesNothing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "records")
	r := newRecorder(t, file)
	post(r, "/a", "1")
	post(r, "/b", "2")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(text, `{"at":"2026-11-2`...), 0o600); err != nil {
		t.Fatal(err)
	}
	post(newRecorder(t, file), "/c", "3")

	var got []string
	for _, one := range newRecorder(t, file).records {
		got = append(got, one.Path, string(one.Body))
	}
	if want := []string{"/a", "1", "/b", "2", "/c", "3"}; !slices.Equal(got, want) {
		t.Errorf("it remembers %q, want %q", got, want)
	}
}

// Records are asked for by their path and by what is in their body.
func TestRecorder_ShowsWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, filepath.Join(t.TempDir(), "records"))
	post(r, "/a", "one two")
	post(r, "/a", "three")
	post(r, "/b", "two")
	for query, want := range map[string][]string{
		"":                     {"one two", "three", "two"},
		"?path=/a":             {"one two", "three"},
		"?contains=two":        {"one two", "two"},
		"?path=/a&contains=wo": {"one two"},
		"?path=/c":             nil,
	} {
		w := httptest.NewRecorder()
		r.show(w, httptest.NewRequest("GET", "/records"+query, nil))
		var shown []record
		if err := json.Unmarshal(w.Body.Bytes(), &shown); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, one := range shown {
			got = append(got, string(one.Body))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q shows %q, want %q", query, got, want)
		}
	}
}

// A path is answered as its test orders, for as long as ordered.
func TestRecorder_AnswersAsOrdered(t *testing.T) {
	t.Parallel()
	r := newRecorder(t, filepath.Join(t.TempDir(), "records"))
	for _, order := range []string{`{"path":"/for-ever","status":500}`, `{"path":"/for-long","status":503,"for":"1h"}`, `{"path":"/until-now","status":503,"for":"0s"}`} {
		r.tell(httptest.NewRecorder(), httptest.NewRequest("PUT", "/answer", strings.NewReader(order)))
	}
	for path, want := range map[string]int{"/for-ever": 500, "/for-long": 503, "/until-now": 204, "/never-told": 204} {
		if got := post(r, path, ""); got != want {
			t.Errorf("%s is answered with %d, want %d", path, got, want)
		}
	}
	if at := r.records[0].At; time.Since(at) > time.Minute {
		t.Errorf("it came at %s", at)
	}
}
