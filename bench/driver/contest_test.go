package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

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
	if got := strings.Join(turns, ""); got != "abdabdad" {
		t.Errorf("turns %s", got)
	}
	if !all[0].measured() || all[1].measured() || all[2].measured() || !all[3].measured() {
		t.Errorf("%+v", all)
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
		if got := (target{share: 0.6}).bar(test.a, test.b).Verdict; got != test.want {
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

// Disk and the time of a start are held to their limits, and memory to the worse of the two.
func TestMemoryBars_Limits(t *testing.T) {
	t.Parallel()
	good := memoryFound{
		pending: 1000, none: state{rss: 10e6}, loaded: state{rss: 109e6, disk: 431_999}, restarted: state{rss: 50e6},
		noneReady: spread{1e6, 1e6, 9e9}, ready: spread{1e6, 1e6, 2e9},
	}
	for wants, worsen := range map[string]func(*memoryFound){
		"memory": func(m *memoryFound) { m.restarted.rss = 111e6 }, "disk": func(m *memoryFound) { m.loaded.disk = 432_000 },
		"ready": func(m *memoryFound) { m.ready.high = 2.1e9 },
	} {
		bad := good
		worsen(&bad)
		if before, after := verdict(t, good.bars(), wants), verdict(t, bad.bars(), wants); before != report.Pass || after != report.Fail {
			t.Errorf("%s: %s, then %s", wants, before, after)
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

// Far-away schedules are due in one to thirteen months, spread. No two calls share a key.
func TestKeys_SpreadAndApart(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	far, instants := farAway(now), map[time.Time]bool{}
	for i := range uint32(1000) {
		at := far(i * 4_000_000)
		instants[at] = true
		if at.Before(now.Add(29*24*time.Hour)) || at.After(now.Add(396*24*time.Hour)) {
			t.Fatalf("index %d is due at %s", i, at)
		}
	}
	if len(instants) < 990 {
		t.Errorf("%d distinct instants of 1000", len(instants))
	}
	seen := map[uint32]bool{}
	open := callersOf(3, 10, firstIndex(maxRounds), func(c *caller) (load.Op, func(), error) {
		seen[c.next()], seen[c.next()] = true, true
		return nil, nil, nil
	})
	for i := range 3 {
		open(i)
	}
	for i := range uint32(6) {
		if !seen[maxRounds*roundIndexes+10*i] {
			t.Errorf("no call has the keys of batch %d: %v", i, seen)
		}
	}
}
