package guard

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// some are values that attributes have in these tests, and other texts.
var some = map[string][]string{
	"specversion": {"1.0"}, "id": {"i"}, "source": {"/s"}, "type": {"a", "ab", "b"}, "subject": {"main", "mainly"},
	"time": {"2026-11-21T09:00:00Z", "0001-01-01T00:00:00Z"}, "dataschema": {"/schema"}, "schemaurl": {"/schema"},
	"datacontenttype": {"application/json; charset=utf-8", "text/xml"}, "datamediatype": {"application/json", "text/xml"},
	"datacontentencoding": {"base64"}, "branch": {"main", "12"}, "size": {"12", "1"}, "forced": {"true", "false"}, "missing": {"x"},
}

// random makes filters and events.
type random struct{ *rand.Rand }

func (r random) pick(s ...string) string { return s[r.IntN(len(s))] }

// attributes are some with a value that is often one of theirs.
func (r random) attributes() map[string]string {
	m := map[string]string{}
	for range 1 + r.IntN(2) {
		name := r.pick(sorted(some)...)
		from := name
		if r.IntN(4) == 0 {
			from = r.pick(sorted(some)...)
		}
		value := r.pick(some[from]...)
		if cut := r.IntN(len(value)); r.IntN(4) == 0 {
			value = r.pick(value[cut:], value[:cut+1])
		}
		m[name] = value
	}
	return m
}

func (r random) filter(depth int) (f theirFilter) {
	n := 7
	if depth == 0 {
		n = 4
	}
	list := func() (fs []theirFilter) {
		for range 1 + r.IntN(3) {
			fs = append(fs, r.filter(depth-1))
		}
		return fs
	}
	switch r.IntN(n) {
	case 0:
		f.Exact = r.attributes()
	case 1:
		f.Prefix = r.attributes()
	case 2:
		f.Suffix = r.attributes()
	case 3:
		f.CESQL = r.pick("type", "subject", "branch", "missing") + r.pick(" = ", " <> ", " LIKE ") + "'" + r.pick("a", "b", "main", "m%") + "'"
	case 4:
		f.All = list()
	case 5:
		f.Any = list()
	default:
		within := r.filter(depth - 1)
		f.Not = &within
	}
	return f
}

// spoil breaks the filter somewhere, or changes it so that it is still whole.
func (r random) spoil(f *theirFilter) {
	switch {
	case len(f.All) > 0 && r.IntN(3) > 0:
		r.spoil(&f.All[r.IntN(len(f.All))])
		return
	case len(f.Any) > 0 && r.IntN(3) > 0:
		r.spoil(&f.Any[r.IntN(len(f.Any))])
		return
	case f.Not != nil && r.IntN(3) > 0:
		r.spoil(f.Not)
		return
	}
	name := r.pick("Type", "type", "ty-pe", "", "1type", "type1", "tÿpe", "type ", "x")
	attributes := map[string]string{"subject": "x", name: r.pick("", "x", "X")}
	switch r.IntN(8) {
	case 0:
		*f = theirFilter{}
	case 1:
		f.Exact = attributes
	case 2:
		f.Prefix = attributes
	case 3:
		f.Suffix = attributes
	case 4:
		f.CESQL = r.pick("TRUE", "type = ", " ", "'a", "NOT", "size +", "UNKNOWN(1)", "LENGTH(1, 2)", "((", "a b")
	case 5:
		f.Not = new(theirFilter)
	case 6:
		f.All = append(f.All, r.filter(0))
	case 7:
		f.Exact, f.Any = map[string]string{}, []theirFilter{}
	}
}

func (r random) event() *schedule.Event {
	e := &schedule.Event{ID: "i", Source: "/s", Type: r.pick(some["type"]...), Extensions: map[string]any{}}
	if r.IntN(2) == 0 {
		e.Subject = r.pick(some["subject"]...)
		e.DataContentType = r.pick(some["datacontenttype"]...)
	}
	if r.IntN(2) == 0 {
		e.DataSchema, e.Time = "/schema", time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	}
	if r.IntN(2) == 0 {
		e.Extensions["branch"] = r.pick(some["branch"]...)
		e.Extensions["size"] = int32(r.IntN(20))
		e.Extensions["forced"] = r.IntN(2) == 0
	}
	if r.IntN(4) == 0 {
		e.Extensions["datacontentencoding"] = "base64"
	}
	return e
}

// asRead are filters as they are read out of a policy.
func asRead(t *testing.T, fs []theirFilter) []policyFilter {
	t.Helper()
	p := newPolicy("p")
	p.Spec.Filters = fs
	read, err := ReadPolicy(asUnstructured(p))
	if err != nil || read.(*eventPolicy).broken != nil {
		t.Fatal(err, read.(*eventPolicy).broken)
	}
	return read.(*eventPolicy).filters
}

// An expression that is no condition does not pass, nor does its negation.
func TestFilter_NoConditionNeverPasses(t *testing.T) {
	t.Parallel()
	text := cesql("'a text'")
	for _, f := range []theirFilter{text, {Not: &text}, {Any: []theirFilter{text, cesql("TRUE")}}} {
		compiled, err := compileFilters(asRead(t, []theirFilter{f}))
		if err != nil {
			t.Fatal(err)
		}
		if (&policy{filters: compiled}).passes(event.Event{Context: cloudevent.Context(commit)}) {
			t.Errorf("%+v passes", f)
		}
	}
}

// The error of a filter names its path.
func TestFilter_RefusalNamesIt(t *testing.T) {
	t.Parallel()
	for path, f := range map[string]theirFilter{
		`[0]: the filter is empty`:               {},
		`[0].not: the filter is empty`:           {Not: &theirFilter{}},
		`[0]: a filter has one dialect`:          {CESQL: "TRUE", Prefix: map[string]string{"type": "x"}},
		`[0].all[1].cesql: `:                     {All: []theirFilter{cesql("TRUE"), cesql("type = ")}},
		`[0].any[0].suffix["Type"]: `:            {Any: []theirFilter{{Suffix: map[string]string{"Type": "x"}}}},
		`[0].exact["type"]: an attribute's name`: {Exact: map[string]string{"type": ""}},
	} {
		if _, err := compileFilters(asRead(t, []theirFilter{f})); err == nil || !strings.HasPrefix(err.Error(), path) {
			t.Errorf("%v, want %s...", err, path)
		}
	}
}

// Filters know every attribute that Knative knows.
func TestFilter_KnowsEveryAttribute(t *testing.T) {
	t.Parallel()
	e := *commit
	e.DataSchema = "http://schemas.example.com/Push#1"
	got := event.Event{Context: cloudevent.Context(&e)}
	have := fmt.Sprint(got.ID(), got.Source(), got.Type(), got.Subject(), got.Time(), got.DataContentType(), got.DataSchema(), got.Extensions())
	want := fmt.Sprint(e.ID, e.Source, e.Type, e.Subject, e.Time, e.DataContentType, e.DataSchema, e.Extensions)
	if have != want {
		t.Errorf("%s\nwant %s", have, want)
	}
	if bare := (event.Event{Context: cloudevent.Context(&schedule.Event{})}); bare.Time() != (time.Time{}) || bare.Subject() != "" || bare.DataSchema() != "" {
		t.Errorf("%v", bare)
	}
}
