package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
)

// state is what an adapter takes while it does nothing.
type state struct{ rss, disk int64 }

// memory: what a great many far-away schedules cost.
func memory(ctx context.Context, b *bench, dir string, r *report.Result) error {
	sink, err := b.children.server("sink", nil)
	if err != nil {
		return err
	}
	defer sink.stop()

	// None: the same starts on an empty store.
	empty := adapterConfig{Dir: filepath.Join(dir, "empty"), Sink: sink.addr}
	s, _, err := b.adapters.start(ctx, empty)
	if err != nil {
		return err
	}
	// Whoever still runs when this fails would be in the way of the next scenario.
	defer func() {
		if s != nil {
			s.kill()
		}
	}()
	s, emptyReady, err := b.restartAll(ctx, s, empty, func(*service, int) error { return nil })
	if err != nil {
		return err
	}
	none, err := b.settled(ctx, s, empty.Dir)
	if err != nil {
		return err
	}
	if err := s.stop(); err != nil {
		return err
	}

	full := adapterConfig{Dir: filepath.Join(dir, "full"), Sink: sink.addr}
	if s, _, err = b.adapters.start(ctx, full); err != nil {
		return err
	}
	rate, err := fill(ctx, s.addr, 0, b.pending, true, farAway(time.Now()))
	if err != nil {
		return err
	}
	b.say("  filled at %s/s", report.Thousands(rate))
	loading, err := s.usage()
	if err != nil {
		return err
	}
	loaded, err := b.settled(ctx, s, full.Dir)
	if err != nil {
		return err
	}

	// Before each kill something more is written, so that the log holds what the tables do not yet.
	more := min(100_000, max(b.pending/10, 1))
	s, fullReady, err := b.restartAll(ctx, s, full, func(s *service, i int) error {
		_, err := fill(ctx, s.addr, firstIndex(i+1), more, true, farAway(time.Now()))
		return err
	})
	if err != nil {
		return err
	}
	restarted, err := b.settled(ctx, s, full.Dir)
	if err != nil {
		return err
	}
	var c counts
	if err := getJSON(s.addr, sourcePath, &c); err != nil {
		return err
	}
	delivered, err := firstDelivery(ctx, b, s, sink)
	if err != nil {
		return err
	}
	if err := s.stop(); err != nil {
		return err
	}

	records := int64(b.pending) * int64(load.PayloadBytes+load.KeyBytes)
	r.Parameters = []string{
		report.Thousands(float64(b.pending)) + " pending, due in one to thirteen months", fmt.Sprintf("%d B of random bytes as data", load.PayloadBytes),
		fmt.Sprintf("keys of %d B", load.KeyBytes), "filled with bulk calls of 1,000 over 8 connections",
		fmt.Sprintf("%d kills, %s more written right before each", b.restarts, report.Thousands(float64(more))),
	}
	r.Header = []string{"", "none", "with " + report.Thousands(float64(b.pending)), "more"}
	r.Rows = [][]string{
		{"RSS right after filling", "", megabytes(loading.rss), ""},
		{"RSS, settled after filling", megabytes(none.rss), megabytes(loaded.rss), megabytes(loaded.rss - none.rss)},
		{"RSS, settled after restarts", megabytes(none.rss), megabytes(restarted.rss), megabytes(restarted.rss - none.rss)},
		{"disk, settled after filling", megabytes(none.disk), megabytes(loaded.disk), fmt.Sprintf("%.0f B a schedule", float64(loaded.disk-none.disk)/float64(max(b.pending, 1)))},
		{"start after kill -9 until /readyz is 200, median (worst)", startTimes(emptyReady), startTimes(fullReady), report.Short(worst(fullReady) - middle(emptyReady))},
		{"filling", "", report.Thousands(rate) + " items/s", ""},
		{"delivery of one due at once, after the last start", "", report.Short(delivered), ""},
	}
	want := int64(b.pending + b.restarts*more)
	with := " with " + report.Thousands(float64(b.pending)) + " pending"
	rss := max(loaded.rss, restarted.rss) - none.rss
	disk := float64(loaded.disk) / float64(max(records, 1))
	start := worst(fullReady) - middle(emptyReady)
	r.Bars = []report.Bar{
		report.Reached("memory under 100 MB more than for none"+with, megabytes(rss)+" more", true, rss < 100e6),
		report.Reached("disk under 1.5 times the bytes of the records"+with, fmt.Sprintf("%.2f times", disk), b.pending > 0, disk < 1.5),
		report.Reached("ready within 2 s of the same start with none, after kill -9"+with, report.Short(start)+" later", true, start < 2*time.Second),
		report.Reached("nothing acknowledged is lost"+with, fmt.Sprintf("%s of %s there", report.Thousands(float64(c.Pending)), report.Thousands(float64(want))), true, c.Pending == want),
		report.Reached("deliveries go on after it"+with, "after "+report.Short(delivered), true, delivered < time.Second),
	}
	return nil
}

