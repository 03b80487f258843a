package main

import (
	"context"
	"errors"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisLoop is a sorted set of due times, a hash of events, and a worker that leases what is due.
var redisLoop = &peer{
	name:     "Redis loop",
	settings: "`appendfsync always`, no snapshots; sorted sets for due and leased keys, moved by scripts; a lease of 30 s, a look each 50 ms",
	version:  func() (string, error) { return programVersion("Redis", "redis-server") },
	start: func(h *host) error {
		data, addr := filepath.Join(h.dir, "data"), h.addr("redis")
		host, port, _ := net.SplitHostPort(addr)
		if err := os.MkdirAll(data, 0o755); err != nil {
			return err
		}
		if err := h.run(exec.Command("redis-server", "--bind", host, "--port", port, "--dir", data, "--appendonly", "yes", "--appendfsync", "always", "--save", "")); err != nil {
			return err
		}
		c := redisConnect(addr)
		defer c.Close()
		err := ready("Redis", func() bool { return c.Ping(context.Background()).Err() == nil }) // fails while it reads its log
		return errors.Join(err, h.serve("redis-loop", addr, h.sink))
	},
	connect: func(h *host) (client, error) { return &redisClient{redisConnect(h.addr("redis"))}, nil },
}

func redisConnect(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, Protocol: 2, DisableIdentity: true, ReadTimeout: patience, WriteTimeout: patience})
}

type redisClient struct{ *redis.Client }

func (c *redisClient) schedule(ctx context.Context, key string, at time.Time, data string) error {
	_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.ZAdd(ctx, "due", redis.Z{Score: float64(at.UnixMilli()), Member: key})
		p.HSet(ctx, "events", key, data)
		return nil
	})
	return err
}

func (c *redisClient) cancel(ctx context.Context, key string) error {
	_, err := c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.ZRem(ctx, "due", key)
		p.HDel(ctx, "events", key)
		return nil
	})
	return err
}

func (c *redisClient) close() { c.Close() }

// A key that is leased is not taken a second time, and one that is scheduled again during its delivery keeps its new time.
var (
	redisTake = redis.NewScript(`local taken = {}
for _, key in ipairs(redis.call('ZRANGEBYSCORE', 'leased', '-inf', ARGV[1])) do
  redis.call('ZREM', 'leased', key)
  redis.call('ZADD', 'due', 'NX', ARGV[1], key)
end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', 'due', '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])) do
  if redis.call('ZADD', 'leased', 'NX', ARGV[1] + ARGV[2], key) == 1 then
    redis.call('ZREM', 'due', key)
    table.insert(taken, key)
    table.insert(taken, redis.call('HGET', 'events', key) or '')
  end
end
return taken`)
	redisEnd = redis.NewScript(`redis.call('ZREM', 'leased', KEYS[1])
if not redis.call('ZSCORE', 'due', KEYS[1]) then redis.call('HDEL', 'events', KEYS[1]) end`)
)

func redisWorker(args []string) error {
	addr, sink := args[0], args[1]
	ctx, c := context.Background(), redisConnect(addr)
	d, slots := newDeliverer(sink), make(chan struct{}, workers)
	for {
		taken, err := redisTake.Run(ctx, c, nil, time.Now().UnixMilli(), lease.Milliseconds(), workers-len(slots)).StringSlice()
		if err != nil {
			return err
		}
		for i := 0; i < len(taken); i += 2 {
			slots <- struct{}{}
			go func() {
				defer func() { <-slots }()
				if d.deliver(ctx, taken[i], []byte(taken[i+1])) != nil {
					return // the lease ends
				}
				if err := redisEnd.Run(ctx, c, []string{taken[i]}).Err(); err != nil && !errors.Is(err, redis.Nil) {
					log.Print(err)
				}
			}()
		}
		if len(taken) == 0 {
			time.Sleep(idlePoll)
		} else {
			slots <- struct{}{} // until one is free
			<-slots
		}
	}
}
