package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
)

const workqueueName = "client-go's queue"

// lateness: a steady rate beside many that are due far away.
func lateness(ctx context.Context, b *bench, dir string, r *report.Result) error {
	sink, err := b.children.server("sink", nil)
	if err != nil {
		return err
	}
	defer sink.stop()
	if err := b.withAdapter(ctx, dir, noSink, func(s *service) error {
		rate, err := fill(ctx, s.addr, 1, firstIndex(maxRounds-1), b.pending, false, farAway(time.Now()))
		b.say("  filled at %s/s", report.Thousands(rate))
		return err
	}); err != nil {
		b.say("  filling: %v", err) // the adapter's rounds return it too
	}
	n, every := b.lateRate*int(b.lateFor/time.Second), time.Second/time.Duration(b.lateRate)
	standings, err := contest(ctx, b.lateRounds, []contestant{
		{name: adapterName, round: func(ctx context.Context, round int) (o outcome, err error) {
			err = b.withAdapter(ctx, dir, sink.addr, func(s *service) error {
				o, err = b.deliverSteadily(ctx, s, sink, round, n, every)
				return err
			})
			return o, err
		}},
		{name: workqueueName, round: func(ctx context.Context, _ int) (outcome, error) {
			config := workqueueConfig{Pending: b.pending, N: n, Every: every, Lead: b.lead}
			var late []time.Duration
			err := b.children.job(ctx, "workqueue", config, &late)
			return lateOutcome(late, every), err
		}},
	}, b.say)
	if err != nil {
		return err
	}
	r.Parameters = []string{
		report.Thousands(float64(b.lateRate)) + " due a second, evenly, for " + b.lateFor.String(), "scheduled beforehand",
		report.Thousands(float64(b.pending)) + " pending far away", fmt.Sprintf("%d B of random text as data", load.PayloadBytes),
		fmt.Sprintf("%d rounds, interleaved", b.lateRounds),
	}
	r.Header, r.Rows = latenessTable(standings)
	r.Chart = latenessChart(standings)
	r.Notes = []string{"Arrival at an HTTP sink in its own process for the adapter; for client-go, which stays within one process and makes no call, the return of Get. " +
		"Percentiles are the median of the rounds, max and earliest are of all of them."}
	r.Bars = latenessBars(standings[0], standings[1])
	return nil
}

func latenessTable(standings []standing) (header []string, rows [][]string) {
	for _, s := range standings {
		if !s.measured() {
			rows = append(rows, []string{s.name, s.absent, "", "", "", ""})
			continue
		}
		row := []string{s.name}
		for _, p := range []float64{0.5, 0.99, 0.999} {
			row = append(row, report.Short(s.median(func(o outcome) time.Duration { return load.Percentile(o.late, p) })))
		}
		all := s.late()
		rows = append(rows, append(row, report.Short(all[len(all)-1]), report.Short(all[0])))
	}
	return []string{"", "p50", "p99", "p99.9", "max", "earliest"}, rows
}

func latenessChart(standings []standing) *report.Chart {
	chart := &report.Chart{Title: "Lateness by percentile", Unit: "ms"}
	for i, s := range standings {
		if !s.measured() {
			continue
		}
		all := s.late()
		curve := report.ChartCurve{Label: s.name, Ours: i == 0}
		for _, p := range report.Percentiles {
			curve.Values = append(curve.Values, float64(load.Percentile(all, p))/1e6)
		}
		chart.Curves = append(chart.Curves, curve)
	}
	return chart
}

func latenessBars(adapter, queue standing) []report.Bar {
	var above []float64
	if adapter.measured() && queue.measured() {
		for i := range min(len(adapter.rounds), len(queue.rounds)) {
			above = append(above, float64(load.Percentile(adapter.rounds[i].late, 0.99)-load.Percentile(queue.rounds[i].late, 0.99)))
		}
	}
	s := spreadOf(above)
	short := func(v float64) string { return report.Short(time.Duration(v)) }
	bars := []report.Bar{report.Reached("p99 under 5 ms above client-go's delaying queue",
		fmt.Sprintf("%s above (%s–%s)", short(s.median), short(s.low), short(s.high)), len(above) > 0, s.median < float64(5*time.Millisecond))}
	earliest := time.Duration(0)
	if all := adapter.late(); len(all) > 0 {
		earliest = all[0]
	}
	return append(bars, report.Reached("nothing early", "earliest "+report.Short(earliest)+" after", adapter.measured(), earliest >= 0))
}

// late returns the lateness of all rounds together, sorted.
func (s standing) late() []time.Duration {
	var all []time.Duration
	for _, o := range s.rounds {
		all = append(all, o.late...)
	}
	slices.Sort(all)
	return all
}

func lateOutcome(late []time.Duration, every time.Duration) outcome {
	slices.Sort(late)
	return outcome{late: late, rate: float64(time.Second) / float64(every)}
}

// deliverSteadily schedules n events, due one after the other in equal steps,
// and compares their arrivals with their due times.
func (b *bench) deliverSteadily(ctx context.Context, s, sink *service, round, n int, every time.Duration) (outcome, error) {
	first := firstIndex(round)
	if err := resetSink(sink.addr, first, n); err != nil {
		return outcome{}, err
	}
	start := b.dueAfterFilling(n)
	due := func(index uint32) time.Time { return start.Add(time.Duration(index-first) * every) }
	if _, err := fill(ctx, s.addr, 1, first, n, false, func(index uint32) load.When { return load.When{At: due(index)} }); err != nil {
		return outcome{}, err
	}
	if time.Now().After(start) {
		return outcome{}, errScheduledTooLate
	}
	// The sink is asked only after the last due time: an answer costs time of the deliveries.
	if err := sleep(ctx, time.Until(due(first+uint32(n)))); err != nil {
		return outcome{}, err
	}
	got, err := awaitSink(ctx, sink.addr, int64(n), 100*time.Millisecond, b.deliverLimit)
	if err != nil {
		return outcome{}, err
	}
	late := make([]time.Duration, n)
	for i, at := range got.At {
		late[i] = time.Unix(0, at).Sub(due(first + uint32(i)))
	}
	return lateOutcome(late, every), nil
}
