package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
)

// Contestants take turns, and one that fails is excluded.
func TestContest_Turns(t *testing.T) {
	t.Parallel()
	var turns []string
	turn := func(name string, fail int) *contestant {
		return &contestant{name: name, round: func(_ context.Context, round int) (outcome, error) {
			turns = append(turns, name)
			if round == fail {
				return outcome{}, errors.New("broken")
			}
			return outcome{rate: float64(round + 1)}, nil
		}}
	}
	all := []*contestant{turn("a", -1), turn("b", 1), {name: "c", absent: "away"}, turn("d", -1)}
	if err := (&bench{say: t.Logf}).contest(t.Context(), 3, all...); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b", "d", "a", "b", "d", "a", "d"}, turns); diff != "" {
		t.Errorf("turns (-want +got):\n%s", diff)
	}
	for i, want := range []bool{true, false, false, true} {
		if all[i].measured() != want {
			t.Errorf("%s measured: %t, want %t (%s)", all[i].name, !want, want, all[i].absent)
		}
	}
}

func rates(values ...float64) *contestant {
	c := new(contestant)
	for _, v := range values {
		c.outcomes = append(c.outcomes, outcome{rate: v})
	}
	return c
}

// A ratio is taken round by round, and a bar is reached at its share.
func TestBar_RoundByRound(t *testing.T) {
	t.Parallel()
	// The machine was twice as fast in the second round: a reached 60 % of b in each round.
	if r, ok := ratio(rates(60, 120, 66), rates(100, 200, 110)); !ok || r != (spread{0.6, 0.6, 0.6}) {
		t.Errorf("ratio = %+v, %t", r, ok)
	}
	for _, test := range []struct {
		a, b *contestant
		want report.Verdict
	}{
		{rates(60, 60, 60), rates(100, 100, 100), report.Pass},
		{rates(59, 59, 90), rates(100, 100, 100), report.Fail},
		{rates(60), rates(), report.NotMeasured},
	} {
		if got := bar("", test.a, test.b, 0.6).Verdict; got != test.want {
			t.Errorf("bar(%v, %v) = %s, want %s", test.a.outcomes, test.b.outcomes, got, test.want)
		}
	}
	// A rate of nothing would make every ratio to it a success.
	if _, err := outcomeOf(load.Tally{Elapsed: time.Second}, 0, 0); err == nil {
		t.Error("no call is no error")
	}
}

// A spread is median, least and most.
func TestSpreadOf_Values(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		values []float64
		want   spread
	}{{nil, spread{}}, {[]float64{3}, spread{3, 3, 3}}, {[]float64{3, 1}, spread{2, 1, 3}}, {[]float64{9, 1, 2}, spread{2, 1, 9}}} {
		if got := spreadOf(test.values, func(v float64) float64 { return v }); got != test.want {
			t.Errorf("spreadOf(%v) = %+v, want %+v", test.values, got, test.want)
		}
	}
}

// The bars of lateness use the median of the rounds.
func TestLatenessBars_MedianOfRounds(t *testing.T) {
	t.Parallel()
	of := func(p99s ...time.Duration) *contestant {
		c := new(contestant)
		for _, p := range p99s {
			c.outcomes = append(c.outcomes, outcome{late: []time.Duration{p}})
		}
		return c
	}
	const ms = time.Millisecond
	for _, test := range []struct {
		adapter, queue *contestant
		above, early   report.Verdict
	}{
		{of(5*ms, 5*ms, 30*ms), of(1*ms, 1*ms, 1*ms), report.Pass, report.Pass},
		{of(6*ms, 6*ms, 2*ms), of(1*ms, 1*ms, 1*ms), report.Fail, report.Pass},
		{of(-1, ms), of(ms, ms), report.Pass, report.Fail},
		{of(ms), of(), report.NotMeasured, report.Pass},
		{of(), of(ms), report.NotMeasured, report.NotMeasured},
	} {
		if got := latenessBars(test.adapter, test.queue); got[0].Verdict != test.above || got[1].Verdict != test.early {
			t.Errorf("%v, %v: %v", test.adapter.outcomes, test.queue.outcomes, got)
		}
	}
}

// Each bar of memory fails alone, right above its limit.
func TestMemoryBars_EachAlone(t *testing.T) {
	t.Parallel()
	good := memoryFound{
		pending: 1000, acknowledged: 1100, kept: 1100, none: state{rss: 10e6, disk: 4096}, loaded: state{rss: 109e6, disk: 431_999}, restarted: state{rss: 50e6},
		noneReady: spread{1e6, 1e6, 9e9}, ready: spread{1e6, 1e6, 2e9}, delivered: 999 * time.Millisecond,
	}
	for wants, worsen := range map[string]func(*memoryFound){
		"all well": func(*memoryFound) {}, "memory": func(m *memoryFound) { m.restarted.rss = 111e6 }, "disk": func(m *memoryFound) { m.loaded.disk = 432_000 },
		"ready": func(m *memoryFound) { m.ready.high = 2.1e9 }, "nothing acknowledged": func(m *memoryFound) { m.kept-- }, "deliveries": func(m *memoryFound) { m.delivered = time.Second },
	} {
		m := good
		worsen(&m)
		failed := 0
		for _, b := range m.bars() {
			if b.Verdict != report.Pass {
				failed++
			}
		}
		if wants == "all well" && failed != 0 || wants != "all well" && (failed != 1 || verdict(t, m.bars(), wants) != report.Fail) {
			t.Errorf("%s: %+v", wants, m.bars())
		}
	}
}

// A cost that grows beyond half fails its bar, and no other.
func TestGrowthBars_BeyondHalf(t *testing.T) {
	t.Parallel()
	of := func(put time.Duration) cell {
		return cell{sources: 1, pending: 1, put: outcome{server: put}, bulk: outcome{server: 10}, delivery: outcome{client: 10}}
	}
	for cost, want := range map[time.Duration]report.Verdict{15: report.Pass, 16: report.Fail} {
		if bars := growthBars([]cell{of(10), of(cost)}); bars[0].Verdict != want || bars[1].Verdict != report.Pass || bars[2].Verdict != report.Pass {
			t.Errorf("%+v", bars)
		}
	}
}

// Far-away schedules are due in one to thirteen months, spread, and two rounds never share a key.
func TestKeys_SpreadAndApart(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	far, seen := farAway(now), map[time.Time]bool{}
	for i := range uint32(1000) {
		at := far(i * 4_000_000)
		if at.Before(now.Add(29*24*time.Hour)) || at.After(now.Add(396*24*time.Hour)) {
			t.Fatalf("index %d is due at %s", i, at)
		}
		seen[at] = true
	}
	if len(seen) < 990 {
		t.Errorf("%d distinct instants of 1000", len(seen))
	}
	if last := uint64(maxRounds) * roundIndexes; uint64(firstIndex(maxRounds)) != last {
		t.Errorf("the last round begins at %d, not at %d", firstIndex(maxRounds), last)
	}
}
