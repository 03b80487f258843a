package capacity

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/internal/heap"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

const mib = 1 << 20

// source is an object whose spec has so many bytes of text.
func source(namespace, name string, size int) *v1alpha1.RescheduleSource {
	o := &v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name), Generation: 1}}
	o.Spec.Sink.CACerts = new(text[:size])
	return o
}

var text = strings.Repeat("c", 3*mib)

func inAdapter(total int64) *Sources {
	return New(Config{Total: total, Fixed: 6 << 10, Copies: 2, Settles: true}) // and not Restores: nothing was in force before
}

// A namespace with thousands of large objects keeps half, and a newcomer finds something free.
func TestNamespace_KeepsHalfOfTheRest(t *testing.T) {
	t.Parallel()
	s := inAdapter(64 * mib)
	kept := 0
	for i := range 3000 {
		if !IsStandIn(s.Admit(source("hostile", fmt.Sprint(i), 1<<20))) {
			kept++
		}
	}
	if s.Used() > 32*mib || kept < 10 {
		t.Errorf("%d are kept, which take %d", kept, s.Used())
	}
	if IsStandIn(s.Admit(source("neighbour", "new", 256<<10))) {
		t.Error("the neighbour's source is refused")
	}
	for i := range 3000 {
		s.Release(types.UID(fmt.Sprint("hostile/", i)))
	}
	s.Release("neighbour/new")
	if s.Used() != 0 || len(s.namespaces) != 0 || len(s.entries) != 0 {
		t.Errorf("%d are used by %d namespaces and %d objects at the end", s.Used(), len(s.namespaces), len(s.entries))
	}
}

// After a restart the sources run that ran before, in whatever order a list names them, and not the
// refused ones in their place. A namespace that had the most was refused a part, as others came first.
func TestRestart_SourcesThatRanRunAgain(t *testing.T) {
	t.Parallel()
	s := inAdapter(64 * mib)
	var listed []*v1alpha1.RescheduleSource // the last ones first
	for _, namespace := range []string{"c", "b", "a"} {
		for i := range 20 {
			o := source(namespace, fmt.Sprint(i), 1<<20)
			o.Status.Pending = new(int64(0))
			if err := Refusal(s.Admit(o)); err != nil {
				o.Status.Pending, o.Status.Refused = nil, strings.TrimPrefix(err.Error(), "spec: ")
			}
			listed = append([]*v1alpha1.RescheduleSource{o}, listed...)
		}
	}
	used := s.Used()
	if used < 48*mib || used > 64*mib {
		t.Fatalf("%d are used, so that this test shows nothing", used)
	}
	s = inAdapter(64 * mib)
	s.restoring = true
	for _, o := range listed {
		why := ""
		if err := Refusal(s.Admit(o)); err != nil {
			why = strings.TrimPrefix(err.Error(), "spec: ")
		}
		if why != o.Status.Refused {
			t.Errorf("%s/%s, which was refused for %q, is refused for %q", o.Namespace, o.Name, o.Status.Refused, why)
		}
	}
	s.Restored()
	if fit := s.Retry(); s.Used() != used || len(fit) > 0 {
		t.Errorf("%d are used, before the restart %d; %v fit now", s.Used(), used, fit)
	}
	for i := range 5 {
		s.Release(types.UID(fmt.Sprint("c/", i)))
	}
	names := s.Retry()
	if len(names) == 0 {
		t.Fatal("no refused source fits once others are deleted")
	}
	again := source(names[0].Namespace, names[0].Name, 1<<20)
	again.Status.Refused = "as before"
	if err := Refusal(s.Admit(again)); err != nil {
		t.Errorf("a source that fits: %v", err)
	}
}

// A source that was made while no adapter ran is judged as at any time.
func TestRestart_NewSourcesHaveHalf(t *testing.T) {
	t.Parallel()
	s := inAdapter(64 * mib)
	s.restoring = true
	for i := range 100 {
		s.Admit(source("hostile", fmt.Sprint(i), 1<<20))
	}
	if s.Used() > 32*mib {
		t.Errorf("%d are used", s.Used())
	}
	for i := range 100 { // larger than they were, all of them
		o := source("grown", fmt.Sprint(i), 1<<20)
		o.Status.Pending = new(int64(0))
		s.Admit(o)
	}
	if s.Used() > 64*mib {
		t.Errorf("%d are used by all", s.Used())
	}
}

