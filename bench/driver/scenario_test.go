package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
)

// Put compares all contestants and marks the absent ones.
func TestPut_AbsentContestants(t *testing.T) {
	t.Parallel()
	r := scenarioOf(t, "put", new(fake), nil)
	for i, want := range []string{adapterName, bareName, pebbleName, redisName, postgresName} {
		if r.Rows[i][0] != want || (r.Rows[i][1] == "not here") != (i >= 3) {
			t.Errorf("row %d is %q, want %q", i, r.Rows[i], want)
		}
	}
	if above, atLeast := verdict(t, r.Bars, "above PostgreSQL"), verdict(t, r.Bars, "at least 60"); above != report.NotMeasured || atLeast == report.NotMeasured {
		t.Errorf("above PostgreSQL, which is absent: %s; at least 60 %%: %s", above, atLeast)
	}
	// Without an adapter the ceilings are measured.
	r = scenarioOf(t, "put", new(fake), func(b *bench) { b.start, _ = findAdapter(t.Context(), "-", "") })
	if v := verdict(t, r.Bars, "at least 60"); v != report.NotMeasured || r.Chart.Bars[0].Label != bareName {
		t.Errorf("at least 60 %%: %s, chart %v", v, r.Chart.Bars)
	}
}

// A refused item of a bulk call fails the round, and the row says why.
func TestBulk_RefusedItems(t *testing.T) {
	t.Parallel()
	if v := verdict(t, scenarioOf(t, "bulk", new(fake), nil).Bars, "at least a fifth"); v == report.NotMeasured {
		t.Errorf("at least a fifth: %s", v)
	}
	bad := scenarioOf(t, "bulk", &fake{failItem: true}, nil)
	if v := verdict(t, bad.Bars, "at least a fifth"); v != report.NotMeasured || !strings.Contains(bad.Rows[0][1], "quota_exceeded") {
		t.Errorf("with refused items: %s: %q", v, bad.Rows[0])
	}
}

// Burst measures both sides and finds early deliveries.
func TestBurst_EarlyDeliveries(t *testing.T) {
	t.Parallel()
	r := scenarioOf(t, "burst", new(fake), nil)
	if early, atLeast := verdict(t, r.Bars, "nothing early"), verdict(t, r.Bars, "at least 70"); early != report.Pass || atLeast == report.NotMeasured {
		t.Errorf("nothing early: %s; at least 70 %%: %s: %v", early, atLeast, r.Rows)
	}
	if v := verdict(t, scenarioOf(t, "burst", &fake{late: -200 * time.Millisecond}, nil).Bars, "nothing early"); v != report.Fail {
		t.Errorf("200 ms early: %s", v)
	}
}

// Lateness is taken from each due time, and finds early deliveries.
func TestLateness_EarlyDeliveries(t *testing.T) {
	t.Parallel()
	for late, want := range map[time.Duration]report.Verdict{0: report.Pass, 500 * time.Millisecond: report.Pass, -200 * time.Millisecond: report.Fail} {
		r := scenarioOf(t, "lateness", &fake{late: late}, func(b *bench) { b.pending = 100 })
		if p99, early := verdict(t, r.Bars, "p99 under 5 ms"), verdict(t, r.Bars, "nothing early"); p99 == report.NotMeasured || early != want {
			t.Errorf("%s late: p99: %s, early: %s, want %s: %v", late, p99, early, want, r.Rows)
		}
		p50 := r.Chart.Curves[0].Values[slices.Index(report.Percentiles, 0.5)]
		if least := float64(late.Milliseconds()); p50 < least || p50 > least+400 {
			// Taken from the first due time instead of each one's own it would be half of the second that they take.
			t.Errorf("p50 of %v ms with deliveries %s late", p50, late)
		}
	}
}

// Growth has a row for each size.
func TestGrowth_Rows(t *testing.T) {
	t.Parallel()
	r := scenarioOf(t, "growth", new(fake), nil)
	if len(r.Rows) != 4 || r.Rows[3][0] != "3" || r.Rows[3][1] != "300" || len(r.Chart.Lines) != 6 {
		t.Errorf("rows %v, %d lines", r.Rows, len(r.Chart.Lines))
	}
}

// Churn finds a call that stalls.
func TestChurn_Stall(t *testing.T) {
	t.Parallel()
	r := scenarioOf(t, "churn", &fake{stall: 110 * time.Millisecond}, func(b *bench) { b.pending = 40 })
	if stalls, kept := verdict(t, r.Bars, "no call"), verdict(t, r.Bars, "every key"); stalls != report.Fail || kept != report.Pass {
		t.Errorf("a stall of 110 ms: %s; every key: %s", stalls, kept)
	}
}