// restartAll kills the adapter and starts it again, as often as asked, and times the starts. It returns the last one running.
func (b *bench) restartAll(ctx context.Context, s *service, c adapterConfig, before func(*service, int) error) (*service, []time.Duration, error) {
	var took []time.Duration
	for i := range b.restarts {
		err := before(s, i)
		if killErr := s.kill(); err == nil {
			err = killErr
		}
		if err != nil {
			return nil, nil, err
		}
		var ready time.Duration
		if s, ready, err = b.adapters.start(ctx, c); err != nil {
			return nil, nil, err
		}
		b.say("  ready after %s", report.Short(ready))
		took = append(took, ready)
	}
	return s, took, nil
}

// calm is over how many looks nothing may have changed much.
const calm = 6

// settled waits until memory and disk have not changed by more than a fiftieth
// over some time. What the Go runtime gives back to the system it gives back slowly.
func (b *bench) settled(ctx context.Context, s *service, dir string) (state, error) {
	var seen []state
	for end := time.Now().Add(b.settle); ; {
		u, err := s.usage()
		if err != nil {
			return state{}, err
		}
		disk, err := diskBytes(dir)
		if err != nil {
			return state{}, err
		}
		now := state{rss: u.rss, disk: disk}
		seen = append(seen, now)
		if len(seen) > calm {
			seen = seen[1:]
		}
		if len(seen) == calm && near(now.rss, seen[0].rss) && near(now.disk, seen[0].disk) || time.Now().After(end) {
			return now, nil
		}
		select {
		case <-time.After(b.settleEvery):
		case <-ctx.Done():
			return state{}, context.Cause(ctx)
		}
	}
}

func near(a, b int64) bool { return max(a, b)-min(a, b) <= max(a, b)/50 }

// firstDelivery times a schedule that is due at once, from the call to its arrival.
func firstDelivery(ctx context.Context, b *bench, s, sink *service) (time.Duration, error) {
	index := firstIndex(maxRounds - 1)
	if err := resetSink(sink.addr, index, 1); err != nil {
		return 0, err
	}
	op, shut, err := putOp(load.Raw, s.addr, 0, 1, index, 0)
	if err != nil {
		return 0, err
	}
	defer shut()
	began := time.Now()
	if _, err := op(); err != nil {
		return 0, err
	}
	if err := awaitSink(ctx, sink.addr, 1, time.Millisecond, b.deliverLimit); err != nil {
		return 0, err
	}
	var t sunk
	if err := getJSON(sink.addr, "/?arrivals=1", &t); err != nil {
		return 0, err
	}
	return time.Unix(0, t.FirstAt).Sub(began), nil
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

func middle(d []time.Duration) time.Duration {
	var values []float64
	for _, v := range d {
		values = append(values, float64(v))
	}
	return time.Duration(spreadOf(values).median)
}

func worst(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	return slices.Max(d)
}

func startTimes(d []time.Duration) string {
	return report.Short(middle(d)) + " (" + report.Short(worst(d)) + ")"
}

// idle: what it costs to have it.
func idle(ctx context.Context, b *bench, dir string, r *report.Result) error {
	return b.withAdapter(ctx, dir, noSink, func(s *service) error {
		select { // what a start leaves to do is not idleness
		case <-time.After(b.idle / 6):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		before, err := s.usage()
		if err != nil {
			return err
		}
		select {
		case <-time.After(b.idle):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		after, err := s.usage()
		if err != nil {
			return err
		}
		share := float64(after.cpu-before.cpu) / float64(b.idle)
		r.Parameters = []string{"standalone", "one source", fmt.Sprintf("%s, after %s", b.idle, b.idle/6)}
		r.Header = []string{"", "adapter"}
		r.Rows = [][]string{
			{"RSS", megabytes(after.rss)},
			{fmt.Sprintf("CPU time over %s", b.idle), fmt.Sprintf("%s (%.2f %% of a core)", report.Short(after.cpu-before.cpu), share*100)},
		}
		r.Bars = []report.Bar{
			report.Reached("under 40 MB RSS", megabytes(after.rss), true, after.rss < 40e6),
			report.Reached("no CPU when nothing is due (at most 0.1 % of a core)", fmt.Sprintf("%.2f %%", share*100), true, share <= 0.001),
		}
		return nil
	})
}
