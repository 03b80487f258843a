package capacity

import (
	"crypto/rand"
	"fmt"
	"math"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// Config says what one program keeps of a source.
type Config struct {
	Total  int64 // bytes, of all sources
	Fixed  int64 // what a source takes beside its object, and with the adapter's reports
	Copies int64 // how many copies of the object's parts there are
	// Settles: after an update the object before it may be in force, and its bytes are
	// given back by Settle.
	Settles bool
	// Restores: until Restored is called, objects that were in force before, as their status says,
	// come before all others. Else the order of a list would decide, after each restart, which
	// sources run.
	Restores bool
}

// Sources counts the objects of one informer. It is safe for concurrent use; nil counts nothing.
type Sources struct {
	cfg Config

	mu         sync.Mutex
	restoring  bool
	used       int64
	namespaces map[string]int64
	entries    map[types.UID]*entry
}

// entry is what is known of an object.
type entry struct {
	name cache.ObjectName
	held int64
	need int64                      // of the newest object
	at   time.Time                  // when it came
	kept *v1alpha1.RescheduleSource // what Admit returned for it
}

// refused reports whether the newest object has no memory.
func (e *entry) refused() bool { return e.kept != nil && IsStandIn(e.kept) }

// New returns a count of no objects.
func New(cfg Config) *Sources {
	return &Sources{cfg: cfg, restoring: cfg.Restores, namespaces: map[string]int64{}, entries: map[types.UID]*entry{}}
}

// Restored ends the first list. The caller admits again what Retry names.
func (s *Sources) Restored() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restoring = false
}

// TotalForMemoryLimit is the total of a program: least with the memory limit (GOMEMLIMIT) that it
// is shipped with or with none, and half of what the limit is larger.
func TotalForMemoryLimit(least, shipped int64) int64 {
	if limit := debug.SetMemoryLimit(-1); limit > shipped && limit < math.MaxInt64 {
		least += (limit - shipped) / 2
	}
	return least
}

// Admit returns the object, or a stand-in for it. It is called once the object is trimmed, and
// before anything else holds it.
func (s *Sources) Admit(o *v1alpha1.RescheduleSource) *v1alpha1.RescheduleSource {
	if s == nil {
		return o
	}
	bytes := s.bytes(o) // outside of the lock
	need := rounded(bytes)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[o.UID]
	if e == nil {
		e = &entry{name: cache.ObjectName{Namespace: strings.Clone(o.Namespace), Name: strings.Clone(o.Name)}}
		s.entries[types.UID(strings.Clone(string(o.UID)))] = e
	}
	if bytes <= e.held {
		need = min(need, e.held)
	}
	e.need, e.at = need, time.Now()
	more, allowed := need-e.held, false
	switch {
	case s.restoring && o.Status.Refused != "":
		allowed = more <= 0
	case s.restoring && o.Status.Pending != nil: // it was in force, whatever its namespace has
		allowed = more <= s.cfg.Total-s.used
	default:
		allowed = s.allows(e.name.Namespace, more)
	}
	switch {
	case !allowed:
		why := s.refusal(e.name.Namespace, more)
		switch { // the status reports it: it must not change with each number
		case e.refused() && e.kept.Generation == o.Generation:
			why = e.kept.Annotations[refusalAnnotation]
		case s.restoring && o.Status.Refused != "":
			why = strings.Clone(o.Status.Refused[:min(len(o.Status.Refused), reportBytes)])
		}
		if !s.cfg.Settles { // the object before it is not used any more
			s.grow(e, -e.held)
		}
		e.kept = standIn(o, why)
		return e.kept
	case more > 0 || !s.cfg.Settles:
		s.grow(e, more)
	}
	e.kept = o
	return o
}

// Holds reports whether Admit has returned this object: a streamed list passes the transform
// twice. A stand-in may come again after another one of the object that was read meanwhile; taken
// for the object it would be a source without a sink.
func (s *Sources) Holds(o *v1alpha1.RescheduleSource) bool {
	switch {
	case s == nil:
		return false
	case IsStandIn(o):
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[o.UID]
	return e != nil && o == e.kept
}

// Settle gives back what older objects held: this one is in force.
func (s *Sources) Settle(o *v1alpha1.RescheduleSource) {
	if s == nil || IsStandIn(o) {
		return
	}
	need := s.cost(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[o.UID]; e != nil {
		if !IsStandIn(e.kept) {
			need = max(need, e.need)
		}
		s.grow(e, min(need-e.held, 0))
	}
}

// Release gives back what the object of a uid held: it does not exist any more.
func (s *Sources) Release(uid types.UID) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[uid]; e != nil {
		s.grow(e, -e.held)
		delete(s.entries, uid)
	}
}

// Handler releases objects that the informer drops.
func (s *Sources) Handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			b, _ := before.(*v1alpha1.RescheduleSource)
			a, _ := after.(*v1alpha1.RescheduleSource)
			if b != nil && a != nil && b.UID != a.UID { // it was deleted and made again while nothing was watched
				s.Release(b.UID)
			}
		},
		DeleteFunc: func(o any) {
			if tomb, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tomb.Obj
			}
			if source, ok := o.(*v1alpha1.RescheduleSource); ok && source != nil {
				s.Release(source.UID)
			}
		},
	}
}

