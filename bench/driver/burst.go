package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
	"golang.org/x/sync/errgroup"
)

// connections of the bare client, as many as the adapter's default maxInFlight.
const connections = 100

// burstRun has what the adapter's rounds leave for the bare client and the page.
type burstRun struct {
	b        *bench
	sink     *service
	sources  int
	header   map[string]string // of the adapter's events
	earliest time.Duration
	repeats  int64
}

// burst: many due at one instant.
func burst(ctx context.Context, b *bench, dir string, r *report.Result) error {
	sink, err := b.children.server("sink", nil)
	if err != nil {
		return err
	}
	defer sink.stop()
	run := &burstRun{b: b, sink: sink, sources: 1, header: exampleHeader()}
	standings, err := contest(ctx, b.rounds, []contestant{
		{name: adapterName, round: func(ctx context.Context, round int) (o outcome, err error) {
			err = b.withAdapter(ctx, dir, sink.addr, func(s *service) error {
				o, err = run.adapter(ctx, s, round)
				return err
			})
			return o, err
		}},
		{name: "bare net/http client", round: run.bare},
	}, b.say)
	if err != nil {
		return err
	}
	r.Parameters = []string{
		report.Thousands(float64(b.burst)) + " due at one instant", fmt.Sprintf("%d B of random text as data", load.PayloadBytes),
		fmt.Sprintf("%d connections (the adapter's default maxInFlight)", connections), fmt.Sprintf("%d rounds, interleaved", b.rounds),
	}
	r.Header, r.Rows = rateTable("deliveries/s", standings)
	r.Header[4], r.Header[5] = "", "CPU per delivery, sender / sink"
	r.Notes = []string{
		"From the first arrival at the sink to the last, counted by the sink, a net/http server in its own process that answers 202. " +
			"The bare client posts the headers that it saw the adapter send, with new keys and as much data, and forgets. " +
			fmt.Sprintf("Earliest arrival after the due time: %s; deliveries that came twice: %d.", report.Short(run.earliest), run.repeats),
	}
	r.Bars = []report.Bar{
		bar("at least 70 % of a bare net/http client", standings[0], standings[1], 0.7),
		report.Reached("nothing early", "earliest "+report.Short(run.earliest)+" after", standings[0].measured(), run.earliest >= 0),
	}
	r.Chart = rateChart("Due at one instant: deliveries a second", "/s", standings, map[string]float64{standings[1].name: 0.7})
	return nil
}

// adapter is a round of the adapter: all scheduled beforehand, due at one instant.
func (run *burstRun) adapter(ctx context.Context, s *service, round int) (outcome, error) {
	due := run.b.dueAfterFilling(run.b.burst)
	o, arrivals, err := run.receive(ctx, s.usage, round, func() error {
		_, err := fill(ctx, s.addr, run.sources, firstIndex(round), run.b.burst, false, func(uint32) load.When { return load.When{At: due} })
		if err == nil && time.Now().After(due) {
			err = errScheduledTooLate
		}
		return err
	})
	if err != nil {
		return o, err
	}
	if early := time.Unix(0, arrivals.FirstAt).Sub(due); round == 0 || early < run.earliest {
		run.earliest = early
	}
	run.repeats += arrivals.Repeats
	run.header = arrivals.Header
	return o, nil
}

// bare is a round of the bare client.
func (run *burstRun) bare(ctx context.Context, round int) (outcome, error) {
	// Keys of its own, so that a late delivery of the adapter is not counted here.
	round += maxRounds / 2
	config := postConfig{Addr: run.sink.addr, First: firstIndex(round), N: run.b.burst, Connections: connections, Header: run.header}
	var job jobTally
	noUsage := func() (usage, error) { return usage{}, nil }
	o, _, err := run.receive(ctx, noUsage, round, func() error { return run.b.children.job(ctx, "post", config, &job) })
	o.client = job.CPU / time.Duration(run.b.burst)
	return o, err
}

var errScheduledTooLate = errors.New("driver: scheduling took longer than the time until the first is due")

// dueAfterFilling returns an instant when n schedules are surely stored: 20,000
// a second is a fifth of the rate of a store.
func (b *bench) dueAfterFilling(n int) time.Time {
	return time.Now().Add(b.lead + time.Duration(n)*time.Second/20_000).Truncate(time.Millisecond)
}

