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

// state is the memory and the disk space of an idle adapter.
type state struct{ rss, disk int64 }

// memoryRun is an adapter over several starts, with the measurements of them.
type memoryRun struct {
	b       *bench
	config  adapterConfig
	running *service // nil between a kill and a start

	rate              float64 // of filling
	loading           int64   // RSS right after filling
	loaded, restarted state
	ready             []time.Duration
	pending           int64 // after the restarts
	delivered         time.Duration
}

// memory: the cost of many far-away schedules.
func memory(ctx context.Context, b *bench, dir string, r *report.Result) error {
	sink, err := b.children.server("sink", nil)
	if err != nil {
		return err
	}
	defer sink.stop()
	none := &memoryRun{b: b, config: adapterConfig{Dir: filepath.Join(dir, "empty"), Sink: sink.addr}}
	defer none.kill()
	if err := none.empty(ctx); err != nil {
		return err
	}
	// Before each kill more is written, so that the log has records that are not in the tables yet.
	more := min(100_000, max(b.pending/10, 1))
	full := &memoryRun{b: b, config: adapterConfig{Dir: filepath.Join(dir, "full"), Sink: sink.addr}}
	defer full.kill()
	if err := full.fill(ctx, more); err != nil {
		return err
	}
	if full.delivered, err = firstDelivery(ctx, b, full.running, sink); err != nil {
		return err
	}
	r.Parameters = []string{
		report.Thousands(float64(b.pending)) + " pending, due in one to thirteen months", fmt.Sprintf("%d B of random bytes as data", load.PayloadBytes),
		fmt.Sprintf("keys of %d B", load.KeyBytes), "filled with bulk calls of 1,000 over 8 connections",
		fmt.Sprintf("%d kills, %s more written right before each", b.restarts, report.Thousands(float64(more))),
	}
	r.Header = []string{"", "none", "with " + report.Thousands(float64(b.pending)), "more"}
	r.Rows = memoryRows(none, full)
	r.Bars = memoryBars(none, full, int64(b.pending+b.restarts*more))
	return full.stop()
}

// empty measures the same starts on an empty store.
func (m *memoryRun) empty(ctx context.Context) (err error) {
	if _, err := m.start(ctx); err != nil {
		return err
	}
	if err := m.restartAll(ctx, func(int) error { return nil }); err != nil {
		return err
	}
	if m.loaded, err = m.settled(ctx); err != nil {
		return err
	}
	return m.stop()
}

// fill fills the store and measures it before and after the restarts. The adapter still runs then.
func (m *memoryRun) fill(ctx context.Context, more int) error {
	if _, err := m.start(ctx); err != nil {
		return err
	}
	var err error
	if m.rate, err = fill(ctx, m.running.addr, 1, 0, m.b.pending, true, farAway(time.Now())); err != nil {
		return err
	}
	m.b.say("  filled at %s/s", report.Thousands(m.rate))
	u, err := m.running.usage()
	if err != nil {
		return err
	}
	m.loading = u.rss
	if m.loaded, err = m.settled(ctx); err != nil {
		return err
	}
	if err := m.restartAll(ctx, func(i int) error {
		_, err := fill(ctx, m.running.addr, 1, firstIndex(i+1), more, true, farAway(time.Now()))
		return err
	}); err != nil {
		return err
	}
	if m.restarted, err = m.settled(ctx); err != nil {
		return err
	}
	var counts struct{ Pending int64 }
	err = getJSON(m.running.addr, sourcePath, &counts)
	m.pending = counts.Pending
	return err
}

func (m *memoryRun) start(ctx context.Context) (ready time.Duration, err error) {
	m.running, ready, err = m.b.adapters.start(ctx, m.config)
	return ready, err
}

func (m *memoryRun) stop() error {
	s := m.running
	m.running = nil
	return s.stop()
}

// kill kills a running adapter. One that still ran after an error would disturb the next scenario.
func (m *memoryRun) kill() error {
	s := m.running
	m.running = nil
	if s == nil {
		return nil
	}
	return s.kill()
}

// restartAll kills the adapter and starts it again, b.restarts times, and measures the starts.
func (m *memoryRun) restartAll(ctx context.Context, before func(i int) error) error {
	for i := range m.b.restarts {
		if err := before(i); err != nil {
			return err
		}
		if err := m.kill(); err != nil {
			return err
		}
		ready, err := m.start(ctx)
		if err != nil {
			return err
		}
		m.b.say("  ready after %s", report.Short(ready))
		m.ready = append(m.ready, ready)
	}
	return nil
}

