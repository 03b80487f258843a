package main

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
)

// memory: the cost of many far-away schedules.
func memory(ctx context.Context, b *bench, dir string, sink *service, r *report.Result) error {
	// Before each kill more is written, so that the log has records that are not in the tables yet.
	more := min(100_000, max(b.pending/10, 1))

	none := b.adapter(filepath.Join(dir, "empty"), sink.addr, 1)
	none.start(ctx)
	m := memoryFound{pending: b.pending, acknowledged: b.pending + b.restarts*more}
	m.noneReady = none.restartAll(ctx, func(int) {})
	m.none = none.settled(ctx)
	if err := none.stop(); err != nil {
		return err
	}

	full := b.adapter(filepath.Join(dir, "full"), sink.addr, 1)
	full.start(ctx)
	rate := full.fill(ctx, 0, b.pending, true, farWhen())
	loading := full.usage().rss
	m.loaded = full.settled(ctx)
	m.ready = full.restartAll(ctx, func(i int) { full.fill(ctx, firstIndex(i+1), more, true, farWhen()) })
	m.restarted = full.settled(ctx)
	m.kept = full.pending()
	m.delivered = get(full, func(s *service) (time.Duration, error) { return b.firstDelivery(ctx, s, sink) })
	if err := full.stop(); err != nil {
		return err
	}

	r.Parameters = []string{
		count(b.pending, "pending, due in one to thirteen months"), fmt.Sprintf("%d B of random bytes as data", load.PayloadBytes), keySize,
		"filled with bulk calls of 1,000 over 8 connections", fmt.Sprintf("%d kills, %s more written right before each", b.restarts, report.Thousands(more)),
	}
	starts := func(s spread) string {
		return report.Short(time.Duration(s.median)) + " (" + report.Short(time.Duration(s.high)) + ")"
	}
	r.Header = []string{"", "none", "with " + report.Thousands(b.pending), "more"}
	r.Rows = [][]string{
		{"RSS right after filling", "", megabytes(loading), ""},
		{"RSS, settled after filling", megabytes(m.none.rss), megabytes(m.loaded.rss), megabytes(m.loaded.rss - m.none.rss)},
		{"RSS, settled after restarts", megabytes(m.none.rss), megabytes(m.restarted.rss), megabytes(m.restarted.rss - m.none.rss)},
		{"disk, settled after filling", megabytes(m.none.disk), megabytes(m.loaded.disk), fmt.Sprintf("%.0f B a schedule", float64(m.loaded.disk-m.none.disk)/float64(max(b.pending, 1)))},
		{"start after kill -9 until /readyz is 200, median (worst)", starts(m.noneReady), starts(m.ready), report.Short(m.later())},
		{"filling", "", report.Thousands(rate) + " items/s", ""},
		{"delivery of one due at once, after the last start", "", report.Short(m.delivered), ""},
	}
	r.Bars = m.bars()
	return nil
}

// memoryFound is what the bars of memory hold to.
type memoryFound struct {
	pending, acknowledged   int
	none, loaded, restarted state
	noneReady, ready        spread // of the starts, in nanoseconds
	kept                    int64  // pending after the restarts
	delivered               time.Duration
}

// later returns by how much the worst start took longer than the same start with none.
func (m memoryFound) later() time.Duration { return time.Duration(m.ready.high - m.noneReady.median) }

func (m memoryFound) bars() []report.Bar {
	with := " with " + count(m.pending, "pending")
	rss := max(m.loaded.rss, m.restarted.rss) - m.none.rss
	disk := float64(m.loaded.disk) / recordBytes(m.pending)
	kept := fmt.Sprintf("%s of %s there", report.Thousands(m.kept), report.Thousands(m.acknowledged))
	return []report.Bar{
		report.Reached("memory under 100 MB more than for none"+with, megabytes(rss)+" more", true, rss < 100e6),
		report.Reached("disk under 1.5 times the bytes of the records"+with, fmt.Sprintf("%.2f times", disk), m.pending > 0, disk < 1.5),
		report.Reached("ready within 2 s of the same start with none, after kill -9"+with, report.Short(m.later())+" later", true, m.later() < 2*time.Second),
		report.Reached("nothing acknowledged is lost"+with, kept, true, m.kept == int64(m.acknowledged)),
		report.Reached("deliveries go on after it"+with, "after "+report.Short(m.delivered), true, m.delivered < time.Second),
	}
}

// recordBytes returns the bytes of the data and the keys of so many schedules.
func recordBytes(n int) float64 { return float64(max(n, 1) * (load.PayloadBytes + load.KeyBytes)) }

// restartAll kills the adapter and starts it again, b.restarts times, and measures the starts.
func (a *adapter) restartAll(ctx context.Context, before func(i int)) spread {
	var all []time.Duration
	for i := range a.b.restarts {
		before(i)
		a.kill()
		a.start(ctx)
		if a.err == nil {
			a.b.say("  ready after %s", report.Short(a.running.ready))
			all = append(all, a.running.ready)
		}
	}
	return spreadOf(all, func(d time.Duration) time.Duration { return d })
}

