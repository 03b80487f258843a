package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Calls and deliveries of a source do not wait for a bulk call of another, which holds its keys' locks.
func TestSource_WaitsForNoOthersBulk(t *testing.T) {
	t.Parallel()
	h := newFixture(t, tenantSource("ns", "a", schedule.Ceilings{}), tenantSource("ns", "b", schedule.Ceilings{}))
	items := make([]Item, 1000)
	for i := range items {
		items[i].Key = fmt.Sprint("k", i)
	}
	unlock := h.sources[0].stripes.lockItems(items)
	defer unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 20 {
			if refused := h.put(1, fmt.Sprint("k", i), schedule.Request{}); refused != "" {
				t.Errorf("k%d: %s", i, refused)
			}
			var d *Delivery
			for d == nil { // it may be due in the next millisecond
				var err error
				if d, err = h.sources[1].Take(); err != nil {
					t.Error(err)
					return
				}
			}
			if _, err := h.sources[1].Finish(d, schedule.Outcome{Kind: schedule.Succeeded}); err != nil {
				t.Error(err)
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("another source waits for the bulk call")
	}
}
