package etcdlog_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/etcdlog"
)

// A log has promised more than its own vote once it has voted for another member, or has accepted an entry.
func TestPromise_OfALog(t *testing.T) {
	t.Parallel()
	const own, other = 5, 6
	begin := []raftpb.Entry{{Term: 1, Index: 1}, {Term: 1, Index: 2}, {Term: 1, Index: 3}}
	accepted := append(begin[:3:3], raftpb.Entry{Term: 2, Index: 4})
	for name, test := range map[string]struct {
		state   raftpb.HardState
		entries []raftpb.Entry
		want    replica.Promise
	}{
		"just made":                {raftpb.HardState{Term: 1, Commit: 3}, begin, replica.Nothing},
		"killed while it was made": {raftpb.HardState{}, nil, replica.Nothing},
		"a vote for itself":        {raftpb.HardState{Term: 2, Vote: own, Commit: 3}, begin, replica.OwnVote},
		"votes for itself":         {raftpb.HardState{Term: 9, Vote: own, Commit: 3}, begin, replica.OwnVote},
		"a vote for another one":   {raftpb.HardState{Term: 2, Vote: other, Commit: 3}, begin, replica.More},
		"it heard of a term":       {raftpb.HardState{Term: 2, Commit: 3}, begin, replica.More},
		"it has accepted":          {raftpb.HardState{Term: 2, Vote: own, Commit: 3}, accepted, replica.More},
		"it has committed":         {raftpb.HardState{Term: 2, Vote: own, Commit: 4}, accepted, replica.More},
	} {
		dir := t.TempDir()
		parent := filepath.Join(dir, "log", "member")
		if err := os.MkdirAll(filepath.Join(parent, "snap"), 0o700); err != nil {
			t.Fatal(err)
		}
		metadata, err := (&etcdserverpb.Metadata{NodeID: own, ClusterID: 1}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		w, err := wal.Create(zap.NewNop(), filepath.Join(parent, "wal"), metadata)
		if err != nil {
			t.Fatal(err)
		}
		db, err := bbolt.Open(filepath.Join(parent, "snap", "db"), 0o600, nil)
		if err = errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		if err := w.Save(test.state, test.entries); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got, err := etcdlog.PromiseOf(dir); got != test.want || err != nil {
			t.Errorf("%s: %v, %v, want %v", name, got, err, test.want)
		}
	}
}
