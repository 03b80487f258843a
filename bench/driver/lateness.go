package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
)

// lateness: a steady rate beside a great many that are far away.
func lateness(ctx context.Context, b *bench, dir string, r *report.Result) error {
	sink, err := b.children.server("sink", nil)
	if err != nil {
		return err
	}
	defer sink.stop()
	n := b.lateRate * int(b.lateFor/time.Second)
	if n <= 0 {
		return fmt.Errorf("driver: %d a second for %s is nothing", b.lateRate, b.lateFor)
	}
	if err := b.withAdapter(ctx, dir, noSink, func(s *service) error {
		rate, err := fill(ctx, s.addr, firstIndex(maxRounds-1), b.pending, false, farAway(time.Now()))
		b.say("  filled at %s/s", report.Thousands(rate))
		return err
	}); err != nil {
		b.say("  filling: %v", err) // the rounds will say so too
	}
	contestants := []contestant{
		{name: adapterName, round: func(ctx context.Context, round int) (o outcome, err error) {
			err = b.withAdapter(ctx, dir, sink.addr, func(s *service) error {
				o, err = b.arrivals(ctx, s, sink, round, n)
				return err
			})
			return o, err
		}},
		{name: workqueueName, round: func(ctx context.Context, round int) (outcome, error) {
			config := workqueueConfig{Pending: b.pending, N: n, Every: time.Second / time.Duration(b.lateRate), Lead: b.lead}
			if b.live {
				config.Ahead = b.ahead
			}
			var late []time.Duration
			if err := b.children.job(ctx, "workqueue", config, &late); err != nil {
				return outcome{}, err
			}
			return lateOutcome(late, config.Every), nil
		}},
	}
	standings, err := contest(ctx, b.lateRounds, contestants, b.say)
	if err != nil {
		return err
	}
	how := "scheduled beforehand"
	if b.live {
		how = fmt.Sprintf("each scheduled %s ahead by a PUT of its own", b.ahead)
	}
	r.Parameters = []string{
		report.Thousands(float64(b.lateRate)) + " due a second, evenly, for " + b.lateFor.String(), how,
		report.Thousands(float64(b.pending)) + " pending far away", fmt.Sprintf("%d B of random text as data", load.PayloadBytes),
		fmt.Sprintf("%d rounds, interleaved", b.lateRounds),
	}
	r.Header = []string{"", "p50", "p99", "p99.9", "max", "earliest"}
	r.Chart = &report.Chart{Title: "Lateness by percentile", Unit: "ms"}
	for i, s := range standings {
		if !s.measured() {
			r.Rows = append(r.Rows, []string{s.name, s.absent, "", "", "", ""})
			continue
		}
		at := func(p float64) string {
			return report.Short(s.median(func(o outcome) time.Duration { return load.Percentile(o.late, p) }))
		}
		all := s.late()
		r.Rows = append(r.Rows, []string{s.name, at(0.5), at(0.99), at(0.999), report.Short(all[len(all)-1]), report.Short(all[0])})
		curve := report.ChartCurve{Label: s.name, Ours: i == 0}
		for _, p := range report.Percentiles {
			curve.Values = append(curve.Values, float64(load.Percentile(all, p))/1e6)
		}
		r.Chart.Curves = append(r.Chart.Curves, curve)
	}
	r.Notes = []string{"Arrival at an HTTP sink in its own process for the adapter; for client-go, which stays within one process and makes no call, the return of Get. " +
		"Percentiles are the median of the rounds, max and earliest are of all of them."}
	r.Bars = latenessBars(standings[0], standings[1])
	return nil
}

const workqueueName = "client-go's queue"

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

// late is that of all rounds together, sorted.
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

// arrivals schedules n events, one after the other in equal steps, and compares when they came with when they
// were due.
func (b *bench) arrivals(ctx context.Context, s, sink *service, round, n int) (outcome, error) {
	first, every := firstIndex(round), time.Second/time.Duration(b.lateRate)
	if err := resetSink(sink.addr, first, n); err != nil {
		return outcome{}, err
	}
	start := b.dueAfterFilling(n)
	due := func(index uint32) time.Time { return start.Add(time.Duration(index-first) * every) }
	var err error
	if b.live {
		start = time.Now().Add(b.lead + b.ahead).Truncate(time.Millisecond)
		err = putAhead(ctx, s.addr, first, n, b.ahead, due)
	} else {
		_, err = fill(ctx, s.addr, first, n, false, func(index uint32) load.When { return load.When{At: due(index)} })
		if err == nil && time.Now().After(start) {
			err = fmt.Errorf("driver: scheduling took longer than there was time for")
		}
	}
	if err != nil {
		return outcome{}, err
	}
	// Looking only when all should have come: the sink has better things to do before.
	select {
	case <-time.After(time.Until(due(first + uint32(n)))):
	case <-ctx.Done():
		return outcome{}, context.Cause(ctx)
	}
	if err := awaitSink(ctx, sink.addr, int64(n), 100*time.Millisecond, b.deliverLimit); err != nil {
		return outcome{}, err
	}
	var t sunk
	if err := getJSON(sink.addr, "/?arrivals=1", &t); err != nil {
		return outcome{}, err
	}
	late := make([]time.Duration, n)
	for i, at := range t.Arrivals {
		late[i] = time.Unix(0, at).Sub(due(first + uint32(i)))
	}
	return lateOutcome(late, every), nil
}

// putAhead schedules each event with a PUT of its own, so long before it is due.
func putAhead(ctx context.Context, addr string, first uint32, n int, ahead time.Duration, due func(uint32) time.Time) error {
	const callers = 16
	return together(ctx, addr, callers, first, func(ctx context.Context, caller int, conn load.Client, maker *load.Maker) error {
		var body []byte
		for i := caller; i < n; i += callers {
			index := first + uint32(i)
			select {
			case <-time.After(time.Until(due(index).Add(-ahead))):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			body = maker.AppendPut(body[:0], load.When{At: due(index)})
			status, _, err := conn.Call(http.MethodPut, putPath(index), body)
			if err == nil && status != http.StatusCreated {
				err = fmt.Errorf("driver: PUT answered %d", status)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