// The refusal says what is full, and what to do.
func TestRefusal_SaysWhatToDo(t *testing.T) {
	t.Parallel()
	s := inAdapter(4 * mib)
	own := Refusal(s.Admit(source("a", "x", 1200<<10)))
	if own == nil || !strings.Contains(own.Error(), "namespace a") || !strings.Contains(own.Error(), "4 MiB") || !strings.Contains(own.Error(), "ResourceQuota") {
		t.Errorf("beyond its share: %v", own)
	}
	all := Refusal(s.Admit(source("a", "y", 3*mib)))
	if all == nil || !strings.Contains(all.Error(), "all RescheduleSources") {
		t.Errorf("beyond the total: %v", all)
	}
	if err := Refusal(s.Admit(source("a", "z", 10))); err != nil {
		t.Error(err)
	}
}

// A stand-in is small, and has what admits callers: without it calls would be judged by
// less than the object requires.
func TestStandIn_KeepsWhatAdmitsCallers(t *testing.T) {
	t.Parallel()
	s := inAdapter(mib)
	o := source("a", "x", mib)
	o.Labels = map[string]string{"team": "a"}
	o.Spec.Access = new(v1alpha1.AccessRBAC)
	o.Spec.Ingest = &v1alpha1.RescheduleSourceIngest{Key: strings.Repeat("k", 4096), Authentication: new(v1alpha1.AuthenticationRequired)}
	o.Spec.Watch = &v1alpha1.RescheduleSourceWatch{ServiceAccountName: "watcher"}
	o.Spec.Scale = &v1alpha1.RescheduleSourceScale{ServiceAccountName: "scaler", Mode: new(v1alpha1.ScaleAwake), StartTimeout: new(strings.Repeat("1", 4096))}
	o.Status.Scale = &v1alpha1.ScaleStatus{State: "Asleep", Held: &v1alpha1.HeldWorkload{ServiceAccountName: "scaler", Replicas: 2}}
	o.Finalizers = []string{strings.Repeat("f", 16<<10), v1alpha1.ScaleFinalizer}
	kept := s.Admit(o)
	if !IsStandIn(kept) || kept.Validate(t.Context()) == nil {
		t.Fatalf("kept %+v", kept)
	}
	if kept.UID != o.UID || kept.Labels["team"] != "a" || *kept.Spec.Access != v1alpha1.AccessRBAC || *kept.Spec.Ingest.Authentication != v1alpha1.AuthenticationRequired ||
		kept.Spec.Watch.ServiceAccountName != "watcher" {
		t.Errorf("kept %+v", kept)
	}
	if kept.Spec.ScaleAccount() != "scaler" || kept.Spec.ScaleMode() != v1alpha1.ScaleAwake || *kept.Status.Scale.Held != *o.Status.Scale.Held ||
		len(kept.Finalizers) != 1 || kept.Finalizers[0] != v1alpha1.ScaleFinalizer {
		t.Errorf("of the workload it keeps %+v, %+v, %q", kept.Spec.Scale, kept.Status.Scale, kept.Finalizers)
	}
	o.Labels["long"] = strings.Repeat("l", labelBytes)
	if kept = s.Admit(o); len(kept.Labels) <= v1alpha1.MaxLabels {
		t.Error("labels that are left out do not count as too many")
	}
	if size := sizeOf(kept); size > 12<<10 {
		t.Errorf("a stand-in takes %d bytes", size)
	}
}

