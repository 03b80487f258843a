package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
)

// writeDelay is how far ahead writes are due: nothing is delivered meanwhile.
const writeDelay = time.Hour

const (
	adapterName, bareName               = "adapter", "bare net/http"
	pebbleName, redisName, postgresName = "bare Pebble", "Redis", "PostgreSQL"
)

// put: single durable writes.
func put(ctx context.Context, b *bench, dir string, _ *service, r *report.Result) error {
	return b.writes(ctx, dir, r, writeContest{batch: 1, unit: "PUT/s", chart: "Durable PUT: calls a second", targets: []target{
		{"at least 60 % of bare net/http", bareName, 0.6}, {"above PostgreSQL", postgresName, 1},
	}})
}

// bulkPost: many writes a call.
func bulkPost(ctx context.Context, b *bench, dir string, _ *service, r *report.Result) error {
	r.Parameters = []string{fmt.Sprintf("%d items a call", b.batch)}
	return b.writes(ctx, dir, r, writeContest{batch: b.batch, unit: "items/s", chart: "Bulk POST: items a second", targets: []target{
		{"above Redis with its own batching", redisName, 1}, {"at least a fifth of bare Pebble", pebbleName, 0.2},
	}})
}

func (b *bench) writeParameters() []string {
	return []string{
		fmt.Sprintf("%d callers", b.callers), textData, keySize + ", each new", fmt.Sprintf("delay %s", writeDelay), "a fasthttp client",
		fmt.Sprintf("%d rounds of %s after %s of warming up, interleaved", b.rounds, b.window, b.warm),
	}
}

const writeNote = "The bare server reads the body and gives an answer of the same bytes as the adapter's, from a process of its own, to the same client. " +
	"Bare Pebble writes the same keys, data and one due-time row each, in its own process without HTTP, and waits for the fsync. " +
	"Redis (`appendfsync always`) gets ZADD and HSET in one round trip, PostgreSQL (`synchronous_commit on`) a prepared `INSERT … ON CONFLICT` with an index on the due time; " +
	"for a batch one ZADD and one HSET of all its items, and one INSERT of as many rows."

// writeContest is what differs between the comparisons of writes.
type writeContest struct {
	batch       int // items of a call
	unit, chart string
	targets     []target
}

// writes compares the adapter with the other contestants.
func (b *bench) writes(ctx context.Context, dir string, r *report.Result, w writeContest) error {
	answer := b.answerOf(ctx, dir, w.batch)
	// served is a contestant that is a server.
	served := func(name, absent string, start func(context.Context) (*service, error), op func(ctx context.Context, addr string, batch int) batchOp) *contestant {
		return &contestant{name: name, absent: absent, round: func(ctx context.Context, round int) (outcome, error) {
			s, err := start(ctx)
			if err != nil {
				return outcome{}, err
			}
			o, err := b.drive(ctx, s, round, op(ctx, s.addr, w.batch))
			return o, errors.Join(err, s.stop())
		}}
	}
	overHTTP := func(_ context.Context, addr string, batch int) batchOp { return httpOp(addr, 1, batch) }
	in := func(name string, start func(context.Context, string) (*service, error)) func(context.Context) (*service, error) {
		return func(ctx context.Context) (*service, error) { return start(ctx, filepath.Join(dir, name)) }
	}
	all := []*contestant{
		served(adapterName, "", func(ctx context.Context) (*service, error) { return b.start(ctx, b.adapter(dir, noSink, 1).config) }, overHTTP),
		served(bareName, "", func(ctx context.Context) (*service, error) { return server(ctx, "bare", answer) }, overHTTP),
		{name: pebbleName, round: func(ctx context.Context, round int) (outcome, error) {
			config := pebbleConfig{Dir: filepath.Join(dir, "pebble"), Batch: w.batch, First: firstIndex(round), Load: b.load()}
			var found jobTally
			if err := job(ctx, "pebble", config, &found); err != nil {
				return outcome{}, err
			}
			return outcomeOf(found.Tally, 0, found.CPU)
		}},
		served(redisName, b.redis.absent, in("redis", b.redis.start), redisOp),
		served(postgresName, b.postgres.absent, in("postgres", b.postgres.start), postgresOp),
	}
	if err := b.contest(ctx, b.rounds, all...); err != nil {
		return err
	}
	r.Parameters = append(r.Parameters, b.writeParameters()...)
	r.Notes = []string{writeNote}
	rateResult(r, w.chart, w.unit, "CPU per item, client / server", w.targets, all)
	return nil
}

