package driver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// writeDelay is how far ahead writes are due: nothing is delivered meanwhile.
const writeDelay = time.Hour

// pebbleRound writes the least that a scheduler needs, the record and the row of the
// due-time index, and waits until both are durable.
func pebbleRound(t *testing.T, dir string, round, batch int) outcome {
	// The defaults of Pebble are for a few megabytes.
	db, err := pebble.Open(dir, &pebble.Options{MemTableSize: 64 << 20, CacheSize: 64 << 20})
	check(t, err)
	defer db.Close()
	o := writeLoad(t, round, batch, ownCPU, func(c *caller) op {
		var record, row []byte
		return func() (int, error) {
			rows, first := db.NewBatch(), c.next()
			for i := range batch {
				key := keyOf(first + uint32(i))
				record = append(append(record[:0], "s/bench/"...), key...)
				row = binary.BigEndian.AppendUint64(append(row[:0], "d/"...), uint64(time.Now().Add(writeDelay).UnixNano()))
				row = append(append(row, "/bench/"...), key...)
				if err := errors.Join(rows.Set(record, c.data(), nil), rows.Set(row, nil, nil)); err != nil {
					return 0, err
				}
			}
			if err := db.ApplyNoSyncWait(rows, pebble.Sync); err != nil {
				return 0, err
			}
			return batch, errors.Join(rows.SyncWait(), rows.Close())
		}
	})
	o.client = 0 // it is all of the store
	return o
}

// find returns the file of a program, in PATH or where Debian has PostgreSQL's, or why there is none.
func find(name string) (file, absent string) {
	file, err := exec.LookPath(name)
	if err == nil {
		return file, ""
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		return "", fmt.Sprintf("not present: no %s is installed", name)
	}
	return found[len(found)-1], ""
}

func startRedis(t *testing.T, file, dir string) *process {
	addr := freeAddr()
	host, port, _ := net.SplitHostPort(addr)
	check(t, os.MkdirAll(dir, 0o755))
	client := redisClient(t, addr)
	// No snapshots and no rewriting of the log: neither is needed for durability, both cost.
	cmd := exec.Command(file, "--bind", host, "--port", port, "--dir", dir, "--loglevel", "warning",
		"--appendonly", "yes", "--appendfsync", "always", "--save", "", "--auto-aof-rewrite-percentage", "0")
	// PING fails while Redis reads its log.
	return start(t, cmd, addr, func() bool { return client.Ping(t.Context()).Err() == nil })
}

// redisClient returns a client with one connection, which fails at the first error.
func redisClient(t *testing.T, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{
		Addr: addr, PoolSize: 1, MaxRetries: -1, Protocol: 2, DisableIdentity: true, ReadTimeout: callTimeout, WriteTimeout: callTimeout,
	})
	t.Cleanup(func() { client.Close() })
	return client
}

// redisOp adds a batch of new keys to the due times and to the events in one round trip.
func redisOp(t *testing.T, addr string, batch int, c *caller) op {
	client, ctx := redisClient(t, addr), t.Context()
	due, events := make([]redis.Z, batch), make([]any, 2*batch)
	return func() (int, error) {
		at, first := float64(time.Now().Add(writeDelay).UnixMicro()), c.next()
		for i := range batch {
			key := keyOf(first + uint32(i))
			due[i] = redis.Z{Score: at, Member: key}
			events[2*i], events[2*i+1] = key, string(c.data())
		}
		pipeline := client.Pipeline()
		pipeline.ZAdd(ctx, "due", due...)
		pipeline.HSet(ctx, "events", events...)
		_, err := pipeline.Exec(ctx)
		return batch, err
	}
}

func postgresURL(addr string) string { return "postgres://bench@" + addr + "/postgres?sslmode=disable" }

const postgresTable = `CREATE TABLE IF NOT EXISTS schedules (key text PRIMARY KEY, due_at timestamptz NOT NULL, revision bigint NOT NULL DEFAULT 1, event bytea NOT NULL);
	CREATE INDEX IF NOT EXISTS due ON schedules (due_at)`

// startPostgres starts a server on the data in dir. It creates missing data first.
func startPostgres(t *testing.T, initdb, dir string) *process {
	var as *syscall.Credential
	if os.Geteuid() == 0 { // it does not run as root: then as a user without rights
		as = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	run := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(filepath.Dir(initdb), name), args...)
		cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: as}
		return cmd
	}
	data := filepath.Join(dir, "data")
	if _, err := os.Stat(data); err != nil {
		check(t, os.MkdirAll(dir, 0o711))
		if as != nil {
			check(t, os.Chown(dir, int(as.Uid), int(as.Gid)))
		}
		if out, err := run("initdb", "-D", data, "-A", "trust", "-U", "bench", "-E", "UTF8", "--locale=C").CombinedOutput(); err != nil {
			t.Fatalf("initdb: %v: %s", err, out)
		}
	}
	addr := freeAddr()
	host, port, _ := net.SplitHostPort(addr)
	cmd := run("postgres", "-D", data, "-p", port, "-h", host, "-k", "",
		"-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "max_connections=200", "-c", "shared_buffers=512MB", "-c", "max_wal_size=8GB")
	return start(t, cmd, addr, func() bool {
		conn, err := pgx.Connect(t.Context(), postgresURL(addr))
		if err != nil {
			return false
		}
		defer conn.Close(t.Context())
		_, err = conn.Exec(t.Context(), postgresTable)
		return err == nil
	})
}

// postgresOp upserts a batch of new keys with one statement.
func postgresOp(t *testing.T, addr string, batch int, c *caller) op {
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, postgresURL(addr))
	check(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	_, err = conn.Prepare(ctx, "put", upsert(batch))
	check(t, err)
	values := make([]any, 3*batch)
	return func() (int, error) {
		due, first := time.Now().Add(writeDelay), c.next()
		for i := range batch {
			values[3*i], values[3*i+1], values[3*i+2] = keyOf(first+uint32(i)), due, bytes.Clone(c.data())
		}
		_, err := conn.Exec(ctx, "put", values...)
		return batch, err
	}
}

func upsert(batch int) string {
	var rows []string
	for i := range batch {
		rows = append(rows, fmt.Sprintf("($%d, $%d, $%d)", 3*i+1, 3*i+2, 3*i+3))
	}
	return "INSERT INTO schedules (key, due_at, event) VALUES " + strings.Join(rows, ", ") +
		" ON CONFLICT (key) DO UPDATE SET due_at = excluded.due_at, event = excluded.event, revision = schedules.revision + 1"
}
