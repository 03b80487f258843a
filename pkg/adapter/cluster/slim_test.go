package cluster

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/reschedule-dev/reschedule/internal/heap"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/capacity"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// The certificates of sources that are refused, or deleted, do not stay in memory. Some 250 of 256 KiB did, to
// be shared with a source that has the same: as much again as all sources may take. It is not parallel: it looks
// at the heap of the process.
func TestSlim_CertificatesOfNoSourceGo(t *testing.T) {
	for name, total := range map[string]int64{"refused": 1 << 20, "deleted": 4 << 20} {
		s := &slimSources{capacity: newCapacity(total)}
		before := heap.Held()
		for i := range maxCertificates - 1 {
			slim, err := s.slim(object(fmt.Sprint("s", i), func(o *v1alpha1.RescheduleSource) {
				o.Spec.Sink.CACerts = new(fmt.Sprint(i) + strings.Repeat("c", 256<<10))
			}))
			if err != nil {
				t.Fatal(err)
			}
			source := slim.(*v1alpha1.RescheduleSource)
			if capacity.IsStandIn(source) != (name == "refused") {
				t.Fatalf("source %d is not %s", i, name)
			}
			if name == "deleted" {
				s.capacity.Release(source.UID)
			}
		}
		held := heap.Held() - before
		t.Logf("%s: %d bytes are held", name, held)
		if held > 2*sharedBytes {
			t.Errorf("%s: %d bytes are held", name, held)
		}
		runtime.KeepAlive(s)
	}
}