// caller is one of many that each write their own keys, from an index on.
type caller struct {
	index  uint32 // of the next key
	stride uint32 // to the keys of its next call
	maker  *load.Maker
}

// next returns the index of the first key of the caller's next call.
func (c *caller) next() uint32 {
	c.index += c.stride
	return c.index - c.stride
}

// opener opens a connection for a caller.
type opener func(c *caller) (load.Op, func(), error)

// callersOf opens the callers of a round, each with keys of its own.
func callersOf(callers, batch int, first uint32, open opener) func(int) (load.Op, func(), error) {
	return func(i int) (load.Op, func(), error) {
		return open(&caller{index: first + uint32(i*batch), stride: uint32(callers * batch), maker: load.NewMaker(uint64(first) + uint64(i))})
	}
}

func (b *bench) load() load.Load { return load.Load{Callers: b.callers, Warm: b.warm, For: b.window} }

// drive loads a service and measures its CPU time and the client's.
func (b *bench) drive(ctx context.Context, s *service, round int, op batchOp) (outcome, error) {
	return measured(ctx, b.load(), s, callersOf(b.callers, op.batch, firstIndex(round), op.open))
}

// batchOp is a call with a batch of keys.
type batchOp struct {
	batch int
	open  opener
}

// measured runs a load on a service and measures the CPU time of both sides within the window.
func measured(ctx context.Context, l load.Load, s *service, open func(int) (load.Op, func(), error)) (outcome, error) {
	var client, server time.Duration
	var failed error
	tally, err := l.Run(ctx, open, func() { // when the window opens, and when it closes
		u, err := s.usage()
		client, server, failed = ownCPU()-client, u.cpu-server, err
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return outcome{}, err
	}
	return outcomeOf(tally, client, server)
}

// httpOp writes with one PUT a key, or with bulk POSTs, to one source after the other.
func httpOp(addr string, sources, batch int) batchOp {
	when := load.In(writeDelay)
	return batchOp{batch, func(c *caller) (load.Op, func(), error) {
		client := load.NewClient(addr)
		var body []byte
		return func() (int, error) {
			index := c.next()
			if batch == 1 {
				body = c.maker.AppendPut(body[:0], when)
				_, err := put1(client, putPath(index, sources), body, http.StatusCreated)
				return 1, err
			}
			body = c.maker.AppendBulk(body[:0], index, batch, func(uint32) load.When { return when })
			_, err := bulk(client, schedulesPath(index/uint32(batch), sources), body, batch)
			return batch, err
		}, client.Close, nil
	}}
}

// answerOf calls an adapter once and returns the configuration of a bare server
// with the same answer. Without an adapter the answer is as long as the contract's example.
func (b *bench) answerOf(ctx context.Context, dir string, batch int) serverConfig {
	maker := load.NewMaker(1)
	c := serverConfig{Status: http.StatusCreated, Header: map[string]string{"Content-Type": "application/json", "ETag": `"1844674"`}}
	if batch > 1 {
		c = serverConfig{Status: http.StatusOK, Header: map[string]string{"Content-Type": "application/json"}}
	}
	a := b.adapter(filepath.Join(dir, "answer"), noSink, 1)
	a.start(ctx)
	c.Answer = string(get(a, func(s *service) ([]byte, error) {
		client := load.NewClient(s.addr)
		defer client.Close()
		first, when := firstIndex(maxRounds), load.In(writeDelay)
		if batch > 1 {
			return bulk(client, schedulesPath(0, 1), maker.AppendBulk(nil, first, batch, func(uint32) load.When { return when }), batch)
		}
		return put1(client, putPath(first, 1), maker.AppendPut(nil, when), c.Status)
	}))
	if err := a.stop(); err != nil {
		b.say("  no answer of an adapter to copy (%v): the bare server makes one up", err)
		c.Answer = `{"key":"` + load.Key(0) + `","status":201,"revision":184467,"result":"created","state":"waiting","dueAt":"2026-11-21T09:00:00.123456789Z",` +
			`"scheduledAt":"2026-11-21T08:00:00.123456789Z","attempt":0,"inFlight":false,"event":` + string(maker.AppendEvent(nil)) + `}`
		if batch > 1 {
			c.Answer = `{"items":[` + strings.Repeat(c.Answer+",", batch-1) + c.Answer + `]}`
		}
	}
	return c
}
