package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
)

// adapters starts adapters: the product's binary, in tests a fake.
type adapters interface {
	start(ctx context.Context, c adapterConfig) (*service, time.Duration, error)
}

// children starts the driver's own helpers.
type children interface {
	server(kind string, config any) (*service, error)
	job(ctx context.Context, kind string, config, found any) error
}

// bench is what scenarios share.
type bench struct {
	dir      string // on the disk that is measured; each scenario has a directory in it
	adapters adapters
	children children
	redis    redisServer
	postgres postgresServer
	say      func(format string, args ...any)

	rounds       int           // of contests
	warm, window time.Duration // of each measured load
	callers      int
	client       string // of put and bulk: raw or net/http
	batch        int    // items of a bulk call

	burst int // due at one instant

	pending      int // far away
	lateRate     int // due a second
	lateFor      time.Duration
	lateRounds   int
	live         bool          // schedule what comes due one by one
	ahead        time.Duration // how long before its time, then
	lead         time.Duration // between the end of scheduling and the first due time
	settle       time.Duration // at most, for memory
	settleEvery  time.Duration
	restarts     int
	idle         time.Duration
	deliverLimit time.Duration // for all that is due to come
}

// scenario is one row of the design's table, or a few that are measured together.
type scenario struct {
	name, title string
	run         func(ctx context.Context, b *bench, dir string, r *report.Result) error
}

var scenarios = []scenario{
	{"put", "Durable PUT: every caller waits for its answer, every answer for its fsync", put},
	{"bulk", "Bulk POST, durable as well", bulkPost},
	{"burst", "Due at one instant, delivered to an HTTP sink", burst},
	{"lateness", "Lateness: arrival at the sink after the due time", lateness},
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
	// PostgreSQL does not run as root and has to pass through.
	if err := os.Chmod(dir, 0o711); err != nil {
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

// dial is how the callers of put and bulk connect.
func (b *bench) dial() load.Clients {
	if b.client == netHTTPClient {
		return load.NetHTTP
	}
	return load.Raw
}

const rawClient, netHTTPClient = "raw", "net/http"

// withAdapter runs fn beside an adapter with the data in dir/adapter, which stays.
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
