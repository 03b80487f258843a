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

// writeDelay is how far ahead writes are due: nothing is delivered meanwhile.
const writeDelay = time.Hour

// noSink is the sink of scenarios without deliveries.
const noSink = "127.0.0.1:9"

// opener opens a caller against an address for a round.
type opener func(addr string, caller int, first uint32) (load.Op, func())

// put: single durable writes.
func put(ctx context.Context, b *bench, dir string, r *report.Result) error {
	open := func(addr string, caller int, first uint32) (load.Op, func()) {
		return putOp(addr, 1, caller, b.callers, first, writeDelay)
	}
	standings, err := b.writes(ctx, dir, 1, open)
	if err != nil {
		return err
	}
	r.Parameters = b.writeParameters()
	r.Header, r.Rows = rateTable("PUT/s", standings)
	r.Notes = writeNotes
	r.Bars = []report.Bar{
		bar("at least 60 % of bare net/http", standings[0], standings[1], 0.6),
		bar("above PostgreSQL", standings[0], standings[4], 1),
	}
	r.Chart = rateChart("Durable PUT: calls a second", "/s", standings, map[string]float64{bareName: 0.6, postgresName: 1})
	return nil
}

// bulkPost: many writes a call.
func bulkPost(ctx context.Context, b *bench, dir string, r *report.Result) error {
	open := func(addr string, caller int, first uint32) (load.Op, func()) {
		return bulkOp(addr, 1, caller, b.callers, b.batch, first, writeDelay)
	}
	standings, err := b.writes(ctx, dir, b.batch, open)
	if err != nil {
		return err
	}
	r.Parameters = append([]string{fmt.Sprintf("%d items a call", b.batch)}, b.writeParameters()...)
	r.Header, r.Rows = rateTable("items/s", standings)
	r.Notes = writeNotes
	r.Bars = []report.Bar{
		bar("above Redis with its own batching", standings[0], standings[3], 1),
		bar("at least a fifth of bare Pebble", standings[0], standings[2], 0.2),
	}
	r.Chart = rateChart("Bulk POST: items a second", "/s", standings, map[string]float64{redisName: 1, pebbleName: 0.2})
	return nil
}

func (b *bench) writeParameters() []string {
	return []string{
		fmt.Sprintf("%d callers", b.callers), fmt.Sprintf("%d B of random text as data", load.PayloadBytes), fmt.Sprintf("keys of %d B, each new", load.KeyBytes),
		fmt.Sprintf("delay %s", writeDelay), "a fasthttp client", fmt.Sprintf("%d rounds of %s after %s of warming up, interleaved", b.rounds, b.window, b.warm),
	}
}

const (
	adapterName, bareName               = "adapter", "bare net/http"
	pebbleName, redisName, postgresName = "bare Pebble", "Redis", "PostgreSQL"
)

var writeNotes = []string{
	"The bare server reads the body and gives an answer of the same bytes as the adapter's, from a process of its own, to the same client. " +
		"Bare Pebble writes the same keys, data and one due-time row each, in its own process without HTTP, and waits for the fsync. " +
		"Redis (`appendfsync always`) gets ZADD and HSET in one round trip, PostgreSQL (`synchronous_commit on`) a prepared `INSERT … ON CONFLICT` with an index on the due time; " +
		"for a batch one ZADD and one HSET of all its items, and one INSERT of as many rows.",
}

// writes measures the adapter and the other contestants, in this order.
func (b *bench) writes(ctx context.Context, dir string, batch int, open opener) ([]standing, error) {
	answer := b.answerOf(ctx, dir, batch)
	contestants := []contestant{
		{name: adapterName, round: func(ctx context.Context, round int) (o outcome, err error) {
			err = b.withAdapter(ctx, dir, noSink, func(s *service) error {
				o, err = b.drive(ctx, s, round, open)
				return err
			})
			return o, err
		}},
		{name: bareName, round: func(ctx context.Context, round int) (outcome, error) {
			s, err := b.children.server("bare", answer)
			if err != nil {
				return outcome{}, err
			}
			defer s.stop()
			return b.drive(ctx, s, round, open)
		}},
		{name: pebbleName, round: func(ctx context.Context, round int) (outcome, error) {
			config := pebbleConfig{
				Dir: filepath.Join(dir, "pebble"), Callers: b.callers, Batch: batch, Warm: b.warm, For: b.window,
				First: firstIndex(round),
			}
			var found jobTally
			if err := b.children.job(ctx, "pebble", config, &found); err != nil {
				return outcome{}, err
			}
			return found.outcome(), nil
		}},
		b.redis.contestant(b, filepath.Join(dir, "redis"), batch),
		b.postgres.contestant(b, filepath.Join(dir, "postgres"), batch),
	}
	return contest(ctx, b.rounds, contestants, b.say)
}

