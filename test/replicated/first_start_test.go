package replicated

import (
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
)

// A member whose first start was cut off after its own vote, and before the votes of the others, begins a group with
// them. It waited for a majority, and the others, which had no log, waited for it.
func TestStart_OnlyOneHasVoted(t *testing.T) {
	t.Parallel()
	g := prepare(t, func(*group) {})
	g.launchAll()
	for i := range g.members {
		g.kill(i)
	}
	const voted = 1
	own := filepath.Join(g.dir, name(voted), "log", "member", "wal")
	metadata := firstVote(t, own)
	for i := range g.members {
		if err := os.RemoveAll(filepath.Join(g.dir, name(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(own), 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := wal.Create(zap.NewNop(), own, metadata.bytes)
	if err != nil {
		t.Fatal(err)
	}
	if err := metadata.save(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	g.launchAll()
	g.put(g.key(), 0)
	g.settled()
}

// vote is a log that ends with the member's vote for itself.
type vote struct {
	bytes []byte // its metadata
	save  func(*wal.WAL) error
}

// firstVote reads how a member's log began.
func firstVote(t *testing.T, dir string) vote {
	t.Helper()
	r, err := wal.OpenForRead(zap.NewNop(), dir, walpb.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	metadata, state, entries, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var member etcdserverpb.Metadata
	if err := member.Unmarshal(metadata); err != nil {
		t.Fatal(err)
	}
	state.Term, state.Vote, state.Commit = 2, member.NodeID, 3
	return vote{metadata, func(w *wal.WAL) error { return w.Save(state, entries[:3]) }}
}
