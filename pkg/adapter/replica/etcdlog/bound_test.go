package etcdlog

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/listener"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// alone starts a group of one member.
func alone(t *testing.T, dir string) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	s, err := Start(Options{
		Dir: dir, Member: "a", Peers: map[string]string{"a": l.Addr().String()}, Log: slog.New(slog.DiscardHandler), Stopped: func(error) {},
		Connections: listener.New(listener.Config{Name: "log", Limit: 64, Heads: budget.New(1 << 20), Log: slog.New(slog.DiscardHandler)}),
	})
	if err != nil {
		t.Fatal(err)
	}
	<-s.Ready()
	return s
}

// walSize is the size of the write-ahead log.
func walSize(t *testing.T, dir string) (size int64) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil && strings.HasSuffix(f.Name(), ".wal") {
			size += info.Size()
		}
	}
	return size
}

// After 204 batches of 8 MiB, a start read a gigabyte of entries into memory, and was killed for it again and again. The
// files had a gigabyte too.
func TestWAL_IsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := alone(t, dir)
	log := s.Entries()
	epoch, err := log.Claim(t.Context(), replica.State{}, replica.Owner{Member: "a"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	const entries = 8 * snapshotCount
	for seq := uint64(1); seq <= entries; seq++ {
		if _, err := log.Append(t.Context(), epoch, seq, make([]byte, replica.MaxEntry), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	files := filepath.Join(dir, "log", "member", "wal")
	ctx, cancel := context.WithTimeout(t.Context(), 20*purgeEvery)
	defer cancel()
	for tick := time.Tick(purgeEvery / 4); walSize(t, files) > (walFiles+2)*walBytes+snapshotCount*replica.MaxEntry; {
		select {
		case <-tick:
		case <-ctx.Done():
			t.Fatal("the files have", walSize(t, files))
		}
	}
	if now, most := s.DiskUse(); now < walBytes || now > most {
		t.Errorf("it takes %d bytes of the disk, and may take %d", now, most)
	}
	s.Close()
	<-s.Ended()
	snapshots, err := wal.ValidSnapshotEntries(zap.NewNop(), files)
	if err != nil {
		t.Fatal(err)
	}
	w, err := wal.OpenForRead(zap.NewNop(), files, snapshots[len(snapshots)-1])
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, _, read, err := w.ReadAll(); err != nil || len(read) > snapshotCount+10 {
		t.Errorf("a start reads %d entries into memory: %v", len(read), err)
	}
}

// With etcd's quota, a log that is full refused renewals, claims and trims too: no member owned the group, and nothing
// made space.
func TestQuota_IsOff(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir(), Member: "a", Peers: map[string]string{"a": "127.0.0.1:1"}}
	cfg, err := o.config()
	if err != nil || cfg.QuotaBackendBytes >= 0 {
		t.Error(cfg.QuotaBackendBytes, err)
	}
}