// A report of the adapter is not too large for a namespace that may not grow, as its neighbours came
// later: the source would be refused by its own status.
func TestReport_IsNeverTooLarge(t *testing.T) {
	t.Parallel()
	s := inAdapter(4 * mib)
	o := source("a", "x", 900<<10)
	s.Admit(o)
	s.Admit(source("b", "y", 450<<10))
	if !IsStandIn(s.Admit(source("a", "another", 10))) {
		t.Fatal("the namespace may grow")
	}
	reported := o.DeepCopy()
	reported.Status.Pending, reported.Status.NextDueAt = new(int64(7)), new(metav1.Now())
	reported.Status.Deliveries = &v1alpha1.DeliveriesStatus{Status: "False", Message: text[:1<<10]}
	reported.Status.Watch = &v1alpha1.WatchStatus{Status: "False", Message: text[:1<<10]}
	reported.Status.Scale = &v1alpha1.ScaleStatus{State: "Asleep", Message: text[:2000], Held: &v1alpha1.HeldWorkload{Replicas: 1}}
	reported.Status.Refused = text[:2<<10]
	if IsStandIn(s.Admit(reported)) {
		t.Error("a source is refused by its status")
	}
	reported.Status.Deliveries.Message = text[:1<<20]
	if !IsStandIn(s.Admit(reported)) {
		t.Error("a status of any size is not counted")
	}
}

// A source whose namespace may not grow learns that its sinks do not exist any more, however large it
// is: else the token would go on to an address that may be another service's by now.
func TestSmallChange_IsNeverTooLarge(t *testing.T) {
	t.Parallel()
	for size := 0; size < 2*step; size += wordSize {
		s := inAdapter(8 * mib)
		o := source("a", "x", size)
		s.Settle(s.Admit(o))
		s.Admit(source("a", "y", 1900<<10))
		s.Admit(source("b", "z", 1000<<10))
		if !IsStandIn(s.Admit(source("a", "another", 10))) {
			t.Fatal("the namespace may grow")
		}
		gone := o.DeepCopy()
		gone.Spec.Suspend = true
		for _, c := range []apis.ConditionType{v1alpha1.ConditionSinkProvided, v1alpha1.ConditionDeadLetterSinkResolved} {
			gone.Status.Conditions = append(gone.Status.Conditions, apis.Condition{Type: c, Status: "False", Reason: v1alpha1.ReasonNotFound})
		}
		if IsStandIn(s.Admit(gone)) {
			t.Fatalf("a source with %d bytes of text is refused", size)
		}
		if s.Settle(gone); IsStandIn(s.Admit(o)) || IsStandIn(s.Admit(gone)) {
			t.Fatalf("a source with %d bytes of text is refused when its sinks come and go", size)
		}
	}
}

// The reason of a refusal stays while the object is the same: each new number of bytes would be a new
// status, which is an update of the object, which is refused with a new number.
func TestRefusal_StaysForAGeneration(t *testing.T) {
	t.Parallel()
	s := inAdapter(8 * mib)
	large := source("a", "x", 3*mib)
	s.Admit(large)
	first := s.Refusal(large.UID)
	s.Admit(source("b", "y", 1200<<10))
	again := large.DeepCopy()
	again.Status.Refused = first
	kept := s.Admit(again)
	if first == "" || kept.Status.Refused != first || s.Refusal(large.UID) != first || s.Refused() != 1 {
		t.Errorf("%d are refused; %q, then %q", s.Refused(), first, s.Refusal(large.UID))
	}
	again.Generation++
	if s.Admit(again); s.Refusal(large.UID) == first {
		t.Error("the reason of an older generation stays")
	}
	if s.Admit(source("a", "x", 10)); s.Refusal(large.UID) != "" || s.Refused() != 0 {
		t.Errorf("%d are refused: %q", s.Refused(), s.Refusal(large.UID))
	}
}

// A streamed list passes the transform twice, and is counted once.
func TestHolds_WhatWasAdmitted(t *testing.T) {
	t.Parallel()
	s := inAdapter(mib)
	small, large := s.Admit(source("a", "small", 10)), s.Admit(source("a", "large", mib))
	if !s.Holds(small) || !s.Holds(large) || s.Holds(source("a", "small", 10)) {
		t.Error("it does not know what it has admitted")
	}
	again := s.Admit(source("a", "large", 10)) // as it was read otherwise
	if IsStandIn(again) || !s.Holds(again) || !s.Holds(large) {
		t.Error("the informer's stand-in is forgotten")
	}
}

