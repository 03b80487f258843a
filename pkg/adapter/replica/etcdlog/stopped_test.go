package etcdlog_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/etcdlog"
)

// The disk of one member has all that was acknowledged before it was killed, also the last entry,
// and reading it changes nothing. What the other members' logs had was thrown away.
func TestReadStopped_HasWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	servers, dirs := startGroup(t, func(string, error) {})
	for _, s := range servers {
		defer s.Close()
	}
	const entries = 250 // beyond a snapshot
	name := appendEntries(t, servers, entries, 1)
	killed := t.TempDir() // what kill -9 leaves at this moment
	if err := os.CopyFS(killed, os.DirFS(dirs[name])); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		last := uint64(0)
		err := etcdlog.ReadStopped(t.Context(), killed, t.TempDir(), func(_ context.Context, log replica.Log) error {
			for more := true; more; {
				p, err := log.Read(t.Context(), last)
				if err != nil {
					return err
				}
				for _, e := range p.Entries {
					if last++; e.Seq != last || len(e.Data) != 1 || e.Data[0] != byte(last) {
						return errors.New("an entry is missing")
					}
				}
				more = p.More
			}
			return nil
		})
		if err != nil || last != entries {
			t.Errorf("%d entries, acknowledged were %d: %v", last, entries, err)
		}
	}
}

// A damaged file of etcd is an error. etcd panics while it starts, and reading the log waited for it without an end.
func TestReadStopped_DamagedFileEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := etcdlog.Start(etcdlog.Options{Dir: dir, Group: "g", Member: "a", Peers: map[string]string{"a": free(t)}, Connections: connections(), Log: slog.New(slog.DiscardHandler), Stopped: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	<-s.Ready()
	s.Close()
	if err := os.WriteFile(filepath.Join(dir, "log", "member", "snap", "db"), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- etcdlog.ReadStopped(t.Context(), dir, t.TempDir(), func(context.Context, replica.Log) error { return nil })
	}()
	select {
	case err = <-ended:
	case <-time.After(2 * time.Minute):
		t.Fatal("it waits without an end")
	}
	if !errors.Is(err, replica.ErrDamaged) {
		t.Error(err)
	}
}
