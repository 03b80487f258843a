package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/reschedule-dev/reschedule/bench/load"
)

// redisServer starts private Redis servers.
type redisServer struct{ file, absent string }

func findRedis() redisServer {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if found, err := exec.LookPath(name); err == nil {
			return redisServer{file: found}
		}
	}
	return redisServer{absent: "not present: no redis-server is installed"}
}

func (r redisServer) start(ctx context.Context, dir string) (*service, error) {
	addr, err := freeAddr()
	if err := errors.Join(err, os.MkdirAll(dir, 0o755)); err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(addr)
	client := newRedisClient(addr)
	defer client.Close()
	// No snapshots and no rewriting of the log: neither is needed for durability, both cost.
	cmd := exec.Command(r.file, "--bind", host, "--port", port, "--dir", dir, "--daemonize", "no", "--loglevel", "warning",
		"--appendonly", "yes", "--appendfsync", "always", "--save", "", "--auto-aof-rewrite-percentage", "0")
	// PING fails while Redis reads its log.
	return serve(ctx, cmd, addr, syscall.SIGTERM, 20*time.Millisecond, func() bool { return client.Ping(ctx).Err() == nil })
}

// newRedisClient returns a client with one connection, which fails at the first error.
func newRedisClient(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, PoolSize: 1, MaxRetries: -1, Protocol: 2, DisableIdentity: true, ReadTimeout: load.CallTimeout, WriteTimeout: load.CallTimeout,
	})
}

// redisOp adds a batch of new keys to the due times and to the events in one round trip.
func redisOp(ctx context.Context, addr string, batch int) batchOp {
	return batchOp{batch, func(c *caller) (load.Op, func(), error) {
		client := newRedisClient(addr)
		due, events := make([]redis.Z, batch), make([]any, 2*batch)
		return func() (int, error) {
			at, first := float64(time.Now().Add(writeDelay).UnixMicro()), c.next()
			for i := range batch {
				key := load.Key(first + uint32(i))
				due[i] = redis.Z{Score: at, Member: key}
				events[2*i], events[2*i+1] = key, string(c.maker.Random())
			}
			pipeline := client.Pipeline()
			pipeline.ZAdd(ctx, "due", due...)
			pipeline.HSet(ctx, "events", events...)
			_, err := pipeline.Exec(ctx)
			return batch, err
		}, func() { client.Close() }, nil
	}}
}

// postgresServer starts private PostgreSQL servers.
type postgresServer struct {
	bin    string // directory of initdb and postgres
	as     *syscall.Credential
	absent string
}

// findPostgres looks in Debian's directories and in the PATH. PostgreSQL does not
// run as root, so root runs it as the user postgres, or as the user without rights.
func findPostgres() postgresServer {
	candidates, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	slices.Reverse(candidates)
	if file, err := exec.LookPath("postgres"); err == nil {
		file, _ = filepath.EvalSymlinks(file)
		candidates = append(candidates, file)
	}
	for _, file := range candidates {
		p := postgresServer{bin: filepath.Dir(file)}
		if _, err := os.Stat(filepath.Join(p.bin, "initdb")); err != nil {
			continue
		}
		if os.Geteuid() == 0 {
			p.as = &syscall.Credential{Uid: 65534, Gid: 65534}
			if u, err := user.Lookup("postgres"); err == nil {
				uid, _ := strconv.ParseUint(u.Uid, 10, 32)
				gid, _ := strconv.ParseUint(u.Gid, 10, 32)
				p.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
			}
		}
		return p
	}
	return postgresServer{absent: "not present: no initdb and postgres are installed"}
}

func (p postgresServer) command(dir, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, name), args...)
	cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: p.as}
	return cmd
}

func postgresURL(addr string) string { return "postgres://bench@" + addr + "/postgres?sslmode=disable" }

// start starts a server on the data in dir. It creates missing data first.
func (p postgresServer) start(ctx context.Context, dir string) (*service, error) {
	data := filepath.Join(dir, "data")
	if _, err := os.Stat(data); os.IsNotExist(err) {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, err
		}
		if p.as != nil {
			if err := os.Chown(dir, int(p.as.Uid), int(p.as.Gid)); err != nil {
				return nil, err
			}
		}
		if out, err := p.command(dir, "initdb", "-D", data, "-A", "trust", "-U", "bench", "-E", "UTF8", "--locale=C").CombinedOutput(); err != nil {
			out = bytes.TrimSpace(out)
			return nil, fmt.Errorf("initdb: %w: %s", err, out[bytes.LastIndexByte(out, '\n')+1:])
		}
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	host, port, _ := net.SplitHostPort(addr)
	cmd := p.command(dir, "postgres", "-D", data, "-p", port, "-h", host, "-k", "",
		"-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "max_connections=200", "-c", "shared_buffers=512MB", "-c", "max_wal_size=8GB")
	s, err := serve(ctx, cmd, addr, syscall.SIGINT, 50*time.Millisecond, func() bool { // SIGINT is its fast shutdown
		conn, err := pgx.Connect(ctx, postgresURL(addr))
		if err != nil {
			return false
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, `CREATE TABLE IF NOT EXISTS schedules (key text PRIMARY KEY, due_at timestamptz NOT NULL, revision bigint NOT NULL DEFAULT 1, event bytea NOT NULL);
			CREATE INDEX IF NOT EXISTS due ON schedules (due_at)`)
		return err == nil
	})
	if err == nil {
		s.usage = func() (usage, error) { return familyUsage(cmd.Process.Pid) }
	}
	return s, err
}

// postgresOp upserts a batch of new keys with one statement.
func postgresOp(ctx context.Context, addr string, batch int) batchOp {
	return batchOp{batch, func(c *caller) (load.Op, func(), error) {
		conn, err := pgx.Connect(ctx, postgresURL(addr))
		if err != nil {
			return nil, nil, err
		}
		if _, err := conn.Prepare(ctx, "put", upsert(batch)); err != nil {
			return nil, nil, err
		}
		values := make([]any, 3*batch)
		return func() (int, error) {
			due, first := time.Now().Add(writeDelay), c.next()
			for i := range batch {
				values[3*i], values[3*i+1], values[3*i+2] = load.Key(first+uint32(i)), due, bytes.Clone(c.maker.Random())
			}
			_, err := conn.Exec(ctx, "put", values...)
			return batch, err
		}, func() { conn.Close(context.WithoutCancel(ctx)) }, nil
	}}
}

func upsert(batch int) string {
	var rows []string
	for i := range batch {
		rows = append(rows, fmt.Sprintf("($%d, $%d, $%d)", 3*i+1, 3*i+2, 3*i+3))
	}
	return "INSERT INTO schedules (key, due_at, event) VALUES " + strings.Join(rows, ", ") +
		" ON CONFLICT (key) DO UPDATE SET due_at = excluded.due_at, event = excluded.event, revision = schedules.revision + 1"
}
