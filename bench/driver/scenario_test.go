package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/bench/report"
)

// Put compares all contestants and marks the absent ones.
func TestPut_AbsentContestants(t *testing.T) {
	t.Parallel()
	r := measured(t, "put", new(fakeAdapters), nil)
	if got := len(r.Rows); got != 5 {
		t.Fatalf("%d rows, want 5: %v", got, r.Rows)
	}
	for i, want := range []string{adapterName, bareName, pebbleName, redisName, postgresName} {
		if r.Rows[i][0] != want {
			t.Errorf("row %d is %q, want %q", i, r.Rows[i][0], want)
		}
		if absent := r.Rows[i][1] == "not here"; absent != (i >= 3) {
			t.Errorf("row %d says %q", i, r.Rows[i][1])
		}
	}
	if v := verdict(t, r, "above PostgreSQL"); v != report.NotMeasured {
		t.Errorf("above PostgreSQL, which is absent: %s", v)
	}
	if v := verdict(t, r, "at least 60"); v == report.NotMeasured {
		t.Errorf("at least 60 %%: %s", v)
	}
}

// A refused item of a bulk call fails the round.
func TestBulk_RefusedItems(t *testing.T) {
	t.Parallel()
	good := measured(t, "bulk", new(fakeAdapters), nil)
	if v := verdict(t, good, "at least a fifth"); v == report.NotMeasured {
		t.Errorf("at least a fifth: %s", v)
	}
	bad := measured(t, "bulk", &fakeAdapters{failItem: true}, nil)
	if v := verdict(t, bad, "at least a fifth"); v != report.NotMeasured {
		t.Errorf("with refused items: %s", v)
	}
	if !strings.Contains(bad.Rows[0][1], "quota_exceeded") {
		t.Errorf("the row does not say why: %q", bad.Rows[0][1])
	}
}

// Burst measures both sides and finds early deliveries.
func TestBurst_EarlyDeliveries(t *testing.T) {
	t.Parallel()
	r := measured(t, "burst", new(fakeAdapters), nil)
	if v := verdict(t, r, "nothing early"); v != report.Pass {
		t.Errorf("nothing early: %s", v)
	}
	if v := verdict(t, r, "at least 70"); v == report.NotMeasured {
		t.Errorf("at least 70 %%: %s: %v", v, r.Rows)
	}
	r = measured(t, "burst", &fakeAdapters{late: -200 * time.Millisecond}, nil)
	if v := verdict(t, r, "nothing early"); v != report.Fail {
		t.Errorf("200 ms early: %s", v)
	}
}

// Lateness compares with the queue and finds early deliveries.
func TestLateness_EarlyDeliveries(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		late  time.Duration
		early report.Verdict
	}{
		"on time":      {0, report.Pass},
		"500 ms late":  {500 * time.Millisecond, report.Pass},
		"200 ms early": {-200 * time.Millisecond, report.Fail},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := measured(t, "lateness", &fakeAdapters{late: test.late}, func(b *bench) { b.pending = 100 })
			if v := verdict(t, r, "p99 under 5 ms"); v == report.NotMeasured {
				t.Errorf("p99: %s: %v", v, r.Rows)
			}
			if p50 := r.Chart.Curves[0].Values[slices.Index(report.Percentiles, 0.5)]; test.early == report.Pass &&
				(p50 < float64(test.late.Milliseconds()) || p50 > float64(test.late.Milliseconds())+400) {
				// Taken from the first due time instead of each one's own it would be half of the second that they take.
				t.Errorf("p50 of %v ms with deliveries %s late", p50, test.late)
			}
			if v := verdict(t, r, "nothing early"); v != test.early {
				t.Errorf("early: %s, want %s: %v", v, test.early, r.Rows)
			}
		})
	}
}

// Memory compares with an empty store, and each bar can fail.
func TestMemory_EachBar(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fake  *fakeAdapters
		fails string // the beginning of the only bar that fails
	}{
		"all well":          {fake: &fakeAdapters{rss: 99e6, ready: 1900 * time.Millisecond}},
		"too much memory":   {fake: &fakeAdapters{rss: 101e6}, fails: "memory"},
		"too much disk":     {fake: &fakeAdapters{disk: 2500 * 288 * 2}, fails: "disk"},
		"too slow a start":  {fake: &fakeAdapters{ready: 2100 * time.Millisecond}, fails: "ready"},
		"a kill loses some": {fake: &fakeAdapters{forget: 1}, fails: "nothing acknowledged"},
		"late deliveries":   {fake: &fakeAdapters{late: 1100 * time.Millisecond}, fails: "deliveries go on"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := measured(t, "memory", test.fake, nil)
			for _, bar := range r.Bars {
				want := report.Pass
				if test.fails != "" && strings.HasPrefix(bar.Wants, test.fails) {
					want = report.Fail
				}
				if bar.Verdict != want {
					t.Errorf("%s: %s (%s), want %s", bar.Wants, bar.Verdict, bar.Got, want)
				}
			}
		})
	}
}

// Idle finds an adapter that uses CPU.
func TestIdle_BusyAdapter(t *testing.T) {
	t.Parallel()
	if v := verdict(t, measured(t, "idle", new(fakeAdapters), nil), "no CPU"); v != report.Pass {
		t.Errorf("idle: %s", v)
	}
	if v := verdict(t, measured(t, "idle", &fakeAdapters{idleCPU: 0.01}, nil), "no CPU"); v != report.Fail {
		t.Errorf("one per cent of a core: %s", v)
	}
}

// Without an adapter the ceilings are measured.
func TestPut_CeilingsOnly(t *testing.T) {
	t.Parallel()
	r := measured(t, "put", new(fakeAdapters), func(b *bench) { b.adapters = noAdapter{} })
	if v := verdict(t, r, "at least 60"); v != report.NotMeasured {
		t.Errorf("at least 60 %%: %s", v)
	}
	if r.Rows[1][1] == "" || r.Chart.Bars[0].Label != bareName {
		t.Errorf("the bare server is missing: %v %v", r.Rows[1], r.Chart.Bars)
	}
}
