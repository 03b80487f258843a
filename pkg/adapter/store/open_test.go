package store

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// A directory of another program is refused.
func TestOpen_RefusesForeignDirectories(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, want string
		prepare    func(t *testing.T, fs *vfs.MemFS)
	}{
		{"of the next version", "its format is version 99, this program reads version 3", func(t *testing.T, fs *vfs.MemFS) {
			db := open(t, Options{FS: fs})
			must(t, db.db.Set([]byte(metaFormat), []byte("99"), pebble.Sync))
			must(t, db.Close())
		}},
		{"of another program", "not of this program", func(t *testing.T, fs *vfs.MemFS) {
			db := open(t, Options{FS: fs})
			must(t, db.db.Delete([]byte(metaFormat), pebble.Sync))
			must(t, db.Close())
		}},
		{"in use", "in use by another process", func(t *testing.T, fs *vfs.MemFS) { open(t, Options{FS: fs}) }},
	} {
		fs := vfs.NewMem()
		test.prepare(t, fs)
		for _, readOnly := range []bool{false, true} {
			_, err := Open(Options{Dir: "data", FS: fs, ReadOnly: readOnly})
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), `"data"`) {
				t.Errorf("%s, read-only %v: %v", test.name, readOnly, err)
			}
		}
	}
}

// A directory whose files are not where this version has them is refused, and left as it is, and so is what is no
// directory. An adapter began empty beside all the schedules of the version before, and verify found nothing wrong.
func TestOpen_OtherLayoutIsNotEmpty(t *testing.T) {
	t.Parallel()
	whole := flushedStore(t)
	for _, only := range []string{"", "MANIFEST-", "marker.manifest", ".sst"} {
		fs := vfs.NewMem()
		must(t, fs.MkdirAll("data", 0o700))
		for _, name := range namesOf(t, whole, only) {
			must(t, errorOf(vfs.Clone(whole, fs, "data/store/"+name, "data/"+name)))
		}
		before := fs.String()
		for name, err := range refusals(Options{Dir: "data", FS: fs, Log: slog.New(slog.DiscardHandler)}) {
			if err == nil || !strings.Contains(err.Error(), "its format is") || errors.Is(err, ErrNothing) {
				t.Errorf("%s of a directory with %q: %v", name, only, err)
			}
		}
		if after := fs.String(); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for name, err := range refusals(Options{Dir: file, Log: slog.New(slog.DiscardHandler)}) {
		if !errors.Is(err, syscall.ENOTDIR) || strings.Contains(err.Error(), "LOCK") {
			t.Errorf("%s of a file: %v", name, err)
		}
	}
	if _, err := Open(Options{Dir: "/proc/absent"}); err == nil || strings.Contains(err.Error(), "sync") {
		t.Errorf("where no directory can be made: %v", err)
	}
}

// refusals are the errors of all that opens a directory.
func refusals(o Options) map[string]error {
	_, single := Open(o)
	_, member := OpenView(o)
	_, verified := Verify(o)
	_, repaired := Repair(o, "new")
	stopped := CheckpointStopped(context.Background(), o, nil, func(string) error { return nil })
	o.ReadOnly = true
	_, read := Open(o)
	return map[string]error{"a start": single, "a start of a member": member, "verify": verified, "repair": repaired, "backup": stopped, "inspect": read}
}

// Read only changes nothing.
func TestOpen_ReadOnlyChangesNothing(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	if _, err := Open(Options{Dir: "data", FS: fs, ReadOnly: true}); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("a directory that is not there was opened:", err)
	}
	if _, err := fs.Stat("data"); err == nil {
		t.Fatal("it was made")
	}
	db := open(t, Options{FS: fs})
	fill(t, db, "a", "\x01dead")
	must(t, db.Close())
	before := fs.String()
	db = open(t, Options{FS: fs, ReadOnly: true})
	if _, err := db.Apply(false, Change{Source: "s", Key: "b", New: goldenEntries()["bare"]}); err == nil {
		t.Error("a change was taken")
	}
	if _, err := db.NextRevision(); err == nil {
		t.Error("a revision was handed out")
	}
	if err := db.Purge("s"); err == nil {
		t.Error("a purge was taken")
	}
	o, err := db.Overview()
	if err != nil || len(o.Sources) != 1 || o.Sources[0].Keys != 1 || o.Sources[0].DeadLetters != 1 || o.Sources[0].NextAt.IsZero() {
		t.Errorf("%+v, %v", o, err)
	}
	items, more, err := db.DeadLetters("s", "", 10)
	if err != nil || more || len(items) != 1 || items[0].Key != "\x01dead" {
		t.Errorf("%+v, %v", items, err)
	}
	if _, err := json.Marshal(NewDump("s", items[0].Key, items[0].Entry, db.ID())); err != nil {
		t.Error(err)
	}
	must(t, db.Close())
	if after := fs.String(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// Reads after close fail.
func TestClose_LaterReadsFail(t *testing.T) {
	t.Parallel()
	db := open(t, Options{FS: vfs.NewMem()})
	must(t, db.Close())
	_, getErr := db.Get("s", "k")
	_, _, dueErr := db.Due(nil, "s", schedule.NormalPriority, Position{}, 1)
	_, applyErr := db.Apply(true)
	_, _, countErr := db.Count("s")
	_, _, listErr := db.ListDue("s", "", Position{}, 1, 1)
	for i, err := range []error{getErr, dueErr, applyErr, countErr, listErr, db.Close()} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// A sealed store takes no change, also after a restart, and can be read and copied. A copy takes changes again.
func TestSeal_IsTheEnd(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	db := open(t, Options{FS: fs})
	fill(t, db, "a")
	if err := db.Seal(); err != nil || !db.Sealed() {
		t.Fatal(err)
	}
	copied := vfs.NewMem()
	for range 2 {
		if _, err := db.Apply(false, Change{Source: "s", Key: "b", New: goldenEntries()["bare"]}); !errors.Is(err, ErrSealed) {
			t.Errorf("a change: %v", err)
		}
		if e, err := db.Get("s", "a"); e == nil || err != nil {
			t.Errorf("a read: %v %v", e, err)
		}
		must(t, db.Close())
		if db = open(t, Options{FS: fs}); !db.Sealed() {
			t.Error("a restart has taken the seal away")
		}
	}
	err := db.Checkpoint(func(dir string) error { _, err := vfs.Clone(fs, copied, dir, "data/store"); return err })
	must(t, errors.Join(err, db.Close()))
	restored := newOf(t, copied)
	must(t, Restored(Options{Dir: "data", FS: restored}, Single, nil))
	db = open(t, Options{FS: restored})
	fill(t, db, "b")
}

// A compaction of level 0 fits half of the reserve, on any disk: replacements may use the other half.
func TestOptions_CompactionFitsReserve(t *testing.T) {
	t.Parallel()
	for total, tables := range map[uint64]int{64 << 20: 6, 1 << 30: 4, 4 << 30: 11, 10 << 30: 16, 1 << 40: 16} {
		o := Options{}
		p := newDB(&engine{}).pebble(&o, vfs.NewMem(), total)
		takes := int64(p.L0CompactionThreshold)*int64(p.MemTableSize) + p.LBaseMaxBytes
		if p.L0CompactionThreshold != tables || tables > leastLevel0 && takes > o.reserve(total)/2 {
			t.Errorf("%d bytes: %d tables, a compaction takes %d of a reserve of %d", total, p.L0CompactionThreshold, takes, o.reserve(total))
		}
	}
}
