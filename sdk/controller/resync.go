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
	"strings"
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
)

// Resync lists the objects that controllers are For, and brings every one up
// once, as a resident controller does when it starts: also those that were there
// before their ApiServerSource, and those whose events it has missed. It is
// done by the first process of a new revision of the Knative Service, as
// K_REVISION says it; where that is not set, once and for all.
type Resync struct {
	// Window is the time over which the objects are spread.
	Window time.Duration
	// Every is after how long it is done again; 0 is the interval of
	// [WithMaxInterval], and without one it is done only for a new revision.
	Every time.Duration
}

// resyncPrefix begins the keys under which the source remembers, for each
// controller, for which revision it was done, and wakes the operator to do it.
const resyncPrefix = "resync/"

// pageSize is how many objects one delivery brings up: the next one goes on, so
// that none takes longer than its timeout, whatever there is to list.
const pageSize = 500

// askForResync lets the source wake the operator for a resync of every
// controller for which this revision has not done it. In the beginning there may
// be no source yet, or no adapter.
func (s *server) askForResync(ctx context.Context) {
	revision := os.Getenv("K_REVISION")
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		asked := true
		for _, q := range s.all() {
			if err := s.askForResyncOf(ctx, q, revision); err != nil {
				asked = false
				s.log.Error(err, "The objects cannot be listed yet; it is tried again", "controller", q.name)
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
	r.Event = &sdk.Event{Type: dueType, Data: due{Controller: q.name, Revision: revision}.json()} // from the first page on
	_, err = s.client.Schedule(ctx, key, r)
	return err
}

// planResync is true if the key is that of a resync. A revision asks for one
// before it has the traffic: the one before it is not to do it in its place.
func (s *server) planResync(p *plan, from due) (bool, error) {
	name, ok := strings.CutPrefix(p.key, resyncPrefix)
	if !ok || strings.Contains(name, "/") || s.feeder == nil {
		return false, nil
	}
	if this := os.Getenv("K_REVISION"); from.Revision != "" && from.Revision != this {
		return true, fmt.Errorf("this resync is for the revision %s, and this is %q", from.Revision, this)
	}
	queues := s.all()
	i := slices.IndexFunc(queues, func(q *queue) bool { return q.name == name && !q.kind.Empty() })
	if i < 0 || s.resync == nil {
		p.decide(target{}, outcome{gone: true}) // an older version of the operator wanted it
		return true, nil
	}
	p.resync, p.from = queues[i], from
	return true, nil
}

// resyncNow brings up a page of the objects that the controller is for, as far
// as its predicates let them pass.
func (s *server) resyncNow(ctx context.Context, q *queue, from due) (answer, error) {
	next, err := s.resyncPage(ctx, q, from)
	if err != nil {
		return answer{}, fmt.Errorf("listing %s for a resync: %w", q.kind.Kind, err)
	}
	if next != nil {
		return answer{outcome: outcome{after: time.Millisecond}, due: *next}, nil
	}
	// The next time it is for whoever is there then.
	return answer{outcome: outcome{after: cmp.Or(s.resync.Every, s.maxInterval, longest)}, due: due{Controller: q.name}}, nil
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
		wishes, err := s.feed(&feed{feeder: s.feeder, verb: added, of: []fed{{kind: q.kind, name: name, new: o}}})
		for _, d := range wishes {
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

// namespaces are those of a kind whose objects a resident controller would have in
// its cache, none for all, and what the options of the cache say of the kind alone.
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

// scopes are what a resident controller would list of a kind, by namespace: as
// the options of the manager's cache say it. The operator may have no right to
// list more.
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
