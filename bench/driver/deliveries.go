package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
)

// connections of the bare client, as many as the adapter's default maxInFlight.
const connections = 100

var errScheduledTooLate = errors.New("scheduling took longer than the time until the first is due")

// dueAfterFilling returns an instant when n schedules are surely stored: 20,000
// a second is a fifth of the rate of a store.
func dueAfterFilling(lead time.Duration, n int) time.Time {
	return time.Now().Add(lead + time.Duration(n)*time.Second/20_000).Truncate(time.Millisecond)
}

// burstRun has what the adapter's rounds leave for the bare client and the page.
type burstRun struct {
	b        *bench
	sink     *service
	n        int // due at one instant
	lead     time.Duration
	header   http.Header // of the adapter's events
	earliest time.Duration
	repeats  int64
}

// burst: many due at one instant.
func burst(ctx context.Context, b *bench, dir string, sink *service, r *report.Result) error {
	run := &burstRun{b: b, sink: sink, n: b.burst, lead: b.lead, header: exampleHeader(), earliest: 1<<63 - 1}
	adapter := &contestant{name: adapterName, round: func(ctx context.Context, round int) (o outcome, _ error) {
		a := b.adapter(dir, sink.addr, 1)
		a.start(ctx)
		o = run.adapter(ctx, a, round)
		return o, a.stop()
	}}
	bare := &contestant{name: "bare net/http client", round: run.bare}
	if err := b.contest(ctx, b.rounds, adapter, bare); err != nil {
		return err
	}
	r.Parameters = []string{
		count(b.burst, "due at one instant"), textData,
		fmt.Sprintf("%d connections (the adapter's default maxInFlight)", connections), fmt.Sprintf("%d rounds, interleaved", b.rounds),
	}
	rateResult(r, "Due at one instant: deliveries a second", "deliveries/s", "CPU per delivery, sender / sink",
		[]target{{"at least 70 % of a bare net/http client", bare.name, 0.7}}, []*contestant{adapter, bare})
	r.Header[4] = "" // no calls
	r.Bars = append(r.Bars, earliestBar(adapter.measured(), run.earliest))
	r.Notes = []string{
		"From the first arrival at the sink to the last, counted by the sink, a net/http server in its own process that answers 202. " +
			"The bare client posts the headers that it saw the adapter send, with new keys and as much data, and forgets. " +
			fmt.Sprintf("Earliest arrival after the due time: %s; deliveries that came twice: %d.", report.Short(run.earliest), run.repeats),
	}
	return nil
}

// adapter is a round of the adapter: all scheduled beforehand, due at one instant.
func (run *burstRun) adapter(ctx context.Context, a *adapter, round int) (o outcome) {
	due := dueAfterFilling(run.lead, run.n)
	a.do(func() error {
		var got arrivals
		var err error
		o, got, err = run.receive(ctx, round, a.running.usage, func() error {
			a.fill(ctx, firstIndex(round), run.n, false, func(uint32) load.When { return load.At(due) })
			if a.err == nil && time.Now().After(due) {
				a.err = errScheduledTooLate
			}
			return a.err
		})
		if err != nil {
			return err
		}
		run.earliest = min(run.earliest, time.Unix(0, slices.Min(got.At)).Sub(due))
		run.repeats += got.Repeats
		run.header = got.Header
		return nil
	})
	return o
}

// bare is a round of the bare client.
func (run *burstRun) bare(ctx context.Context, round int) (outcome, error) {
	// Keys of its own, so that a late delivery of the adapter is not counted here.
	round += maxRounds / 2
	config := postConfig{Addr: run.sink.addr, First: firstIndex(round), N: run.n, Connections: connections, Header: run.header}
	var sent jobTally
	noUsage := func() (usage, error) { return usage{}, nil }
	o, _, err := run.receive(ctx, round, noUsage, func() error { return job(ctx, "post", config, &sent) })
	o.client = sent.CPU / time.Duration(run.n)
	return o, err
}

// receive measures the arrivals at the sink of a round that begin starts.
func (run *burstRun) receive(ctx context.Context, round int, sender func() (usage, error), begin func() error) (o outcome, got arrivals, err error) {
	if err := resetSink(run.sink.addr, firstIndex(round), run.n); err != nil {
		return o, got, err
	}
	sinkBefore, sinkErr := run.sink.usage()
	if err := begin(); err != nil {
		return o, got, err
	}
	senderBefore, senderErr := sender()
	got, err = awaitSink(ctx, run.sink.addr, int64(run.n), 50*time.Millisecond, run.b.deliverLimit)
	if err != nil {
		return o, got, err
	}
	sinkAfter, sinkErr2 := run.sink.usage()
	senderAfter, senderErr2 := sender()
	took := time.Duration(slices.Max(got.At) - slices.Min(got.At))
	if took <= 0 {
		err = errors.New("all events arrived at the sink at once: the burst is too small to measure")
	}
	n := time.Duration(run.n)
	return outcome{
		rate: float64(got.Seen-1) / took.Seconds(), client: (senderAfter.cpu - senderBefore.cpu) / n, server: (sinkAfter.cpu - sinkBefore.cpu) / n,
	}, got, errors.Join(err, sinkErr, senderErr, sinkErr2, senderErr2)
}

