package reschedulesource

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// The annotations of the status have the hashes of the destinations that its addresses were resolved
// from. The address of another destination is not kept: no event goes to a sink that the spec
// does not name any more.
const (
	sinkAnnotation           = "sources.reschedule.dev/sink"
	deadLetterSinkAnnotation = "sources.reschedule.dev/dead-letter-sink"
)

func remember(source *v1alpha1.RescheduleSource, annotation string, d duckv1.Destination) {
	if source.Status.Annotations == nil {
		source.Status.Annotations = map[string]string{}
	}
	source.Status.Annotations[annotation] = hash(d)
}

// isAnother reports whether the address in the status is of another destination.
func isAnother(source *v1alpha1.RescheduleSource, annotation string, d duckv1.Destination) bool {
	last, known := source.Status.Annotations[annotation]
	return known && last != hash(d)
}

func hash(d duckv1.Destination) string {
	text, _ := json.Marshal(d) // it was decoded from JSON
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// resolveSink sets SinkProvided. The resolver tracks the object of the sink's
// ref. A failure is tried again, because a kind that does not exist yet cannot
// be watched.
func (r *Reconciler) resolveSink(ctx context.Context, source *v1alpha1.RescheduleSource) error {
	sink := source.Spec.Sink
	addr, err := r.address(ctx, sink, source)
	if err != nil {
		if isAnother(source, sinkAnnotation, sink) {
			source.Status.SinkURI, source.Status.SinkCACerts, source.Status.SinkAudience = nil, nil, nil
		}
		source.Status.MarkNoSink(reasonOf(err), "%s: %v", describe(sink), err)
		return failure("SinkNotFound", "Sink not found: %s: %w", describe(sink), err)
	}
	source.Status.MarkSink(addr)
	remember(source, sinkAnnotation, sink)
	return nil
}

// resolveDeadLetterSink sets DeadLetterSinkResolved.
func (r *Reconciler) resolveDeadLetterSink(ctx context.Context, source *v1alpha1.RescheduleSource) error {
	if source.Spec.Delivery == nil || source.Spec.Delivery.DeadLetterSink == nil {
		source.Status.MarkDeadLetterSinkNotConfigured()
		delete(source.Status.Annotations, deadLetterSinkAnnotation)
		return nil
	}
	sink := *source.Spec.Delivery.DeadLetterSink
	addr, err := r.address(ctx, sink, source)
	if err != nil {
		if isAnother(source, deadLetterSinkAnnotation, sink) {
			source.Status.DeliveryStatus = eventingduckv1.DeliveryStatus{}
		}
		source.Status.MarkNoDeadLetterSink(reasonOf(err), "%s: %v", describe(sink), err)
		return failure("DeadLetterSinkNotFound", "Dead letter sink not found: %s: %w", describe(sink), err)
	}
	source.Status.MarkDeadLetterSink(addr)
	remember(source, deadLetterSinkAnnotation, sink)
	return nil
}

// address resolves a destination.
func (r *Reconciler) address(ctx context.Context, d duckv1.Destination, source *v1alpha1.RescheduleSource) (*duckv1.Addressable, error) {
	addr, err := r.resolver.AddressableFromDestinationV1(ctx, d, source)
	if err != nil {
		return nil, err
	}
	if err := v1alpha1.ValidateAddress(addr); err != nil {
		return nil, err
	}
	return addr, nil
}

// reasonOf distinguishes a missing object from an object without an address.
func reasonOf(err error) string {
	if apierrors.IsNotFound(err) {
		return v1alpha1.ReasonNotFound
	}
	return "NotResolved"
}

// describe names a destination as a user would search for it.
func describe(d duckv1.Destination) string {
	if d.Ref != nil {
		return d.Ref.Kind + " " + d.Ref.Namespace + "/" + d.Ref.Name + " (" + d.Ref.APIVersion + ")"
	}
	return d.URI.URL().Redacted() // many users can read conditions and Events
}
