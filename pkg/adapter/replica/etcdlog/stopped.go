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
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// stoppedTime is how long etcd may take to read the log of a member.
const stoppedTime = time.Minute

// ReadStopped calls read with the log that a member which does not run has left in its data
// directory. It copies the log into the empty directory work, and changes nothing else. All that
// this member had received counts, also what the others had not acknowledged yet.
func ReadStopped(ctx context.Context, dataDir, work string, read func(replica.Log) error) (err error) {
	if err := os.CopyFS(filepath.Join(work, "member"), os.DirFS(filepath.Join(dataDir, "log", "member"))); err != nil {
		return fmt.Errorf("etcdlog: copying the log: %w", err)
	}
	if err := commitAll(filepath.Join(work, "member", "wal")); err != nil {
		return fmt.Errorf("etcdlog: reading the log: %w", err)
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
	ended := make(chan error, 1)
	level := zap.NewAtomicLevelAt(zap.ErrorLevel)
	err = logErrors(cfg, level, func(err error) {
		select {
		case ended <- err:
		default:
		}
	})
	if err != nil {
		return fmt.Errorf("etcdlog: %w", err)
	}
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("etcdlog: starting etcd: %w", err)
	}
	s := &Server{etcd: server, client: v3client.New(server.Server)}
	defer func() {
		level.SetLevel(zap.FatalLevel) // as in Close
		_ = s.client.Close()
		server.Server.HardStop()
		server.Close()
	}()
	ctx, cancel := context.WithTimeout(ctx, stoppedTime)
	defer cancel()
	log := s.Shard(0)
	select {
	case <-server.Server.ReadyNotify():
		_, err = s.client.Get(ctx, log.head) // it waits until all is applied
	case err = <-ended:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("etcdlog: reading the log: %w", err)
	}
	return read(log)
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