// exampleHeader returns the header of the contract's example, for a run without an adapter.
func exampleHeader() http.Header {
	h, key := http.Header{}, load.Key(0)
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Id": "0f3c1b7e5d2a49688c7d1e2f3a4b5c6d", "Ce-Type": "dev.example.bench",
		"Ce-Source":  "/apis/sources.reschedule.dev/v1alpha1/namespaces/default/reschedulesources/bench",
		"Ce-Subject": key, "Ce-Time": "2026-11-21T09:00:00.123Z", "Ce-Reschedulekey": key, "Ce-Reschedulerevision": "184467",
		"Ce-Rescheduledueat": "2026-11-21T09:00:00.123Z", "Ce-Rescheduleattempt": "0", "Kn-Namespace": "default", "Prefer": "reply",
	} {
		h.Set(name, value)
	}
	return h
}

// lateness: a steady rate beside many that are due far away.
func lateness(ctx context.Context, b *bench, dir string, sink *service, r *report.Result) error {
	filling := b.adapter(dir, noSink, 1)
	filling.start(ctx)
	filling.fill(ctx, firstIndex(maxRounds-1), b.pending, false, farWhen())
	if err := filling.stop(); err != nil {
		b.say("  filling: %v", err) // the adapter's rounds return it too
	}
	n, every := b.lateRate*int(b.lateFor/time.Second), time.Second/time.Duration(b.lateRate)
	adapter := &contestant{name: adapterName, round: func(ctx context.Context, round int) (o outcome, _ error) {
		a := b.adapter(dir, sink.addr, 1)
		a.start(ctx)
		o = get(a, func(*service) (outcome, error) { return a.deliverSteadily(ctx, sink, round, n, every) })
		return o, a.stop()
	}}
	queue := &contestant{name: "client-go's queue", round: func(ctx context.Context, _ int) (outcome, error) {
		var late []time.Duration
		err := job(ctx, "workqueue", workqueueConfig{Pending: b.pending, N: n, Every: every, Lead: b.lead}, &late)
		return lateOutcome(late, every), err
	}}
	if err := b.contest(ctx, b.lateRounds, adapter, queue); err != nil {
		return err
	}
	r.Parameters = []string{
		count(b.lateRate, "due a second, evenly, for ") + b.lateFor.String(), "scheduled beforehand",
		count(b.pending, "pending far away"), textData, fmt.Sprintf("%d rounds, interleaved", b.lateRounds),
	}
	r.Header = []string{"", "p50", "p99", "p99.9", "max", "earliest"}
	r.Notes = []string{"Arrival at an HTTP sink in its own process for the adapter; for client-go, which stays within one process and makes no call, the return of Get. " +
		"Percentiles are the median of the rounds, max and earliest are of all of them."}
	r.Bars = latenessBars(adapter, queue)
	r.Chart = &report.Chart{Title: "Lateness by percentile", Unit: "ms"}
	for _, c := range []*contestant{adapter, queue} {
		all := c.late()
		if len(all) == 0 {
			r.Rows = append(r.Rows, []string{c.name, c.absent, "", "", "", ""})
			continue
		}
		row := []string{c.name}
		for _, p := range []float64{0.5, 0.99, 0.999} {
			row = append(row, report.Short(c.median(func(o outcome) time.Duration { return load.Percentile(o.late, p) })))
		}
		r.Rows = append(r.Rows, append(row, report.Short(all[len(all)-1]), report.Short(all[0])))
		curve := report.ChartCurve{Label: c.name, Ours: c == adapter}
		for _, p := range report.Percentiles {
			curve.Values = append(curve.Values, float64(load.Percentile(all, p))/1e6)
		}
		r.Chart.Curves = append(r.Chart.Curves, curve)
	}
	return nil
}

func latenessBars(adapter, queue *contestant) []report.Bar {
	s, ok := byRound(adapter, queue, func(a, b outcome) float64 {
		return float64(load.Percentile(a.late, 0.99) - load.Percentile(b.late, 0.99))
	})
	short := func(v float64) string { return report.Short(time.Duration(v)) }
	return []report.Bar{
		report.Reached("p99 under 5 ms above client-go's delaying queue",
			fmt.Sprintf("%s above (%s–%s)", short(s.median), short(s.low), short(s.high)), ok, s.median < float64(5*time.Millisecond)),
		earliestBar(adapter.measured(), load.Percentile(adapter.late(), 0)),
	}
}

// late returns the lateness of all rounds together, sorted.
func (c *contestant) late() (all []time.Duration) {
	for _, o := range c.outcomes {
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
func (a *adapter) deliverSteadily(ctx context.Context, sink *service, round, n int, every time.Duration) (outcome, error) {
	first := firstIndex(round)
	if err := resetSink(sink.addr, first, n); err != nil {
		return outcome{}, err
	}
	start := dueAfterFilling(a.b.lead, n)
	due := func(i int) time.Time { return start.Add(time.Duration(i) * every) }
	a.fill(ctx, first, n, false, func(index uint32) load.When { return load.At(due(int(index - first))) })
	if a.err == nil && time.Now().After(start) {
		a.err = errScheduledTooLate
	}
	// The sink is asked only after the last due time: an answer costs time of the deliveries.
	a.do(func() error { return sleep(ctx, time.Until(due(n))) })
	if a.err != nil {
		return outcome{}, a.err
	}
	got, err := awaitSink(ctx, sink.addr, int64(n), 100*time.Millisecond, a.b.deliverLimit)
	late := make([]time.Duration, len(got.At))
	for i, at := range got.At {
		late[i] = time.Unix(0, at).Sub(due(i))
	}
	return lateOutcome(late, every), err
}
