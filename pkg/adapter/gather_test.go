package adapter

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Callers who come while metrics are gathered share the next result, and none gets one that had
// begun before. Four scrapes at once of 10,000 sources took 290 MB.
func TestMetrics_GatheredOnceForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var begun []time.Time
		all := newSharedGatherer(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			begun = append(begun, time.Now())
			time.Sleep(10 * time.Second)
			return make([]*dto.MetricFamily, len(begun)), nil
		}))
		var scrapes sync.WaitGroup
		scrape := func(want int) {
			scrapes.Go(func() {
				if families, err := all.Gather(); err != nil || len(families) != want {
					t.Errorf("gathering %d, want %d: %v", len(families), want, err)
				}
			})
		}
		scrape(1)
		synctest.Wait()
		for range 4 {
			scrape(2)
		}
		time.Sleep(5 * time.Second)
		scrape(2)
		time.Sleep(10 * time.Second)
		scrape(3)
		scrapes.Wait()
		if len(begun) != 3 || begun[1].Sub(begun[0]) != 10*time.Second {
			t.Errorf("gathered at %v", begun)
		}
	})
}
