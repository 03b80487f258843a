package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Replay applies what the log of a member, which is in its data directory, has behind the view. It
// may write into the empty directory work. It returns [ErrLogDamaged] where the view has all that can be read.
type Replay func(ctx context.Context, dataDir, work string, v *View) error

var (
	// ErrLogDamaged is the error of a log that cannot be read to its end.
	ErrLogDamaged = errors.New("the log cannot be read to its end")
	// ErrIncomplete is returned for a back-up that was made, and lacks what could not be read.
	ErrIncomplete = errors.New("the back-up is written, but it is not all that the member had: take another member's back-up if it ends later. It ends with entry")
)

// CheckpointStopped is [DB.Checkpoint] of a directory that no process has open. Of a member of a group
// it first applies what the member's log has. It works on a copy, whose tables are hard links, so
// that the directory stays as it is. replay is required for such a member, and o.Log. Where the log is damaged, the copy
// ends before the damage, and the error is [ErrIncomplete].
func CheckpointStopped(ctx context.Context, o Options, replay Replay, use func(dir string) error) (err error) {
	fs := o.fs()
	lock, err := lockPresent(&o)
	if err != nil {
		return err
	}
	work := fs.PathJoin(o.Dir, checkpointDir) // a start removes what is left of it
	defer func() { err = errors.Join(err, fs.RemoveAll(work), lock.Close()) }()
	copied := Options{Dir: work, FS: o.FS, Log: o.Log, Reserve: -1}
	to, log := copied.folder(), fs.PathJoin(work, LogDir)
	err = errors.Join(fs.RemoveAll(work), fs.MkdirAll(to, 0o700), fs.MkdirAll(log, 0o700))
	if err == nil {
		err = linkFiles(fs, o.folder(), to)
	}
	if err != nil {
		return err
	}
	member := hasLog(fs, o.Dir)
	if member && replay == nil {
		return errors.New("it is of a member of a group: run adapter-replicated backup")
	}
	if !member {
		db, err := Open(copied)
		if err == nil {
			return errors.Join(db.Checkpoint(use), db.Close())
		}
		if !errors.Is(err, errMembers) {
			return err
		}
	}
	v, err := OpenView(copied)
	if err != nil {
		return err
	}
	var incomplete error
	if member {
		if err = replay(ctx, o.Dir, log, v); errors.Is(err, ErrLogDamaged) && !IsFull(err) && v.Applied() > 0 {
			incomplete, err = fmt.Errorf("%w %d of the group's log: %w", ErrIncomplete, v.Applied(), err), nil
		}
		if err != nil {
			err = fmt.Errorf("store: applying the log of %q: %w", o.Dir, err)
		}
	}
	if err == nil {
		o.Log.Info("the back-up ends with this entry of the group's log", "entry", v.Applied())
		err = v.Checkpoint(use)
	}
	if err = errors.Join(err, v.Close()); err != nil {
		return err
	}
	return incomplete
}

// linkFiles makes a copy of a store's files. Tables are links: nothing writes to them again.
func linkFiles(fs vfs.FS, from, to string) error {
	names, err := fs.List(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		path := fs.PathJoin(from, name)
		info, err := fs.Stat(path)
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() || name == "LOCK" {
			continue
		}
		if strings.HasSuffix(name, ".sst") {
			err = fs.Link(path, fs.PathJoin(to, name))
		} else {
			err = vfs.Copy(fs, path, fs.PathJoin(to, name))
		}
		if err != nil {
			return err
		}
	}
	return syncDir(fs, to)
}
