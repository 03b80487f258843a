package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
)

// bench has what the scenarios share.
type bench struct {
	sizes
	dir      string // on the measured disk; each scenario has a directory in it
	start    starter
	redis    redisServer
	postgres postgresServer
	say      func(format string, args ...any)
}

// sizes are the numbers of the scenarios.
type sizes struct {
	rounds       int           // of put, bulk and burst
	warm, window time.Duration // of put, bulk and growth
	callers      int
	batch        int // items of a bulk call
	burst        int // due at one instant

	lateRate   int // due a second
	lateFor    time.Duration
	lateRounds int
	lead       time.Duration // between the end of scheduling and the first due time

	sources, pendings  []int // of growth
	churn, churnWindow time.Duration

	pending      int           // far away, in lateness and memory; the keys of churn
	settle       time.Duration // at most, for memory and disk
	settleEvery  time.Duration
	restarts     int
	idle         time.Duration
	deliverLimit time.Duration // until all deliveries of a round arrived
}

func full(pending int) sizes {
	return sizes{
		rounds: 5, warm: time.Second, window: 5 * time.Second, callers: 64, batch: 100, burst: 100_000,
		lateRate: 1000, lateFor: 30 * time.Second, lateRounds: 3, lead: 5 * time.Second,
		sources: []int{1, 100, 10_000}, pendings: []int{10_000, pending}, churn: 10 * time.Minute, churnWindow: 10 * time.Second,
		pending: pending, settle: 3 * time.Minute, settleEvery: 3 * time.Second, restarts: 5, idle: time.Minute, deliverLimit: 2 * time.Minute,
	}
}

// small has the sizes of a run that only shows that all of it works.
func small(pending int) sizes {
	s := full(pending)
	s.rounds, s.warm, s.window, s.burst = 1, 100*time.Millisecond, 300*time.Millisecond, 1000
	s.lateRate, s.lateFor, s.lateRounds, s.lead = 100, time.Second, 1, time.Second
	s.sources, s.pendings, s.churn, s.churnWindow = []int{1, 10}, []int{100, 1000}, time.Second, 200*time.Millisecond
	s.settle, s.restarts, s.idle = time.Second, 1, time.Second
	return s
}

// scenario is one row of the table of RESULTS.md. It has a directory and a sink of its own.
type scenario struct {
	name, title string
	run         func(ctx context.Context, b *bench, dir string, sink *service, r *report.Result) error
}

var scenarios = []scenario{
	{"put", "Durable PUT: every caller waits for its answer, every answer for its fsync", put},
	{"bulk", "Bulk POST, durable as well", bulkPost},
	{"burst", "Due at one instant, delivered to an HTTP sink", burst},
	{"lateness", "Lateness: arrival at the sink after the due time", lateness},
	{"growth", "The cost of one more, with more pending and more sources", growth},
	{"churn", "Churn: every key is rescheduled again and again", churn},
	{"memory", "Memory, disk and restart after kill -9, with far-away schedules", memory},
	{"idle", "Idle: one source, nothing due", idle},
}

// runAll measures and saves the scenarios that match. When one fails, the others are measured all the same.
func (b *bench) runAll(ctx context.Context, wanted *regexp.Regexp, save func(*report.Result) error) error {
	var failed error
	for _, s := range scenarios {
		if !wanted.MatchString(s.name) {
			continue
		}
		r, err := b.measure(ctx, s)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			b.say("%v", err)
			failed = errors.Join(failed, err)
			continue
		}
		for _, bar := range r.Bars {
			b.say("  %s: %s: %s", bar.Verdict, bar.Wants, bar.Got)
		}
		if err := save(r); err != nil {
			return err
		}
	}
	return failed
}

// measure runs one scenario in a directory of its own, which it removes.
func (b *bench) measure(ctx context.Context, s scenario) (*report.Result, error) {
	dir, err := scratch(b.dir, s.name)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	c, err := conditions(dir)
	if err != nil {
		return nil, fmt.Errorf("driver: %w", err)
	}
	b.say("%s: %s (%s)", s.name, s.title, c)
	if c.FsyncP50 < 20*time.Microsecond {
		b.say("  an fsync of %s is too fast to reach a disk: the figures do not hold for a durable disk", c.FsyncP50)
	}
	sink, err := server(ctx, "sink", serverConfig{})
	if err != nil {
		return nil, err
	}
	defer sink.stop()
	r := &report.Result{Name: s.name, Title: s.title, TakenAt: time.Now(), Conditions: c}
	if err := s.run(ctx, b, dir, sink, r); err != nil {
		return nil, fmt.Errorf("driver: %s: %w", s.name, err)
	}
	r.Took = time.Since(r.TakenAt).Round(time.Second).String()
	return r, nil
}

// Parameters that several scenarios list.
var (
	textData = fmt.Sprintf("%d B of random text as data", load.PayloadBytes)
	keySize  = fmt.Sprintf("keys of %d B", load.KeyBytes)
)

func count(n int, what string) string { return report.Thousands(n) + " " + what }

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
