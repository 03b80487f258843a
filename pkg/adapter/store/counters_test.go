package store

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

func sized(n int) *schedule.Entry {
	now := time.Unix(1_800_000_000, 0)
	return &schedule.Entry{Revision: 1, Occurrence: 1, DueAt: now, Event: &schedule.Event{Data: make([]byte, n)}}
}

// A purge takes a source's bytes with it.
func TestBytes_GoWithThePurge(t *testing.T) {
	t.Parallel()
	db, err := Open(Options{Dir: "data", FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Apply(false, Change{Source: "s", Key: "a", New: sized(10)}, Change{Source: "s2", Key: "a", New: sized(10)}); err != nil {
		t.Fatal(err)
	}
	if err := db.Purge("s"); err != nil {
		t.Fatal(err)
	}
	if n, err := db.Bytes("s"); n != 0 || err != nil {
		t.Errorf("%d bytes are left (%v)", n, err)
	}
	if _, _, err := db.db.Get(appendCounterKey(nil, "s")); err != pebble.ErrNotFound { //nolint:errorlint // Pebble's own
		t.Errorf("its row: %v", err)
	}
	if n, err := db.Bytes("s2"); n != sized(10).Size("a") || err != nil {
		t.Errorf("the other source has %d bytes (%v)", n, err)
	}
}

// Whatever is free, each rule gives out what it says, to the byte.
func TestSpace_Rules(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, c := range []struct {
		free, growth, held int64
		want               bool
	}{
		{400 * mib, 1, 1 << 50, true}, // enough for everybody
		{400*mib - 1, 1, 1 << 50, false},
		{400*mib - 1, 1, 300*mib - 1, true}, // who holds no more than is free
		{400*mib - 1, 1, 300 * mib, false},
		{250 * mib, 1, 150 * mib, true},
		{250 * mib, 1, 150*mib + 1, false},
		{102 * mib, 1, 2 * mib, true},
		{102*mib - 1, 1, 2 * mib, false},     // the last byte
		{100 * mib, 1, 100 * mib / 64, true}, // who holds little, in the first half of the reserve
		{100 * mib, 1, 100*mib/64 + 1, false},
		{50 * mib, 1, 100 * mib / 64, true},
		{50*mib - 1, 1, 100 * mib / 64, false},
		{50*mib - 1, 1, 1, false},
		{100*mib - 1, 0, 1 << 50, true},
		{50 * mib, 0, 1 << 50, true},
		{50*mib - 1, 0, 25*mib - 1, true}, // who holds no more than is free of the third quarter
		{50*mib - 1, 0, 25 * mib, false},
		{25 * mib, 0, 0, true},
		{25*mib - 1, 0, 0, false},
		{50 * mib, -1, 0, true},
	} {
		if got := (Disk{c.free, 100 * mib, 300 * mib}).allows(c.growth, c.held); got != c.want {
			t.Errorf("%d free, growth %d, %d held: %v", c.free, c.growth, c.held, got)
		}
	}
}

// The size of an entry that cannot be read is not known: after it was replaced or
// removed the next start counts the source's bytes anew.
func TestBytes_AreRightAfterACorruptEntry(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	open := func() *DB {
		t.Helper()
		db, err := Open(Options{Dir: "data", FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	db := open()
	for _, key := range []string{"a", "b", "c"} {
		if _, err := db.Apply(false, Change{Source: "s", Key: key, New: sized(1000)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"a", "b"} { // no record of any version
		if err := db.write(appendRecordKey(nil, "s", key), []byte{0xff}, false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Apply(false, Change{Source: "s", Key: "a", New: sized(10), Corrupt: true}, Change{Source: "s", Key: "b", Corrupt: true}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	want := sized(10).Size("a") + sized(1000).Size("c")
	for range 2 {
		db = open()
		if got, err := db.Bytes("s"); got != want || err != nil {
			t.Errorf("%d bytes, want %d (%v)", got, want, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
