package capacity

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// streams is an API server that streams lists, each with the objects that there are then.
type streams struct {
	t       *testing.T
	objects []*v1alpha1.RescheduleSource
	opened  int
	now     *watch.FakeWatcher
}

func (s *streams) lists() cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			s.t.Error("it lists without a stream")
			return nil, errors.New("not here")
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents == nil || !*o.SendInitialEvents {
				s.t.Error("it watches without a list")
			}
			s.opened++
			w := watch.NewFakeWithChanSize(100, false)
			for _, o := range s.objects {
				w.Add(o.DeepCopy())
			}
			end := &v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "7", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
			w.Action(watch.Bookmark, end)
			s.now = w
			return w, nil
		},
	}
}

// expire ends the watch so that the next one begins with a list.
func (s *streams) expire() {
	s.now.Error(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired})
	time.Sleep(time.Minute)
	synctest.Wait()
}

// In an informer of streamed lists each object is counted when it arrives, and once; what a
// list does not have any more is given back.
func TestInformer_OfStreamedLists(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second, small := source("a", "first", mib), source("a", "second", mib), source("b", "small", 10)
		server := &streams{t: t, objects: []*v1alpha1.RescheduleSource{first, second, small}}
		bound := inAdapter(6 * mib)
		informer := cache.NewSharedIndexInformer(server.lists(), &v1alpha1.RescheduleSource{}, 0, nil)
		err := informer.SetTransform(func(o any) (any, error) {
			source, ok := o.(*v1alpha1.RescheduleSource)
			if !ok || bound.Holds(source) {
				return o, nil
			}
			source.TrimMetadata()
			return bound.Admit(source), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := informer.AddEventHandler(bound.Handler()); err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		go informer.RunWithContext(ctx)
		synctest.Wait()
		kept := func(name string) *v1alpha1.RescheduleSource {
			o, exists, err := informer.GetStore().GetByKey(name)
			if err != nil || !exists {
				t.Fatalf("%s is not in the store: %v", name, err)
			}
			return o.(*v1alpha1.RescheduleSource)
		}
		both := bound.cost(first) + bound.cost(small)
		if IsStandIn(kept("a/first")) || !IsStandIn(kept("a/second")) || IsStandIn(kept("b/small")) || bound.Used() != both {
			t.Errorf("%d are counted of %d", bound.Used(), both)
		}
		server.expire() // all come anew
		if server.opened < 2 || !IsStandIn(kept("a/second")) || bound.Used() != both {
			t.Errorf("after %d lists %d are counted of %d", server.opened, bound.Used(), both)
		}
		server.objects = []*v1alpha1.RescheduleSource{second, small} // the first one was deleted meanwhile
		server.expire()
		if got := bound.Used(); got != bound.cost(small) || len(bound.Retry()) != 1 {
			t.Errorf("%d are counted of %d, and %v fit", got, bound.cost(small), bound.Retry())
		}
		server.now.Modify(second.DeepCopy())
		synctest.Wait()
		if IsStandIn(kept("a/second")) || bound.Used() != both {
			t.Errorf("with the second one %d are counted of %d", bound.Used(), both)
		}
		server.now.Delete(second.DeepCopy())
		server.now.Delete(small.DeepCopy())
		synctest.Wait()
		if bound.Used() != 0 {
			t.Errorf("%d are counted at the end", bound.Used())
		}
	})
}
