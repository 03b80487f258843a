package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
	"golang.org/x/sys/unix"
)

// contestant is one side of a comparison, with its outcomes over all rounds.
type contestant struct {
	name   string
	absent string // why it does not take part, "" when it does
	// round measures once. It starts and stops its processes, so that no other
	// contestant runs meanwhile.
	round    func(ctx context.Context, round int) (outcome, error)
	outcomes []outcome
}

// outcome is one measurement.
type outcome struct {
	rate              float64 // a second
	p50, p99, longest time.Duration
	// client and server are the CPU time per item, 0 when unknown.
	client, server time.Duration
	late           []time.Duration // sorted; of the lateness scenario
}

// outcomeOf returns what a load and the CPU time that it took say about an item.
func outcomeOf(t load.Tally, client, server time.Duration) (outcome, error) {
	items := time.Duration(t.Items)
	if items == 0 {
		return outcome{}, fmt.Errorf("no call ended within %s", t.Elapsed)
	}
	return outcome{rate: t.Rate(), p50: t.P50, p99: t.P99, longest: t.Longest, client: client / items, server: server / items}, nil
}

// roundIndexes is how many keys a round may use; two rounds never share one.
const roundIndexes = 20_000_000

// maxRounds keeps every index within 32 bits.
const maxRounds = 200

func firstIndex(round int) uint32 { return uint32(round) * roundIndexes }

// contest runs the rounds interleaved, A B C A B C, so that a slow phase of the
// machine affects all contestants. A contestant that fails once is excluded.
func (b *bench) contest(ctx context.Context, rounds int, contestants ...*contestant) error {
	for round := range rounds {
		for _, c := range contestants {
			if c.absent != "" {
				continue
			}
			unix.Sync() // the writes of the contestant before must not slow this one
			o, err := c.round(ctx, round)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				c.absent, c.outcomes = fmt.Sprintf("failed in round %d: %v", round+1, err), nil
				b.say("  round %d/%d %s: %v", round+1, rounds, c.name, err)
				continue
			}
			c.outcomes = append(c.outcomes, o)
			b.say("  round %d/%d %s: %s/s", round+1, rounds, c.name, report.Thousands(o.rate))
		}
	}
	return nil
}

func (c *contestant) measured() bool { return len(c.outcomes) > 0 }

// spread is a median with the least and the most.
type spread struct{ median, low, high float64 }

// spreadOf returns the spread of a number over values.
func spreadOf[V any, N ~float64 | ~int64](values []V, of func(V) N) spread {
	if len(values) == 0 {
		return spread{}
	}
	var sorted []float64
	for _, v := range values {
		sorted = append(sorted, float64(of(v)))
	}
	slices.Sort(sorted)
	n := len(sorted)
	return spread{median: (sorted[(n-1)/2] + sorted[n/2]) / 2, low: sorted[0], high: sorted[n-1]}
}

func rateOf(o outcome) float64 { return o.rate }

// median returns the median of a time over the rounds.
func (c *contestant) median(of func(outcome) time.Duration) time.Duration {
	return time.Duration(spreadOf(c.outcomes, of).median)
}

// byRound compares two contestants round by round: a slow phase of the machine
// then affects both sides.
func byRound(a, b *contestant, compare func(a, b outcome) float64) (s spread, ok bool) {
	var values []float64
	for i := range min(len(a.outcomes), len(b.outcomes)) {
		values = append(values, compare(a.outcomes[i], b.outcomes[i]))
	}
	return spreadOf(values, func(v float64) float64 { return v }), len(values) > 0
}

func ratio(a, b *contestant) (spread, bool) {
	return byRound(a, b, func(a, b outcome) float64 { return a.rate / b.rate })
}

// target is a share of another contestant's rate that the adapter must reach.
type target struct {
	wants string // in words
	of    string // name of the other
	share float64
}

// bar holds the adapter to a target.
func (t target) bar(a, b *contestant) report.Bar {
	r, ok := ratio(a, b)
	return report.Reached(t.wants, fmt.Sprintf("%.0f %% (%.0f–%.0f)", r.median*100, r.low*100, r.high*100), ok, r.median >= t.share)
}

// earliestBar holds the adapter to deliver nothing before its time.
func earliestBar(measured bool, earliest time.Duration) report.Bar {
	return report.Reached("nothing early", "earliest "+report.Short(earliest)+" after", measured, earliest >= 0)
}

// rateResult writes a contest over rates into the result: table, bars and chart. The first contestant is the adapter.
func rateResult(r *report.Result, chart, unit, cpu string, targets []target, contestants []*contestant) {
	r.Header = []string{"", unit, "least–most", "adapter ÷ it", "call p50 / p99", cpu}
	r.Chart = &report.Chart{Title: chart, Unit: "/s"}
	shares := map[string]float64{}
	for _, t := range targets {
		other := slices.IndexFunc(contestants, func(c *contestant) bool { return c.name == t.of })
		r.Bars = append(r.Bars, t.bar(contestants[0], contestants[other]))
		shares[t.of] = t.share
	}
	for i, c := range contestants {
		if !c.measured() {
			r.Rows = append(r.Rows, []string{c.name, c.absent, "", "", "", ""})
			continue
		}
		rate, against, calls := spreadOf(c.outcomes, rateOf), "–", "–"
		if times, ok := ratio(contestants[0], c); ok && i > 0 {
			against = fmt.Sprintf("%.2f (%.2f–%.2f)", times.median, times.low, times.high)
		}
		if p50 := c.median(func(o outcome) time.Duration { return o.p50 }); p50 > 0 {
			calls = report.Short(p50) + " / " + report.Short(c.median(func(o outcome) time.Duration { return o.p99 }))
		}
		r.Rows = append(r.Rows, []string{
			c.name, report.Thousands(rate.median), report.Thousands(rate.low) + "–" + report.Thousands(rate.high), against, calls,
			perItem(c.median(func(o outcome) time.Duration { return o.client })) + " / " + perItem(c.median(func(o outcome) time.Duration { return o.server })),
		})
		r.Chart.Bars = append(r.Chart.Bars, report.ChartBar{Label: c.name, Value: rate.median, Low: rate.low, High: rate.high, Ours: i == 0, Target: rate.median * shares[c.name]})
	}
}

func perItem(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f µs", float64(d)/1e3)
}