// Fits reports whether the newest object of a uid would be admitted now.
func (s *Sources) Fits(uid types.UID) bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[uid]
	return e != nil && s.allows(e.name.Namespace, e.need-e.held)
}

// Retry returns the names of refused objects that would be admitted now, each of them alone.
func (s *Sources) Retry() (names []cache.ObjectName) {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if e.refused() && s.allows(e.name.Namespace, e.need-e.held) {
			names = append(names, e.name)
		}
	}
	return names
}

// Refusal is why the newest object of a uid is refused, "" if it is not.
func (s *Sources) Refusal(uid types.UID) string {
	if s == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[uid]; e != nil && e.refused() {
		return e.kept.Annotations[refusalAnnotation]
	}
	return ""
}

// Refused is how many objects are refused.
func (s *Sources) Refused() (n int64) {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if e.refused() {
			n++
		}
	}
	return n
}

// forgetAfter is longer than a watch lasts, and so longer than a list may come as a stream.
const forgetAfter = time.Hour

// Forget releases the objects that do not exist and came long ago. A list that broke off may
// have brought them: then no handler has seen them, and none sees their end.
func (s *Sources) Forget(exists func(cache.ObjectName, types.UID) bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	old := map[types.UID]cache.ObjectName{}
	for uid, e := range s.entries {
		if time.Since(e.at) > forgetAfter {
			old[uid] = e.name
		}
	}
	s.mu.Unlock()
	for uid, name := range old {
		if !exists(name, uid) {
			s.Release(uid)
		}
	}
}

// Used is how many bytes are counted.
func (s *Sources) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

const (
	// step is what a cost is a multiple of.
	step = 2 << 10
	// spare is what a source whose namespace may not grow can grow nevertheless: by the
	// conditions that its sinks do not exist any more, twice, and a little more.
	spare = 1 << 10
)

// rounded is the cost of so many bytes.
func rounded(bytes int64) int64 { return (bytes + spare + step - 1) / step * step }

// cost is what an object holds that was not there before.
func (s *Sources) cost(o *v1alpha1.RescheduleSource) int64 { return rounded(s.bytes(o)) }

// bytes does not count the reports of the adapter, which change every 30 seconds: Fixed does. Else
// a report would be too large for a namespace that may not grow.
func (s *Sources) bytes(o *v1alpha1.RescheduleSource) int64 {
	c := *o
	st := &c.Status
	st.Pending, st.InFlight, st.Retrying, st.Watched, st.NextDueAt, st.OldestDueAt = nil, nil, nil, nil, nil, nil
	if isShortReport(st.Deliveries) {
		st.Deliveries = nil
	}
	if isShortWatch(st.Watch) {
		st.Watch = nil
	}
	if isShortScale(st.Scale) {
		st.Scale = nil
	}
	if len(st.Refused) <= reportBytes {
		st.Refused = ""
	}
	return s.cfg.Fixed + s.cfg.Copies*sizeOf(&c)
}

// isShortReport reports whether a report is as the adapter writes it, or absent.
func isShortReport(d *v1alpha1.DeliveriesStatus) bool {
	return d == nil || len(d.Status)+len(d.Reason)+len(d.Message) <= reportBytes
}

func isShortWatch(w *v1alpha1.WatchStatus) bool {
	return w == nil || len(w.Status)+len(w.Reason)+len(w.Message) <= reportBytes
}

func isShortScale(s *v1alpha1.ScaleStatus) bool {
	if s == nil {
		return true
	}
	size := len(s.State) + len(s.LastStart) + len(s.Reason) + len(s.Message)
	if h := s.Held; h != nil {
		size += len(h.APIVersion) + len(h.Kind) + len(h.Name) + len(h.ServiceAccountName)
	}
	return size <= reportBytes
}

// allows reports whether a namespace may take more bytes: what stays free must be at least its
// new total. The caller holds the lock.
func (s *Sources) allows(namespace string, more int64) bool {
	return more <= 0 || s.namespaces[namespace]+more <= s.cfg.Total-s.used-more
}

// grow adds to what an object holds. The caller holds the lock.
func (s *Sources) grow(e *entry, more int64) {
	e.held += more
	s.used += more
	if s.namespaces[e.name.Namespace] += more; s.namespaces[e.name.Namespace] == 0 {
		delete(s.namespaces, e.name.Namespace)
	}
}

