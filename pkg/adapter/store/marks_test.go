package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
)

// goldenMarks have one mark of each kind. Their bytes must never change while the version stays.
func goldenMarks() []Mark {
	return []Mark{
		{Object: "ops/web", UID: "0b1c8f5e-8d7a-4c55-9f0e-0123456789ab", Hash: 0x0102030405060708},
		{Object: "node-1", UID: "not a UUID", Hash: 1<<64 - 1, Keys: []string{"Website/ops/web", "ü"}},
		{Object: "ops/none", Keys: []string{}},
	}
}

// Marks and states have the bytes of their version.
func TestMark_BytesOfItsVersion(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	write := func(key, value []byte) {
		fmt.Fprintf(&text, "%s=%s\n\n", hex.Dump(key), hex.EncodeToString(value))
	}
	for _, m := range goldenMarks() {
		value := appendMark(nil, &m)
		write(appendMarkKey(nil, "uid-1", 0x0a0b, m.Object), value)
		got, err := decodeMark(m.Object, value)
		if d := cmp.Diff(m, got); d != "" || err != nil {
			t.Errorf("(-want +got):\n%s%v", d, err)
		}
		for n := range value {
			if _, err := decodeMark(m.Object, value[:n]); err == nil {
				t.Errorf("its first %d bytes were taken for a mark", n)
			}
		}
		if _, err := decodeMark(m.Object, append(value, 0)); err == nil {
			t.Error("something behind it was taken")
		}
	}
	s := WatchState{Watch: 0x0a0b, Scope: "team in (a)", Version: "4711", Complete: true, Revision: "web-00002"}
	value := appendState(nil, &s)
	write(appendWatchKey(nil, tableWatch, "uid-1", s.Watch), value)
	if got, err := decodeState(s.Watch, value); got != s || err != nil {
		t.Errorf("%+v %v", got, err)
	}
	for n := range value {
		if _, err := decodeState(s.Watch, value[:n]); err == nil {
			t.Errorf("its first %d bytes were taken for a state", n)
		}
	}
	for _, bad := range []string{"0200", "0104", "01020000000000000000ffffffffff0f"} {
		b, err := hex.DecodeString(bad)
		must(t, err)
		if _, err := decodeMark("o", b); err == nil {
			t.Errorf("%s was taken for a mark", bad)
		}
		if _, err := decodeState(1, b); err == nil {
			t.Errorf("%s was taken for a state", bad)
		}
	}
	compareGolden(t, "marks-v1.hex", text.String())
}

// marked are changes that mark objects, with a uid and a fingerprint that follow from the name.
func marked(source string, watch uint64, objects ...string) []MarkChange {
	changes := make([]MarkChange, len(objects))
	for i, object := range objects {
		h := sha256.Sum256([]byte(object))
		changes[i] = MarkChange{Source: source, Watch: watch, Mark: Mark{Object: object, UID: uuidText(h[:16]), Hash: binary.BigEndian.Uint64(h[16:])}}
	}
	return changes
}

// A mark takes less than 100 bytes of disk, with names as clusters have them.
func TestMark_TakesLessThan100Bytes(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	db := open(t, Options{FS: fs})
	const n = 30_000
	r := rand.New(rand.NewPCG(1, 1))
	for i := 0; i < n; i += 500 {
		var objects []string
		for range 500 {
			objects = append(objects, fmt.Sprintf("team-%s-prod/checkout-service-%08x%02x-%05x", []string{"payments", "search", "platform"}[r.IntN(3)], r.Uint32(), r.IntN(256), r.IntN(1<<20)))
		}
		must(t, errorOf(db.ApplyMarked(true, marked("0b1c8f5e-8d7a-4c55-9f0e-0123456789ab", 1<<63, objects...))))
	}
	table := appendTable(nil, tableMark)
	must(t, db.db.Compact(t.Context(), table, successor(table), false))
	size, err := db.db.EstimateDiskUsage(table, successor(table))
	if err != nil || size/n < 24 || size/n >= 100 { // a uid and a fingerprint do not compress
		t.Errorf("%d bytes an object (%v)", size/n, err)
	}
}

