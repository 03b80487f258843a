package etcdlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// check returns [replica.ErrDamaged] for a log that etcd cannot start with, or whose newest entries are missing: it reads
// what etcd's start reads, and all of its file. etcd panics at damage, or forgets what it promised and says nothing.
func check(dataDir string) error {
	member := filepath.Join(dataDir, "log", "member")
	last, snapshot, err := newestEntry(member)
	if err == nil {
		var applied uint64
		applied, err = readFile(filepath.Join(member, "snap", "db"))
		switch {
		case err != nil:
		case applied > last: // an entry is on the disk before it is applied
			err = fmt.Errorf("the write-ahead log ends with entry %d, and entry %d was applied", last, applied)
		case applied > 0 && applied < snapshot:
			err = fmt.Errorf("the file db is at entry %d, and the snapshot at %d", applied, snapshot)
		}
	}
	if err != nil {
		return fmt.Errorf("etcdlog: %w: %w", replica.ErrDamaged, err)
	}
	return nil
}

// newestEntry returns the last entry of the write-ahead log, and the entry of the newest snapshot.
func newestEntry(member string) (last, snapshot uint64, err error) {
	defer recovered(&err)
	lg, dir := zap.NewNop(), filepath.Join(member, "wal")
	known, err := wal.ValidSnapshotEntries(lg, dir)
	if err != nil {
		return 0, 0, err
	}
	var from walpb.Snapshot
	switch newest, err := snap.New(lg, filepath.Join(member, "snap")).LoadNewestAvailable(known); {
	case err == nil:
		from.Index, from.Term = newest.Metadata.Index, newest.Metadata.Term
	case !errors.Is(err, snap.ErrNoSnapshot):
		return 0, 0, err
	}
	w, err := wal.OpenForRead(lg, dir, from)
	if err != nil {
		return 0, 0, err
	}
	metadata, _, entries, err := w.ReadAll()
	_ = w.Close() // ReadAll has closed the files, which is an error here
	if err != nil {
		return 0, 0, err
	}
	var own etcdserverpb.Metadata
	if err := own.Unmarshal(metadata); err != nil {
		return 0, 0, err
	}
	if own.NodeID == 0 {
		return 0, 0, errors.New("the write-ahead log has no metadata")
	}
	last = from.Index
	if n := len(entries); n > 0 {
		last = entries[n-1].Index
	}
	return last, from.Index, nil
}

// fileTime is how long a process that ends may have etcd's file open.
const fileTime = 100 * time.Millisecond

// readFile reads all of etcd's file, and returns the last entry that it has.
func readFile(path string) (applied uint64, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // the file is mapped, and may be too short
	defer recovered(&err)
	if info, err := os.Stat(path); err != nil || info.Size() == 0 { // bbolt would make one
		return 0, errors.New("the file db is missing or empty")
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, PreLoadFreelist: true, Timeout: fileTime})
	if errors.Is(err, berrors.ErrTimeout) {
		return 0, nil // the log is in use
	}
	if err != nil {
		return 0, fmt.Errorf("the file db: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bbolt.Tx) error {
		if meta := tx.Bucket(schema.Meta.Name()); meta != nil {
			if at := meta.Get(schema.MetaConsistentIndexKeyName); len(at) == 8 {
				applied = binary.BigEndian.Uint64(at)
			}
		}
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error { return b.ForEach(func([]byte, []byte) error { return nil }) })
	})
	return applied, err
}

// recovered turns a panic into an error.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("reading it: %v", p)
	}
}
