package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A function does what its test orders, and reports to the recorder.
func TestFunction_ObeysAndReports(t *testing.T) {
	t.Parallel()
	const rules = `[
		{"prefix": "again/", "headers": {"Reschedule-After": "5m"}},
		{"prefix": "fails/", "status": 503, "failures": 2},
		{"prefix": "refuses/", "status": 400},
		{"prefix": "replies/", "reply": {"attributes": {"rescheduleafter": "1s"}, "data": {"a": 1}}},
		{"prefix": "typo/", "work": "soon"}]`
	for _, c := range []struct {
		key, attempt, data string
		status             int
		header, value      string
		reports            int // how many the recorder gets
	}{
		{"other", "0", "", 204, "Reschedule-After", "", 2},
		{"again/a", "0", "", 204, "Reschedule-After", "5m", 2},
		{"fails/a", "0", "", 503, "Reschedule-After", "", 2},
		{"fails/a", "1", "", 503, "", "", 2},
		{"fails/a", "2", "", 204, "", "", 2},
		{"refuses/a", "7", "", 400, "", "", 2},
		{"replies/a", "0", "", 200, "Ce-Rescheduleafter", "1s", 2},
		{"refuses/a", "0", `{"do": {"headers": {"Reschedule-After": "never"}}}`, 204, "Reschedule-After", "never", 2},
		{"refuses/a", "0", `{"dot": 1}`, 400, "", "", 2},
		{"typo/a", "0", "", 400, "", "", 1},
		{"a%20key", "0", "", 204, "", "", 2},
		{"a", "none", "", 400, "", "", 0},
	} {
		t.Run(c.key+"#"+c.attempt+c.data, func(t *testing.T) {
			t.Parallel()
			var reports []run
			recorder := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				var r run
				if err := json.NewDecoder(req.Body).Decode(&r); err != nil {
					t.Error(err)
				}
				reports = append(reports, r)
				w.WriteHeader(http.StatusNoContent)
			}))
			defer recorder.Close()
			f := function{recorder: recorder.URL, pod: "pod-1"}
			if err := json.Unmarshal([]byte(rules), &f.rules); err != nil {
				t.Fatal(err)
			}
			req := httptest.NewRequest("POST", "/", strings.NewReader(c.data))
			for name, value := range map[string]string{
				"Id": "1", "Type": "t", "Reschedulekey": c.key, "Rescheduleattempt": c.attempt, "Rescheduledueat": "2026-11-21T09:00:00Z",
			} {
				req.Header.Set("Ce-"+name, value)
			}
			w := httptest.NewRecorder()
			f.ServeHTTP(w, req)

			if got := w.Header().Get(c.header); w.Code != c.status || got != c.value {
				t.Errorf("it answers %d with %s %q, want %d with %q", w.Code, c.header, got, c.status, c.value)
			}
			if len(reports) != c.reports {
				t.Fatalf("the recorder was told %d times, want %d: %+v", len(reports), c.reports, reports)
			}
			if c.reports == 2 && (reports[0].Run != reports[1].Run || !reports[0].End.IsZero() || reports[1].End.Before(reports[1].Start) || reports[1].Status != c.status || reports[1].Pod != "pod-1") {
				t.Errorf("the recorder was told %+v", reports)
			}
		})
	}
}

// A run that could not be reported has failed.
func TestFunction_UnreportedRunFails(t *testing.T) {
	t.Parallel()
	recorder := httptest.NewServer(http.NotFoundHandler())
	defer recorder.Close()
	req := httptest.NewRequest("POST", "/", nil)
	req.Header.Set("Ce-Subject", "a")
	w := httptest.NewRecorder()
	function{recorder: recorder.URL}.ServeHTTP(w, req)
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("it answers %d", w.Code)
	}
}
