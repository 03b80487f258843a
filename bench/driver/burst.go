package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
)

// connections of a bare client, as many as the adapter's default maxInFlight.
const connections = 100

// burst: many due at one instant.
func burst(ctx context.Context, b *bench, dir string, r *report.Result) error {
	sink, err := b.children.server("sink", nil)
	if err != nil {
		return err
	}
	defer sink.stop()
	header := inventedHeader()
	var earliest time.Duration
	var repeats int64
	contestants := []contestant{
		{name: adapterName, round: func(ctx context.Context, round int) (o outcome, err error) {
			err = b.withAdapter(ctx, dir, sink.addr, func(s *service) error {
				due := b.dueAfterFilling(b.burst)
				o, err = b.received(ctx, s.usage, sink, round, func() error {
					_, err := fill(ctx, s.addr, firstIndex(round), b.burst, false, func(uint32) load.When { return load.When{At: due} })
					if err == nil && time.Now().After(due) {
						err = errors.New("driver: scheduling took longer than there was time for")
					}
					return err
				}, func(t sunk) {
					if early := time.Unix(0, t.FirstAt).Sub(due); round == 0 || early < earliest {
						earliest = early
					}
					repeats += t.Repeats
					header = t.Header
				})
				return err
			})
			return o, err
		}},
		{name: "bare net/http client", round: func(ctx context.Context, round int) (outcome, error) {
			// A round of its own, so that nothing of the adapter's that comes late is counted here.
			round += maxRounds / 2
			config := postConfig{Addr: sink.addr, First: firstIndex(round), N: b.burst, Connections: connections, Header: header}
			var found jobTally
			o, err := b.received(ctx, func() (usage, error) { return usage{cpu: found.CPU}, nil }, sink, round, func() error {
				return b.children.job(ctx, "post", config, &found)
			}, func(sunk) {})
			o.client = found.CPU / time.Duration(b.burst)
			return o, err
		}},
	}
	standings, err := contest(ctx, b.rounds, contestants, b.say)
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
			fmt.Sprintf("Earliest arrival after the due time: %s; deliveries that came twice: %d.", report.Short(earliest), repeats),
	}
	measured := standings[0].measured()
	r.Bars = []report.Bar{
		bar("at least 70 % of a bare net/http client", standings[0], standings[1], 0.7),
		report.Reached("nothing early", "earliest "+report.Short(earliest)+" after", measured, earliest >= 0),
	}
	r.Chart = rateChart("Due at one instant: deliveries a second", "/s", standings, map[string]float64{standings[1].name: 0.7})
	return nil
}

// dueAfterFilling is an instant when n schedules are surely there: 20,000 a second is
// a fifth of what a store can do.
func (b *bench) dueAfterFilling(n int) time.Time {
	return time.Now().Add(b.lead + time.Duration(n)*time.Second/20_000).Truncate(time.Millisecond)
}

// received measures what the sink sees of a round that begin sets off.
func (b *bench) received(ctx context.Context, sender func() (usage, error), sink *service, round int, begin func() error, look func(sunk)) (outcome, error) {
	if err := resetSink(sink.addr, firstIndex(round), b.burst); err != nil {
		return outcome{}, err
	}
	sinkBefore, err := sink.usage()
	if err != nil {
		return outcome{}, err
	}
	if err := begin(); err != nil {
		return outcome{}, err
	}
	before, err := sender()
	if err != nil {
		return outcome{}, err
	}
	if err := awaitSink(ctx, sink.addr, int64(b.burst), 50*time.Millisecond, b.deliverLimit); err != nil {
		return outcome{}, err
	}
	after, err := sender()
	if err != nil {
		return outcome{}, err
	}
	sinkAfter, err := sink.usage()
	if err != nil {
		return outcome{}, err
	}
	var t sunk
	if err := getJSON(sink.addr, "/?arrivals=1", &t); err != nil {
		return outcome{}, err
	}
	look(t)
	if t.LastAt <= t.FirstAt {
		return outcome{}, errors.New("driver: the sink saw no time pass")
	}
	return outcome{
		rate:   float64(t.Seen-1) / time.Duration(t.LastAt-t.FirstAt).Seconds(),
		client: (after.cpu - before.cpu) / time.Duration(b.burst),
		server: (sinkAfter.cpu - sinkBefore.cpu) / time.Duration(b.burst),
	}, nil
}

// inventedHeader is what the contract says the adapter sends, for when there is none to look at.
func inventedHeader() map[string]string {
	key := load.Key(0)
	return map[string]string{
		"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Id": "0f3c1b7e5d2a49688c7d1e2f3a4b5c6d", "Ce-Type": "dev.example.bench",
		"Ce-Source":  "/apis/sources.reschedule.dev/v1alpha1/namespaces/" + namespace + "/reschedulesources/" + source,
		"Ce-Subject": key, "Ce-Time": "2026-11-21T09:00:00.123Z", "Ce-Reschedulekey": key, "Ce-Reschedulerevision": "184467",
		"Ce-Rescheduledueat": "2026-11-21T09:00:00.123Z", "Ce-Rescheduleattempt": "0", "Kn-Namespace": namespace, "Prefer": "reply",
	}
}

// postConfig is a bare client's work.
type postConfig struct {
	Addr           string
	First          uint32
	N, Connections int
	Header         map[string]string
}

// postJob posts events with net/http, as fast as it goes.
func postJob(ctx context.Context, config []byte) (any, error) {
	var c postConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("driver: post: %w", err)
	}
	sampleKey := c.Header["Ce-Reschedulekey"]
	delete(c.Header, "Content-Length") // net/http's own
	transport := &http.Transport{MaxIdleConns: c.Connections, MaxIdleConnsPerHost: c.Connections}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var senders sync.WaitGroup
	began := time.Now()
	for sender := range c.Connections {
		senders.Go(func() {
			maker := load.NewMaker(uint64(c.First) + uint64(sender))
			var data []byte
			for ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= int64(c.N) {
					return
				}
				data = maker.AppendData(data[:0])
				request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.Addr+"/", bytes.NewReader(data))
				if err != nil {
					cancel(err)
					return
				}
				key := []string{load.Key(c.First + uint32(i))}
				for name, value := range c.Header {
					if value == sampleKey {
						request.Header[name] = key
					} else {
						request.Header[name] = []string{value}
					}
				}
				answer, err := client.Do(request)
				if err != nil {
					cancel(err)
					return
				}
				io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
				if answer.StatusCode != http.StatusAccepted {
					cancel(fmt.Errorf("the sink answered %s", answer.Status))
					return
				}
			}
		})
	}
	senders.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("driver: post: %w", err)
	}
	return jobTally{Tally: load.Tally{Items: int64(c.N), Calls: int64(c.N), Elapsed: time.Since(began)}, CPU: ownCPU()}, nil
}