// Memory compares with an empty store, and finds a key that a kill loses.
func TestMemory_LostKey(t *testing.T) {
	t.Parallel()
	for _, bar := range scenarioOf(t, "memory", &fake{rss: 99e6}, nil).Bars {
		if bar.Verdict != report.Pass {
			t.Errorf("%+v", bar)
		}
	}
	r := scenarioOf(t, "memory", &fake{rss: 101e6, forget: 1}, nil)
	if more, lost := verdict(t, r.Bars, "memory"), verdict(t, r.Bars, "nothing acknowledged"); more != report.Fail || lost != report.Fail {
		t.Errorf("memory: %s, lost: %s", more, lost)
	}
}

// Idle finds an adapter that uses CPU.
func TestIdle_BusyAdapter(t *testing.T) {
	t.Parallel()
	for share, want := range map[float64]report.Verdict{0: report.Pass, 0.01: report.Fail} {
		if v := verdict(t, scenarioOf(t, "idle", &fake{idleCPU: share}, nil).Bars, "no CPU"); v != want {
			t.Errorf("%v of a core: %s", share, v)
		}
	}
}

// The sink stores the first arrival of each key.
func TestSink_FirstArrivals(t *testing.T) {
	t.Parallel()
	s, err := server(t.Context(), "sink", serverConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	if err := resetSink(s.addr, 100, 2); err != nil {
		t.Fatal(err)
	}
	began := time.Now().UnixNano()
	for _, index := range []uint32{100, 101, 101, 102, 99} {
		request, _ := http.NewRequest(http.MethodPost, "http://"+s.addr, strings.NewReader("{}"))
		request.Header.Set("Ce-Reschedulekey", load.Key(index))
		answer, err := http.DefaultClient.Do(request)
		if err != nil || answer.StatusCode != http.StatusAccepted {
			t.Fatal(answer, err)
		}
		answer.Body.Close()
	}
	got, err := awaitSink(t.Context(), s.addr, 2, time.Millisecond, time.Second)
	if err != nil || got.Seen != 2 || got.Repeats != 1 || got.Header.Get("Ce-Reschedulekey") != load.Key(100) {
		t.Errorf("%+v, %v", got, err)
	}
	if len(got.At) != 2 || got.At[0] < began || got.At[1] < got.At[0] {
		t.Errorf("arrivals %v", got.At)
	}
	if u, err := s.usage(); err != nil || u.rss < 1e6 {
		t.Errorf("usage = %+v, %v", u, err)
	}
}

// A failed job returns the reason.
func TestJob_Fails(t *testing.T) {
	t.Parallel()
	err := job(t.Context(), "pebble", pebbleConfig{Dir: "/dev/null"}, new(jobTally))
	if err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("err = %v", err)
	}
}

// CPU time and memory are read from the kernel, and no condition is missing.
func TestConditions_Complete(t *testing.T) {
	t.Parallel()
	before := ownCPU()
	u, err := processUsage(os.Getpid())
	if err != nil || u.rss < 1e6 || u.cpu < before-time.Second || u.cpu > ownCPU()+time.Second {
		t.Errorf("%+v, %v", u, err)
	}
	c, err := conditions(t.TempDir())
	if err != nil || c.CPU == "" || c.Kernel == "" || c.FileSystem == "unknown" || c.Cores < 1 || c.MemoryGB <= 0 || c.FsyncP50 <= 0 {
		t.Errorf("%+v, %v", c, err)
	}
}

// Each batch for a store has keys of its own and one row an item, as go-redis and pgx send it.
func TestUpsert_OneRowAnItem(t *testing.T) {
	t.Parallel()
	if got := upsert(2); !strings.Contains(got, "VALUES ($1, $2, $3), ($4, $5, $6) ON CONFLICT") {
		t.Error(got)
	}
	seen := map[uint32]bool{}
	open := callersOf(3, 10, 7, func(c *caller) (load.Op, func(), error) {
		for range 4 {
			seen[c.next()] = true
		}
		return nil, nil, errors.ErrUnsupported
	})
	for i := range 3 {
		open(i)
	}
	for i := range uint32(12) {
		if !seen[7+10*i] {
			t.Errorf("no call has the keys from %d on: %s", 7+10*i, fmt.Sprint(seen))
		}
	}
}
