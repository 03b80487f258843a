package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// postgresLoop is a table of due times, and a worker that leases what is due.
var postgresLoop = &peer{
	name:     "PostgreSQL loop",
	settings: "`synchronous_commit on`, 512 MB of buffers; `FOR UPDATE SKIP LOCKED`, a lease of 30 s, a look each 50 ms",
	version:  func() (string, error) { return programVersion("PostgreSQL", postgresFile("postgres")) },
	start: func(h *host) error {
		if err := startPostgres(h, "CREATE TABLE schedules (key text PRIMARY KEY, due_at timestamptz NOT NULL, revision bigint NOT NULL DEFAULT 1, "+
			"leased_until timestamptz, event bytea NOT NULL); CREATE INDEX ON schedules (due_at)"); err != nil {
			return err
		}
		return h.serve("postgres-loop", h.addr("postgres"), h.sink)
	},
	connect: func(h *host) (client, error) { return &postgresClient{addr: h.addr("postgres")}, nil },
}

// postgresFile returns a program of PostgreSQL, in PATH or where Debian has it.
func postgresFile(name string) string {
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(found) > 0 {
		return found[len(found)-1]
	}
	return name
}

func postgresURL(addr string) string { return "postgres://bench@" + addr + "/postgres?sslmode=disable" }

// startPostgres starts a server, and creates the data with its tables the first time.
func startPostgres(h *host, tables string) error {
	as := new(syscall.SysProcAttr)
	data := filepath.Join(h.dir, "data")
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(postgresFile(name), args...)
		cmd.Dir, cmd.SysProcAttr = data, as
		return cmd
	}
	if os.Geteuid() == 0 { // it does not run as root: then as a user without rights
		as.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	if h.fresh {
		if err := os.Mkdir(data, 0o700); err != nil {
			return err
		}
		if as.Credential != nil {
			if err := os.Chown(data, 65534, 65534); err != nil {
				return err
			}
		}
		if out, err := command("initdb", "-D", data, "-A", "trust", "-U", "bench", "-E", "UTF8", "--locale=C").CombinedOutput(); err != nil {
			return fmt.Errorf("initdb: %w: %s", err, out)
		}
	}
	host, port, _ := net.SplitHostPort(h.addr("postgres"))
	err := h.run(command("postgres", "-D", data, "-p", port, "-h", host, "-k", "",
		"-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "max_connections=200", "-c", "shared_buffers=512MB", "-c", "max_wal_size=8GB"))
	if err != nil {
		return err
	}
	ctx := context.Background()
	return ready("PostgreSQL", func() bool {
		conn, err := pgx.Connect(ctx, postgresURL(h.addr("postgres")))
		if err != nil {
			return false
		}
		defer conn.Close(ctx)
		if h.fresh && tables != "" {
			_, err = conn.Exec(ctx, tables)
		}
		return err == nil
	})
}

type postgresClient struct {
	addr string
	conn *pgx.Conn
}

func (c *postgresClient) exec(ctx context.Context, sql string, args ...any) (err error) {
	if c.conn == nil || c.conn.IsClosed() {
		if c.conn, err = pgx.Connect(ctx, postgresURL(c.addr)); err != nil {
			return err
		}
	}
	_, err = c.conn.Exec(ctx, sql, args...)
	return err
}

func (c *postgresClient) schedule(ctx context.Context, key string, at time.Time, data string) error {
	return c.exec(ctx, "INSERT INTO schedules (key, due_at, event) VALUES ($1, $2, $3) ON CONFLICT (key) DO UPDATE "+
		"SET due_at = excluded.due_at, event = excluded.event, revision = schedules.revision + 1", key, at, []byte(data))
}

func (c *postgresClient) cancel(ctx context.Context, key string) error {
	return c.exec(ctx, "DELETE FROM schedules WHERE key = $1", key)
}

func (c *postgresClient) close() {
	if c.conn != nil {
		c.conn.Close(context.Background())
	}
}

// postgresWorker leases keys that are due, delivers them, and deletes each that was not scheduled again before its delivery ended.
func postgresWorker(args []string) error {
	addr, sink := args[0], args[1]
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, postgresURL(addr)+"&pool_max_conns=32")
	if err != nil {
		return err
	}
	d, slots := newDeliverer(sink), make(chan struct{}, workers)
	for {
		rows, err := pool.Query(ctx, "UPDATE schedules SET leased_until = now() + $2 WHERE key IN (SELECT key FROM schedules WHERE due_at <= now() "+
			"AND (leased_until IS NULL OR leased_until < now()) ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED) RETURNING key, revision, event", workers-len(slots), lease)
		if err != nil {
			return err
		}
		taken, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
			Key      string
			Revision int64
			Event    []byte
		}])
		if err != nil {
			return err
		}
		for _, row := range taken {
			slots <- struct{}{}
			go func() {
				defer func() { <-slots }()
				if d.deliver(ctx, row.Key, row.Event) != nil {
					return // the lease ends
				}
				done, err := pool.Exec(ctx, "DELETE FROM schedules WHERE key = $1 AND revision = $2", row.Key, row.Revision)
				if err == nil && done.RowsAffected() == 0 {
					_, err = pool.Exec(ctx, "UPDATE schedules SET leased_until = NULL WHERE key = $1", row.Key)
				}
				if err != nil {
					log.Print(err) // the lease ends later
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
