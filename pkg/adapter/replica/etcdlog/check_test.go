package etcdlog_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/etcdlog"
)

// startGroup starts a group. stopped gets what ends a member by itself.
func startGroup(t *testing.T, stopped func(name string, err error)) (servers map[string]*etcdlog.Server, dirs map[string]string) {
	t.Helper()
	peers := map[string]string{}
	servers, dirs = map[string]*etcdlog.Server{}, map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		peers[name], dirs[name] = free(t), t.TempDir()
	}
	for name, dir := range dirs {
		s, err := etcdlog.Start(etcdlog.Options{Dir: dir, Group: "g", Member: name, Peers: peers, Connections: connections(), Log: slog.New(slog.DiscardHandler),
			Stopped: func(err error) { stopped(name, err) }})
		if err != nil {
			t.Fatal(err)
		}
		servers[name] = s
	}
	for _, s := range servers {
		<-s.Ready()
	}
	return servers, dirs
}

// appendEntries has the member that leads claim the group and append entries of so many bytes, and returns its name.
func appendEntries(t *testing.T, servers map[string]*etcdlog.Server, entries uint64, size int) (name string) {
	t.Helper()
	name = leader(servers)
	log := servers[name].Entries()
	seen, err := log.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	epoch, err := log.Claim(t.Context(), seen, replica.Owner{Member: name, Claim: "1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); seq <= entries; seq++ {
		if _, err := log.Append(t.Context(), epoch, seq, bytes.Repeat([]byte{byte(seq)}, size), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

// Damage of etcd's files ended each start with a panic, or was not noticed: a start with half of the write-ahead log had
// forgotten what it promised. The start finds it out before etcd does.
func TestDamage_OfALogIsNoPromise(t *testing.T) {
	t.Parallel()
	servers, dirs := startGroup(t, func(string, error) {})
	name := appendEntries(t, servers, 150, 1000) // beyond a snapshot
	for _, s := range servers {
		s.Close()
	}
	wal, db := filepath.Join("log", "member", "wal", "0000000000000000-0000000000000000.wal"), filepath.Join("log", "member", "snap", "db")
	text, err := os.ReadFile(filepath.Join(dirs[name], wal))
	if err != nil {
		t.Fatal(err)
	}
	used := len(bytes.TrimRight(text, "\x00"))
	cut := func(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }
	zero := func(from, to int) func([]byte) []byte {
		return func(b []byte) []byte { clear(b[from:to]); return b }
	}
	flip := func(from, to int) func([]byte) []byte {
		return func(b []byte) []byte {
			for i := from; i < to; i++ {
				b[i] ^= 0x41
			}
			return b
		}
	}
	for what, test := range map[string]struct {
		file   string
		change func([]byte) []byte
		whole  bool
	}{
		"nothing":                         {wal, cut(len(text)), true},
		"a byte of the log":               {wal, flip(used/2, used/2+1), false},
		"the log is empty":                {wal, cut(0), false},
		"the log ends early":              {wal, cut(used / 2), false},
		"the log is zeros":                {wal, zero(used/2, used), false},
		"the log has no end of a crash":   {wal, cut(used - 3), true},
		"the file is empty":               {db, cut(0), false},
		"the file is short":               {db, cut(40_000), false},
		"the heads of the file":           {db, flip(16, 8000), false},
		"pages of the file are zeros":     {db, zero(8192, 90_000), false},
		"pages of the file are not right": {db, flip(8192, 90_000), false},
		"the file is missing":             {db, nil, false},
	} {
		dir := t.TempDir()
		err := os.CopyFS(dir, os.DirFS(dirs[name]))
		path := filepath.Join(dir, test.file)
		if test.change == nil {
			err = errors.Join(err, os.Remove(path))
		} else {
			b, e := os.ReadFile(path)
			if err = errors.Join(err, e); err == nil {
				err = os.WriteFile(path, test.change(b), 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		promise, err := etcdlog.PromiseOf(dir)
		if damaged := errors.Is(err, replica.ErrDamaged); damaged == test.whole && promise != replica.Nothing || err != nil && !damaged || err == nil && promise == replica.Nothing && test.whole {
			t.Errorf("%s: %v, %v", what, promise, err)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error has several lines: %v", what, err)
		}
	}
}

// An old disk of a member that was replaced made a process that ran for ever, was not ready, and said nothing: etcd had
// ended.
func TestMember_ReplacedOneEnds(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 3)
	servers, _ := startGroup(t, func(_ string, err error) { ended <- err })
	replace := func() error { // without an end etcd waits for ever where an election lost the change
		ctx, end := context.WithTimeout(t.Context(), 5*time.Second)
		defer end()
		return servers["a"].Replace(ctx, "c")
	}
	for tick := time.Tick(10 * time.Millisecond); replace() != nil; <-tick { // not all are connected yet
		if t.Context().Err() != nil {
			t.Fatal("it is not replaced")
		}
	}
	if err := <-ended; !strings.Contains(err.Error(), "empty the directory of member c") {
		t.Error(err)
	}
	for _, s := range servers {
		s.Close()
	}
}
