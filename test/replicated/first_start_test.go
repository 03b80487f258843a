package replicated

import (
	"errors"
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
	restore := firstVote(t, own)
	for i := range g.members {
		if err := os.RemoveAll(filepath.Join(g.dir, name(i))); err != nil {
			t.Fatal(err)
		}
	}
	restore()
	g.launchAll()
	g.put(g.key(), 0)
	g.settled()
}

// firstVote reads how a member's log began, and returns the function that writes a log that ends with the member's vote
// for itself.
func firstVote(t *testing.T, dir string) (restore func()) {
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
	identity := filepath.Join(filepath.Dir(filepath.Dir(dir)), "identity")
	id, err := os.ReadFile(identity)
	if err != nil {
		t.Fatal(err)
	}
	state.Term, state.Vote, state.Commit = 2, member.NodeID, 3
	return func() {
		if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
			t.Fatal(err)
		}
		w, err := wal.Create(zap.NewNop(), dir, metadata)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Save(state, entries[:3]), w.Close(), os.WriteFile(identity, id, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}
