package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/reschedule-dev/reschedule/sdk"
	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

// Resync lists the objects that controllers are For, and schedules each of them once,
// as a resident controller does when it starts. So it finds objects that are older
// than their ApiServerSource, or whose events it missed. The first process of a new
// revision of the Knative Service does it, as K_REVISION names it. Without K_REVISION
// it is done once.
type Resync struct {
	// Window is the time over which the objects are spread.
	Window time.Duration
	// Every is the time after which it is done again; 0 means only for a new revision.
	Every time.Duration
}

// resyncPrefix begins the keys of resyncs, one for each controller. Under it the source
// remembers for which revision the resync was done, and wakes the operator to do it.
const resyncPrefix = "resync/"

// pageSize is how many objects one delivery lists. The next delivery goes on, so that
// none takes longer than its timeout.
const pageSize = 500

// askForResync lets the source wake the operator for a resync of every controller for
// which this revision has not done it. The source, or the adapter, may not be there
// yet.
func (s *server) askForResync(ctx context.Context) {
	revision := os.Getenv("K_REVISION")
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		asked := true
		for _, q := range s.all() {
			if err := s.askForResyncOf(ctx, q, revision); err != nil {
				asked = false
				s.log.Error(err, "The resync cannot be scheduled yet; it is tried again", "controller", q.name)
			}
		}
		if asked {
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

func (s *server) askForResyncOf(ctx context.Context, q *queue, revision string) error {
	if q.kind.Empty() {
		return nil
	}
	key := resyncPrefix + q.name
	known, err := s.client.Get(ctx, key)
	if err == nil && known.Reason == revision || err != nil && !errors.Is(err, sdk.ErrNotFound) {
		return err
	}
	r := sdk.After(0)
	r.Policy, r.Reason = sdk.Replace, revision
	r.Event = &sdk.Event{Type: cloudevent.DueType, Data: due{Controller: q.name, Revision: revision}.json()} // from the first page
	_, err = s.client.Schedule(ctx, key, r)
	return err
}

// resyncNow schedules a page of the objects that the controller is For and that its
// predicates let pass.
func (s *server) resyncNow(ctx context.Context, q *queue, from due) (answer, error) {
	next, err := s.resyncPage(ctx, q, from)
	if err != nil {
		return answer{}, fmt.Errorf("listing %s for a resync: %w", q.kind.Kind, err)
	}
	if next != nil {
		return answer{outcome: outcome{after: time.Millisecond}, due: *next}, nil
	}
	// The next time any revision does it.
	return answer{outcome: outcome{after: cmp.Or(s.resync.Every, maxWait)}, due: due{Controller: q.name}}, nil
}

// resyncPage returns where the next page begins, nil if there is none.
func (s *server) resyncPage(ctx context.Context, q *queue, from due) (next *due, err error) {
	in := s.feeder.informers
	scopes, err := in.scopes(q.kind)
	if err != nil {
		return nil, err
	}
	i := 0
	for i+1 < len(scopes) && scopes[i].Namespace < from.Namespace {
		i++
	}
	list, err := listOf(q.kind, in.scheme)
	if err != nil {
		return nil, err
	}
	scope := scopes[i]
	scope.Limit, scope.Continue = pageSize, from.Continue
	next = &due{Controller: q.name, Namespace: scope.Namespace, Revision: from.Revision}
	err = in.live.List(ctx, list, &scope)
	if from.Continue != "" && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)) {
		var status apierrors.APIStatus
		_ = errors.As(err, &status)
		next.Continue = status.Status().Continue // in a newer list, or in none: from the beginning
		return next, nil
	} else if err != nil {
		return nil, err
	}
	var found []delayed
	err = meta.EachListItem(list, func(item runtime.Object) error {
		o, ok := item.(client.Object)
		if !ok {
			return fmt.Errorf("%T is no object", item)
		}
		name := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
		requests, err := s.feed(&feed{verb: added, objects: []fedObject{{kind: q.kind, name: name, new: o}}})
		for _, d := range requests {
			if d.queue == q {
				if s.resync.Window > 0 {
					d.after = rand.N(s.resync.Window)
				}
				found = append(found, d)
			}
		}
		return err
	})
	if err == nil {
		err = s.schedule(ctx, found)
	}
	switch next.Continue = list.GetContinue(); {
	case err != nil:
		return nil, err
	case next.Continue != "":
		return next, nil
	case i+1 < len(scopes):
		next.Namespace = scopes[i+1].Namespace
		return next, nil
	}
	return nil, nil
}

// namespaces are the namespaces in which a resident controller would cache a kind, none
// for all, and the options of the cache for this kind alone.
func (i *informers) namespaces(k kind) (map[string]cache.Config, cache.ByObject, error) {
	var own cache.ByObject
	for o, by := range i.options.ByObject {
		gvk, err := apiutil.GVKForObject(o, i.scheme)
		if err != nil {
			return nil, own, err
		}
		if gvk == k.GroupVersionKind {
			own = by
		}
	}
	namespaces := i.options.DefaultNamespaces
	if own.Namespaces != nil {
		namespaces = own.Namespaces
	}
	return namespaces, own, nil
}

// scopes are the lists that a resident controller would make of a kind, by namespace,
// as the options of the manager's cache say. The operator may have no right to list
// more.
func (i *informers) scopes(k kind) ([]client.ListOptions, error) {
	namespaces, own, err := i.namespaces(k)
	if err != nil {
		return nil, err
	}
	if namespaced, err := apiutil.IsGVKNamespaced(k.GroupVersionKind, i.options.Mapper); err != nil {
		return nil, err
	} else if !namespaced || len(namespaces) == 0 {
		namespaces = map[string]cache.Config{metav1.NamespaceAll: {}}
	}
	var scopes []client.ListOptions
	for _, name := range slices.Sorted(maps.Keys(namespaces)) {
		scope := client.ListOptions{Namespace: name}
		for _, c := range []cache.Config{
			namespaces[name], {LabelSelector: own.Label, FieldSelector: own.Field}, i.options.DefaultNamespaces[name],
			{LabelSelector: i.options.DefaultLabelSelector, FieldSelector: i.options.DefaultFieldSelector},
		} {
			if scope.LabelSelector == nil {
				scope.LabelSelector = c.LabelSelector
			}
			if scope.FieldSelector == nil {
				scope.FieldSelector = c.FieldSelector
			}
		}
		scopes = append(scopes, scope)
	}
	return scopes, nil
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
