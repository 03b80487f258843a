package reschedulesource

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

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

func hash(d duckv1.Destination) string {
	text, _ := json.Marshal(d) // it was decoded from JSON
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// resolveSink sets SinkProvided; a source without a sink does not have it.
func (r *Reconciler) resolveSink(ctx context.Context, source *v1alpha1.RescheduleSource) error {
	s := &source.Status
	if source.Spec.Sinkless() {
		s.ClearSink()
		delete(s.Annotations, sinkAnnotation)
		return nil
	}
	forget := func() { s.SinkURI, s.SinkCACerts, s.SinkAudience = nil, nil, nil }
	if err := r.resolve(ctx, source, source.Spec.Sink, place{sinkAnnotation, s.MarkSink, s.MarkNoSink, forget}); err != nil {
		return failure("SinkNotFound", "Sink not found: %w", err)
	}
	return nil
}

// resolveDeadLetterSink sets DeadLetterSinkResolved.
func (r *Reconciler) resolveDeadLetterSink(ctx context.Context, source *v1alpha1.RescheduleSource) error {
	s := &source.Status
	if source.Spec.Delivery == nil || source.Spec.Delivery.DeadLetterSink == nil {
		s.MarkDeadLetterSinkNotConfigured()
		delete(s.Annotations, deadLetterSinkAnnotation)
		return nil
	}
	forget := func() { s.DeliveryStatus = eventingduckv1.DeliveryStatus{} }
	to := place{deadLetterSinkAnnotation, s.MarkDeadLetterSink, s.MarkNoDeadLetterSink, forget}
	if err := r.resolve(ctx, source, *source.Spec.Delivery.DeadLetterSink, to); err != nil {
		return failure("DeadLetterSinkNotFound", "Dead letter sink not found: %w", err)
	}
	return nil
}

// place is where the status has what a destination was resolved to.
type place struct {
	annotation string // has the hash of the destination
	mark       func(*duckv1.Addressable)
	markNone   func(reason, format string, args ...any)
	forget     func()
}

// resolve resolves a destination. The resolver tracks the object of its ref. A failure is
// tried again, because a kind that does not exist yet cannot be watched.
func (r *Reconciler) resolve(ctx context.Context, source *v1alpha1.RescheduleSource, d duckv1.Destination, to place) error {
	addr, err := r.address(ctx, d, source)
	if err != nil {
		if last, known := source.Status.Annotations[to.annotation]; known && last != hash(d) {
			to.forget() // the address is of another destination
		}
		to.markNone(reasonOf(err), "%s: %v", describe(d), err)
		return fmt.Errorf("%s: %w", describe(d), err)
	}
	to.mark(addr)
	remember(source, to.annotation, d)
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
