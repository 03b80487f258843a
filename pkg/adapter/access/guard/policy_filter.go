package guard

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

// attributeName is what Knative accepts as the name of an attribute.
var attributeName = regexp.MustCompile(`^[a-z][a-z0-9]*$`)

// compileFilters makes predicates of a policy's filters; an event must pass all of
// them. They mean what they mean in Knative, and a filter that Knative's webhook
// refuses does not compile. Knative's own code links half of Knative, ignores a
// filter that it cannot read, and starts a goroutine for each nested filter, which
// the caller must end.
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

// compileFilter compiles the one dialect of the filter. Its error continues the
// path to the filter.
func compileFilter(f *policyFilter) (predicate, error) {
	var found predicate
	for _, d := range []struct {
		name    string
		used    bool
		compile func() (predicate, error)
	}{
		{"all", len(f.All) > 0, func() (predicate, error) { return allOrAny(f.All, true) }},
		{"any", len(f.Any) > 0, func() (predicate, error) { return allOrAny(f.Any, false) }},
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

// allOrAny is true when all filters are (all), or when one is.
func allOrAny(filters []policyFilter, all bool) (predicate, error) {
	ps, err := compileFilters(filters)
	return func(e event.Event) bool {
		for _, p := range ps {
			if p(e) != all {
				return !all
			}
		}
		return all
	}, err
}

// attributes is true when the event has each of the attributes and it matches.
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

// attribute is the text of an attribute. A missing context attribute is the empty
// text; a missing extension is not there.
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

// expression compiles an expression in CloudEvents SQL, whose parser panics on some
// texts.
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
		// An expression that is no condition panics here: its negation must not pass
		// either.
		return err == nil && v.(bool)
	}, nil
}
