package cluster

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/internal/heap"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	listers "github.com/reschedule-dev/reschedule/pkg/client/listers/sources/v1alpha1"
)

// seen is an object as the API server sends it.
func seen(t *testing.T, i int) *v1alpha1.RescheduleSource {
	t.Helper()
	o := object(fmt.Sprintf("source-%05d", i), wantsDeadLetters, deadLettersResolved, withIdentity)
	o.UID = types.UID(fmt.Sprintf("7f8e9a10-0000-4000-8000-%012d", i))
	o.Labels = map[string]string{"app.kubernetes.io/name": "operator"}
	o.SetDefaults(t.Context())
	o.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: strings.Repeat("x", 800), "of-its-author": strings.Repeat("x", 8<<10)}
	for _, who := range []string{"kubectl", "controller", "adapter"} {
		o.ManagedFields = append(o.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: who, FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"x":"` + strings.Repeat("y", 600) + `"}}`)},
		})
	}
	for _, c := range []apis.ConditionType{"Ready", "SinkProvided", "DeadLetterSinkResolved", "Deployed", "Addressable", "OIDCIdentityCreated"} {
		o.Status.Conditions = append(o.Status.Conditions, apis.Condition{Type: c, Status: corev1.ConditionTrue})
	}
	o.Status.Address = &duckv1.Addressable{URL: apis.HTTP("reschedule-adapter.knative-eventing.svc.cluster.local"), Audience: new("sources.reschedule.dev/reschedulesource/ops/" + o.Name)}
	o.Status.SinkCACerts, o.Status.DeadLetterSinkCACerts = new(strings.Repeat("c", 1500)), new(strings.Repeat("c", 1500))
	o.Status.Pending = new(int64(7))
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	o = &v1alpha1.RescheduleSource{}
	if err := json.Unmarshal(raw, o); err != nil {
		t.Fatal(err)
	}
	return o
}

// It is not parallel: it looks at the heap of the process.
func TestMemory_OfManySources(t *testing.T) {
	const limit = 4 << 10
	const many = 2_000
	measure := func(many int, transform cache.TransformFunc) (perObject, perSource int64) {
		indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		f := &follower{
			lister: listers.NewRescheduleSourceLister(indexer), log: slog.New(slog.DiscardHandler),
			oidc: func() bool { return true }, ceilings: func() *ceilings.Config { return nil }, warn: func(*schedule.Spec, string, string) {},
			objects: map[cache.ObjectName]*seenObject{},
		}
		before := heap.Held()
		for i := range many {
			o, err := transform(seen(t, i))
			if err == nil {
				err = indexer.Add(o)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		listed := heap.Held()
		wanted, others := f.sources()
		applied := heap.Held()
		if len(wanted) != many || len(others) != 0 {
			t.Fatalf("%d wanted, %d others", len(wanted), len(others))
		}
		runtime.KeepAlive(f)
		return (listed - before) / int64(many), (applied - listed) / int64(many)
	}
	asSent, _ := measure(many/4, func(o any) (any, error) { return o, nil })
	bound := newCapacity(1 << 30)
	object, source := measure(many, (&slimSources{capacity: bound}).slim)
	counted := bound.Used() / int64(many)
	t.Logf("bytes for each source: %d of its object (%d as the API server sends it), %d of what is applied", object, asSent, source)
	t.Logf("%d bytes are counted for each", counted)
	if counted < object+source {
		t.Errorf("%d bytes are counted of %d", counted, object+source)
	}
	if object+source > limit || object > asSent/3 {
		t.Errorf("a source takes %d bytes, want less than %d, and the object a third of what is sent", object+source, limit)
	}
}
