package cluster

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	listers "github.com/reschedule-dev/reschedule/pkg/client/listers/sources/v1alpha1"
)

// reasonInvalid is the reason of the Event on an object that cannot be used.
const reasonInvalid = "InvalidSpec"

// follower applies objects to a plane, as they are when their turn comes.
type follower struct {
	lister     listers.RescheduleSourceLister
	identified func() bool // whether sources have an identity in this cluster
	ceilings   func() *ceilings.Config
	warn       func(src *schedule.Source, reason, message string)
	log        *slog.Logger

	mu    sync.Mutex
	known map[cache.ObjectName]*known
}

// known is an object that there was when it was looked at last. One goroutine
// at a time has the turn of a name.
type known struct {
	uid     string
	applied *schedule.Source // nil: the plane has not got it from us
	refused int64            // the generation that was last told to be of no use, -1 = none
}

// sources are the objects that there are, in the order of their names.
func (f *follower) sources() (wanted []*schedule.Source, others []string) {
	objects, err := f.lister.List(labels.Everything())
	if err != nil { // the lister reads memory
		f.log.Error("the sources could not be listed", "error", err)
	}
	slices.SortFunc(objects, func(a, b *v1alpha1.RescheduleSource) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, o := range objects {
		k := &known{uid: string(o.UID), refused: -1}
		if before := f.get(nameOf(o)); before != nil && before.uid == k.uid {
			k = before
		}
		f.set(nameOf(o), k)
		if src := f.describe(o, k); src == nil {
			others = append(others, k.uid)
		} else {
			k.applied = src
			wanted = append(wanted, src)
		}
	}
	return wanted, others
}

// reconcile makes the plane have what the name stands for now. What the error
// keeps from being done, the next call does.
func (f *follower) reconcile(name cache.ObjectName, p Plane) error {
	o, err := find(f.lister, name)
	if err != nil {
		return err
	}
	k := f.get(name)
	if k != nil && (o == nil || string(o.UID) != k.uid) {
		if err := p.RemoveSource(k.uid); err != nil {
			return fmt.Errorf("cluster: source %s: removing uid %s: %w", name, k.uid, err)
		}
		f.set(name, nil)
		k = nil
	}
	if o == nil {
		return nil
	}
	if k == nil {
		k = &known{uid: string(o.UID), refused: -1}
		f.set(name, k)
	}
	src := f.describe(o, k)
	if src == nil || reflect.DeepEqual(src, k.applied) {
		return nil
	}
	if err := p.SetSource(src); err != nil {
		return fmt.Errorf("cluster: source %s: applying generation %d: %w", name, o.Generation, err)
	}
	k.applied = src
	return nil
}

// describe is the object's source, or nil when it cannot be understood, which
// is told once a generation.
func (f *follower) describe(o *v1alpha1.RescheduleSource, k *known) *schedule.Source {
	src, err := describe(o, k.applied, f.identified(), f.ceilings())
	if err == nil {
		k.refused = -1
		return src
	}
	if k.refused != o.Generation {
		k.refused = o.Generation
		f.log.Warn("a source cannot be understood and stays as it was", "source", nameOf(o).String(), "uid", k.uid, "generation", o.Generation, "error", err)
		f.warn(&schedule.Source{UID: k.uid, Namespace: o.Namespace, Name: o.Name}, reasonInvalid, err.Error())
	}
	return nil
}

// find is the object of a name, nil when there is none.
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

func (f *follower) get(name cache.ObjectName) *known {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known[name]
}

// set notes what a name stands for, nil = nothing any more.
func (f *follower) set(name cache.ObjectName, k *known) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k == nil {
		delete(f.known, name)
		return
	}
	f.known[name] = k
}

// names are all that stood for something when they were looked at last.
func (f *follower) names() []cache.ObjectName {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.known))
}
