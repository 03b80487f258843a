package controller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/reschedule-dev/reschedule/sdk"
)

// Resync lists the objects that controllers are For, and brings every one up
// once, as a resident controller does when it starts: also those that were there
// before their ApiServerSource, and those whose events it has missed. It is
// done by the first process of a new revision of the Knative Service.
type Resync struct {
	// Window is the time over which the objects are spread.
	Window time.Duration
	// Every is after how long it is done again; 0 is only for a new revision.
	Every time.Duration
}

// resyncPrefix begins the keys under which the source remembers, for each
// controller, for which revision it was done, and wakes the operator to do it.
const resyncPrefix = "resync/"

const (
	resyncPage = 500
	// farAway keeps the key of a resync that is not to be repeated.
	farAway = 10 * 365 * 24 * time.Hour
)

// askForResync lets the source wake the operator for a resync of every
// controller for which this revision has not done it. A failure is tried again
// by the next process.
func (s *server) askForResync(ctx context.Context) {
	revision := os.Getenv("K_REVISION")
	for _, q := range s.all() {
		if q.gvk.Empty() {
			continue
		}
		key := resyncPrefix + q.name
		known, err := s.client.Get(ctx, key)
		if err == nil && known.Reason == revision {
			continue
		}
		if err == nil || errors.Is(err, sdk.ErrNotFound) {
			r := sdk.After(0)
			r.Policy, r.Reason = sdk.Replace, revision
			_, err = s.client.Schedule(ctx, key, r)
		}
		if err != nil {
			s.log.Error(err, "The objects are not listed now; the next start of the operator tries again", "controller", q.name)
		}
	}
}

// resyncOf is the controller whose resync the key stands for.
func (s *server) resyncOf(key string) *queue {
	name, ok := strings.CutPrefix(key, resyncPrefix)
	queues := s.all()
	i := slices.IndexFunc(queues, func(q *queue) bool { return q.name == name && !q.gvk.Empty() })
	if !ok || i < 0 || s.client == nil || s.resync == nil {
		return nil
	}
	return queues[i]
}

// resyncNow brings up the objects that the controller is for, as far as its
// predicates let them pass.
func (s *server) resyncNow(ctx context.Context, q *queue) error {
	for _, k := range s.feeder.informers.kinds(q.gvk.GroupKind()) {
		if k.GroupVersionKind != q.gvk {
			continue
		}
		list, err := listOf(k, s.feeder.informers.scheme)
		if err != nil {
			return err
		}
		for first := true; first || list.GetContinue() != ""; first = false {
			err := s.feeder.informers.live.List(ctx, list, client.Limit(resyncPage), client.Continue(list.GetContinue()))
			if err != nil {
				return fmt.Errorf("listing %s for a resync: %w", k.Kind, err)
			}
			if err := s.resyncPage(ctx, q, k, list); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *server) resyncPage(ctx context.Context, q *queue, k kind, list client.ObjectList) error {
	var due []delayed
	err := meta.EachListItem(list, func(item runtime.Object) error {
		o, ok := item.(client.Object)
		if !ok {
			return fmt.Errorf("%T is no object", item)
		}
		name := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
		wishes, err := s.feed(&feed{feeder: s.feeder, verb: added, of: []fed{{kind: k, name: name, new: o}}})
		for _, d := range wishes {
			if d.queue == q {
				if s.resync.Window > 0 {
					d.after = rand.N(s.resync.Window)
				}
				due = append(due, d)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	return s.schedule(ctx, due)
}

// listOf is a list of the kind in its form.
func listOf(k kind, scheme *runtime.Scheme) (client.ObjectList, error) {
	gvk := k.GroupVersion().WithKind(k.Kind + "List")
	switch k.form {
	case unstructuredForm:
		l := &unstructured.UnstructuredList{}
		l.SetGroupVersionKind(gvk)
		return l, nil
	case metadataForm:
		l := &metav1.PartialObjectMetadataList{}
		l.SetGroupVersionKind(gvk)
		return l, nil
	}
	v, err := scheme.New(gvk)
	if err != nil {
		return nil, err
	}
	l, ok := v.(client.ObjectList)
	if !ok {
		return nil, fmt.Errorf("%T is no list of objects", v)
	}
	return l, nil
}
