package sink

import (
	"context"
	"strconv"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// OpenTelemetry's conventions for messaging are still in development, so all names of
// the span are in this file. The names of the source, and the system, are Knative's.

const (
	system    = "knative"
	operation = "send"
)

// linkAfter is the wait from which an attempt begins a trace of its own, with a link to
// the call that scheduled it. A trace over hours or days is past its retention.
const linkAfter = 5 * time.Minute

// trace continues the trace of the call that scheduled the occurrence, or links to it.
// The span is nil without a Config.Tracer: then the sink gets the context of the call.
func (s *Sender) trace(ctx context.Context, a *schedule.Attempt) (trace.Span, context.Context) {
	if a.Entry.TraceParent != "" {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{
			"traceparent": a.Entry.TraceParent, "tracestate": a.Entry.TraceState,
		})
	}
	if s.cfg.Tracer == nil {
		return nil, ctx
	}
	d := cloudevent.Describe(a, s.constants(a.Source).eventSource)
	attributes := []attribute.KeyValue{
		semconv.MessagingSystemKey.String(system), semconv.MessagingOperationName(operation), semconv.MessagingOperationTypeSend,
		semconv.MessagingMessageID(a.ID),
		semconv.CloudEventsEventID(a.ID), semconv.CloudEventsEventSource(d.Source), semconv.CloudEventsEventType(d.Type),
		semconv.CloudEventsEventSubject(d.Subject), semconv.CloudEventsEventSpecVersion(event.CloudEventsVersionV1),
		attribute.String("kn.source.namespace", a.Source.Namespace), attribute.String("kn.source.name", a.Source.Name),
		attribute.Int64("reschedule.attempt", int64(a.Number())),
	}
	name := operation
	if r, err := s.route(a.Target); err == nil { // without a path and a query: they may hold a secret
		name += " " + r.url.Host
		attributes = append(attributes, semconv.MessagingDestinationName(r.url.Host), semconv.ServerAddress(r.url.Hostname()))
		if port, err := strconv.Atoi(r.url.Port()); err == nil {
			attributes = append(attributes, semconv.ServerPort(port))
		}
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...)}
	if call := trace.SpanContextFromContext(ctx); call.IsValid() && s.cfg.Now().Sub(a.Entry.ScheduledAt) >= linkAfter {
		options = append(options, trace.WithNewRoot(), trace.WithLinks(trace.Link{SpanContext: call}))
	}
	ctx, span := s.cfg.Tracer.Start(ctx, name, options...)
	return span, ctx
}

func endSpan(span trace.Span, o schedule.Outcome) {
	if o.Status != 0 {
		span.SetAttributes(semconv.HTTPResponseStatusCode(o.Status))
	}
	switch o.Kind {
	case schedule.Succeeded:
	case schedule.Aborted:
		span.SetStatus(codes.Error, "cut off")
	default:
		span.SetAttributes(semconv.ErrorTypeKey.String(errorType(&o)))
		span.SetStatus(codes.Error, "not delivered")
	}
	span.End()
}

func errorType(o *schedule.Outcome) string {
	switch {
	case o.TimedOut:
		return "timeout"
	case o.Status != 0:
		return strconv.Itoa(o.Status)
	}
	return semconv.ErrorTypeOther.Value.AsString()
}
