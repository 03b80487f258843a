package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
)

// churnDelay is how far ahead each key is scheduled, again and again: long enough that none
// comes due at the rates of a closed loop.
const churnDelay = 5 * time.Minute

// churn: the same keys are scheduled anew, in turn, as fast as the adapter takes them. This
// is a day of operators that reschedule each key every few minutes, in ten minutes.
func churn(ctx context.Context, b *bench, dir string, r *report.Result) error {
	m := &memoryRun{b: b, config: adapterConfig{Dir: filepath.Join(dir, "adapter"), Sink: noSink}}
	defer m.kill()
	if _, err := m.start(ctx); err != nil {
		return err
	}
	if _, err := fill(ctx, m.running.addr, 1, 0, b.pending, false, func(uint32) load.When { return load.When{Delay: churnDelay} }); err != nil {
		return err
	}
	before, err := diskBytes(m.config.Dir)
	if err != nil {
		return err
	}
	from, err := m.running.usage()
	if err != nil {
		return err
	}
	turns := make([]uint32, b.callers) // how often each caller has called
	var windows []outcome
	var puts float64
	most := before
	for began := time.Now(); time.Since(began) < b.churn; {
		o, err := b.churnOnce(ctx, m.running, turns)
		if err != nil {
			return err
		}
		windows = append(windows, o)
		puts += o.rate * b.churnWindow.Seconds()
		disk, err := diskBytes(m.config.Dir)
		if err != nil {
			return err
		}
		most = max(most, disk)
		b.say("  %s PUT/s, p99 %s, longest %s, %s on disk", report.Thousands(o.rate), report.Short(o.p99), report.Short(o.longest), megabytes(disk))
	}
	to, err := m.running.usage()
	if err != nil {
		return err
	}
	var counts struct{ Pending int64 }
	if err := getJSON(m.running.addr, sourcePath, &counts); err != nil {
		return err
	}
	after, err := m.settled(ctx)
	if err != nil {
		return err
	}
	size := float64(max(b.pending, 1) * (load.PayloadBytes + load.KeyBytes))
	perPut := float64(to.written-from.written) / max(puts, 1)
	var rates, p99s []float64
	longest := time.Duration(0)
	line := report.ChartLine{Label: "p99 of a PUT", Ours: true}
	for i, o := range windows {
		rates, p99s, longest = append(rates, o.rate), append(p99s, float64(o.p99)), max(longest, o.longest)
		line.Points = append(line.Points, [2]float64{float64(i+1) * b.churnWindow.Seconds(), float64(o.p99) / 1e6})
	}
	rate, p99 := spreadOf(rates), spreadOf(p99s)
	r.Parameters = []string{
		fmt.Sprintf("%s keys, each scheduled anew in turn with a delay of %s", report.Thousands(float64(b.pending)), churnDelay),
		fmt.Sprintf("%d callers", b.callers), fmt.Sprintf("%d B of random text as data", load.PayloadBytes), fmt.Sprintf("windows of %s", b.churnWindow),
	}
	r.Header = []string{"", "adapter"}
	r.Rows = [][]string{
		{"PUT/s, median of the windows (least–most)", fmt.Sprintf("%s (%s–%s)", report.Thousands(rate.median), report.Thousands(rate.low), report.Thousands(rate.high))},
		{"PUTs", report.Thousands(puts)},
		{"p99, median of the windows (worst)", report.Short(time.Duration(p99.median)) + " (" + report.Short(time.Duration(p99.high)) + ")"},
		{"longest call", report.Short(longest)},
		{"bytes written to disk a PUT", fmt.Sprintf("%.0f, %.1f times the data and the key", perPut, perPut/float64(load.PayloadBytes+load.KeyBytes))},
		{"disk, before the churn", megabytes(before)},
		{"disk, most during it", fmt.Sprintf("%s, %.2f times the bytes of the records", megabytes(most), float64(most)/size)},
		{"disk, settled after it", fmt.Sprintf("%s, %.2f times", megabytes(after.disk), float64(after.disk)/size)},
		{"RSS, settled after it", megabytes(after.rss)},
	}
	r.Bars = []report.Bar{
		report.Reached("no call takes longer than 100 ms", report.Short(longest), len(windows) > 0, longest <= 100*time.Millisecond),
		report.Reached("disk under twice the bytes of the records, settled", fmt.Sprintf("%.2f times", float64(after.disk)/size), b.pending > 0, float64(after.disk) < 2*size),
		report.Reached("every key is still pending", fmt.Sprintf("%s of %s", report.Thousands(float64(counts.Pending)), report.Thousands(float64(b.pending))), true, counts.Pending == int64(b.pending)),
	}
	r.Chart = &report.Chart{Title: "Churn: p99 of a PUT over time", Unit: "ms", Note: "seconds", Lines: []report.ChartLine{line}}
	return m.stop()
}

// churnOnce is one window. Callers go on where they were.
func (b *bench) churnOnce(ctx context.Context, s *service, turns []uint32) (outcome, error) {
	now := *b
	now.warm, now.window = 0, b.churnWindow
	return now.driveWith(ctx, s.usage, func(caller int) (load.Op, func(), error) {
		client := load.NewClient(s.addr)
		maker := load.NewMaker(uint64(turns[caller])<<8 + uint64(caller))
		var body []byte
		return func() (int, error) {
			index := (turns[caller]*uint32(b.callers) + uint32(caller)) % uint32(b.pending)
			turns[caller]++
			body = maker.AppendPut(body[:0], load.When{Delay: churnDelay})
			status, _, err := client.Call(http.MethodPut, putPath(index, 1), body)
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("driver: PUT of a key that is there answered %d", status)
			}
			return 1, err
		}, client.Close, nil
	})
}
