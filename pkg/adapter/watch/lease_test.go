package watch

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// lease is the log of an owner whose lease may end and come back. The log takes changes all the
// while, as the log of a group does; what changes nothing is refused without the lease.
type lease struct {
	view *store.View
	over atomic.Bool
}

func (l *lease) Append(batch []byte) error { return l.view.Apply(l.view.Applied()+1, batch) }
func (l *lease) Valid() bool               { return !l.over.Load() }

// MostDisks implements store.Log.
func (*lease) MostDisks(func(store.Disk) bool) bool { return true }

// Full implements store.Log.
func (*lease) Full() bool { return false }

// Neither a resync nor a watch ends when the lease of the group does, although all keys wait
// already: the lease may come back, and nothing would begin them again in the same tenure.
func TestWatch_OutlivesALease(t *testing.T) {
	run(t, func() *schedule.Spec {
		src := own()
		src.Watch.ResyncOnRevision, src.Watch.Revision = true, "r1"
		return src
	}, func(t *testing.T, w *env) {
		for _, name := range []string{"a", "b", "c"} {
			w.api.put("Website", "ops/"+name, true)
		}
		w.lease = &lease{}
		w.start()
		w.settle(time.Minute)
		for i := range 6 {
			w.lease.over.Store(i%2 == 0)
			w.change(func(src *schedule.Spec) { src.Watch.Revision = fmt.Sprint("r", i+2) })
			w.want("a revision", time.Minute, "Website/ops/a", "Website/ops/b", "Website/ops/c")
			w.api.put("Website", "ops/a", true)
			w.want("a change", time.Minute, "update Website/ops/a")
		}
		w.lease.over.Store(true)
		if _, err := w.db.Apply(false); err == nil {
			t.Error("the store needs no lease for what changes nothing: this test shows nothing")
		}
	})
}
