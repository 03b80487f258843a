package api

import (
	"context"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
)

// answers counts what was asked and answered. Labels are bounded: the methods
// of the API, the kinds of path, and the statuses.
type answers struct {
	counter metric.Int64Counter // nil: nothing is counted
	took    metric.Float64Histogram
	labels  sync.Map // answered → metric.MeasurementOption
	paths   [len(pathNames)]metric.MeasurementOption
}

type answered struct {
	method string
	path   pathKind
	status int
}

func newAnswers(cfg Config) *answers {
	r := &answers{}
	if cfg.Meter == nil {
		return r
	}
	var err error
	r.counter, err = cfg.Meter.Int64Counter("reschedule_api_requests",
		metric.WithDescription("Requests to the schedule API and event ingress, by method, kind of path and status."))
	if err != nil {
		cfg.Log.Error("requests are not counted", "error", err)
	}
	r.took, err = cfg.Meter.Float64Histogram("reschedule_api_request_duration", metric.WithUnit("s"),
		metric.WithDescription("How long a request took, by kind of path, with the wait for its turn and for the disk. Callers who follow events are left out."),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30, 120))
	if err != nil {
		cfg.Log.Error("the time of requests is not measured", "error", err)
	}
	for kind, name := range pathNames {
		r.paths[kind] = metric.WithAttributeSet(attribute.NewSet(attribute.String("path", name)))
	}
	return r
}

func (r *answers) count(method string, path pathKind, status int, took time.Duration) {
	if r.counter == nil {
		return
	}
	if path != pathEvents {
		r.took.Record(context.Background(), took.Seconds(), r.paths[path])
	}
	at := answered{methodName(method), path, status}
	labels, ok := r.labels.Load(at)
	if !ok {
		labels, _ = r.labels.LoadOrStore(at, metric.WithAttributeSet(attribute.NewSet(
			attribute.String("method", at.method), attribute.String("path", pathNames[path]), attribute.Int("status", status))))
	}
	r.counter.Add(context.Background(), 1, labels.(metric.MeasurementOption))
}

// methodName is the method, or other: callers can send any.
func methodName(method string) string {
	switch method {
	case http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete:
		return method
	}
	return "other"
}

var pathNames = [...]string{
	pathUnknown: "unknown", pathOpenAPI: "openapi", pathSource: "source", pathSchedules: "schedules", pathKey: "key", pathResync: "resync",
	pathRun: "run", pathHistory: "history", pathEvents: "events",
	pathLetters: "deadletters", pathLetter: "deadletter", pathRedriveAll: "deadletter", pathRedrive: "redrive",
}

// observe shows how full the budgets are.
func (h *Handler) observe() {
	if h.cfg.Meter == nil {
		return
	}
	for part, b := range map[string]*budget.Budget{"bodies": h.bytes, "requests": h.shares} {
		of := metric.WithAttributes(attribute.String("part", part))
		for name, g := range map[string]struct {
			description string
			value       func() int64
		}{
			"reschedule_api_memory":       {"Bytes that bodies and answers, and requests under way, hold.", b.Used},
			"reschedule_api_memory_limit": {"Bytes that they may hold at most.", b.Total},
		} {
			_, err := h.cfg.Meter.Int64ObservableGauge(name, metric.WithUnit("By"), metric.WithDescription(g.description),
				metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
					o.Observe(g.value(), of)
					return nil
				}))
			if err != nil {
				h.cfg.Log.Error("the memory of requests is not shown", "error", err)
			}
		}
	}
}
