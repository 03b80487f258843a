package adapter

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/attribute"
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

// observe shows what is not part of another package: the build, the disk, events.
func (a *Adapter) observe() error {
	meter := a.telemetry.meter
	build, err := meter.Int64ObservableGauge("reschedule_build_info", metric.WithDescription("1; its labels are the version of the adapter and of Go."))
	if err != nil {
		return err
	}
	corrupt, err := meter.Int64ObservableCounter("reschedule_storage_corrupt",
		metric.WithDescription("Corrupt places that were met on the disk since the start: blocks, records, rows."))
	if err != nil {
		return err
	}
	refused, err := meter.Int64ObservableGauge("reschedule_sources_refused",
		metric.WithDescription("Sources that do not run, or not as they are now, because the memory for sources is full."))
	if err != nil {
		return err
	}
	bytes := map[string]metric.Int64ObservableGauge{}
	for name, help := range map[string]string{
		"reschedule_storage_free":    "Bytes that are free on the disk of the data directory.",
		"reschedule_storage_reserve": "Bytes of them that are kept back: below this, growth is answered 507.",
		"reschedule_storage_used":    "Bytes of the data directory on the disk.",
	} {
		if bytes[name], err = meter.Int64ObservableGauge(name, metric.WithUnit("By"), metric.WithDescription(help)); err != nil {
			return err
		}
	}
	free, reserve, used := bytes["reschedule_storage_free"], bytes["reschedule_storage_reserve"], bytes["reschedule_storage_used"]
	version := metric.WithAttributes(attribute.String("version", a.cfg.Version), attribute.String("go", runtime.Version()))
	if _, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(build, 1, version)
		o.ObserveInt64(corrupt, a.host.Corrupt())
		o.ObserveInt64(refused, a.origin.Refused())
		onDisk, kept, own, known := a.host.Usage()
		o.ObserveInt64(used, own)
		if known {
			o.ObserveInt64(free, onDisk)
			o.ObserveInt64(reserve, kept)
		}
		return nil
	}, build, corrupt, refused, free, reserve, used); err != nil {
		return err
	}
	return a.events.Observe(meter)
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
