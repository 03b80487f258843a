package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
)

// redisServer starts private Redis servers.
type redisServer struct {
	file   string
	absent string
}

func findRedis(file string) redisServer {
	for _, name := range []string{file, "redis-server", "valkey-server"} {
		if found, err := exec.LookPath(name); name != "" && err == nil {
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
	ready := func() bool {
		conn, err := dialRESP(addr)
		if err != nil {
			return false
		}
		defer conn.conn.Close()
		return conn.do(appendCommand(nil, []byte("PING")), 1) == nil // an error while it reads its log
	}
	if err := p.waitFor(ctx, "PONG", 20*time.Millisecond, readyLimit, ready); err != nil {
		p.cmd.Process.Kill()
		<-p.ended
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
			return redisOp(s.addr, caller, b.callers, batch, firstIndex(round))
		})
	}}
}

// redisOp returns an Op that adds a batch of new keys to the due times and to the events in one round trip.
func redisOp(addr string, caller, callers, batch int, first uint32) (load.Op, func(), error) {
	conn, err := dialRESP(addr)
	if err != nil {
		return nil, nil, err
	}
	maker := load.NewMaker(uint64(first) + uint64(caller))
	index := first + uint32(caller*batch)
	var request []byte
	var zadd, hset [][]byte
	return func() (int, error) {
		zadd = append(zadd[:0], []byte("ZADD"), []byte("due"))
		hset = append(hset[:0], []byte("HSET"), []byte("events"))
		due := strconv.AppendInt(nil, time.Now().Add(writeDelay).UnixMicro(), 10)
		for i := range batch {
			key := []byte(load.Key(index + uint32(i)))
			zadd = append(zadd, due, key)
			hset = append(hset, key, bytes.Clone(maker.Random()))
		}
		index += uint32(callers * batch)
		request = appendCommand(appendCommand(request[:0], zadd...), hset...)
		return batch, conn.do(request, 2)
	}, func() { conn.conn.Close() }, nil
}

// resp is one connection to Redis. Not safe for concurrent use.
type resp struct {
	conn net.Conn
	r    *bufio.Reader
}

func dialRESP(addr string) (*resp, error) {
	conn, err := net.DialTimeout("tcp", addr, load.CallTimeout)
	if err != nil {
		return nil, fmt.Errorf("driver: redis: %w", err)
	}
	return &resp{conn: conn, r: bufio.NewReader(conn)}, nil
}

func appendCommand(b []byte, args ...[]byte) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(len(args)), 10)
	b = append(b, "\r\n"...)
	for _, arg := range args {
		b = append(b, '$')
		b = strconv.AppendInt(b, int64(len(arg)), 10)
		b = append(b, "\r\n"...)
		b = append(b, arg...)
		b = append(b, "\r\n"...)
	}
	return b
}

// do sends commands and reads their answers, which must be lines and no errors.
func (c *resp) do(commands []byte, answers int) error {
	if err := c.conn.SetDeadline(time.Now().Add(load.CallTimeout)); err != nil {
		return fmt.Errorf("driver: redis: %w", err)
	}
	if _, err := c.conn.Write(commands); err != nil {
		return fmt.Errorf("driver: redis: %w", err)
	}
	for range answers {
		line, err := c.r.ReadSlice('\n')
		if err == nil && len(line) == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("driver: redis: %w", err)
		}
		if line[0] != ':' && line[0] != '+' {
			return fmt.Errorf("driver: redis: %s", bytes.TrimSpace(line))
		}
	}
	return nil
}