// receive measures the arrivals at the sink of a round that begin starts.
func (run *burstRun) receive(ctx context.Context, sender func() (usage, error), round int, begin func() error) (outcome, arrivals, error) {
	n := run.b.burst
	var used [4]usage // of the sink and of the sender, before and after
	read := func(i int, of func() (usage, error)) (err error) {
		used[i], err = of()
		return err
	}
	var got arrivals
	for _, step := range []func() error{
		func() error { return resetSink(run.sink.addr, firstIndex(round), n) },
		func() error { return read(0, run.sink.usage) },
		begin,
		func() error { return read(1, sender) },
		func() (err error) {
			got, err = awaitSink(ctx, run.sink.addr, int64(n), 50*time.Millisecond, run.b.deliverLimit)
			return err
		},
		func() error { return read(2, run.sink.usage) },
		func() error { return read(3, sender) },
	} {
		if err := step(); err != nil {
			return outcome{}, got, err
		}
	}
	if got.LastAt <= got.FirstAt {
		return outcome{}, got, errors.New("driver: all events arrived at the sink at once: the burst is too small to measure")
	}
	return outcome{
		rate:   float64(got.Seen-1) / time.Duration(got.LastAt-got.FirstAt).Seconds(),
		client: (used[3].cpu - used[1].cpu) / time.Duration(n),
		server: (used[2].cpu - used[0].cpu) / time.Duration(n),
	}, got, nil
}

// exampleHeader returns the header of the contract's example, for a run without an adapter.
func exampleHeader() map[string]string {
	key := load.Key(0)
	return map[string]string{
		"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Id": "0f3c1b7e5d2a49688c7d1e2f3a4b5c6d", "Ce-Type": "dev.example.bench",
		"Ce-Source":  "/apis/sources.reschedule.dev/v1alpha1/namespaces/" + namespace + "/reschedulesources/" + source,
		"Ce-Subject": key, "Ce-Time": "2026-11-21T09:00:00.123Z", "Ce-Reschedulekey": key, "Ce-Reschedulerevision": "184467",
		"Ce-Rescheduledueat": "2026-11-21T09:00:00.123Z", "Ce-Rescheduleattempt": "0", "Kn-Namespace": namespace, "Prefer": "reply",
	}
}

// postConfig is the work of a bare client.
type postConfig struct {
	Addr           string
	First          uint32
	N, Connections int
	Header         map[string]string
}

// postJob posts events with net/http, as fast as it can.
func postJob(ctx context.Context, config []byte) (any, error) {
	var c postConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("driver: post: %w", err)
	}
	delete(c.Header, "Content-Length") // net/http sets it
	transport := &http.Transport{MaxIdleConns: c.Connections, MaxIdleConnsPerHost: c.Connections}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var next atomic.Int64
	senders, running := errgroup.WithContext(ctx)
	began := time.Now()
	for sender := range c.Connections {
		senders.Go(func() error {
			maker := load.NewMaker(uint64(c.First) + uint64(sender))
			var data []byte
			for i := next.Add(1) - 1; i < int64(c.N); i = next.Add(1) - 1 {
				data = maker.AppendData(data[:0])
				if err := c.post(running, client, load.Key(c.First+uint32(i)), data); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := senders.Wait(); err != nil {
		return nil, fmt.Errorf("driver: post: %w", err)
	}
	return jobTally{Tally: load.Tally{Items: int64(c.N), Calls: int64(c.N), Elapsed: time.Since(began)}, CPU: ownCPU()}, nil
}

func (c *postConfig) post(ctx context.Context, client *http.Client, key string, data []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.Addr+"/", bytes.NewReader(data))
	if err != nil {
		return err
	}
	for name, value := range c.Header {
		if value == c.Header["Ce-Reschedulekey"] {
			value = key
		}
		request.Header[name] = []string{value}
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	io.Copy(io.Discard, answer.Body)
	if answer.StatusCode != http.StatusAccepted {
		return fmt.Errorf("the sink answered %s", answer.Status)
	}
	return nil
}