// settled waits until memory and disk have changed by less than a fiftieth over
// six looks: the Go runtime returns memory to the system slowly.
func (m *memoryRun) settled(ctx context.Context) (state, error) {
	const looks = 6
	var seen []state
	for end := time.Now().Add(m.b.settle); ; {
		u, err := m.running.usage()
		if err != nil {
			return state{}, err
		}
		disk, err := diskBytes(m.config.Dir)
		if err != nil {
			return state{}, err
		}
		now := state{rss: u.rss, disk: disk}
		seen = append(seen, now)
		if len(seen) > looks {
			seen = seen[1:]
		}
		if len(seen) == looks && near(now.rss, seen[0].rss) && near(now.disk, seen[0].disk) || time.Now().After(end) {
			return now, nil
		}
		if err := sleep(ctx, m.b.settleEvery); err != nil {
			return state{}, err
		}
	}
}

func near(a, b int64) bool { return max(a, b)-min(a, b) <= max(a, b)/50 }

func (m *memoryRun) worst() time.Duration { return slices.Max(m.ready) }

func (m *memoryRun) median() time.Duration {
	var values []float64
	for _, d := range m.ready {
		values = append(values, float64(d))
	}
	return time.Duration(spreadOf(values).median)
}

func memoryRows(none, full *memoryRun) [][]string {
	starts := func(m *memoryRun) string { return report.Short(m.median()) + " (" + report.Short(m.worst()) + ")" }
	perSchedule := float64(full.loaded.disk-none.loaded.disk) / float64(max(full.b.pending, 1))
	return [][]string{
		{"RSS right after filling", "", megabytes(full.loading), ""},
		{"RSS, settled after filling", megabytes(none.loaded.rss), megabytes(full.loaded.rss), megabytes(full.loaded.rss - none.loaded.rss)},
		{"RSS, settled after restarts", megabytes(none.loaded.rss), megabytes(full.restarted.rss), megabytes(full.restarted.rss - none.loaded.rss)},
		{"disk, settled after filling", megabytes(none.loaded.disk), megabytes(full.loaded.disk), fmt.Sprintf("%.0f B a schedule", perSchedule)},
		{"start after kill -9 until /readyz is 200, median (worst)", starts(none), starts(full), report.Short(full.worst() - none.median())},
		{"filling", "", report.Thousands(full.rate) + " items/s", ""},
		{"delivery of one due at once, after the last start", "", report.Short(full.delivered), ""},
	}
}

func memoryBars(none, full *memoryRun, acknowledged int64) []report.Bar {
	pending := full.b.pending
	with := " with " + report.Thousands(float64(pending)) + " pending"
	rss := max(full.loaded.rss, full.restarted.rss) - none.loaded.rss
	disk := float64(full.loaded.disk) / float64(max(pending*(load.PayloadBytes+load.KeyBytes), 1))
	later := full.worst() - none.median()
	kept := fmt.Sprintf("%s of %s there", report.Thousands(float64(full.pending)), report.Thousands(float64(acknowledged)))
	return []report.Bar{
		report.Reached("memory under 100 MB more than for none"+with, megabytes(rss)+" more", true, rss < 100e6),
		report.Reached("disk under 1.5 times the bytes of the records"+with, fmt.Sprintf("%.2f times", disk), pending > 0, disk < 1.5),
		report.Reached("ready within 2 s of the same start with none, after kill -9"+with, report.Short(later)+" later", true, later < 2*time.Second),
		report.Reached("nothing acknowledged is lost"+with, kept, true, full.pending == acknowledged),
		report.Reached("deliveries go on after it"+with, "after "+report.Short(full.delivered), true, full.delivered < time.Second),
	}
}

// firstDelivery measures a schedule that is due at once, from the call to its arrival.
func firstDelivery(ctx context.Context, b *bench, s, sink *service) (time.Duration, error) {
	index := firstIndex(maxRounds - 1)
	if err := resetSink(sink.addr, index, 1); err != nil {
		return 0, err
	}
	op, shut := putOp(s.addr, 1, 0, 1, index, 0)
	defer shut()
	began := time.Now()
	if _, err := op(); err != nil {
		return 0, err
	}
	arrivals, err := awaitSink(ctx, sink.addr, 1, time.Millisecond, b.deliverLimit)
	return time.Unix(0, arrivals.FirstAt).Sub(began), err
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// idle: the cost of an adapter with nothing due.
func idle(ctx context.Context, b *bench, dir string, r *report.Result) error {
	return b.withAdapter(ctx, dir, noSink, func(s *service) error {
		if err := sleep(ctx, b.idle/6); err != nil { // the work after a start is not idleness
			return err
		}
		before, err := s.usage()
		if err != nil {
			return err
		}
		if err := sleep(ctx, b.idle); err != nil {
			return err
		}
		after, err := s.usage()
		if err != nil {
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
	})
}
