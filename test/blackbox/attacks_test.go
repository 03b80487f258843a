package blackbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// within is for bounds of memory: the race detector takes several times as much.
func within(bytes int64) int64 {
	if harness.RaceEnabled {
		return 5 * bytes
	}
	return bytes
}

// A pattern of an expression takes no more memory than its text is worth: the
// manifest is refused with the field, or serving it is cheap.
func TestExpression_PatternsAreBounded(t *testing.T) {
	t.Parallel()
	const count = 20
	power := strings.Repeat("x{1000}", 550)
	for name, spec := range map[string]string{
		"literal":  fmt.Sprintf("ingest: {when: %q}", "event.id.matches('"+power+"')"),
		"computed": `ingest: {when: "event.id.matches(event.data.p)"}`,
	} {
		var sources []*source
		for i := range count {
			sources = append(sources, &source{name: fmt.Sprintf("%s-%d", name, i), spec: spec})
		}
		file := filepath.Join(t.TempDir(), "sources.yaml")
		if err := os.WriteFile(file, []byte(manifests(sources...)), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := harness.Pod().Launch(harness.Flags(file, t.TempDir())...)
		var refused *harness.ExitError
		if errors.As(err, &refused) && refused.Code > 0 {
			if !strings.Contains(refused.Log, "ingest.when") {
				t.Errorf("%s: the refusal does not name the field: %s", name, refused.Log)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(a.Kill)
		pattern, err := json.Marshal(map[string]string{"p": power})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 6 {
			r, err := harness.Do(t.Context(), http.MethodPost, a.URL+"/"+namespace+"/"+sources[i].name, string(pattern),
				"Ce-Id", strings.Repeat("x", 1000), "Ce-Type", "t", "Ce-Source", "/s", "Ce-Specversion", "1.0")
			if err != nil {
				t.Errorf("%s: %v %s", name, err, a.Verdict())
				break
			}
			t.Logf("%s: %d", name, r.Status)
		}
		if peak := a.PeakMemory(t); peak > within(200<<20) {
			t.Errorf("%s: %d sources took %d MiB", name, count, peak>>20)
		}
	}
}

// An event without a policy that the source allows puts nothing off, and a time
// that the source does not allow is refused.
func TestEvent_CannotPostpone(t *testing.T) {
	t.Parallel()
	s := solo(t, "postpone", "")
	due := s.put(t, "k", `{"delay":"1h","uid":"u","event":{"type":"mine"}}`).DueAt
	for _, policy := range []string{"latest", "replace"} {
		if r := s.send(t, "Ce-Reschedulekey", "k", "Ce-Rescheduleafter", "8000h", "Ce-Reschedulepolicy", policy); r.Status != http.StatusForbidden {
			t.Errorf("an event that asks for %s: %d %s", policy, r.Status, r.Body)
		}
	}
	if r := s.send(t, "Ce-Reschedulekey", "new", "Ce-Rescheduleafter", "876000h"); r.Status != http.StatusBadRequest {
		t.Errorf("an event that asks for 100 years: %d %s", r.Status, r.Body)
	}
	if v := s.get(t, "k"); !v.DueAt.Equal(due) || v.UID != "u" || v.Event["type"] != "mine" {
		t.Errorf("the schedule became %+v", v)
	}
}

// solo is a source with an adapter of its own.
func solo(t *testing.T, name, spec string) *source {
	t.Helper()
	s := &source{name: name, spec: spec}
	alone(t, nil, s)
	return s
}

// Data that claims to be an event does not take the place of the envelope.
func TestEvent_EnvelopeCannotBeForged(t *testing.T) {
	t.Parallel()
	for i, contentType := range []string{" application/cloudevents+json", "application/cloudevents+json", "Application/CloudEvents+JSON ", "\tapplication/cloudevents-batch+json"} {
		key := fmt.Sprint("forged envelope ", i)
		forged := `{"specversion":"1.0","id":"forged","source":"/forged","type":"forged","reschedulekey":"other","reschedulerevision":"1","rescheduleattempt":"0","rescheduledueat":"2020-01-01T00:00:00Z"}`
		r := plain.call(t, http.MethodPut, harness.KeyPath(key), fmt.Sprintf(`{"event":{"datacontenttype":%q,"data":%s}}`, contentType, forged))
		if r.Status == http.StatusBadRequest {
			continue
		}
		if d := plain.next(t, key); d.Attr("type") == "forged" || d.Attr("id") == "forged" {
			t.Errorf("%q: the sink reads an event of the caller's making: %v", contentType, d.Attributes)
		}
	}
}

// What is accepted is there, whatever an event says: neither its time nor its
// media type takes a schedule away.
func TestEvent_DoesNotDestroyASchedule(t *testing.T) {
	t.Parallel()
	s := solo(t, "destroy", "limits: {maxPending: 8}")
	for i, attributes := range []string{
		`"time":"2026-01-01T00:00:00+24:30"`,
		`"time":"2026-01-01T00:00:00-24:60"`,
		`"datacontenttype":"text/plain; a=\"\u0001\""`,
		`"datacontenttype":"text/plain;\na=b"`,
		`"datacontenttype":"text/plain; a=\"\u007f\""`,
	} {
		key := fmt.Sprint("k", i)
		s.put(t, key, `{"delay":"2s","maxInterval":"10h"}`)
		r := s.call(t, http.MethodPost, "", fmt.Sprintf(`{"specversion":"1.0","id":"i","source":"/s","type":"t",%s,"reschedulekey":%q,"rescheduleafter":"1h","data":"x"}`, attributes, key),
			"Content-Type", "application/cloudevents+json")
		if r.Status != http.StatusBadRequest && r.Status != http.StatusAccepted {
			t.Errorf("%s: %d %s", attributes, r.Status, r.Body)
		}
		s.get(t, key)
		s.next(t, key)
	}
	eventually(t, "all wait for their maxInterval", func() bool {
		c := s.counts(t)
		return c.Pending == 5 && c.InFlight == 0
	})
}

// More keys than are counted one by one are counted all the same.
func TestCounts_AboveTenThousandDue(t *testing.T) {
	t.Parallel()
	const count = 10_100
	s := solo(t, "many-due", "suspend: true")
	for from := 0; from < count; from += 1000 {
		var items []string
		for i := from; i < min(from+1000, count); i++ {
			items = append(items, fmt.Sprintf(`{"key":"k%d"}`, i))
		}
		if r := s.call(t, http.MethodPost, "/schedules", `{"items":[`+strings.Join(items, ",")+`]}`); r.Status != http.StatusOK {
			t.Fatalf("%d %s", r.Status, r.Body)
		}
	}
	eventually(t, "all are counted", func() bool {
		c := s.counts(t)
		return c.Pending == count && c.Due == count && c.OldestDueAt != nil
	})
}

// News that come between two attempts have retries of their own.
func TestEvent_HasRetriesOfItsOwn(t *testing.T) {
	t.Parallel()
	s := solo(t, "own-retries", "delivery: {retry: 2, backoffPolicy: linear, backoffDelay: PT1S}")
	s.answer("", harness.Status(http.StatusInternalServerError))
	s.ingest(t, "Ce-Id", "first", "Ce-Reschedulekey", "k")
	s.next(t, "k")
	s.next(t, "k")
	s.settled(t, "k")
	s.ingest(t, "Ce-Id", "second", "Ce-Reschedulekey", "k")
	s.gone(t, "k")
	tries := 0
	for _, d := range sink.Of(s.name, "k") {
		if d.Attr("id") == "second" {
			tries++
		}
	}
	if tries != 3 {
		t.Errorf("the second event was attempted %d times, want 3", tries)
	}
}

// A FILE that is being written is no order to forget everything.
func TestReload_AnEmptyFileIsRefused(t *testing.T) {
	t.Parallel()
	s := &source{name: "emptied"}
	o := alone(t, nil, s)
	s.put(t, "k", `{"delay":"1h"}`)
	whole := s.manifest()
	for _, text := range []string{"", "\n", "---\n", whole[:strings.Index(whole, "kind")]} {
		if err := os.WriteFile(o.file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if ok, log := o.Reload(t); ok {
			t.Errorf("%q was loaded: %s", text, log)
		}
	}
	s.get(t, "k")
	o.terminate(t)
	harness.Refused(t, harness.Flags(o.file, filepath.Join(o.dir, "data"))...)
	o.write(t, s)
	o.restart(t)
	s.get(t, "k")
}

// Each source is seen, however many there are.
func TestMetrics_KnowTheLastOfManySources(t *testing.T) {
	t.Parallel()
	const count = 2100
	var sources []*source
	for i := range count {
		sources = append(sources, &source{name: fmt.Sprintf("many-%d", i), inbox: "many"})
	}
	o := alone(t, nil, sources...)
	for _, s := range sources {
		s.put(t, s.name, "")
	}
	sink.Find(t, "a delivery of each", func([]*harness.Delivery) bool { return len(sink.Of("many", "")) >= count })
	eventually(t, "all have a line", func() bool {
		r, err := harness.Do(t.Context(), http.MethodGet, o.Admin+"/metrics", "")
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return false // it took more than 10 s, and was cut off; Prometheus asks again too
		}
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for line := range strings.Lines(string(r.Body)) {
			if !strings.HasPrefix(line, "reschedule_deliveries_total{") || !strings.Contains(line, `result="delivered"`) {
				continue
			}
			if _, name, ok := strings.Cut(line, `kn_source_name="many-`); ok {
				seen[name[:strings.IndexByte(name, '"')]] = true
			}
		}
		return len(seen) == count && !strings.Contains(string(r.Body), "otel_metric_overflow")
	})
}
