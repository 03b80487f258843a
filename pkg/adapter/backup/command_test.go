package backup_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/backup"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// put schedules a key in the store of a single adapter.
func put(t *testing.T, dir, key string) {
	t.Helper()
	db, err := store.Open(store.Options{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	c, err := db.Apply(false, store.Change{Source: "s", Key: key, New: &schedule.Entry{Revision: 1, Occurrence: 1, ScheduledAt: now, DueAt: now.Add(time.Hour)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Wait(), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// run returns the exit code and the output.
func run(t *testing.T, replay store.Replay, args ...string) (int, string) {
	t.Helper()
	var out strings.Builder
	code := backup.Main(t.Context(), args, replay, &out, &out)
	return code, out.String()
}

// restored is the history of a directory of a group that is restored from the file.
func restored(t *testing.T, file string) string {
	t.Helper()
	dir := t.TempDir()
	if code, out := run(t, nil, "restore", "--to", "group", "--data-dir", dir, "-f", file); code != 0 {
		t.Fatal(code, out)
	}
	v, err := store.OpenView(store.Options{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	history, _, _, err := v.History()
	if err != nil || history == "" {
		t.Error(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	return history
}

// The back-up of a single adapter makes the directories of all three members of a group. Each was of another group than
// the others. Two back-ups are of two groups, though no revision was handed out between them.
func TestRestore_ToGroupOnEachMember(t *testing.T) {
	t.Parallel()
	dir, files := t.TempDir(), t.TempDir()
	var histories []string
	for i := range 2 {
		put(t, dir, fmt.Sprint(i))
		file := filepath.Join(files, fmt.Sprint(i))
		if code, out := run(t, nil, "backup", "--data-dir", dir, "-f", file); code != 0 {
			t.Fatal(code, out)
		}
		history := restored(t, file)
		if again := restored(t, file); again != history {
			t.Errorf("one back-up has the histories %s and %s", history, again)
		}
		histories = append(histories, history)
	}
	if histories[0] == histories[1] {
		t.Errorf("two back-ups have the history %s", histories[0])
	}
}

// The back-up of a member whose log is damaged has what comes before. There was none. Of nothing there is none.
func TestBackup_DamagedLogEndsIt(t *testing.T) {
	t.Parallel()
	dir, empty, file := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "file")
	single := t.TempDir()
	put(t, single, "k")
	if code, out := run(t, nil, "backup", "--data-dir", single, "-f", file); code != 0 {
		t.Fatal(code, out)
	}
	if code, out := run(t, nil, "restore", "--to", "group", "--data-dir", dir, "-f", file); code != 0 {
		t.Fatal(code, out)
	}
	v, err := store.OpenView(store.Options{Dir: empty, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	for member, want := range map[string]int{dir: 4, empty: 3} {
		if err := os.MkdirAll(filepath.Join(member, store.LogDir, "member"), 0o700); err != nil {
			t.Fatal(err)
		}
		code, out := run(t, func(context.Context, string, string, *store.View) error {
			return fmt.Errorf("%w: a bad sector", store.ErrLogDamaged)
		}, "backup", "--data-dir", member, "-f", file)
		if code != want || strings.Contains(out, "ends with entry 1 of") != (want == 4) || !strings.Contains(out, "a bad sector") {
			t.Errorf("%d, want %d: %s", code, want, out)
		}
	}
	if code, out := run(t, nil, "restore", "--to", "single", "--data-dir", t.TempDir(), "-f", file); code != 0 {
		t.Errorf("%d %s", code, out)
	}
}
