package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/reschedule-dev/reschedule/bench/load"
)

// redisServer starts private Redis servers.
type redisServer struct {
	file   string
	absent string
}

func findRedis() redisServer {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if found, err := exec.LookPath(name); err == nil {
			return redisServer{file: found}
		}
	}
	return redisServer{absent: "not present: no redis-server is installed"}
}

func (r redisServer) start(ctx context.Context, dir string) (*service, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("driver: %w", err)
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(addr)
	// No snapshots and no rewriting of the log: neither is needed for durability, both cost.
	p, err := startProcess(exec.Command(r.file, "--bind", host, "--port", port, "--dir", dir, "--daemonize", "no", "--loglevel", "warning",
		"--appendonly", "yes", "--appendfsync", "always", "--save", "", "--auto-aof-rewrite-percentage", "0"))
	if err != nil {
		return nil, err
	}
	p.discardStdout()
	client := newRedisClient(addr)
	defer client.Close()
	// PING fails while Redis reads its log.
	if err := p.waitFor(ctx, "PONG", 20*time.Millisecond, func() bool { return client.Ping(ctx).Err() == nil }); err != nil {
		return nil, err
	}
	return p.service(addr, ""), nil
}

func (r redisServer) contestant(b *bench, dir string, batch int) contestant {
	return contestant{name: redisName, absent: r.absent, round: func(ctx context.Context, round int) (outcome, error) {
		s, err := r.start(ctx, dir)
		if err != nil {
			return outcome{}, err
		}
		defer s.stop()
		return b.driveWith(ctx, s.usage, func(caller int) (load.Op, func(), error) {
			return redisOp(ctx, s.addr, caller, b.callers, batch, firstIndex(round))
		})
	}}
}

// newRedisClient returns a client with one connection, which fails at the first error.
func newRedisClient(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, PoolSize: 1, MaxRetries: -1, Protocol: 2, DisableIdentity: true, ReadTimeout: load.CallTimeout, WriteTimeout: load.CallTimeout,
	})
}

// redisOp returns an Op that adds a batch of new keys to the due times and to the events in one round trip.
func redisOp(ctx context.Context, addr string, caller, callers, batch int, first uint32) (load.Op, func(), error) {
	client := newRedisClient(addr)
	maker := load.NewMaker(uint64(first) + uint64(caller))
	index := first + uint32(caller*batch)
	due, events := make([]redis.Z, batch), make([]any, 2*batch)
	return func() (int, error) {
		at := float64(time.Now().Add(writeDelay).UnixMicro())
		for i := range batch {
			key := load.Key(index + uint32(i))
			due[i] = redis.Z{Score: at, Member: key}
			events[2*i], events[2*i+1] = key, string(maker.Random())
		}
		index += uint32(callers * batch)
		pipeline := client.Pipeline()
		pipeline.ZAdd(ctx, "due", due...)
		pipeline.HSet(ctx, "events", events...)
		if _, err := pipeline.Exec(ctx); err != nil {
			return 0, fmt.Errorf("driver: redis: %w", err)
		}
		return batch, nil
	}, func() { client.Close() }, nil
}
