package cluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// A source that the adapter has no memory for is not Ready, and says why: before, Ready said True of a
// source that did not run. It is Ready once the others are deleted.
func TestCapacity_RefusedIsNotReady(t *testing.T) {
	t.Parallel()
	p, ns := running(t), namespace(t, "large")
	one := certificate(t)
	certificates := strings.Repeat(one, 260_000/len(one))
	all := map[string]*source{}
	for i := range 24 { // of 2 MiB each, with its status; a namespace has 32 MiB at most
		s := &source{programs: p, t: t, namespace: ns, name: fmt.Sprint("s-", i), client: typedSourcesIn(t, ns)}
		s.make(fmt.Sprintf("sink: {uri: 'https://x.invalid', CACerts: %q}\ndelivery: {deadLetterSink: {uri: 'https://y.invalid', CACerts: %q}}\n", certificates, certificates))
		all[s.name] = s
	}
	refused := func(o *v1alpha1.RescheduleSource) bool {
		c := o.Status.GetCondition(apis.ConditionReady)
		return c != nil && c.Status == corev1.ConditionFalse && c.Reason == v1alpha1.ReasonNoMemory && strings.Contains(c.Message, "MiB of memory")
	}
	var last *source
	settle(t, func() bool {
		list, err := all["s-0"].client.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			if refused(&list.Items[i]) {
				last = all[list.Items[i].Name]
			}
		}
		return last != nil
	}, "no source of %d is refused", len(all))
	for _, s := range all {
		if s != last {
			s.delete()
		}
	}
	if o := last.ready(); o.Status.Refused != "" {
		t.Errorf("it is ready, and refused: %s", o.Status.Refused)
	}
}