// firstDelivery measures a schedule that is due at once, from the call to its arrival.
func (b *bench) firstDelivery(ctx context.Context, s, sink *service) (time.Duration, error) {
	index := firstIndex(maxRounds - 1)
	if err := resetSink(sink.addr, index, 1); err != nil {
		return 0, err
	}
	client := load.NewClient(s.addr)
	defer client.Close()
	began := time.Now()
	if _, err := put1(client, putPath(index, 1), load.NewMaker(1).AppendPut(nil, load.In(0)), http.StatusCreated); err != nil {
		return 0, err
	}
	got, err := awaitSink(ctx, sink.addr, 1, time.Millisecond, b.deliverLimit)
	if err != nil {
		return 0, err
	}
	return time.Unix(0, got.At[0]).Sub(began), nil
}

// idle: the cost of an adapter with nothing due.
func idle(ctx context.Context, b *bench, dir string, _ *service, r *report.Result) error {
	a := b.adapter(dir, noSink, 1)
	a.start(ctx)
	a.do(func() error { return sleep(ctx, b.idle/6) }) // the work after a start is not idleness
	before := a.usage()
	a.do(func() error { return sleep(ctx, b.idle) })
	after := a.usage()
	if err := a.stop(); err != nil {
		return err
	}
	cpu := after.cpu - before.cpu
	share := float64(cpu) / float64(b.idle)
	r.Parameters = []string{"standalone", "one source", fmt.Sprintf("%s, after %s", b.idle, b.idle/6)}
	r.Header = []string{"", "adapter"}
	r.Rows = [][]string{
		{"RSS", megabytes(after.rss)},
		{fmt.Sprintf("CPU time over %s", b.idle), fmt.Sprintf("%s (%.2f %% of a core)", report.Short(cpu), share*100)},
	}
	r.Bars = []report.Bar{
		report.Reached("under 40 MB RSS", megabytes(after.rss), true, after.rss < 40e6),
		report.Reached("no CPU when nothing is due (at most 0.1 % of a core)", fmt.Sprintf("%.2f %%", share*100), true, share <= 0.001),
	}
	return nil
}

// churnDelay is how far ahead each key is scheduled, again and again: long enough that none
// comes due at the rates of a closed loop.
const churnDelay = 5 * time.Minute

