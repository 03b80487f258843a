package cluster

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/capacity"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	listers "github.com/reschedule-dev/reschedule/pkg/client/listers/sources/v1alpha1"
)

// reasonInvalid is the reason of the Event on an object that cannot be used.
const reasonInvalid = "InvalidSpec"

// follower applies objects to the registry, as they are when their turn comes.
type follower struct {
	lister   listers.RescheduleSourceLister
	oidc     func() bool // whether authentication-oidc is enabled
	ceilings func() *ceilings.Config
	capacity *capacity.Sources // nil: it is not bounded
	fetch    func(context.Context, cache.ObjectName) (*v1alpha1.RescheduleSource, error)
	// refusalChanged is called when an object is refused for its size, or is not any more.
	refusalChanged func(cache.ObjectName)
	warn           func(src *schedule.Spec, reason, message string)
	log            *slog.Logger

	mu      sync.Mutex
	objects map[cache.ObjectName]*seenObject // as of their last reconciliation
}

// seenObject is an object that existed when its name was reconciled last. One
// goroutine at a time reconciles a name.
type seenObject struct {
	uid      string
	applied  *schedule.Spec // as the registry has it, nil: not at all
	reported int64          // the last generation that was reported as unusable, -1 = none
	refused  bool           // that was for its size
}

// sources returns the objects that exist, in the order of their names.
func (f *follower) sources() (wanted []*schedule.Spec, unusable []string) {
	objects, err := f.lister.List(labels.Everything())
	if err != nil { // the lister reads memory
		f.log.Error("the sources could not be listed", "error", err)
	}
	slices.SortFunc(objects, func(a, b *v1alpha1.RescheduleSource) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, o := range objects {
		seen := &seenObject{uid: string(o.UID), reported: -1}
		if before := f.get(nameOf(o)); before != nil && before.uid == seen.uid {
			seen = before
		}
		f.set(nameOf(o), seen)
		if src := f.describe(o, seen); src == nil {
			unusable = append(unusable, seen.uid)
		} else {
			seen.applied = src
			wanted = append(wanted, src)
		}
	}
	return wanted, unusable
}

// reconcile makes the registry have the object of this name as it is now. After an
// error the next call goes on.
func (f *follower) reconcile(ctx context.Context, name cache.ObjectName, r sources.Registry) error {
	o, err := f.admitted(ctx, name)
	if err != nil {
		return err
	}
	seen := f.get(name)
	if seen != nil && (o == nil || string(o.UID) != seen.uid) {
		if err := r.RemoveSource(seen.uid); err != nil {
			return fmt.Errorf("cluster: source %s: removing uid %s: %w", name, seen.uid, err)
		}
		f.capacity.Release(types.UID(seen.uid)) // the informer did, but it may have been read again since
		f.set(name, nil)
		seen = nil
	}
	if o == nil {
		return nil
	}
	if seen == nil {
		seen = &seenObject{uid: string(o.UID), reported: -1}
		f.set(name, seen)
	}
	src := f.describe(o, seen)
	if src == nil {
		return nil
	}
	if reflect.DeepEqual(src, seen.applied) {
		f.capacity.Settle(o)
		return nil
	}
	if err := r.SetSource(src); err != nil {
		return fmt.Errorf("cluster: source %s: applying generation %d: %w", name, o.Generation, err)
	}
	seen.applied = src
	f.capacity.Settle(o)
	return nil
}

// admitted returns the object of a name, nil when it does not exist. One that was refused for
// its size, and fits by now, is read again.
func (f *follower) admitted(ctx context.Context, name cache.ObjectName) (*v1alpha1.RescheduleSource, error) {
	o, err := find(f.lister, name)
	if o == nil || !capacity.IsStandIn(o) || !f.capacity.Fits(o.UID) {
		return o, err
	}
	again, err := f.fetch(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return o, nil // the informer will say so
	case err != nil:
		return nil, fmt.Errorf("cluster: source %s: reading it again: %w", name, err)
	case again.UID != o.UID:
		return o, nil
	}
	return again, nil
}

// describe returns the object's source, or nil when the object cannot be used, which
// is reported once per generation.
func (f *follower) describe(o *v1alpha1.RescheduleSource, seen *seenObject) *schedule.Spec {
	if ends(o) {
		return ending(o, seen.applied)
	}
	src, err := (*schedule.Spec)(nil), capacity.Refusal(o)
	if err == nil {
		src, err = describe(o, seen.applied, f.oidc(), f.ceilings())
	}
	refused := capacity.IsStandIn(o)
	changed := refused != seen.refused
	if seen.refused = refused; changed {
		f.refusalChanged(nameOf(o))
	}
	if err == nil {
		seen.reported = -1
		return src
	}
	if seen.reported != o.Generation || changed {
		seen.reported = o.Generation
		f.log.Warn("a source cannot be used and stays as it was", "source", nameOf(o).String(), "uid", seen.uid, "generation", o.Generation, "error", err)
		f.warn(&schedule.Spec{UID: seen.uid, Namespace: o.Namespace, Name: o.Name}, reasonInvalid, err.Error())
	}
	return nil
}

// find returns the object of a name, nil when it does not exist.
func find(lister listers.RescheduleSourceLister, name cache.ObjectName) (*v1alpha1.RescheduleSource, error) {
	o, err := lister.RescheduleSources(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil { // the lister reads memory
		return nil, fmt.Errorf("cluster: source %s: %w", name, err)
	}
	return o, nil
}

func nameOf(o *v1alpha1.RescheduleSource) cache.ObjectName {
	return cache.ObjectName{Namespace: o.Namespace, Name: o.Name}
}

func (f *follower) get(name cache.ObjectName) *seenObject {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects[name]
}

// set remembers the object of a name, nil: it does not exist any more.
func (f *follower) set(name cache.ObjectName, seen *seenObject) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if seen == nil {
		delete(f.objects, name)
		return
	}
	f.objects[name] = seen
}

// names returns the names of all objects that existed at their last reconciliation.
func (f *follower) names() []cache.ObjectName {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.objects))
}
