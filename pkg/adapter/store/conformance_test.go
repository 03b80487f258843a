package store_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store/storetest"
)

func mustOpen(t *testing.T, fs vfs.FS, dir string) *store.DB {
	t.Helper()
	db, err := store.Open(store.Options{Dir: dir, FS: fs, Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
	must(t, err)
	return db
}

// mustVerify holds everything on disk against each other.
func mustVerify(t *testing.T, fs vfs.FS, dir string) {
	t.Helper()
	r, err := store.Verify(store.Options{Dir: dir, FS: fs})
	must(t, err)
	if !r.Clean() {
		t.Fatalf("not clean: %+v", r)
	}
}

// Pebble in memory is a store.
func TestPebble_InMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) (store.Store, func(bool) store.Store) {
		fs := vfs.NewCrashableMem()
		db := mustOpen(t, fs, "data")
		t.Cleanup(func() {
			must(t, db.Close())
			mustVerify(t, fs, "data")
		})
		return db, func(kill bool) store.Store {
			crashed := fs.CrashClone(vfs.CrashCloneCfg{})
			must(t, db.Close())
			if kill {
				fs = crashed
			}
			mustVerify(t, fs, "data")
			db = mustOpen(t, fs, "data")
			return db
		}
	})
}

// A power loss cannot be had here: a kill is a copy of the files while the store is open, as after kill -9.
func TestPebble_OnDisk(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) (store.Store, func(bool) store.Store) {
		dir := t.TempDir()
		db := mustOpen(t, nil, dir)
		t.Cleanup(func() {
			must(t, db.Close())
			mustVerify(t, nil, dir)
		})
		return db, func(kill bool) store.Store {
			copied := t.TempDir()
			if kill {
				copyFiles(t, copied, dir)
			}
			must(t, db.Close())
			if kill {
				dir = copied
			}
			mustVerify(t, nil, dir)
			db = mustOpen(t, nil, dir)
			return db
		}
	})
}

func copyFiles(t *testing.T, to, from string) {
	t.Helper()
	to, from = filepath.Join(to, "store"), filepath.Join(from, "store")
	must(t, os.Mkdir(to, 0o700))
	files, err := os.ReadDir(from)
	must(t, err)
	for _, f := range files {
		in, err := os.Open(filepath.Join(from, f.Name()))
		if os.IsNotExist(err) {
			continue // the engine removed what it no longer needs
		}
		must(t, err)
		out, err := os.Create(filepath.Join(to, f.Name()))
		if err == nil {
			_, err = io.Copy(out, in)
		}
		must(t, err)
		in.Close()
		out.Close()
	}
}

// must ends the test with an error of its own steps.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errorOf is the error of a step whose value is not needed.
func errorOf[T any](_ T, err error) error { return err }
