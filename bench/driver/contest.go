package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/bench/report"
	"golang.org/x/sys/unix"
)

// contestant is one side of a comparison.
type contestant struct {
	name   string
	absent string // why it does not take part, "" when it does
	// round measures once. It starts and stops its processes, so that no other
	// contestant runs meanwhile.
	round func(ctx context.Context, round int) (outcome, error)
}

// outcome is one measurement.
type outcome struct {
	rate              float64 // a second
	p50, p99, longest time.Duration
	// client and server are the CPU time per item, 0 when unknown.
	client, server time.Duration
	late           []time.Duration // sorted; of the lateness scenario
}

// standing has the outcomes of a contestant over all rounds.
type standing struct {
	name   string
	absent string
	rounds []outcome
}

// contest runs the rounds interleaved, A B C A B C, so that a slow phase of the
// machine affects all contestants. A contestant that fails once is excluded.
func contest(ctx context.Context, rounds int, contestants []contestant, say func(string, ...any)) ([]standing, error) {
	standings := make([]standing, len(contestants))
	for i, c := range contestants {
		standings[i] = standing{name: c.name, absent: c.absent}
	}
	for round := range rounds {
		for i, c := range contestants {
			if standings[i].absent != "" {
				continue
			}
			unix.Sync() // the writes of the contestant before must not slow this one
			o, err := c.round(ctx, round)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err != nil {
				standings[i].absent = fmt.Sprintf("failed in round %d: %v", round+1, err)
				standings[i].rounds = nil
				say("  round %d/%d %s: %v", round+1, rounds, c.name, err)
				continue
			}
			standings[i].rounds = append(standings[i].rounds, o)
			say("  round %d/%d %s: %s/s", round+1, rounds, c.name, report.Thousands(o.rate))
		}
	}
	return standings, nil
}

func (s standing) measured() bool { return s.absent == "" && len(s.rounds) > 0 }

// spread is a median with the least and the most.
type spread struct{ median, low, high float64 }

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	return spread{median: (values[(n-1)/2] + values[n/2]) / 2, low: values[0], high: values[n-1]}
}

func (s standing) rates() spread {
	var values []float64
	for _, o := range s.rounds {
		values = append(values, o.rate)
	}
	return spreadOf(values)
}

// median returns the median of a time over the rounds.
func (s standing) median(of func(outcome) time.Duration) time.Duration {
	var values []float64
	for _, o := range s.rounds {
		values = append(values, float64(of(o)))
	}
	return time.Duration(spreadOf(values).median)
}

// ratio compares round by round: within a round the conditions were the same.
func ratio(a, b standing) (spread, bool) {
	if !a.measured() || !b.measured() {
		return spread{}, false
	}
	var values []float64
	for i := range min(len(a.rounds), len(b.rounds)) {
		if b.rounds[i].rate > 0 {
			values = append(values, a.rounds[i].rate/b.rounds[i].rate)
		}
	}
	return spreadOf(values), len(values) > 0
}

// bar holds the first to at least a share of the second.
func bar(wants string, a, b standing, share float64) report.Bar {
	r, ok := ratio(a, b)
	return report.Reached(wants, fmt.Sprintf("%.0f %% (%.0f–%.0f)", r.median*100, r.low*100, r.high*100), ok, r.median >= share)
}

// rateTable is the table of a contest over rates; the first contestant is the adapter.
func rateTable(unit string, standings []standing) (header []string, rows [][]string) {
	header = []string{"", unit, "least–most", "adapter ÷ it", "call p50 / p99", "CPU per item, client / server"}
	for i, s := range standings {
		if !s.measured() {
			rows = append(rows, []string{s.name, s.absent, "", "", "", ""})
			continue
		}
		rate, against := s.rates(), "–"
		if r, ok := ratio(standings[0], s); ok && i > 0 {
			against = fmt.Sprintf("%.2f (%.2f–%.2f)", r.median, r.low, r.high)
		}
		calls := "–"
		if p50 := s.median(func(o outcome) time.Duration { return o.p50 }); p50 > 0 {
			calls = report.Short(p50) + " / " + report.Short(s.median(func(o outcome) time.Duration { return o.p99 }))
		}
		rows = append(rows, []string{
			s.name, report.Thousands(rate.median), report.Thousands(rate.low) + "–" + report.Thousands(rate.high), against, calls,
			perItem(s.median(func(o outcome) time.Duration { return o.client })) + " / " +
				perItem(s.median(func(o outcome) time.Duration { return o.server })),
		})
	}
	return header, rows
}

func perItem(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f µs", float64(d)/1e3)
}

// rateChart draws the same table. The targets are the shares that the first must reach, by name.
func rateChart(title, unit string, standings []standing, targets map[string]float64) *report.Chart {
	chart := &report.Chart{Title: title, Unit: unit}
	for i, s := range standings {
		if !s.measured() {
			continue
		}
		r := s.rates()
		chart.Bars = append(chart.Bars, report.ChartBar{
			Label: s.name, Value: r.median, Low: r.low, High: r.high, Ours: i == 0, Target: r.median * targets[s.name],
		})
	}
	return chart
}