// A stand-in of a streamed list is known when it passes the transform again, also if the object was
// read and refused in between: it was taken for the object, which had no sink then.
func TestHolds_StandInThatAnotherFollowed(t *testing.T) {
	t.Parallel()
	s := inAdapter(mib)
	listed := s.Admit(source("a", "large", mib))
	read := s.Admit(source("a", "large", mib))
	if !s.Holds(listed) || !s.Holds(read) {
		t.Error("the list's stand-in is forgotten")
	}
	forged := source("a", "large", 10)
	forged.Annotations = map[string]string{"sources.reschedule.dev/refused": "no memory"}
	if s.Holds(forged) {
		t.Error("an author can write a stand-in")
	}
}

// A large source that is in force stays counted while a small one that is not valid follows it: a
// tenant could fill the memory with one after the other.
func TestSettle_GivesBackWhatIsNotInForce(t *testing.T) {
	t.Parallel()
	s := inAdapter(64 * mib)
	s.Admit(source("a", "x", mib))
	large := s.Used()
	small := s.Admit(source("a", "x", 10))
	if s.Used() != large {
		t.Errorf("%d are counted while the large one is in force, of %d", s.Used(), large)
	}
	s.Settle(small)
	if s.Used() > 32<<10 {
		t.Errorf("%d are counted with the small one in force", s.Used())
	}
	s.Admit(source("a", "x", mib))
	if s.Settle(small); s.Used() != large { // the large one comes
		t.Errorf("%d are counted with a large one to come", s.Used())
	}
}

// What finds nothing free is named by Retry once it fits.
func TestRetry_NamesWhatFits(t *testing.T) {
	t.Parallel()
	s := inAdapter(8 * mib)
	first, second := source("a", "first", mib), source("a", "second", mib)
	s.Admit(first)
	if !IsStandIn(s.Admit(second)) || len(s.Retry()) != 0 || s.Fits(second.UID) {
		t.Error("the second one fits")
	}
	s.Handler().OnDelete(cache.DeletedFinalStateUnknown{Key: "a/first", Obj: first})
	if names := s.Retry(); len(names) != 1 || names[0].Name != "second" || !s.Fits(second.UID) {
		t.Errorf("to be tried again: %v", names)
	}
	if IsStandIn(s.Admit(second)) || len(s.Retry()) != 0 {
		t.Error("the second one is refused still")
	}
}

// An object that a broken list brought, and no handler has seen, is not counted for ever.
func TestForget_WhatNoHandlerSaw(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := inAdapter(mib)
		s.Admit(source("a", "there", 10))
		half := s.Used()
		s.Admit(source("a", "gone", 10))
		exists := func(name cache.ObjectName, _ types.UID) bool { return name.Name == "there" }
		s.Forget(exists)
		if s.Used() == half {
			t.Error("a list that comes is forgotten")
		}
		time.Sleep(forgetAfter + time.Second)
		if s.Forget(exists); s.Used() != half {
			t.Errorf("%d are counted, want %d", s.Used(), half)
		}
	})
}

// After any history the sum is the sum of what is kept, each object at least with what its newest
// state needs, and nothing at the end.
func TestSum_IsOfWhatIsKept(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		for _, s := range []*Sources{inAdapter(2 * mib), New(Config{Total: 2 * mib, Fixed: 4 << 10, Copies: 1})} {
			check(t, r, s)
		}
	}
}

