package store

import (
	"cmp"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

func open(t *testing.T, o Options) *DB {
	t.Helper()
	o.Dir = cmp.Or(o.Dir, "data")
	o.Fatal = func(err error) { t.Errorf("fatal: %v", err) }
	db, err := Open(o)
	must(t, err)
	t.Cleanup(func() {
		if err := db.Close(); err != nil && !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
	return db
}

// clean is the report of a store that is clean.
func clean(t *testing.T, o Options) Report {
	t.Helper()
	o.Dir = cmp.Or(o.Dir, "data")
	r, err := Verify(o)
	if err != nil || !r.Clean() {
		t.Errorf("%+v %v", r, err)
	}
	return r
}

func fill(t *testing.T, db *DB, keys ...string) {
	t.Helper()
	for i, key := range keys {
		e := goldenEntries()["full"]
		e.Revision = uint64(i + 1)
		c, err := db.Apply(false, Change{Source: "s", Key: key, New: e})
		must(t, err)
		must(t, c.Wait())
	}
}

// A record that makes no sense stops no other one. It is removed with its rows and its count, and replaced without
// being counted twice; its size is not known, so that the next start counts the source's bytes again.
func TestCorrupt_RecordStopsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		db := open(t, Options{FS: fs})
		fill(t, db, "a", "b", "c")
		for _, key := range []string{"a", "b"} {
			must(t, db.db.Set(appendRecordKey(nil, "s", key), []byte{99}, pebble.Sync))
		}
		_, err := db.Get("s", "b")
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || corrupt.Source != "s" || corrupt.Key != "b" || !strings.Contains(err.Error(), "version is 99") {
			t.Fatal(err)
		}
		items, _, err := db.List("s", "", "", 10, true)
		if err != nil || len(items) != 3 || items[0].Entry != nil || items[1].Entry != nil || items[2].Entry == nil {
			t.Fatal(items, err)
		}
		if items, _, err = db.ListDue("s", "", Position{}, 10, 100); err != nil || len(items) != 1 {
			t.Fatal(items, err)
		}
		if rows, _, err := db.Due(nil, "s", schedule.NormalPriority, Position{}, 10); err != nil || len(rows) != 3 {
			t.Fatal(rows, err)
		}
		if db.Corrupt() != 2 { // each was met three times
			t.Errorf("counted %d", db.Corrupt())
		}
		r, err := db.verify()
		if err != nil || r.ProblemCount != 2 || !strings.Contains(r.Problems[1], `key "b" of source "s" is corrupt`) {
			t.Fatalf("%+v, %v", r, err)
		}
		must(t, errorOf(db.Apply(false, Change{Source: "s", Key: "a", Corrupt: true}, Change{Source: "s", Key: "b", Corrupt: true, New: sized(10)})))
		synctest.Wait()
		if n, _, err := db.Count("s"); n != 2 || err != nil {
			t.Error(n, err)
		}
		if rows, _, err := db.Due(nil, "s", schedule.NormalPriority, Position{}, 10); len(rows) != 2 || err != nil {
			t.Error(rows, err)
		}
		for range 2 {
			must(t, db.Close())
			clean(t, Options{FS: fs})
			db = open(t, Options{FS: fs})
			if got, err := db.Bytes("s"); got != sized(10).Size("b")+goldenEntries()["full"].Size("c") || err != nil {
				t.Errorf("%d bytes (%v)", got, err)
			}
		}
	})
}

// The row of an unfinished key that replaced a corrupt one is written twice, since its key has no revision: its end
// leaves none of the two.
func TestUnfinished_WrittenTwiceEnds(t *testing.T) {
	t.Parallel()
	db := open(t, Options{FS: vfs.NewMem()})
	entry := func(revision uint64) *schedule.Entry {
		return &schedule.Entry{Revision: revision, Occurrence: revision, DueAt: golden, UnfinishedAt: golden}
	}
	must(t, errorOf(db.Apply(false, Change{Source: "s", Key: "k", New: entry(1)})))
	must(t, db.db.Flush())
	must(t, db.db.Compact(t.Context(), []byte("a"), []byte("z"), false))
	must(t, errorOf(db.Apply(false, Change{Source: "s", Key: "k", Corrupt: true, New: entry(2)})))
	must(t, errorOf(db.Apply(false, Change{Source: "s", Key: "k", Old: entry(2)})))
	must(t, db.db.Flush())
	if rows, err := db.Unfinished(); err != nil || len(rows) != 0 {
		t.Errorf("%+v %v", rows, err)
	}
}

