package main

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
)

// cell is one size of growth, and what a call and a delivery cost at it.
type cell struct {
	sources, pending    int
	put, bulk, delivery outcome
}

// growthCosts are the columns of a cell: the CPU time of the adapter.
var growthCosts = []struct {
	name string
	of   func(cell) time.Duration
}{
	{"PUT", func(c cell) time.Duration { return c.put.server }},
	{"bulk item", func(c cell) time.Duration { return c.bulk.server }},
	{"delivery", func(c cell) time.Duration { return c.delivery.client }},
}

// growth: what a call and a delivery cost with more pending, and with more sources.
func growth(ctx context.Context, b *bench, dir string, r *report.Result) error {
	sink, err := b.children.server("sink", nil)
	if err != nil {
		return err
	}
	defer sink.stop()
	var cells []cell
	for _, sources := range b.sources {
		s, _, err := b.adapters.start(ctx, adapterConfig{Dir: filepath.Join(dir, fmt.Sprint(sources)), Sink: sink.addr, Sources: sources})
		if err != nil {
			return err
		}
		grown, err := b.grow(ctx, s, sink, sources)
		if stopErr := s.stop(); err == nil {
			err = stopErr
		}
		if err != nil {
			return err
		}
		cells = append(cells, grown...)
	}
	r.Parameters = append(b.writeParameters(), fmt.Sprintf("%s due at one instant", report.Thousands(float64(b.burst/5))))
	r.Header = []string{"sources", "pending", "PUT/s", "bulk items/s", "deliveries/s", "CPU per PUT", "CPU per bulk item", "CPU per delivery"}
	for _, c := range cells {
		row := []string{report.Thousands(float64(c.sources)), report.Thousands(float64(c.pending))}
		for _, o := range []outcome{c.put, c.bulk, c.delivery} {
			row = append(row, report.Thousands(o.rate))
		}
		for _, cost := range growthCosts {
			row = append(row, perItem(cost.of(c)))
		}
		r.Rows = append(r.Rows, row)
	}
	r.Bars, r.Chart = growthBars(cells), growthChart(cells)
	return nil
}

// grow measures one number of sources with more and more pending.
func (b *bench) grow(ctx context.Context, s, sink *service, sources int) (cells []cell, err error) {
	few := *b
	few.burst, few.lead = max(b.burst/5, 10), 3*b.lead
	filled, round := 0, 1
	for _, pending := range b.sizes {
		if _, err := fill(ctx, s.addr, sources, uint32(filled), pending-filled, true, farAway(time.Now())); err != nil {
			return nil, err
		}
		filled = pending
		if err := b.quiet(ctx, s); err != nil {
			return nil, err
		}
		c := cell{sources: sources, pending: pending}
		if c.put, err = b.drive(ctx, s, round, func(addr string, caller int, first uint32) (load.Op, func()) {
			return putOp(addr, sources, caller, b.callers, first, writeDelay)
		}); err != nil {
			return nil, err
		}
		if c.bulk, err = b.drive(ctx, s, round+1, func(addr string, caller int, first uint32) (load.Op, func()) {
			return bulkOp(addr, sources, caller, b.callers, b.batch, first, writeDelay)
		}); err != nil {
			return nil, err
		}
		if err := b.quiet(ctx, s); err != nil {
			return nil, err
		}
		run := &burstRun{b: &few, sink: sink, sources: sources}
		if c.delivery, err = run.adapter(ctx, s, round+2); err != nil {
			return nil, err
		}
		round += 3
		b.say("  %s sources, %s pending: %s a PUT, %s a bulk item, %s a delivery", report.Thousands(float64(sources)), report.Thousands(float64(pending)),
			perItem(c.put.server), perItem(c.bulk.server), perItem(c.delivery.client))
		cells = append(cells, c)
	}
	return cells, nil
}

// quiet waits until the work behind earlier calls is done: compactions would count as the
// cost of the next ones.
func (b *bench) quiet(ctx context.Context, s *service) error {
	before, err := s.usage()
	for end := time.Now().Add(b.settle); err == nil && time.Now().Before(end); {
		if err = sleep(ctx, b.settleEvery); err != nil {
			break
		}
		var now usage
		if now, err = s.usage(); err == nil && now.cpu-before.cpu <= b.settleEvery/50 {
			return nil
		}
		before = now
	}
	return err
}

// growthBars compare the largest with the smallest.
func growthBars(cells []cell) (bars []report.Bar) {
	small, large := cells[0], cells[len(cells)-1]
	for _, cost := range growthCosts {
		from, to := cost.of(small), cost.of(large)
		times := float64(to) / float64(max(from, 1))
		bars = append(bars, report.Reached(
			fmt.Sprintf("a %s costs at most 1.5 times as much with %s sources and %s pending", cost.name, report.Thousands(float64(large.sources)), report.Thousands(float64(large.pending))),
			fmt.Sprintf("%.2f times", times), from > 0, times <= 1.5))
	}
	return bars
}

// growthChart has a line for each cost and the least and the most sources.
func growthChart(cells []cell) *report.Chart {
	chart := &report.Chart{Title: "CPU time of the adapter, by what is pending", Unit: "µs", Note: "pending, as a power of ten"}
	first, last := cells[0].sources, cells[len(cells)-1].sources
	for _, cost := range growthCosts {
		for _, sources := range []int{first, last} {
			line := report.ChartLine{Label: fmt.Sprintf("%s, %s sources", cost.name, report.Thousands(float64(sources))), Ours: true, Dashed: sources != first}
			for _, c := range cells {
				if c.sources == sources {
					line.Points = append(line.Points, [2]float64{math.Log10(float64(c.pending)), float64(cost.of(c)) / 1e3})
				}
			}
			chart.Lines = append(chart.Lines, line)
		}
	}
	return chart
}
