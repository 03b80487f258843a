package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

const (
	// scaleCalls for workloads are made at a time, scaleCallsOfOne of them for one namespace. They have
	// no rate: package scale bounds starts and looks, and a due key waits for them.
	scaleCalls, scaleCallsOfOne = 32, 8
	// maxScale bounds the answer: a Scale is small.
	maxScale = 64 << 10
	// scaleTries is how often a call is repeated because the workload changed meanwhile.
	scaleTries = 5
)

// errConflict means that the object has changed since it was read.
var errConflict = errors.New("kube: the object has changed since it was read")

var _ scale.API = (*Objects)(nil)

// scaleOf is what is read of autoscaling/v1 Scale.
type scaleOf struct {
	Metadata struct {
		Version string `json:"resourceVersion"`
	} `json:"metadata"`
	Spec struct {
		Replicas int32 `json:"replicas"` // left out when 0
	} `json:"spec"`
	Status struct {
		Selector string `json:"selector"`
	} `json:"status"`
}

// Replicas implements [scale.API].
func (c *Objects) Replicas(ctx context.Context, a objects.Account, w schedule.Workload) (int32, error) {
	s, err := c.scale(ctx, a, w, nil)
	return s.Spec.Replicas, err
}

// SetReplicas implements [scale.API]. The patch has the version that was read, so that it does not
// undo what another hand does meanwhile.
func (c *Objects) SetReplicas(ctx context.Context, a objects.Account, w schedule.Workload, n int32) (was int32, err error) {
	for range scaleTries {
		var s scaleOf
		if s, err = c.scale(ctx, a, w, nil); err != nil {
			return 0, err
		}
		if was = s.Spec.Replicas; (was == 0) == (n == 0) {
			return was, nil
		}
		patch := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q},"spec":{"replicas":%d}}`, s.Metadata.Version, n)
		if _, err = c.scale(ctx, a, w, patch); !errors.Is(err, errConflict) {
			return was, err
		}
	}
	return 0, err
}

// scale gets the scale subresource, or patches it.
func (c *Objects) scale(ctx context.Context, a objects.Account, w schedule.Workload, patch []byte) (s scaleOf, err error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	gv, err := schema.ParseGroupVersion(w.APIVersion)
	if err != nil {
		return s, fmt.Errorf("%w: %w", scale.ErrNoTarget, err)
	}
	kind, err := c.Resolve(ctx, a, gv.Group, gv.Version, w.Kind)
	if errors.Is(err, objects.ErrNoSuchKind) {
		return s, fmt.Errorf("%w: the API server has no kind %s of %s", scale.ErrNoTarget, w.Kind, w.APIVersion)
	}
	if err != nil {
		return s, err
	}
	if _, err := c.token(ctx, caller{a, nil}); err != nil { // before it has a turn that others wait for
		return s, err
	}
	turn, err := c.scales.Take(ctx, a.Namespace, "")
	if err != nil {
		return s, fmt.Errorf("kube: waiting for a call: %w", err)
	}
	defer turn.Release()
	q := objects.Query{Resource: kind, Namespace: a.Namespace}
	verb := "get"
	if patch != nil {
		verb = "patch"
	}
	denied := forbidden(a, verb, q)
	denied.Sub = "scale"
	answer, err := c.call(ctx, caller{a, nil}, &request{path: pathOf(q) + "/" + url.PathEscape(w.Name) + "/scale", accept: asJSON, patch: patch}, denied)
	if errors.Is(err, objects.ErrNoSuchKind) { // it was not found
		return s, fmt.Errorf("%w: there is no %s %s/%s, or it cannot be scaled", scale.ErrNoTarget, w.Kind, a.Namespace, w.Name)
	}
	if err != nil {
		return s, err
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxScale)).Decode(&s); err != nil {
		return s, fmt.Errorf("kube: reading the scale of %s %s/%s: %w", w.Kind, a.Namespace, w.Name, err)
	}
	return s, nil
}
