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
)

// roundIndexes is how many keys a round may use; two rounds never share one.
const roundIndexes = 20_000_000

// maxRounds keeps every index within 32 bits.
const maxRounds = 200

func firstIndex(round int) uint32 { return uint32(round) * roundIndexes }

// putOp returns an Op that PUTs a new key with every call.
func putOp(dial load.Clients, addr string, caller, callers int, first uint32, delay time.Duration) (load.Op, func(), error) {
	conn, err := dial(addr)
	if err != nil {
		return nil, nil, err
	}
	maker := load.NewMaker(uint64(first) + uint64(caller))
	index := first + uint32(caller)
	var body []byte
	return func() (int, error) {
		body = maker.AppendPut(body[:0], load.When{Delay: delay})
		status, _, err := conn.Call(http.MethodPut, putPath(index), body)
		index += uint32(callers)
		if err == nil && status != http.StatusCreated {
			err = fmt.Errorf("driver: PUT answered %d", status)
		}
		return 1, err
	}, conn.Close, nil
}

// putPath is the path of a key; its slashes are part of the one segment.
func putPath(index uint32) string {
	return schedulesPath + "/" + strings.ReplaceAll(load.Key(index), "/", "%2F")
}

// bulkOp returns an Op that POSTs n new keys with every call.
func bulkOp(dial load.Clients, addr string, caller, callers, n int, first uint32, delay time.Duration) (load.Op, func(), error) {
	conn, err := dial(addr)
	if err != nil {
		return nil, nil, err
	}
	maker := load.NewMaker(uint64(first) + uint64(caller))
	index := first + uint32(caller*n)
	var body []byte
	return func() (int, error) {
		body = maker.AppendBulk(body[:0], index, n, func(uint32) load.When { return load.When{Delay: delay} })
		index += uint32(callers * n)
		return n, bulk(conn, body, n)
	}, conn.Close, nil
}

// bulk makes one bulk call and checks that every item was created.
func bulk(conn load.Client, body []byte, n int) error {
	status, text, err := conn.Call(http.MethodPost, schedulesPath, body)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("driver: bulk POST answered %d: %.300s", status, text)
	}
	// Counting is much cheaper than decoding, and the answer holds no text of others but keys and random letters.
	if bytes.Count(text, []byte(`"status":201`)) == n {
		return nil
	}
	var answer struct {
		Items []struct {
			Key, Code, Detail string
			Status            int
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("driver: bulk POST: %w", err)
	}
	if len(answer.Items) != n {
		return fmt.Errorf("driver: bulk POST of %d items answered %d", n, len(answer.Items))
	}
	for _, item := range answer.Items {
		if item.Status != http.StatusCreated {
			return fmt.Errorf("driver: bulk POST: item %s: status %d, %s: %s", item.Key, item.Status, item.Code, item.Detail)
		}
	}
	return nil
}

// together runs call on several connections at once. The first that fails ends
// the others by their context.
func together(ctx context.Context, addr string, callers int, first uint32, call func(ctx context.Context, caller int, conn load.Client, maker *load.Maker) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	errs := make(chan error, callers)
	for caller := range callers {
		go func() {
			errs <- func() error {
				conn, err := load.Raw(addr)
				if err != nil {
					return err
				}
				defer conn.Close()
				return call(ctx, caller, conn, load.NewMaker(uint64(first)<<8+uint64(caller)))
			}()
		}()
	}
	var failed error
	for range callers {
		if err := <-errs; err != nil && failed == nil {
			failed = err
			end(err)
		}
	}
	return failed
}

// fill schedules n keys from the index on as fast as the adapter takes them:
// bulk calls of a thousand over several connections. It returns items a second.
func fill(ctx context.Context, addr string, first uint32, n int, binary bool, when func(index uint32) load.When) (float64, error) {
	const each, callers = 1000, 8
	var next atomic.Int64
	began := time.Now()
	err := together(ctx, addr, callers, first, func(ctx context.Context, _ int, conn load.Client, maker *load.Maker) error {
		maker.Binary = binary
		var body []byte
		for ctx.Err() == nil {
			at := int(next.Add(each)) - each
			if at >= n {
				return nil
			}
			count := min(each, n-at)
			body = maker.AppendBulk(body[:0], first+uint32(at), count, when)
			if err := bulk(conn, body, count); err != nil {
				return err
			}
		}
		return context.Cause(ctx)
	})
	return float64(n) / time.Since(began).Seconds(), err
}

// farAway spreads keys over the year after next month.
func farAway(now time.Time) func(uint32) load.When {
	return func(index uint32) load.When {
		spread := time.Duration(index*2654435761) * (365 * 24 * time.Hour / (1 << 32))
		return load.When{At: now.Add(30*24*time.Hour + spread).Truncate(time.Millisecond)}
	}
}
