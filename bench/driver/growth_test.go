package main

import (
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/bench/report"
)

// Growth has a row for each size, and finds no growth in an adapter that always costs as much.
func TestGrowth_Rows(t *testing.T) {
	t.Parallel()
	r := measured(t, "growth", new(fakeAdapters), nil)
	if len(r.Rows) != 4 || r.Rows[3][0] != "3" || r.Rows[3][1] != "300" || len(r.Chart.Lines) != 6 {
		t.Errorf("rows %v, %d lines", r.Rows, len(r.Chart.Lines))
	}
}

// A cost that grows beyond half fails its bar, and no other.
func TestGrowth_Bars(t *testing.T) {
	t.Parallel()
	of := func(put time.Duration) cell {
		return cell{sources: 1, pending: 1, put: outcome{server: put}, bulk: outcome{server: 10}, delivery: outcome{client: 10}}
	}
	bars := growthBars([]cell{of(10), of(16)})
	if bars[0].Verdict != report.Fail || bars[1].Verdict != report.Pass || bars[2].Verdict != report.Pass {
		t.Errorf("%+v", bars)
	}
	if bars = growthBars([]cell{of(10), of(15)}); bars[0].Verdict != report.Pass {
		t.Errorf("%+v", bars[0])
	}
}

// Churn finds a call that stalls, and only that.
func TestChurn_Stall(t *testing.T) {
	t.Parallel()
	r := measured(t, "churn", &fakeAdapters{disk: 100}, func(b *bench) { b.pending = 40 })
	for _, bar := range r.Bars {
		if bar.Verdict != report.Pass && !strings.HasPrefix(bar.Wants, "no call") { // this machine may be busy
			t.Errorf("%+v", bar)
		}
	}
	r = measured(t, "churn", &fakeAdapters{stall: 110 * time.Millisecond}, func(b *bench) { b.pending, b.churnWindow = 40, 300*time.Millisecond })
	if v := verdict(t, r, "no call"); v != report.Fail {
		t.Errorf("a stall of 110 ms: %s", v)
	}
}
