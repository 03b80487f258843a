package adapter

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// durationOf is a duration at a bound, beyond it, or none.
func durationOf(r *rand.Rand) any {
	return pick[any](r, "0s", "1ns", "0.1ns", "1s", "PT1S", "PT0.000000001S", "876600h", "P36525D", strings.Repeat("0", 62)+"1s",
		"876600h1ns", "P36525DT0.1S", "2562047h47m16.854775807s", "-1s", "", "soon", 1, strings.Repeat("0", 63)+"1s", nil, text(r))
}

// countOf is a number at a bound, beyond it, or none.
func countOf(r *rand.Rand) any {
	return pick[any](r, 0, 1, 2, 1000, 1001, 1<<31-1, json.Number("9007199254740991"), 1<<31, json.Number("9007199254740992"), json.Number("9223372036854775808"), -1, 1.5, "1", nil)
}

func policyOf(r *rand.Rand) any {
	return pick[any](r, "replace", "earliest", "latest", "keep", "fail", "Keep", "", nil)
}

// specFields are the fields of a spec, in two parts, with a value. Left out are a timeout that no
// sink can meet, and when, which drops events.
var specFields = map[[2]string]func(r *rand.Rand) any{
	{"delay"}:       durationOf,
	{"maxInterval"}: durationOf,
	{"slack"}:       durationOf,
	{"warmUp"}:      durationOf,
	{"jitter"}:      func(r *rand.Rand) any { return pick[any](r, 0, 0.5, 1, 1.5, -0.1, "1", json.Number("1e-400"), nil) },

	{"schedule"}: func(r *rand.Rand) any {
		cron := pick[any](r, "@hourly", "0 9 * * MON-FRI", "*/5 2-4 29 2 ?", "0 0 30 2 *", "@every 1m", "TZ=UTC @daily", "", 1, nil)
		return map[string]any{"cron": cron, "timeZone": pick[any](r, "Europe/Berlin", "Asia/Kolkata", "UTC", "", nil, "Local", "Nowhere")}
	},
	{"conflictPolicy"}: policyOf,
	{"access"}:         func(r *rand.Rand) any { return pick[any](r, "namespace", "rbac", "all", "") },
	{"audit"}:          func(r *rand.Rand) any { return pick[any](r, true, false, "true") },
	{"suspend"}:        func(r *rand.Rand) any { return pick[any](r, false, nil, "no", 0) },
	{"ingest", "key"}: func(r *rand.Rand) any {
		return pick[any](r, "event.id", "'k'", "", strings.Repeat(" ", 4088)+"event.id", strings.Repeat(" ", 4089)+"event.id", 1)
	},
	{"ingest", "when"}:     func(r *rand.Rand) any { return pick[any](r, "true", "event.id != ''", "", strings.Repeat(" ", 4097)) },
	{"ingest", "maxDelay"}: durationOf,

	{"ingest", "conflictPolicy"}: policyOf,
	{"ingest", "policies"}: func(r *rand.Rand) any {
		return pick[any](r, []string{}, []string{"keep"}, []string{"replace", "earliest", "latest", "keep", "fail"}, []string{"keep", "keep"}, []string{""}, "keep")
	},
	{"ingest", "authentication"}: func(r *rand.Rand) any { return pick[any](r, "cluster", "required", "none") },

	{"deadLetters", "keep"}:   countOf,
	{"deadLetters", "maxAge"}: durationOf,

	{"limits", "maxInFlight"}:  countOf,
	{"limits", "maxPerSecond"}: countOf,
	{"limits", "maxPending"}:   countOf,
	{"limits", "maxBytes"}: func(r *rand.Rand) any {
		return pick[any](r, 1, 0, -1, "10Gi", "1n", "16Ei", "1e30", "-1Gi", "Gi", "", json.Number("9223372036854775808"))
	},

	{"delivery", "retry"}:         countOf,
	{"delivery", "backoffPolicy"}: func(r *rand.Rand) any { return pick[any](r, "linear", "exponential", "cubic", "") },
	{"delivery", "backoffDelay"}:  durationOf,
	{"delivery", "retryAfterMax"}: durationOf,
	{"delivery", "backoffMax"}:    durationOf,
	{"delivery", "timeout"}:       func(r *rand.Rand) any { return pick[any](r, "PT30S", "P36525D", "P36526D", "PT0S", "30s", 30) },
	{"delivery", "format"}:        func(r *rand.Rand) any { return pick[any](r, "binary", "json", "xml", "") },
}

