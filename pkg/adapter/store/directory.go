package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The folders of a data directory. A store is replaced by a rename of one that is whole and on stable storage, so that a
// crash leaves the old one or the new one.
const (
	storeDir = "store"      // the engine's files
	newDir   = "store.new"  // a store that is being written
	nextDir  = "store.next" // a store that is whole: the next Open puts it in the place of storeDir
	// LogDir has a member's part of the replicated log.
	LogDir = "log"
)

var (
	// ErrInUse is the error of a directory that another process has open.
	ErrInUse = errors.New("it is in use by another process")
	// ErrNothing is returned for a directory without a store.
	ErrNothing = errors.New("it holds nothing")
	// errCutOff is the error of a directory whose store was never complete.
	errCutOff = errors.New("a restore or a repair into it was cut off: run adapter restore again, or adapter repair")
)

// NewDir is the folder into which a store is written that [Adopt] puts in the place of the directory's store. Options.New
// opens it.
func NewDir(o Options) string { return o.fs().PathJoin(o.Dir, newDir) }

// Claim locks a directory without a store, and makes an empty [NewDir] in it.
func Claim(o Options) (io.Closer, error) {
	fs := o.fs()
	if err := makeDir(fs, o.Dir); err != nil {
		return nil, err
	}
	names, err := fs.List(o.Dir)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(names, func(name string) bool { return !slices.Contains([]string{"lost+found", "LOCK", newDir}, name) }); i >= 0 {
		return nil, fmt.Errorf("%s is not empty: it has %s. Give an empty directory", o.Dir, names[i])
	}
	lock, err := lockDirectory(fs, o.Dir)
	if err != nil {
		return nil, err
	}
	err = errors.Join(fs.RemoveAll(NewDir(o)), fs.MkdirAll(NewDir(o), 0o700), syncDir(fs, o.Dir))
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// Adopt makes the store in [NewDir], which must be whole and on stable storage, the store of the directory from the next
// Open on. A store that is there is removed then.
func Adopt(o Options) error {
	fs := o.fs()
	if err := fs.Rename(NewDir(o), fs.PathJoin(o.Dir, nextDir)); err != nil {
		return err
	}
	return syncDir(fs, o.Dir)
}

// endAdoption ends what Adopt has begun, and removes what other processes have left.
func endAdoption(fs vfs.FS, dir string) error {
	current, next, unfinished := fs.PathJoin(dir, storeDir), fs.PathJoin(dir, nextDir), fs.PathJoin(dir, newDir)
	if exists(fs, next) {
		if err := errors.Join(fs.RemoveAll(current), syncDir(fs, dir)); err != nil {
			return err
		}
		if err := errors.Join(fs.Rename(next, current), syncDir(fs, dir)); err != nil {
			return err
		}
	}
	if !exists(fs, current) && exists(fs, unfinished) {
		return errCutOff
	}
	return errors.Join(fs.RemoveAll(unfinished), fs.RemoveAll(fs.PathJoin(dir, checkpointDir)))
}

// folder is where the store of a directory is.
func (o *Options) folder() string {
	fs := o.fs()
	name := storeDir
	if o.New {
		name = newDir
	} else if next := fs.PathJoin(o.Dir, nextDir); exists(fs, next) {
		name = nextDir
	}
	return fs.PathJoin(o.Dir, name)
}

// engineFile is the name of a file that only storeDir has.
var engineFile = regexp.MustCompile(`^(CURRENT|(MANIFEST-|marker\.).+|\d+\.(sst|log))$`)

// refuseOther refuses a directory with a store at another place than this version has it: it would count as empty.
func refuseOther(fs vfs.FS, dir string) error {
	if err := mustBeDir(fs, dir); err != nil {
		return err
	}
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(names, engineFile.MatchString); i >= 0 {
		return fmt.Errorf("its format is another version's or another program's: it has %s outside of the folder %s. Nothing was changed", names[i], storeDir)
	}
	return nil
}

// mustHoldStore refuses a directory without a store. A damaged one is enough.
func mustHoldStore(o *Options) error {
	if err := refuseOther(o.fs(), o.Dir); err != nil {
		return err
	}
	names, err := o.fs().List(o.folder())
	if errors.Is(err, os.ErrNotExist) || err == nil && len(names) == 0 {
		return ErrNothing
	}
	return err
}

func mustBeDir(fs vfs.FS, dir string) error {
	info, err := fs.Stat(dir)
	if err == nil && !info.IsDir() {
		err = &os.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	return err
}

// makeDir makes a directory, with its name on stable storage.
func makeDir(fs vfs.FS, dir string) error {
	err := mustBeDir(fs, dir)
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return syncDir(fs, fs.PathDir(dir))
}

func exists(fs vfs.FS, path string) bool {
	_, err := fs.Stat(path)
	return err == nil
}

func lockDirectory(fs vfs.FS, dir string) (*pebble.Lock, error) {
	lock, err := pebble.LockDirectory(dir, fs)
	if errors.Is(err, syscall.EAGAIN) {
		return nil, ErrInUse
	}
	if err != nil {
		return nil, fmt.Errorf("it is in use by another process, or cannot be locked: %w", err)
	}
	return lock, nil
}

// lockPresent locks a directory that has a store: the lock leaves a file.
func lockPresent(o *Options) (*pebble.Lock, error) {
	if err := mustHoldStore(o); err != nil {
		return nil, err
	}
	return lockDirectory(o.fs(), o.Dir)
}

// hasLog reports that the directory is of a member that has a part of the replicated log, or had one: a member that joins
// anew has removed it, and the others know more.
func hasLog(fs vfs.FS, dir string) bool {
	for _, name := range []string{"member", "joining", "identity"} {
		if exists(fs, fs.PathJoin(dir, LogDir, name)) {
			return true
		}
	}
	return false
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
