package knative

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"go.uber.org/zap"
	eventingv1 "knative.dev/eventing/pkg/apis/eventing/v1"
	"knative.dev/eventing/pkg/eventfilter"
	"knative.dev/eventing/pkg/eventfilter/subscriptionsapi"
	"knative.dev/pkg/logging"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// predicate is a compiled filter.
type predicate func(event.Event) bool

// quiet keeps Knative's filters from describing each event to a logger.
var quiet = logging.WithLogger(context.Background(), zap.NewNop().Sugar())

// compileFilters makes predicates of a policy's filters, all of which an event
// has to pass. The leaves are Knative's, so they mean the same. What joins them
// is not: Knative's joints leave out what they cannot read, and keep a
// goroutine each that somebody has to end.
func compileFilters(filters []eventingv1.SubscriptionsAPIFilter) ([]predicate, error) {
	if err := eventingv1.ValidateSubscriptionAPIFiltersList(quiet, filters); err != nil {
		return nil, fmt.Errorf("spec.filters: %w", err)
	}
	ps, err := compileList(filters)
	if err != nil {
		return nil, fmt.Errorf("spec.filters%w", err)
	}
	return ps, nil
}

func compileList(filters []eventingv1.SubscriptionsAPIFilter) ([]predicate, error) {
	ps := make([]predicate, 0, len(filters))
	for i := range filters {
		p, err := compileFilter(&filters[i])
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		ps = append(ps, p)
	}
	return ps, nil
}

// compileFilter compiles the one dialect that the filter has.
func compileFilter(f *eventingv1.SubscriptionsAPIFilter) (predicate, error) {
	switch {
	case len(f.Exact) > 0:
		return leaf(subscriptionsapi.NewExactFilter(f.Exact))
	case len(f.Prefix) > 0:
		return leaf(subscriptionsapi.NewPrefixFilter(f.Prefix))
	case len(f.Suffix) > 0:
		return leaf(subscriptionsapi.NewSuffixFilter(f.Suffix))
	case len(f.All) > 0:
		ps, err := compileList(f.All)
		return every(ps, true), err
	case len(f.Any) > 0:
		ps, err := compileList(f.Any)
		return every(ps, false), err
	case f.Not != nil:
		p, err := compileFilter(f.Not)
		return func(e event.Event) bool { return !p(e) }, err
	case f.CESQL != "":
		return leaf(subscriptionsapi.NewCESQLFilter(f.CESQL))
	}
	return nil, errors.New("the filter is empty")
}

func leaf(f eventfilter.Filter, err error) (predicate, error) {
	return func(e event.Event) bool { return f.Filter(quiet, e) == eventfilter.PassFilter }, err
}

// every is true when all are (want true), or when one is (want false).
func every(ps []predicate, want bool) predicate {
	return func(e event.Event) bool {
		for _, p := range ps {
			if p(e) != want {
				return !want
			}
		}
		return want
	}
}

// forFilters is the event as filters see it: its attributes as they came, no data.
func forFilters(e *schedule.Event) event.Event {
	verbatim := func(s string) url.URL { return url.URL{Opaque: s} }
	ec := &event.EventContextV1{
		ID: e.ID, Type: e.Type, Source: types.URIRef{URL: verbatim(e.Source)}, Extensions: e.Extensions,
	}
	if e.Subject != "" {
		ec.Subject = &e.Subject
	}
	if e.DataContentType != "" {
		ec.DataContentType = &e.DataContentType
	}
	if e.DataSchema != "" {
		ec.DataSchema = &types.URI{URL: verbatim(e.DataSchema)}
	}
	if !e.Time.IsZero() {
		ec.Time = &types.Timestamp{Time: e.Time}
	}
	return event.Event{Context: ec}
}
