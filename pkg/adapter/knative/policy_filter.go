package knative

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/cloudevents/sdk-go/sql/v2/parser"
	"github.com/cloudevents/sdk-go/v2/event"
)

// predicate is a compiled filter.
type predicate func(event.Event) bool

// attributeName is what Knative takes for one.
var attributeName = regexp.MustCompile(`^[a-z][a-z0-9]*$`)

// compileFilters makes predicates of a policy's filters, all of which an event
// has to pass. They mean what they mean in Knative, and what Knative's webhook
// would not let in does not compile. Knative's own code brings half of Knative
// along; besides, it leaves out what it cannot read, and keeps a goroutine for
// every joint that somebody has to end.
func compileFilters(filters []policyFilter) ([]predicate, error) {
	ps := make([]predicate, 0, len(filters))
	for i := range filters {
		p, err := compileFilter(&filters[i])
		if err != nil {
			return nil, fmt.Errorf("[%d]%w", i, err)
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// compileFilter compiles the one dialect that the filter has. Its error goes
// on where the path to the filter ends.
func compileFilter(f *policyFilter) (predicate, error) {
	var found predicate
	for _, d := range []struct {
		name    string
		used    bool
		compile func() (predicate, error)
	}{
		{"all", len(f.All) > 0, func() (predicate, error) { return every(f.All, true) }},
		{"any", len(f.Any) > 0, func() (predicate, error) { return every(f.Any, false) }},
		{"not", f.Not != nil, func() (predicate, error) {
			p, err := compileFilter(f.Not)
			return func(e event.Event) bool { return !p(e) }, err
		}},
		{"exact", len(f.Exact) > 0, func() (predicate, error) {
			return attributes(f.Exact, func(s, want string) bool { return s == want })
		}},
		{"prefix", len(f.Prefix) > 0, func() (predicate, error) { return attributes(f.Prefix, strings.HasPrefix) }},
		{"suffix", len(f.Suffix) > 0, func() (predicate, error) { return attributes(f.Suffix, strings.HasSuffix) }},
		{"cesql", f.CESQL != "", func() (predicate, error) { return expression(f.CESQL) }},
	} {
		if !d.used {
			continue
		}
		if found != nil {
			return nil, errors.New(": a filter has one dialect")
		}
		var err error
		if found, err = d.compile(); err != nil {
			return nil, fmt.Errorf(".%s%w", d.name, err)
		}
	}
	if found == nil {
		return nil, errors.New(": the filter is empty")
	}
	return found, nil
}

// every is true when all are (want true), or when one is (want false).
func every(filters []policyFilter, want bool) (predicate, error) {
	ps, err := compileFilters(filters)
	return func(e event.Event) bool {
		for _, p := range ps {
			if p(e) != want {
				return !want
			}
		}
		return want
	}, err
}

// attributes is true when each of the attributes is there and matches.
func attributes(wanted map[string]string, match func(s, want string) bool) (predicate, error) {
	for name, want := range wanted {
		if !attributeName.MatchString(name) || want == "" {
			return nil, fmt.Errorf("[%q]: an attribute's name is a letter and then letters and digits, all lower case, and its value is not empty", name)
		}
	}
	return func(e event.Event) bool {
		for name, want := range wanted {
			if s, ok := attribute(e, name); !ok || !match(s, want) {
				return false
			}
		}
		return true
	}, nil
}

// attribute is the text of an attribute. Those of the event's own have one,
// an empty one, also where they are missing.
func attribute(e event.Event, name string) (string, bool) {
	switch name {
	case "specversion":
		return e.SpecVersion(), true
	case "id":
		return e.ID(), true
	case "source":
		return e.Source(), true
	case "type":
		return e.Type(), true
	case "subject":
		return e.Subject(), true
	case "time":
		text, err := e.Time().MarshalText()
		return string(text), err == nil
	case "dataschema", "schemaurl":
		return e.DataSchema(), true
	case "datacontenttype":
		return e.DataContentType(), true
	case "datamediatype":
		return e.DataMediaType(), true
	case "datacontentencoding":
		return e.DeprecatedDataContentEncoding(), true
	}
	v, ok := e.Extensions()[name]
	if !ok {
		return "", false
	}
	if s, ok := v.(string); ok {
		return s, true
	}
	return fmt.Sprint(v), true
}

// expression is one in CloudEvents SQL; its parser panics on some texts.
func expression(text string) (p predicate, err error) {
	defer func() {
		if broken := recover(); broken != nil {
			err = fmt.Errorf(": %v", broken)
		}
	}()
	parsed, err := parser.Parse(text)
	if err != nil {
		return nil, fmt.Errorf(": %w", err)
	}
	return func(e event.Event) bool {
		v, err := parsed.Evaluate(e)
		// One that is no condition panics, for its negation must not pass.
		return err == nil && v.(bool)
	}, nil
}
