package etcdlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// stoppedTime is how long etcd may take to read the log of a member.
const stoppedTime = time.Minute

// ReadStopped calls read with the log that a member which does not run has left in its data directory, and with a
// context that ends when etcd cannot go on. It copies the log into the empty directory work, and changes nothing else.
// All that this member had received counts, also what the others had not acknowledged yet. A log that etcd cannot read
// is [replica.ErrDamaged].
func ReadStopped(ctx context.Context, dataDir, work string, read func(context.Context, replica.Log) error) (err error) {
	err = os.CopyFS(filepath.Join(work, "member"), os.DirFS(filepath.Join(dataDir, "log", "member")))
	if errors.Is(err, unix.EIO) {
		err = damaged(err)
	}
	if err != nil {
		return fmt.Errorf("etcdlog: copying the log: %w", err)
	}
	if err := commitAll(filepath.Join(work, "member", "wal")); err != nil {
		return damaged(err)
	}
	sockets, err := os.MkdirTemp("", "reschedule-") // as in Start
	if err != nil {
		return fmt.Errorf("etcdlog: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(sockets)) }()
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.ForceNewCluster, cfg.UnsafeNoFsync = "stopped", work, true, true
	cfg.ListenClientUrls = []url.URL{{Scheme: "unix", Path: filepath.Join(sockets, "c")}}
	cfg.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: filepath.Join(sockets, "p")}}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.TickMs, cfg.ElectionMs = heartbeatMs, electionMs
	cfg.QuotaBackendBytes, cfg.MaxRequestBytes = -1, maxRequest
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var once sync.Once
	panicked := make(chan struct{}) // etcd never ends then
	level := zap.NewAtomicLevelAt(zap.ErrorLevel)
	err = logErrors(cfg, level, func(err error) {
		once.Do(func() {
			cancel(damaged(err))
			close(panicked)
		})
	})
	if err != nil {
		return fmt.Errorf("etcdlog: %w", err)
	}
	starting, stop := context.WithTimeoutCause(ctx, stoppedTime, fmt.Errorf("etcdlog: reading the log takes longer than %s: try again", stoppedTime))
	defer stop()
	s, err := startStopped(starting, cfg)
	if err != nil {
		return err
	}
	defer func() {
		level.SetLevel(zap.FatalLevel) // as in Close
		_ = s.client.Close()
		go func() {
			defer close(s.ended)
			s.etcd.Server.HardStop()
			s.etcd.Close()
		}()
		select {
		case <-s.ended:
		case <-panicked:
		}
	}()
	log := s.log("")
	select {
	case <-s.etcd.Server.ReadyNotify():
		_, err = s.client.Get(starting, log.head) // it waits until all is applied
	case <-starting.Done():
		err = starting.Err()
	}
	if err != nil {
		return cmp.Or(context.Cause(starting), fmt.Errorf("etcdlog: reading the log: %w", err))
	}
	if err = read(ctx, log); err != nil {
		err = cmp.Or(context.Cause(ctx), err)
	}
	return err
}

// startStopped starts etcd. Where etcd panics, it never returns; starting ends then.
func startStopped(starting context.Context, cfg *embed.Config) (*Server, error) {
	var etcd *embed.Etcd
	started := make(chan error, 1)
	go func() {
		var err error
		defer func() { started <- err }()
		etcd, err = embed.StartEtcd(cfg)
	}()
	select {
	case err := <-started:
		if err != nil {
			return nil, damaged(err)
		}
		return &Server{etcd: etcd, client: v3client.New(etcd.Server), ended: make(chan struct{})}, nil
	case <-starting.Done():
		return nil, context.Cause(starting)
	}
}

// damaged is the error of a log that cannot be read.
func damaged(err error) error {
	return fmt.Errorf("etcdlog: reading the log: %w: %w", replica.ErrDamaged, err)
}

// commitAll makes all entries of a write-ahead log count. How far they are committed is not on
// the disk before the next entry.
func commitAll(dir string) error {
	lg := zap.NewNop()
	snapshots, err := wal.ValidSnapshotEntries(lg, dir)
	if err != nil {
		return err
	}
	var from walpb.Snapshot
	if len(snapshots) > 0 {
		from = snapshots[len(snapshots)-1]
	}
	w, state, entries, err := openAll(lg, dir, from)
	if errors.Is(err, io.ErrUnexpectedEOF) && wal.Repair(lg, dir) { // the end after a crash
		w, state, entries, err = openAll(lg, dir, from)
	}
	if err != nil {
		return err
	}
	if n := len(entries); n > 0 && entries[n-1].Index > state.Commit {
		state.Commit, state.Term = entries[n-1].Index, cmp.Or(state.Term, entries[n-1].Term)
		err = w.Save(state, nil)
	}
	return errors.Join(err, w.Close())
}

func openAll(lg *zap.Logger, dir string, from walpb.Snapshot) (*wal.WAL, raftpb.HardState, []raftpb.Entry, error) {
	w, err := wal.Open(lg, dir, from)
	if err != nil {
		return nil, raftpb.HardState{}, nil, err
	}
	_, state, entries, err := w.ReadAll()
	if err != nil {
		return nil, state, nil, errors.Join(err, w.Close())
	}
	return w, state, entries, nil
}
