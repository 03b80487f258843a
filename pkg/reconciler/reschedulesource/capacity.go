package reschedulesource

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/capacity"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

const (
	// sourceBytes is what all objects may take, and as much again while a list comes.
	sourceBytes = 128 << 20
	// shippedLimit is the GOMEMLIMIT of config/500-controller.yaml. With a larger one they may take more.
	shippedLimit = 410 << 20
	// queuedBytes is what a source takes in the queues and the tracker.
	queuedBytes = 4 << 10
)

func newCapacity() *capacity.Sources {
	return capacity.New(capacity.Config{Total: capacity.TotalForMemoryLimit(sourceBytes, shippedLimit), Fixed: queuedBytes, Copies: 1})
}

// trimmer drops the metadata that the controller does not read, which may be larger than the
// rest of a source, and keeps a stand-in where a source is too large.
type trimmer struct{ capacity *capacity.Sources }

func (t trimmer) trim(o any) (any, error) {
	source, ok := o.(*v1alpha1.RescheduleSource)
	if !ok || t.capacity.Holds(source) {
		return o, nil
	}
	source.TrimMetadata()
	return t.capacity.Admit(source), nil
}

// whole returns the source that a stand-in stands for, as the API server has it; nil when that
// does not exist any more, or there is another one of its name: the informer will bring it.
func (r *Reconciler) whole(ctx context.Context, source *v1alpha1.RescheduleSource) (*v1alpha1.RescheduleSource, error) {
	if !capacity.IsStandIn(source) {
		return source, nil
	}
	o, err := r.client.SourcesV1alpha1().RescheduleSources(source.Namespace).Get(ctx, source.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the source, which is too large to be kept in memory: %w", err)
	}
	if o.UID != source.UID || o.DeletionTimestamp != nil {
		return nil, nil
	}
	o.TrimMetadata()
	return o, nil
}
