package scale

import (
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// observeExamine is how often an observed workload is examined that would sleep.
const observeExamine = 10 * time.Second

// maxRequeues are counted in a look: a metric may be any number.
const maxRequeues = 1e6

// quiet counts what an observed workload does while it would sleep.
type quiet struct {
	began                time.Time // of the first run
	reconciles, requeues float64   // when it was examined last; less than 0: it was not
	ran                  bool      // in the last look
	woken                bool      // it would have been awake since the last look
}

func newQuiet(saved schedule.Quiet, now time.Time) quiet {
	return quiet{began: now.Add(-time.Duration(max(saved.Runs-1, 0)) * saved.Every), reconciles: -1}
}

// note adds what metrics say now.
func (q *quiet) note(w *Work, sleeps bool, now time.Time, sum *schedule.Quiet) {
	if !w.Known {
		return
	}
	knew := q.reconciles >= 0
	ran := knew && sleeps && !q.woken && w.Reconciles > q.reconciles
	if ran && !q.ran {
		if sum.Runs == 0 {
			q.began = now
		}
		sum.Runs++
		if sum.Runs > 1 {
			sum.Every = now.Sub(q.began) / time.Duration(sum.Runs-1)
		}
	}
	if more := w.Requeues - q.requeues; knew && more > 0 {
		sum.Requeues += int64(min(more, maxRequeues))
	}
	q.ran, q.reconciles, q.requeues, q.woken = ran, w.Reconciles, w.Requeues, !sleeps
}
