//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestOperator_ObjectsOncePerRevision is about WithResync.
func TestOperator_ObjectsOncePerRevision(t *testing.T) {
	t.Parallel()
	const window = 10 * time.Second
	f := form{mode: "Resource", with: "client resync=" + window.String()}
	o := newOperator(t, f)
	var keys []string
	for i := range 10 {
		keys = append(keys, o.create(fmt.Sprintf("old-%d", i), "ok"))
	}
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept-out", Annotations: map[string]string{"e2e/script": "ok"}}}
	if _, err := o.Client.CoreV1().ConfigMaps(o.namespace.name).Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o.start()
	var starts []time.Time
	for _, key := range keys {
		starts = append(starts, o.done(key, "ok")[0].Start)
	}
	slices.SortFunc(starts, time.Time.Compare)
	if over := starts[len(starts)-1].Sub(starts[0]); over < window/5 || over > window+patience/2 {
		t.Errorf("they came up within %s, want %s", over, window)
	}

	// Another pod of the same revision does what it is woken for, and no more.
	o.atZero("operator")
	keys = append(keys, o.create("new", "ok"))
	o.done(keys[len(keys)-1], "ok")

	f.annotations = map[string]string{"e2e/revision": "another"}
	o.change(f)
	for _, key := range keys {
		o.awaitRuns(patience, key, 2)
		runs := o.done(key, "ok", "ok")
		if pod := runs[1].Pod; !strings.HasPrefix(pod, "operator-00002-") {
			t.Errorf("the second run of %s was in %s", key, pod)
		}
	}
	if all := o.runs(""); len(all) != 2*len(keys) {
		t.Errorf("there were %d runs of %d objects: %v", len(all), len(keys), all)
	}
}