// check makes one history: a store as the informer has it, and what happens to it.
func check(t *testing.T, r *rand.Rand, s *Sources) {
	t.Helper()
	store := map[string]*v1alpha1.RescheduleSource{}
	made := 0
	h := s.Handler()
	newest := func(name string) *v1alpha1.RescheduleSource {
		o := source(fmt.Sprint("ns-", name[0]%3), name, r.IntN(200<<10))
		if before := store[name]; before != nil && r.IntN(8) > 0 {
			o.UID = before.UID
		} else {
			made++
			o.UID = types.UID(fmt.Sprint(name, made))
		}
		return o
	}
	put := func(name string, o *v1alpha1.RescheduleSource) {
		if !s.Holds(o) {
			o = s.Admit(o)
		}
		if before := store[name]; before != nil {
			store[name] = o
			h.OnUpdate(before, o)
		} else {
			store[name] = o
			h.OnAdd(o, false)
		}
	}
	for range 60 {
		name := string(rune('a' + r.IntN(12)))
		switch r.IntN(6) {
		case 0, 1:
			put(name, newest(name))
		case 2: // a watch's deletion has the object's last state
			if o := store[name]; o != nil {
				last := source(o.Namespace, o.Name, 100<<10)
				last.UID = o.UID
				kept := s.Admit(last)
				delete(store, name)
				h.OnDelete(kept)
			}
		case 3: // a streamed list: some have vanished, all come anew, and twice
			list := map[string]*v1alpha1.RescheduleSource{}
			for n := range store {
				if r.IntN(3) > 0 {
					list[n] = s.Admit(newest(n))
				}
			}
			for n, o := range store {
				if list[n] == nil {
					delete(store, n)
					h.OnDelete(cache.DeletedFinalStateUnknown{Key: n, Obj: o})
				}
			}
			for n, o := range list {
				put(n, o)
			}
		case 4: // a resync
			for _, o := range store {
				h.OnUpdate(o, o)
			}
		case 5:
			if o := store[name]; o != nil {
				s.Settle(o)
			}
		}
		var sum int64
		spaces := map[string]int64{}
		for uid, e := range s.entries {
			o := store[e.kept.Name]
			if o == nil || o.UID != uid {
				t.Fatalf("%s is counted, and does not exist", uid)
			}
			switch taken := s.bytes(o); {
			case IsStandIn(o):
				if !s.cfg.Settles && e.held != 0 {
					t.Fatalf("%s is refused, and %d are counted of the object before it", uid, e.held)
				}
			case e.held < taken, !s.cfg.Settles && e.held > s.cost(o):
				t.Fatalf("%s takes %d, and %d are counted", uid, taken, e.held)
			}
			sum += e.held
			spaces[e.name.Namespace] += e.held
		}
		if len(s.entries) != len(store) || s.used != sum || sum > s.cfg.Total {
			t.Fatalf("%d objects of %d are counted; the sum is %d of %d, %d at most", len(s.entries), len(store), s.used, sum, s.cfg.Total)
		}
		for n, held := range spaces {
			if s.namespaces[n] != held {
				t.Fatalf("namespace %s has %d, %d are counted", n, held, s.namespaces[n])
			}
		}
	}
	for n, o := range store {
		delete(store, n)
		h.OnDelete(o)
	}
	if s.used != 0 || len(s.entries) != 0 || len(s.namespaces) != 0 {
		t.Fatalf("%d are counted at the end, for %d objects", s.used, len(s.entries))
	}
}

// What is counted is not less than what an object takes. It is not parallel: it looks at the
// heap of the process.
func TestSize_IsWhatAnObjectTakes(t *testing.T) {
	for name, fill := range map[string]func(o *v1alpha1.RescheduleSource){
		"text": func(o *v1alpha1.RescheduleSource) { o.Spec.Sink.CACerts = new(strings.Repeat("c", 100<<10)) },
		"overrides": func(o *v1alpha1.RescheduleSource) {
			o.Spec.CloudEventOverrides = &duckv1.CloudEventOverrides{Extensions: map[string]string{}}
			for i := range 3000 {
				o.Spec.CloudEventOverrides.Extensions[fmt.Sprint(i)] = "x"
			}
		},
		"selectors": func(o *v1alpha1.RescheduleSource) {
			o.Spec.Watch = &v1alpha1.RescheduleSourceWatch{}
			for range 32 {
				s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
				for i := range 100 {
					s.MatchLabels[fmt.Sprint(i)] = "x"
					s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: fmt.Sprint("k", i), Operator: "In", Values: []string{fmt.Sprint("v", i)}})
				}
				o.Spec.Watch.Resources = append(o.Spec.Watch.Resources, v1alpha1.WatchResource{Selector: s})
			}
		},
	} {
		objects := make([]*v1alpha1.RescheduleSource, 20)
		before := heap.Held()
		for i := range objects {
			objects[i] = &v1alpha1.RescheduleSource{}
			fill(objects[i])
		}
		held := (heap.Held() - before) / int64(len(objects))
		if counted := sizeOf(objects[0]); counted < held*9/10 || counted > 2*held {
			t.Errorf("%s: %d bytes are counted of %d", name, counted, held)
		} else {
			t.Logf("%s: %d bytes are counted of %d", name, counted, held)
		}
		runtime.KeepAlive(objects)
	}
}