// Verify finds rows and records that disagree.
func TestVerify_FindsDisagreement(t *testing.T) {
	t.Parallel()
	dueKey := func(revision uint64) []byte {
		return appendDueKey(nil, "s", schedule.NormalPriority, golden, "k", revision)
	}
	for _, test := range []struct {
		name, want string
		damage     func(b *pebble.Batch) error
	}{
		{"a missing row", "cannot be read", func(b *pebble.Batch) error {
			return b.Delete(appendRetryKey(nil, "s", golden.Add(time.Minute), "k", 1), nil)
		}},
		{"a row too many", "does not follow", func(b *pebble.Batch) error { return b.Set(dueKey(7), nil, nil) }},
		{"a row without a record", "does not follow", func(b *pebble.Batch) error {
			return b.Set(appendExpiryKey(nil, "other", golden, "k", 1), nil, nil)
		}},
		{"a wrong value", "not 72", func(b *pebble.Batch) error {
			return b.Set(appendDueKey(nil, "s", schedule.NormalPriority, golden.Add(time.Hour), "k", 1), nil, nil)
		}},
		{"a wrong counter", "its counter says 2 and 0 of", func(b *pebble.Batch) error {
			return b.Merge(appendCounterKey(nil, "s"), (&sum{keys: 1}).append(nil), nil)
		}},
		{"a missing counter", "no counter", func(b *pebble.Batch) error { return b.Delete(appendCounterKey(nil, "s"), nil) }},
		{"a row of no table", "is of no table", func(b *pebble.Batch) error { return b.Set([]byte("zzz"), nil, nil) }},
		{"a row that is no row", "not of this format", func(b *pebble.Batch) error { return b.Set([]byte("d/s\x00x"), nil, nil) }},
		{"an unfinished row of another time", "does not follow", func(b *pebble.Batch) error {
			return b.Set(appendUnfinishedKey(nil, "s", "k"), make([]byte, 16), nil)
		}},
	} {
		fs := vfs.NewMem()
		db := open(t, Options{FS: fs})
		fill(t, db, "k")
		b := db.db.NewBatch()
		must(t, test.damage(b))
		must(t, b.Commit(pebble.Sync))
		must(t, db.Close())
		r, err := Verify(Options{Dir: "data", FS: fs})
		if err != nil || r.Clean() || !strings.Contains(strings.Join(r.Problems, "\n"), test.want) {
			t.Errorf("%s: %+v, %v", test.name, r, err)
		}
	}
}

// A purge that was cut off is ended by the next start.
func TestPurge_CutOffIsEndedByTheNextStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testPurgeCutOff)
}

func testPurgeCutOff(t *testing.T) {
	fs := vfs.NewMem()
	db := open(t, Options{FS: fs})
	fill(t, db, "k")
	b := db.db.NewBatch()
	prefix := appendSource(nil, tableRecord, "s")
	for _, err := range []error{
		b.DeleteRange(prefix, successor(prefix), nil),
		b.DeleteRange([]byte("e/"), []byte("e0"), nil), b.DeleteRange([]byte("d/"), []byte("d0"), nil), b.DeleteRange([]byte("r/"), []byte("r0"), nil),
		b.DeleteRange([]byte("u/"), []byte("u0"), nil), b.DeleteRange([]byte("c/"), []byte("c0"), nil),
		b.Set(purgeKey("s"), nil, nil), b.Commit(pebble.Sync), db.Close(),
	} {
		must(t, err)
	}
	r, err := Verify(Options{Dir: "data", FS: fs})
	if err != nil || !r.Clean() || len(r.Purging) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	db = open(t, Options{FS: fs})
	synctest.Wait()
	if rows, _, err := db.Expired(golden.Add(24*time.Hour), SourceRow{}, 10); err != nil || len(rows) > 0 {
		t.Fatal(rows, err)
	}
	if purging, err := db.purging(); err != nil || len(purging) > 0 {
		t.Fatal(purging, err)
	}
}

// Names that would break the order are refused.
func TestNames_BreakingTheOrderAreRefused(t *testing.T) {
	t.Parallel()
	db := open(t, Options{FS: vfs.NewMem()})
	for _, name := range [][2]string{{"", "k"}, {"s\x00", "k"}, {"s", ""}, {"s", "a\x00"}, {"s", "a\x01"}} {
		if _, err := db.Apply(false, Change{Source: name[0], Key: name[1], New: &schedule.Entry{}}); err == nil {
			t.Errorf("%q was taken", name)
		}
	}
	if keys, _, err := db.Count("s"); keys != 0 || err != nil {
		t.Error(keys, err)
	}
}
