package adapter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace"
	"knative.dev/pkg/observability/metrics"
	"knative.dev/pkg/observability/tracing"
)

// instrumentation is the name of the meter and tracer of all packages.
const instrumentation = "github.com/reschedule-dev/reschedule/pkg/adapter"

// flushTime is how long the last metrics and spans may take on their way out.
const flushTime = time.Second

// telemetry is where the instruments of all packages end up: OpenTelemetry, read by
// Prometheus, and in a cluster also exported as its config-observability says.
type telemetry struct {
	registry *prometheus.Registry
	meter    metric.Meter // after start
	tracer   trace.Tracer // after start; nil: tracing is off
	shutdown []func(context.Context) error
}

func newTelemetry() *telemetry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &telemetry{registry: registry}
}

// unlimited takes away OpenTelemetry's limit of 2000 series for an instrument,
// above which sources are not distinguished. In its place no series may outlive
// what it is about: what is counted by source is observed of the sources there
// are, what is not observed has labels whose number is bounded.
var unlimited = sdkmetric.WithCardinalityLimit(0)

// start makes meter and tracer.
func (t *telemetry) start(ctx context.Context, m metrics.Config, tr tracing.Config) error {
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(t.registry), otelprometheus.WithoutScopeInfo(), otelprometheus.WithoutTargetInfo())
	if err != nil {
		return fmt.Errorf("adapter: metrics: %w", err)
	}
	options := []sdkmetric.Option{sdkmetric.WithReader(exporter), unlimited}
	switch m.Protocol {
	case metrics.ProtocolGRPC, metrics.ProtocolHTTPProtobuf:
		provider, err := metrics.NewMeterProvider(ctx, m, options...)
		if err != nil {
			return fmt.Errorf("adapter: metrics: %w", err)
		}
		t.meter, t.shutdown = provider.Meter(instrumentation), append(t.shutdown, provider.Shutdown)
	default: // prometheus is served in any case
		provider := sdkmetric.NewMeterProvider(options...)
		t.meter, t.shutdown = provider.Meter(instrumentation), append(t.shutdown, provider.Shutdown)
	}
	if tr.Protocol == "" || tr.Protocol == tracing.ProtocolNone {
		return nil
	}
	provider, err := tracing.NewTracerProvider(ctx, tr)
	if err != nil {
		return fmt.Errorf("adapter: tracing: %w", err)
	}
	t.tracer, t.shutdown = provider.Tracer(instrumentation), append(t.shutdown, provider.Shutdown)
	return nil
}

// close flushes. That a collector is away is no reason for another kind of end.
func (t *telemetry) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	var errs []error
	for _, shutdown := range t.shutdown {
		errs = append(errs, shutdown(ctx))
	}
	return errors.Join(errs...)
}
