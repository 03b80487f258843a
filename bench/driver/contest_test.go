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
	turn := func(name string, fail int) contestant {
		return contestant{name: name, round: func(_ context.Context, round int) (outcome, error) {
			turns = append(turns, name)
			if round == fail {
				return outcome{}, errors.New("broken")
			}
			return outcome{rate: float64(round + 1)}, nil
		}}
	}
	standings, err := contest(t.Context(), 3, []contestant{turn("a", -1), turn("b", 1), {name: "c", absent: "away"}, turn("d", -1)}, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b", "d", "a", "b", "d", "a", "d"}, turns); diff != "" {
		t.Errorf("turns (-want +got):\n%s", diff)
	}
	for i, want := range []bool{true, false, false, true} {
		if standings[i].measured() != want {
			t.Errorf("%s measured: %t, want %t (%s)", standings[i].name, !want, want, standings[i].absent)
		}
	}
}

func standingOf(rates ...float64) standing {
	var s standing
	for _, r := range rates {
		s.rounds = append(s.rounds, outcome{rate: r})
	}
	return s
}

// A ratio is taken round by round.
func TestRatio_RoundByRound(t *testing.T) {
	t.Parallel()
	// The machine was twice as fast in the second round: a reached 60 % of b in each round.
	r, ok := ratio(standingOf(60, 120, 66), standingOf(100, 200, 110))
	if !ok || r != (spread{0.6, 0.6, 0.6}) {
		t.Errorf("ratio = %+v, %t", r, ok)
	}
	if _, ok := ratio(standingOf(1), standing{absent: "away"}); ok {
		t.Error("a ratio to one that is absent")
	}
	if _, ok := ratio(standingOf(1), standingOf(0)); ok {
		t.Error("a ratio to nothing")
	}
}

// A bar is reached at its share.
func TestBar_AtItsShare(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		a, b standing
		want report.Verdict
	}{
		{standingOf(60, 60, 60), standingOf(100, 100, 100), report.Pass},
		{standingOf(59, 59, 90), standingOf(100, 100, 100), report.Fail},
		{standingOf(60), standing{absent: "away"}, report.NotMeasured},
	} {
		if got := bar("", test.a, test.b, 0.6).Verdict; got != test.want {
			t.Errorf("bar(%v, %v) = %s, want %s", test.a.rounds, test.b.rounds, got, test.want)
		}
	}
}

// A spread is median, least and most.
func TestSpreadOf_Values(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		values []float64
		want   spread
	}{
		{nil, spread{}},
		{[]float64{3}, spread{3, 3, 3}},
		{[]float64{3, 1}, spread{2, 1, 3}},
		{[]float64{9, 1, 2}, spread{2, 1, 9}},
	} {
		if got := spreadOf(test.values); got != test.want {
			t.Errorf("spreadOf(%v) = %+v, want %+v", test.values, got, test.want)
		}
	}
}

// The bars of lateness use the median of the rounds.
func TestLatenessBars_MedianOfRounds(t *testing.T) {
	t.Parallel()
	of := func(p99s ...time.Duration) (s standing) {
		for _, p := range p99s {
			s.rounds = append(s.rounds, outcome{late: []time.Duration{p}})
		}
		return s
	}
	const ms = time.Millisecond
	for _, test := range []struct {
		adapter, queue standing
		want           []report.Verdict
	}{
		{of(5*ms, 5*ms, 30*ms), of(1*ms, 1*ms, 1*ms), []report.Verdict{report.Pass, report.Pass}},
		{of(6*ms, 6*ms, 2*ms), of(1*ms, 1*ms, 1*ms), []report.Verdict{report.Fail, report.Pass}},
		{of(-1, ms), of(ms, ms), []report.Verdict{report.Pass, report.Fail}},
		{of(ms), standing{absent: "away"}, []report.Verdict{report.NotMeasured, report.Pass}},
		{standing{absent: "away"}, of(ms), []report.Verdict{report.NotMeasured, report.NotMeasured}},
	} {
		var got []report.Verdict
		for _, b := range latenessBars(test.adapter, test.queue) {
			got = append(got, b.Verdict)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%v, %v (-want +got):\n%s", test.adapter.rounds, test.queue.rounds, diff)
		}
	}
}

// Far-away schedules are due in one to thirteen months, spread.
func TestFarAway_Spread(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	far, seen := farAway(now), map[time.Time]bool{}
	for i := range uint32(1000) {
		at := far(i * 4_000_000).At
		if at.Before(now.Add(29*24*time.Hour)) || at.After(now.Add(396*24*time.Hour)) {
			t.Fatalf("index %d is due at %s", i, at)
		}
		seen[at] = true
	}
	if len(seen) < 990 {
		t.Errorf("%d distinct instants of 1000", len(seen))
	}
}

// Two rounds never share a key.
func TestFirstIndex_RoundsShareNoKeys(t *testing.T) {
	t.Parallel()
	for round := range maxRounds {
		if next := uint64(round+1) * roundIndexes; uint64(firstIndex(round))+roundIndexes != next {
			t.Fatalf("round %d begins at %d", round, firstIndex(round))
		}
	}
	if i, ok := load.Index(load.Key(firstIndex(maxRounds))); !ok || i != firstIndex(maxRounds) {
		t.Errorf("the last index comes back as %d, %t", i, ok)
	}
}
