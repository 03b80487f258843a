package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// There is one checkpoint at a time, and nothing is left of it after an error or the end of the process.
func TestCheckpoint_OneAtATimeAndNoneLeft(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	left := filepath.Join(dir, "checkpoint")
	db, err := store.Open(store.Options{Dir: dir})
	must(t, err)
	failed := errors.New("the reader went away")
	err = db.Checkpoint(func(at string) error {
		if at != left {
			t.Errorf("the checkpoint is %s", at)
		}
		if err := db.Checkpoint(func(string) error { return nil }); !errors.Is(err, store.ErrCheckpoint) {
			t.Errorf("a second one: %v", err)
		}
		return failed
	})
	if _, stat := os.Stat(left); !errors.Is(err, failed) || !os.IsNotExist(stat) {
		t.Errorf("%v; what is left: %v", err, stat)
	}
	if err := db.Checkpoint(func(string) error { return nil }); err != nil {
		t.Errorf("the next one: %v", err)
	}
	must(t, db.Close())
	if err := db.Checkpoint(func(string) error { return nil }); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	must(t, os.MkdirAll(filepath.Join(left, "cut off"), 0o700))
	if db, err = store.Open(store.Options{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("a start leaves the checkpoint of a process that was killed: %v", err)
	}
	must(t, db.Close())
}