// refusal says why a namespace may not take more bytes. The caller holds the lock.
func (s *Sources) refusal(namespace string, more int64) string {
	const inMiB = 1 << 20
	who, have, may := "all RescheduleSources together", s.used, ""
	if more <= s.cfg.Total-s.used {
		who, have, may = "the RescheduleSources of namespace "+namespace, s.namespaces[namespace], ", where a namespace gets half of what is left"
	}
	return fmt.Sprintf("%s have %.1f of %d MiB of memory%s, and this one needs %.1f MiB more: delete some, "+
		"write smaller ones (certificates, selectors, overrides), or ask the administrator for more memory and a ResourceQuota",
		who, float64(have)/inMiB, s.cfg.Total/inMiB, may, float64(more)/inMiB)
}

// refusalAnnotation is in the metadata of a stand-in. Its name is another one in each process: with a
// known one an author could write a source that passes for a stand-in, and is not counted.
var refusalAnnotation = "sources.reschedule.dev/refused-" + rand.Text()

// IsStandIn reports whether an object of the informer is a stand-in.
func IsStandIn(o *v1alpha1.RescheduleSource) bool {
	_, is := o.Annotations[refusalAnnotation]
	return is
}

// Refusal is why an object is a stand-in; nil if it is not a stand-in.
func Refusal(o *v1alpha1.RescheduleSource) error {
	if text, is := o.Annotations[refusalAnnotation]; is {
		return fmt.Errorf("spec: %s", text)
	}
	return nil
}

const (
	// labelBytes bounds the labels of a stand-in. With longer ones it has too many: which
	// policies select it is not known, and its calls are refused.
	labelBytes = 1 << 10
	// textBytes bounds the other texts of a stand-in, and reportBytes a report of the adapter.
	textBytes   = 256
	reportBytes = 2 << 10
)

// standIn is what is kept of a refused object: its identity, what admits its callers, the
// accounts of its watch and its workload, its finalizer, and what the adapter reported. Of the
// object's memory it shares only the reports.
func standIn(o *v1alpha1.RescheduleSource, why string) *v1alpha1.RescheduleSource {
	c := &v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{
		Namespace: strings.Clone(o.Namespace), Name: strings.Clone(o.Name), UID: types.UID(strings.Clone(string(o.UID))),
		Generation: o.Generation, ResourceVersion: strings.Clone(o.ResourceVersion),
		CreationTimestamp: o.CreationTimestamp, DeletionTimestamp: o.DeletionTimestamp.DeepCopy(),
		Annotations: map[string]string{refusalAnnotation: why}, Finalizers: v1alpha1.OwnFinalizers(o.Finalizers),
	}}
	size := 0
	for k, v := range o.Labels {
		size += len(k) + len(v)
	}
	if size > labelBytes {
		c.Labels = v1alpha1.TooManyLabels()
	} else if len(o.Labels) > 0 {
		c.Labels = make(map[string]string, len(o.Labels))
		for k, v := range o.Labels {
			c.Labels[strings.Clone(k)] = strings.Clone(v)
		}
	}
	c.Spec.Suspend = o.Spec.Suspend
	c.Spec.Access = short(o.Spec.Access)
	if in := o.Spec.Ingest; in != nil && in.Authentication != nil {
		c.Spec.Ingest = &v1alpha1.RescheduleSourceIngest{Authentication: short(in.Authentication)}
	}
	if w := o.Spec.Watch; w != nil {
		c.Spec.Watch = &v1alpha1.RescheduleSourceWatch{ServiceAccountName: *short(&w.ServiceAccountName)}
	}
	if scale := o.Spec.Scale; scale != nil {
		c.Spec.Scale = &v1alpha1.RescheduleSourceScale{ServiceAccountName: *short(&scale.ServiceAccountName), Mode: short(scale.Mode)}
	}
	s := &o.Status
	c.Status.ObservedGeneration = s.ObservedGeneration
	// What the adapter reported, which it compares with what it would report.
	c.Status.Pending, c.Status.InFlight, c.Status.Retrying, c.Status.Watched = s.Pending, s.InFlight, s.Retrying, s.Watched
	c.Status.NextDueAt, c.Status.OldestDueAt = s.NextDueAt, s.OldestDueAt
	c.Status.Refused = strings.Clone(s.Refused[:min(len(s.Refused), reportBytes)])
	if isShortReport(s.Deliveries) {
		c.Status.Deliveries = s.Deliveries
	}
	if isShortWatch(s.Watch) {
		c.Status.Watch = s.Watch
	}
	if isShortScale(s.Scale) {
		c.Status.Scale = s.Scale
	}
	return c
}

// short copies a text, or a pointer to it; one that is too long loses its end, and is not valid then.
func short[T ~string](text *T) *T {
	if text == nil {
		return nil
	}
	cut := T(strings.Clone(string((*text)[:min(len(*text), textBytes)])))
	return &cut
}
