package main

import (
	"bytes"
	"context"
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

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/reschedule-dev/reschedule/bench/load"
)

// postgresServer starts private PostgreSQL servers.
type postgresServer struct {
	bin    string // directory of initdb and postgres
	as     *syscall.Credential
	absent string
}

// findPostgres looks in Debian's directories and in the PATH. PostgreSQL does not
// run as root, so root runs it as another user.
func findPostgres() postgresServer {
	candidates, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.Reverse(candidates)
	if file, err := exec.LookPath("postgres"); err == nil {
		if file, err = filepath.EvalSymlinks(file); err == nil {
			candidates = append(candidates, filepath.Dir(file))
		}
	}
	var p postgresServer
	for _, dir := range candidates {
		_, initdb := os.Stat(filepath.Join(dir, "initdb"))
		_, postgres := os.Stat(filepath.Join(dir, "postgres"))
		if initdb == nil && postgres == nil {
			p.bin = dir
			break
		}
	}
	if p.bin == "" {
		p.absent = "not present: no initdb and postgres are installed"
		return p
	}
	if os.Geteuid() != 0 {
		return p
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u = &user.User{Uid: unprivileged, Gid: unprivileged}
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	if uidErr != nil || gidErr != nil {
		p.absent = "not present: the user postgres has no numeric id"
		return p
	}
	p.as = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return p
}

const (
	postgresUser = "bench"
	unprivileged = "65534" // the id of the user without rights on Linux
)

// start starts a server on the data in dir. It creates missing data first.
func (p postgresServer) start(ctx context.Context, dir string) (*service, string, error) {
	data := filepath.Join(dir, "data")
	command := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(p.bin, name), args...)
		cmd.Dir = dir
		if p.as != nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.as}
		}
		return cmd
	}
	fresh := false
	if _, err := os.Stat(data); os.IsNotExist(err) {
		fresh = true
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, "", fmt.Errorf("driver: %w", err)
		}
		if p.as != nil {
			if err := os.Chown(dir, int(p.as.Uid), int(p.as.Gid)); err != nil {
				return nil, "", fmt.Errorf("driver: %w", err)
			}
		}
		if out, err := command("initdb", "-D", data, "-A", "trust", "-U", postgresUser, "-E", "UTF8", "--locale=C").CombinedOutput(); err != nil {
			return nil, "", fmt.Errorf("driver: initdb: %w: %s", err, lastLine(out))
		}
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, "", err
	}
	host, port, _ := net.SplitHostPort(addr)
	started, err := startProcess(command("postgres", "-D", data, "-p", port, "-h", host, "-k", "",
		"-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "max_connections=200", "-c", "shared_buffers=512MB", "-c", "max_wal_size=8GB"))
	if err != nil {
		return nil, "", err
	}
	started.discardStdout()
	url := "postgres://" + postgresUser + "@" + addr + "/postgres?sslmode=disable"
	s := started.service(addr, "")
	s.stop = func() error { return started.signal(syscall.SIGINT) } // its fast shutdown
	s.usage = func() (usage, error) { return familyUsage(started.cmd.Process.Pid) }
	ready := func() bool {
		conn, err := pgconn.Connect(ctx, url)
		if err != nil {
			return false
		}
		conn.Close(ctx)
		return true
	}
	if err := started.waitFor(ctx, "connection", 50*time.Millisecond, ready); err != nil {
		return nil, "", err
	}
	if fresh {
		if err := createTable(ctx, url); err != nil {
			s.stop()
			return nil, "", err
		}
	}
	return s, url, nil
}

func createTable(ctx context.Context, url string) error {
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("driver: postgres: %w", err)
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, `CREATE TABLE schedules (key text PRIMARY KEY, due_at timestamptz NOT NULL, revision bigint NOT NULL DEFAULT 1, event bytea NOT NULL);
		CREATE INDEX ON schedules (due_at)`).ReadAll()
	if err != nil {
		return fmt.Errorf("driver: postgres: %w", err)
	}
	return nil
}

func lastLine(out []byte) []byte {
	out = bytes.TrimSpace(out)
	return out[bytes.LastIndexByte(out, '\n')+1:]
}

func (p postgresServer) contestant(b *bench, dir string, batch int) contestant {
	return contestant{name: postgresName, absent: p.absent, round: func(ctx context.Context, round int) (outcome, error) {
		s, url, err := p.start(ctx, dir)
		if err != nil {
			return outcome{}, err
		}
		defer s.stop()
		return b.driveWith(ctx, s.usage, func(caller int) (load.Op, func(), error) {
			return postgresOp(ctx, url, caller, b.callers, batch, firstIndex(round))
		})
	}}
}

// postgresOp returns an Op that upserts a batch of new keys with one statement.
func postgresOp(ctx context.Context, url string, caller, callers, batch int, first uint32) (load.Op, func(), error) {
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		return nil, nil, fmt.Errorf("driver: postgres: %w", err)
	}
	if _, err := conn.Prepare(ctx, "put", upsert(batch), nil); err != nil {
		return nil, nil, fmt.Errorf("driver: postgres: %w", err)
	}
	maker := load.NewMaker(uint64(first) + uint64(caller))
	index := first + uint32(caller*batch)
	values := make([][]byte, 0, 3*batch)
	formats := make([]int16, 3*batch)
	for i := range batch {
		formats[3*i+2] = 1 // the event, as bytes; the others are text
	}
	return func() (int, error) {
		values = values[:0]
		due := time.Now().Add(writeDelay).UTC().AppendFormat(nil, time.RFC3339Nano)
		for i := range batch {
			values = append(values, []byte(load.Key(index+uint32(i))), due, bytes.Clone(maker.Random()))
		}
		index += uint32(callers * batch)
		if _, err := conn.ExecPrepared(ctx, "put", values, formats, nil).Close(); err != nil {
			return 0, fmt.Errorf("driver: postgres: %w", err)
		}
		return batch, nil
	}, func() { conn.Close(context.WithoutCancel(ctx)) }, nil
}

func upsert(batch int) string {
	var rows []string
	for i := range batch {
		rows = append(rows, fmt.Sprintf("($%d, $%d, $%d)", 3*i+1, 3*i+2, 3*i+3))
	}
	return "INSERT INTO schedules (key, due_at, event) VALUES " + strings.Join(rows, ", ") +
		" ON CONFLICT (key) DO UPDATE SET due_at = excluded.due_at, event = excluded.event, revision = schedules.revision + 1"
}