// newSpec is the rest of a spec with some of the fields, and their names.
func newSpec(t *testing.T, r *rand.Rand) (spec string, named []string) {
	t.Helper()
	tree := map[string]any{}
	n := 1 + r.IntN(3)
	for field, value := range specFields { // in any order
		if len(named) == n {
			break
		}
		named = append(named, strings.TrimSuffix("spec."+field[0]+"."+field[1], "."))
		if field[1] == "" {
			tree[field[0]] = value(r)
			continue
		}
		part, _ := tree[field[0]].(map[string]any)
		if part == nil {
			part = map[string]any{}
		}
		part[field[1]], tree[field[0]] = value(r), part
	}
	raw, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw[1 : len(raw)-1]), named
}

// Whatever spec is accepted serves keys: they are stored, survive a restart unchanged, and reach the sink in
// the spec's mode. The refusal of a spec names a field of it.
func TestAcceptedSpec_ServesKeys(t *testing.T) {
	r := seeded(t)
	w := &world{t: t, dir: t.TempDir(), wake: make(chan struct{}, 1), specs: map[string]string{}}
	srv := httptest.NewServer(http.HandlerFunc(w.receive))
	defer srv.Close()
	w.sinkURL = srv.URL
	tries := 400
	if testing.Short() {
		tries = 100
	}
	refused := map[string]bool{}
	for i := range tries {
		spec, named := newSpec(t, r)
		name := fmt.Sprint("s", i)
		if _, err := w.source(name, spec); err == nil {
			w.specs[name] = spec
			continue
		} else if !names(err, named) {
			t.Errorf("%s: %v: names none of %q", spec, err, named)
		}
		for _, field := range named {
			refused[field] = true
		}
	}
	if len(w.specs) < tries/10 || len(refused) < len(specFields)/2 {
		t.Errorf("of %d specs only %d were accepted, and values of only %d fields refused", tries, len(w.specs), len(refused))
	}
	w.open()
	expected := map[string]map[string]*expectation{}
	for name := range w.specs {
		of := map[string]*expectation{}
		expected[name] = of
		s := newSupply(r)
		s.asRequest()
		if w.call(http.MethodPut, "/ns/"+name+"/schedules/"+url.PathEscape("a/b"), http.Header{"Content-Type": {"application/json"}}, fmt.Appendf(nil, `{"event":%s}`, s.object(r, all))) {
			of["a/b"] = &expectation{supply: s}
		}
		s = newSupply(r)
		s.attributes["reschedulekey"] = "c"
		h, body := s.message(r)
		if w.call(http.MethodPost, "/ns/"+name, h, body) {
			of["c"] = &expectation{supply: s, ingested: true}
		}
	}
	stored := 0
	for round := range 2 {
		for name, of := range expected {
			stored += len(of)
			w.check(name, of)
		}
		w.close()
		w.open()
		for name, of := range expected {
			w.check(name, of)
		}
		if round == 1 {
			break
		}
		w.offset.Add(int64(36525*24*time.Hour + time.Hour)) // the longest delay
		w.close()
		w.open() // so that all is due
		for name, of := range expected {
			expected[name] = w.deliver(r, name, of)
		}
	}
	w.close()
	if stored < len(w.specs) {
		t.Errorf("only %d keys were stored in %d sources", stored, len(w.specs))
	}
}

// names says whether the error names one of the fields, or the part that has it.
func names(err error, fields []string) bool {
	for _, field := range fields {
		if strings.Contains(err.Error(), field) {
			return true
		}
	}
	return false
}