// churn: the same keys are scheduled anew, in turn, as fast as the adapter takes them. This
// is a day of operators that reschedule each key every few minutes, in ten minutes.
func churn(ctx context.Context, b *bench, dir string, _ *service, r *report.Result) error {
	a := b.adapter(dir, noSink, 1)
	a.start(ctx)
	when := load.In(churnDelay)
	a.fill(ctx, 0, b.pending, false, func(uint32) load.When { return when })
	before, from := a.disk(), a.usage()
	turns := make([]uint32, b.callers) // how often each caller has called: callers go on where they were
	open := func(caller int) (load.Op, func(), error) {
		client := load.NewClient(a.running.addr)
		maker := load.NewMaker(uint64(turns[caller])<<8 + uint64(caller))
		var body []byte
		return func() (int, error) {
			index := (turns[caller]*uint32(b.callers) + uint32(caller)) % uint32(b.pending)
			turns[caller]++
			body = maker.AppendPut(body[:0], when)
			_, err := put1(client, putPath(index, 1), body, http.StatusOK)
			return 1, err
		}, client.Close, nil
	}
	var windows []outcome
	var puts float64
	most := before
	line := report.ChartLine{Label: "p99 of a PUT", Ours: true}
	for began := time.Now(); a.err == nil && time.Since(began) < b.churn; {
		o := get(a, func(s *service) (outcome, error) {
			return measured(ctx, load.Load{Callers: b.callers, For: b.churnWindow}, s, open)
		})
		disk := a.disk()
		windows = append(windows, o)
		puts, most = puts+o.rate*b.churnWindow.Seconds(), max(most, disk)
		line.Points = append(line.Points, [2]float64{float64(len(windows)) * b.churnWindow.Seconds(), float64(o.p99) / 1e6})
		b.say("  %s PUT/s, p99 %s, longest %s, %s on disk", report.Thousands(o.rate), report.Short(o.p99), report.Short(o.longest), megabytes(disk))
	}
	to, pending := a.usage(), a.pending()
	after := a.settled(ctx)
	if err := a.stop(); err != nil {
		return err
	}
	perPut := float64(to.written-from.written) / max(puts, 1)
	rate, p99 := spreadOf(windows, rateOf), spreadOf(windows, func(o outcome) time.Duration { return o.p99 })
	longest := time.Duration(spreadOf(windows, func(o outcome) time.Duration { return o.longest }).high)
	times := func(disk int64) string { return fmt.Sprintf("%.2f times", float64(disk)/recordBytes(b.pending)) }
	r.Parameters = []string{
		count(b.pending, "keys, each scheduled anew in turn with a delay of ") + churnDelay.String(), fmt.Sprintf("%d callers", b.callers), textData,
		fmt.Sprintf("windows of %s", b.churnWindow),
	}
	r.Header = []string{"", "adapter"}
	r.Rows = [][]string{
		{"PUT/s, median of the windows (least–most)", fmt.Sprintf("%s (%s–%s)", report.Thousands(rate.median), report.Thousands(rate.low), report.Thousands(rate.high))},
		{"PUTs", report.Thousands(puts)},
		{"p99, median of the windows (worst)", report.Short(time.Duration(p99.median)) + " (" + report.Short(time.Duration(p99.high)) + ")"},
		{"longest call", report.Short(longest)},
		{"bytes written to disk a PUT", fmt.Sprintf("%.0f, %.1f times the data and the key", perPut, perPut/recordBytes(1))},
		{"disk, before the churn", megabytes(before)},
		{"disk, most during it", megabytes(most) + ", " + times(most) + " the bytes of the records"},
		{"disk, settled after it", megabytes(after.disk) + ", " + times(after.disk)},
		{"RSS, settled after it", megabytes(after.rss)},
	}
	r.Bars = []report.Bar{
		report.Reached("no call takes longer than 100 ms", report.Short(longest), len(windows) > 0, longest <= 100*time.Millisecond),
		report.Reached("disk under twice the bytes of the records, settled", times(after.disk), b.pending > 0, float64(after.disk) < 2*recordBytes(b.pending)),
		report.Reached("every key is still pending", report.Thousands(pending)+" of "+report.Thousands(b.pending), true, pending == int64(b.pending)),
	}
	r.Chart = &report.Chart{Title: "Churn: p99 of a PUT over time", Unit: "ms", Note: "seconds", Lines: []report.ChartLine{line}}
	return nil
}

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
func growth(ctx context.Context, b *bench, dir string, sink *service, r *report.Result) error {
	run := &burstRun{b: b, sink: sink, n: max(b.burst/5, 10), lead: 3 * b.lead}
	r.Parameters = append(b.writeParameters(), count(run.n, "due at one instant"))
	r.Header = []string{"sources", "pending", "PUT/s", "bulk items/s", "deliveries/s", "CPU per PUT", "CPU per bulk item", "CPU per delivery"}
	var cells []cell
	for _, sources := range b.sources {
		a := b.adapter(filepath.Join(dir, fmt.Sprint(sources)), sink.addr, sources)
		a.start(ctx)
		filled := 0
		for i, pending := range b.pendings {
			a.fill(ctx, uint32(filled), pending-filled, true, farWhen())
			filled = pending
			a.quiet(ctx)
			c := cell{sources: sources, pending: pending}
			c.put = get(a, func(s *service) (outcome, error) { return b.drive(ctx, s, 3*i+1, httpOp(s.addr, sources, 1)) })
			c.bulk = get(a, func(s *service) (outcome, error) { return b.drive(ctx, s, 3*i+2, httpOp(s.addr, sources, b.batch)) })
			a.quiet(ctx)
			c.delivery = run.adapter(ctx, a, 3*i+3)
			row := []string{
				report.Thousands(sources), report.Thousands(pending),
				report.Thousands(c.put.rate), report.Thousands(c.bulk.rate), report.Thousands(c.delivery.rate),
			}
			for _, cost := range growthCosts {
				row = append(row, perItem(cost.of(c)))
			}
			b.say("  %v", row)
			r.Rows, cells = append(r.Rows, row), append(cells, c)
		}
		if err := a.stop(); err != nil {
			return err
		}
	}
	r.Bars, r.Chart = growthBars(cells), growthChart(cells)
	return nil
}

// growthBars compare the largest with the smallest.
func growthBars(cells []cell) (bars []report.Bar) {
	small, large := cells[0], cells[len(cells)-1]
	for _, cost := range growthCosts {
		from, to := cost.of(small), cost.of(large)
		times := float64(to) / float64(max(from, 1))
		bars = append(bars, report.Reached(
			fmt.Sprintf("a %s costs at most 1.5 times as much with %s and %s", cost.name, count(large.sources, "sources"), count(large.pending, "pending")),
			fmt.Sprintf("%.2f times", times), from > 0, times <= 1.5))
	}
	return bars
}

// growthChart has a line for each cost and the least and the most sources.
func growthChart(cells []cell) *report.Chart {
	chart := &report.Chart{Title: "CPU time of the adapter, by what is pending", Unit: "µs", Note: "pending, as a power of ten"}
	first, last := cells[0].sources, cells[len(cells)-1].sources
	for _, cost := range growthCosts {
		for _, sources := range slices.Compact([]int{first, last}) {
			line := report.ChartLine{Label: cost.name + ", " + count(sources, "sources"), Ours: true, Dashed: sources != first}
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