// A page of marks ends early where their keys are large.
func TestMarks_PageEndsWhereKeysAreLarge(t *testing.T) {
	t.Parallel()
	db := open(t, Options{FS: vfs.NewMem()})
	var changes []MarkChange
	for i := range 100 {
		m := Mark{Object: fmt.Sprintf("a/%03d", i)}
		for range 64 {
			m.Keys = append(m.Keys, strings.Repeat("k", 1024))
		}
		changes = append(changes, MarkChange{Source: "s", Watch: 1, Mark: m})
	}
	must(t, errorOf(db.ApplyMarked(true, changes)))
	got, after := 0, ""
	for more := true; more; {
		var page []Mark
		var err error
		if page, more, err = db.Marks("s", 1, after, 1000); err != nil || len(page) == 0 || len(page) > 2 {
			t.Fatal(len(page), err)
		}
		got, after = got+len(page), page[len(page)-1].Object
	}
	if got != len(changes) {
		t.Errorf("%d marks", got)
	}
}

// A mark or a state that makes no sense counts as absent and as corrupt, and stops no other.
func TestMark_UnreadableCountsAsAbsent(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	db := open(t, Options{FS: fs})
	must(t, errorOf(db.ApplyMarked(true, marked("s", 1, "a/a", "a/b", "a/c"))))
	for _, watch := range []uint64{1, 2} {
		must(t, db.SetWatchState("s", WatchState{Watch: watch, Version: "7", Complete: true}))
	}
	for _, row := range [][]byte{appendMarkKey(nil, "s", 1, "a/b"), appendWatchKey(nil, tableWatch, "s", 1), []byte("f/torn"), []byte("w/s\x00torn")} {
		must(t, db.db.Set(row, []byte{99}, pebble.Sync))
	}
	got, more, err := db.Marks("s", 1, "", 10)
	if len(got) != 2 || more || err != nil {
		t.Errorf("%+v %v %v", got, more, err)
	}
	if m, ok, err := db.Mark("s", 1, "a/b"); ok || err != nil {
		t.Errorf("%+v %v", m, err)
	}
	states, err := db.WatchStates("s")
	if want := []WatchState{{Watch: 2, Version: "7", Complete: true}, {Watch: 1}}; !cmp.Equal(states, want) || err != nil {
		t.Errorf("%+v %v", states, err)
	}
	if _, err := db.Sources(); err != nil {
		t.Error(err)
	}
	if db.Corrupt() != 4 {
		t.Errorf("%d corrupt places", db.Corrupt())
	}
	must(t, errorOf(db.ApplyMarked(true, marked("s", 1, "a/b"))))
	if _, ok, err := db.Mark("s", 1, "a/b"); !ok || err != nil {
		t.Errorf("the next mark in its place is not read: %v", err)
	}
	must(t, db.Close())
	if r, err := Repair(Options{Dir: "data", FS: fs}, "new"); err != nil || r.Marks != 3 || r.Again {
		t.Errorf("%+v %v", r, err)
	}
	if r := clean(t, Options{Dir: "new", FS: fs}); r.Marks != 3 || r.Format != format || r.Sources != 1 {
		t.Errorf("%+v", r)
	}
}

// markedStore is a store of one flushed table with many marks and some entries.
func markedStore(t *testing.T, n int) (fs *vfs.MemFS, objects []string) {
	t.Helper()
	fs = vfs.NewMem()
	db := open(t, Options{FS: fs})
	fill(t, db, "a", "b")
	for i := range n {
		objects = append(objects, fmt.Sprintf("team-a/website-%05d", i))
	}
	must(t, errorOf(db.ApplyMarked(true, marked("s", 1, objects...))))
	must(t, db.SetWatchState("s", WatchState{Watch: 1, Version: "7", Complete: true}))
	must(t, db.db.Flush())
	must(t, db.Close())
	return fs, objects
}

