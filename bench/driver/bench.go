package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/reschedule-dev/reschedule/bench/report"
)

// adapters starts adapters: the product's binary, in tests a fake.
type adapters interface {
	start(ctx context.Context, c adapterConfig) (*service, time.Duration, error)
}

// children starts the driver's own child processes, in tests within the test's process.
type children interface {
	server(kind string, config any) (*service, error)
	job(ctx context.Context, kind string, config, found any) error
}

// bench has what the scenarios share.
type bench struct {
	dir      string // on the measured disk; each scenario has a directory in it
	adapters adapters
	children children
	redis    redisServer
	postgres postgresServer
	say      func(format string, args ...any)

	// put and bulk, and the rounds of burst
	rounds       int
	warm, window time.Duration
	callers      int
	batch        int // items of a bulk call

	burst int // due at one instant

	// lateness
	lateRate   int // due a second
	lateFor    time.Duration
	lateRounds int
	lead       time.Duration // between the end of scheduling and the first due time

	// growth
	sources []int // how many
	sizes   []int // how many are pending, growing

	churn, churnWindow time.Duration

	pending      int           // far away, in lateness and memory; the keys of churn
	settle       time.Duration // at most, for memory and disk
	settleEvery  time.Duration
	restarts     int
	idle         time.Duration
	deliverLimit time.Duration // until all deliveries of a round arrived
}

func newBench(s settings) *bench {
	b := &bench{
		children: childProcesses{}, redis: findRedis(), postgres: findPostgres(), say: log.Printf,
		sources: []int{1, 100, 10_000}, sizes: []int{10_000, s.pending}, churn: 10 * time.Minute, churnWindow: 10 * time.Second,
		rounds: s.rounds, warm: time.Second, window: 5 * time.Second, callers: 64, batch: 100, burst: 100_000,
		lateRate: 1000, lateFor: 30 * time.Second, lateRounds: 3, lead: 5 * time.Second,
		pending: s.pending, settle: 3 * time.Minute, settleEvery: 3 * time.Second, restarts: 5, idle: time.Minute, deliverLimit: 2 * time.Minute,
	}
	if s.smoke {
		b.rounds, b.warm, b.window, b.burst = 1, 100*time.Millisecond, 300*time.Millisecond, 1000
		b.lateRate, b.lateFor, b.lateRounds, b.lead = 100, time.Second, 1, time.Second
		b.sources, b.sizes, b.churn, b.churnWindow = []int{1, 10}, []int{100, 1000}, time.Second, 200*time.Millisecond
		b.pending, b.settle, b.restarts, b.idle = min(s.pending, 1000), time.Second, 1, time.Second
	}
	return b
}

// scenario is one row of the table of RESULTS.md.
type scenario struct {
	name, title string
	run         func(ctx context.Context, b *bench, dir string, r *report.Result) error
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

// measure runs one scenario in a directory of its own, which it removes.
func (b *bench) measure(ctx context.Context, s scenario, c report.Conditions) (*report.Result, error) {
	dir, err := os.MkdirTemp(b.dir, s.name)
	if err != nil {
		return nil, fmt.Errorf("driver: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil { // PostgreSQL does not run as root
		return nil, fmt.Errorf("driver: %w", err)
	}
	began := time.Now()
	r := &report.Result{Name: s.name, Title: s.title, TakenAt: began, Conditions: c}
	if err := s.run(ctx, b, dir, r); err != nil {
		return nil, fmt.Errorf("driver: %s: %w", s.name, err)
	}
	r.Took = time.Since(began).Round(time.Second).String()
	return r, nil
}

// withAdapter runs fn beside an adapter with the data in dir/adapter. The data stay.
func (b *bench) withAdapter(ctx context.Context, dir, sink string, fn func(*service) error) error {
	s, _, err := b.adapters.start(ctx, adapterConfig{Dir: filepath.Join(dir, "adapter"), Sink: sink})
	if err != nil {
		return err
	}
	err = fn(s)
	if stopErr := s.stop(); err == nil {
		err = stopErr
	}
	return err
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