// drive loads a service and measures its CPU time and the client's.
func (b *bench) drive(ctx context.Context, s *service, round int, open opener) (outcome, error) {
	return b.driveWith(ctx, s.usage, func(caller int) (load.Op, func(), error) {
		op, shut := open(s.addr, caller, firstIndex(round))
		return op, shut, nil
	})
}

func (b *bench) driveWith(ctx context.Context, used func() (usage, error), open func(caller int) (load.Op, func(), error)) (outcome, error) {
	var client, server []time.Duration
	tally, err := load.Load{Callers: b.callers, Warm: b.warm, For: b.window}.Run(ctx, open, func() {
		client = append(client, ownCPU())
		if u, err := used(); err == nil {
			server = append(server, u.cpu)
		}
	})
	if err != nil {
		return outcome{}, err
	}
	if tally.Items == 0 {
		return outcome{}, fmt.Errorf("driver: no call ended within %s", b.window)
	}
	o := outcome{rate: tally.Rate(), p50: tally.P50, p99: tally.P99, longest: tally.Longest}
	if len(client) == 2 {
		o.client = (client[1] - client[0]) / time.Duration(tally.Items)
	}
	if len(server) == 2 {
		o.server = (server[1] - server[0]) / time.Duration(tally.Items)
	}
	return o, nil
}

// answerOf calls an adapter once and returns the configuration of a bare server
// with the same answer. Without an adapter the answer is as long as the contract's example.
func (b *bench) answerOf(ctx context.Context, dir string, batch int) bareConfig {
	maker := load.NewMaker(1)
	c := bareConfig{Status: http.StatusCreated, Header: map[string]string{"Content-Type": "application/json", "ETag": `"1844674"`}}
	if batch > 1 {
		c = bareConfig{Status: http.StatusOK, Header: map[string]string{"Content-Type": "application/json"}}
	}
	when := load.When{Delay: writeDelay}
	err := b.withAdapter(ctx, filepath.Join(dir, "answer"), noSink, func(s *service) error {
		client := load.NewClient(s.addr)
		defer client.Close()
		if batch > 1 {
			answer, err := bulk(client, schedulesPath(0, 1), maker.AppendBulk(nil, firstIndex(maxRounds), batch, func(uint32) load.When { return when }), batch)
			c.Answer = string(answer)
			return err
		}
		status, answer, err := client.Call(http.MethodPut, putPath(firstIndex(maxRounds), 1), maker.AppendPut(nil, when))
		if err == nil && status != http.StatusCreated {
			err = fmt.Errorf("PUT answered %d: %.300s", status, answer)
		}
		c.Answer = string(answer)
		return err
	})
	if err == nil {
		return c
	}
	b.say("  no answer of an adapter to copy (%v): the bare server makes one up", err)
	c.Answer = inventedItem(maker)
	if batch > 1 {
		items := c.Answer
		for range batch - 1 {
			items += "," + c.Answer
		}
		c.Answer = `{"items":[` + items + `]}`
	}
	return c
}

func inventedItem(maker *load.Maker) string {
	return `{"key":"` + load.Key(0) + `","status":201,"revision":184467,"result":"created","state":"waiting","dueAt":"2026-11-21T09:00:00.123456789Z",` +
		`"scheduledAt":"2026-11-21T08:00:00.123456789Z","attempt":0,"inFlight":false,"event":` + string(maker.AppendEvent(nil)) + `}`
}