// Two wrong bytes in a block of marks hide the marks of that block from Mark, and from Marks the marks behind it in its
// table too. They are told, can be written again, and go with a repair and with a purge.
func TestDamage_OfMarksHidesOneTable(t *testing.T) {
	t.Parallel()
	whole, objects := markedStore(t, 1500)
	_, size := table(t, whole)
	places := []int64{size / 2, size / 4, size * 3 / 4}
	if testing.Short() {
		places = places[:1]
	}
	for _, at := range places {
		fs := damaged(t, whole, at)
		db := open(t, Options{FS: fs})
		found := map[string]bool{}
		for after, more := "", true; more; {
			var page []Mark
			var err error
			if page, more, err = db.Marks("s", 1, after, 500); err != nil {
				t.Fatal(err)
			}
			for _, m := range page {
				if m.Object <= after {
					t.Fatalf("%s comes after %s", m.Object, after)
				}
				found[m.Object], after = true, m.Object
			}
		}
		lost := len(objects) - len(found)
		if lost == 0 || lost == len(objects) || !found[objects[0]] || db.Corrupt() == 0 {
			t.Errorf("damage at %d: %d marks are lost, %d corrupt places", at, lost, db.Corrupt())
		}
		unreadable := 0
		for _, object := range objects {
			m, ok, err := db.Mark("s", 1, object)
			if err != nil || found[object] && !ok || ok && !cmp.Equal(m, marked("s", 1, object)[0].Mark) {
				t.Fatalf("damage at %d: %s: %+v %v %v", at, object, m, ok, err)
			}
			if ok {
				continue
			}
			unreadable++
			must(t, errorOf(db.ApplyMarked(true, marked("s", 1, object))))
			if _, ok, err := db.Mark("s", 1, object); !ok || err != nil {
				t.Errorf("damage at %d: %s is not read after it was written anew: %v", at, object, err)
			}
		}
		if unreadable == 0 || unreadable > 1000 {
			t.Errorf("damage at %d: %d marks are unreadable", at, unreadable)
		}
		must(t, db.Close())
		r, err := Repair(Options{Dir: "data", FS: fs}, "new")
		if err != nil || r.Keys != 2 || r.Lost != 0 || r.Marks != int64(len(found)) {
			t.Errorf("damage at %d: %+v %v, want %d marks", at, r, err, len(found))
		}
		db = open(t, Options{Dir: "new", FS: fs})
		if n, _, err := db.CountMarks("s", 1); n != r.Marks || err != nil {
			t.Errorf("after the repair there are %d marks: %v", n, err)
		}
		must(t, db.Purge("s"))
		if all, err := db.Sources(); len(all) != 0 || err != nil {
			t.Errorf("after the purge there are sources %v: %v", all, err)
		}
		must(t, db.Close())
	}
}

// When a repair has lost an entry, every object counts as changed, and its watch begins with a list.
func TestRepair_LostEntriesAreScheduledAgain(t *testing.T) {
	t.Parallel()
	fs, objects := markedStore(t, 3)
	db := open(t, Options{FS: fs})
	must(t, db.db.Set(appendRecordKey(nil, "s", "b"), []byte{99}, pebble.Sync))
	must(t, db.Close())
	if r, err := Repair(Options{Dir: "data", FS: fs}, "new"); err != nil || r.Lost != 1 || !r.Again || r.Marks != 3 {
		t.Fatalf("%+v %v", r, err)
	}
	db = open(t, Options{Dir: "new", FS: fs})
	for _, change := range marked("s", 1, objects...) {
		m, ok, err := db.Mark("s", 1, change.Mark.Object)
		if !ok || err != nil || m.Hash == change.Mark.Hash || m.UID != change.Mark.UID {
			t.Errorf("%+v %v %v", m, ok, err)
		}
	}
	states, err := db.WatchStates("s")
	if want := []WatchState{{Watch: 1, Complete: true}}; !cmp.Equal(states, want) || err != nil {
		t.Errorf("%+v %v", states, err)
	}
}

// A source that changes what it watches again and again leaves no ranges that reads of others go through.
func TestRemoveWatch_KeepsReadsOfOthersQuick(t *testing.T) {
	t.Parallel()
	db := open(t, Options{FS: vfs.NewMem()})
	remove := func(watch uint64, marks int) (ranges uint64) {
		t.Helper()
		var changes []MarkChange
		for i := range marks {
			changes = append(changes, MarkChange{Source: "s", Watch: watch, Mark: Mark{Object: fmt.Sprint("ops/", i)}})
		}
		must(t, errorOf(db.ApplyMarked(true, changes)))
		must(t, db.SetWatchState("s", WatchState{Watch: watch}))
		must(t, db.RemoveWatch("s", watch))
		if n, _, err := db.CountMarks("s", watch); n != 0 || err != nil {
			t.Errorf("%d marks are left: %v", n, err)
		}
		if states, err := db.WatchStates("s"); len(states) > 0 || err != nil {
			t.Errorf("states are left: %v %v", states, err)
		}
		must(t, db.db.Flush())
		levels, err := db.db.SSTables(pebble.WithProperties())
		must(t, err)
		for _, tables := range levels {
			for i := range tables {
				ranges += tables[i].Properties.NumRangeDeletions
			}
		}
		return ranges
	}
	for watch, marks := range []int{0, 1, fewMarks} {
		if n := remove(uint64(watch), marks); n > 0 {
			t.Errorf("%d marks were removed by %d ranges", marks, n)
		}
	}
	if n := remove(7, fewMarks+1); n != 1 {
		t.Errorf("many marks were removed by %d ranges", n)
	}
}
