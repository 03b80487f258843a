package api

import (
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
)

// routes are the paths in spans, by OpenTelemetry's conventions for HTTP.
var routes = [...]string{
	pathUnknown: "", pathOpenAPI: "/openapi.json", pathSource: "/{namespace}/{name}",
	pathSchedules: "/{namespace}/{name}/schedules", pathKey: "/{namespace}/{name}/schedules/{key}",
	pathRun: "/{namespace}/{name}/schedules/{key}/run", pathHistory: "/{namespace}/{name}/schedules/{key}/history",
	pathEvents: "/{namespace}/{name}/events", pathLetters: "/{namespace}/{name}/deadletters",
	pathLetter: "/{namespace}/{name}/deadletters/{key}", pathRedriveAll: "/{namespace}/{name}/deadletters/redrive",
	pathResync: "/{namespace}/{name}/resync", pathRedrive: "/{namespace}/{name}/deadletters/{key}/redrive",
}

// trace begins the span of a request, and returns the function that ends it. What the
// request schedules continues the span: its context replaces the context that the
// caller sent.
func (c *call) trace() (end func()) {
	p := splitPath(c.r.URL)
	attributes := make([]attribute.KeyValue, 0, 5)
	name := methodName(c.r.Method)
	attributes = append(attributes, semconv.HTTPRequestMethodKey.String(name))
	if route := routes[p.kind]; route != "" {
		attributes = append(attributes, semconv.HTTPRoute(route))
		name += " " + route
	}
	carrier := propagation.HeaderCarrier(c.r.Header)
	ctx := propagation.TraceContext{}.Extract(c.r.Context(), carrier)
	called := trace.SpanContextFromContext(ctx).IsValid()
	ctx, span := c.cfg.Tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attributes...))
	c.r = c.r.WithContext(ctx)
	// An event without a context of its call may have one of its own, which goes first.
	if called || p.kind != pathSource && span.SpanContext().IsSampled() {
		propagation.TraceContext{}.Inject(ctx, carrier)
	}
	return func() {
		if c.src != nil { // only names that exist
			span.SetAttributes(attribute.String("kn.source.namespace", p.namespace), attribute.String("kn.source.name", p.name))
		}
		span.SetAttributes(semconv.HTTPResponseStatusCode(c.status))
		if c.status >= 500 {
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}
