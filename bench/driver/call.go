package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"golang.org/x/sync/errgroup"
)

// roundIndexes is how many keys a round may use; two rounds never share one.
const roundIndexes = 20_000_000

// maxRounds keeps every index within 32 bits.
const maxRounds = 200

func firstIndex(round int) uint32 { return uint32(round) * roundIndexes }

// putOp returns an Op that PUTs a new key with every call, to one source after the other.
func putOp(addr string, sources, caller, callers int, first uint32, delay time.Duration) (load.Op, func()) {
	client := load.NewClient(addr)
	maker := load.NewMaker(uint64(first) + uint64(caller))
	index := first + uint32(caller)
	var body []byte
	return func() (int, error) {
		body = maker.AppendPut(body[:0], load.When{Delay: delay})
		status, _, err := client.Call(http.MethodPut, putPath(index, sources), body)
		index += uint32(callers)
		if err == nil && status != http.StatusCreated {
			err = fmt.Errorf("driver: PUT answered %d", status)
		}
		return 1, err
	}, client.Close
}

// putPath returns the path of a key. An escaped slash is part of the key.
func putPath(index uint32, sources int) string {
	return schedulesPath(index, sources) + "/" + strings.ReplaceAll(load.Key(index), "/", "%2F")
}

// bulkOp returns an Op that POSTs n new keys with every call, to one source after the other.
func bulkOp(addr string, sources, caller, callers, n int, first uint32, delay time.Duration) (load.Op, func()) {
	client := load.NewClient(addr)
	maker := load.NewMaker(uint64(first) + uint64(caller))
	index := first + uint32(caller*n)
	var body []byte
	return func() (int, error) {
		body = maker.AppendBulk(body[:0], index, n, func(uint32) load.When { return load.When{Delay: delay} })
		path := schedulesPath(index/uint32(n), sources)
		index += uint32(callers * n)
		_, err := bulk(client, path, body, n)
		return n, err
	}, client.Close
}

// bulk makes one bulk call to a path and checks that every item was created. It returns the answer.
func bulk(client *load.Client, path string, body []byte, n int) ([]byte, error) {
	status, text, err := client.Call(http.MethodPost, path, body)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("driver: bulk POST answered %d: %.300s", status, text)
	}
	// Counting is much cheaper than decoding, and keys and random letters cannot contain this text.
	if bytes.Count(text, []byte(`"status":201`)) == n {
		return text, nil
	}
	var answer struct {
		Items []struct {
			Key, Code, Detail string
			Status            int
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("driver: bulk POST: %w", err)
	}
	if len(answer.Items) != n {
		return nil, fmt.Errorf("driver: bulk POST of %d items answered %d", n, len(answer.Items))
	}
	for _, item := range answer.Items {
		if item.Status != http.StatusCreated {
			return nil, fmt.Errorf("driver: bulk POST: item %s: status %d, %s: %s", item.Key, item.Status, item.Code, item.Detail)
		}
	}
	return text, nil
}

// fill schedules n keys from the index first on as fast as the adapter takes
// them: bulk calls of up to a thousand over several connections, to one source after the
// other. It returns items a second.
func fill(ctx context.Context, addr string, sources int, first uint32, n int, binary bool, when func(index uint32) load.When) (float64, error) {
	const connections = 8
	each := min(max(n/sources, 1), 1000)
	var next atomic.Int64
	began := time.Now()
	callers, running := errgroup.WithContext(ctx)
	for caller := range connections {
		callers.Go(func() error {
			client := load.NewClient(addr)
			defer client.Close()
			maker := load.NewMaker(uint64(first)<<8 + uint64(caller))
			maker.Binary = binary
			var body []byte
			for running.Err() == nil {
				at := int(next.Add(int64(each))) - each
				if at >= n {
					return nil
				}
				count := min(each, n-at)
				body = maker.AppendBulk(body[:0], first+uint32(at), count, when)
				if _, err := bulk(client, schedulesPath(uint32(at/each), sources), body, count); err != nil {
					return err
				}
			}
			return context.Cause(running)
		})
	}
	err := callers.Wait()
	return float64(n) / time.Since(began).Seconds(), err
}

// farAway spreads keys over the year after next month.
func farAway(now time.Time) func(uint32) load.When {
	return func(index uint32) load.When {
		spread := time.Duration(index*2654435761) * (365 * 24 * time.Hour / (1 << 32))
		return load.When{At: now.Add(30*24*time.Hour + spread).Truncate(time.Millisecond)}
	}
}
