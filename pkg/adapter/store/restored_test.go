package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// No revision is handed out twice by a store and all that is restored of its back-ups, however often it was restarted
// since, and also where one back-up is restored twice.
func TestRestored_RevisionsAreNew(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("STORETEST_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("STORETEST_SEED=%d", seed)
	histories := uint64(20)
	if testing.Short() {
		histories = 4
	}
	for i := range histories {
		synctest.Test(t, func(t *testing.T) { restoredHistory(t, rand.New(rand.NewPCG(seed, i))) })
	}
}

func restoredHistory(t *testing.T, r *rand.Rand) {
	given := map[uint64]string{}
	var backups []*vfs.MemFS
	fs, life := vfs.NewMem(), 0
	if r.IntN(2) == 0 {
		time.Sleep(20 * 365 * 24 * time.Hour) // a bubble begins in the year 2000
	}
	for step := range 40 {
		db := open(t, Options{FS: fs})
		last := uint64(0)
		for range 1 + r.IntN(4) {
			n, err := db.NextRevision()
			if err != nil || n <= last {
				t.Fatalf("%d after %d: %v", n, last, err)
			}
			if by, ok := given[n]; ok || n >= 1<<53 {
				t.Fatalf("life %d hands out %d, which %s has handed out", life, n, by)
			}
			given[n], last = fmt.Sprintf("life %d in step %d", life, step), n
		}
		if r.IntN(4) == 0 {
			backup := vfs.NewMem()
			if err := db.Checkpoint(func(dir string) error { _, err := vfs.Clone(fs, backup, dir, "data/store"); return err }); err != nil {
				t.Fatal(err)
			}
			backups = append(backups, backup)
		}
		must(t, db.Close())
		time.Sleep(100 * time.Millisecond) // a start takes longer
		if len(backups) > 0 && r.IntN(3) == 0 {
			fs, life = newOf(t, backups[r.IntN(len(backups))]), life+1
			must(t, Restored(Options{Dir: "data", FS: fs}, "", nil))
		}
	}
}

// Where the clock is behind all that was handed out, the revisions are new all the same.
func TestRestored_ClockIsBehind(t *testing.T) {
	t.Parallel()
	const bound = 1 << 51
	seen := map[uint64]bool{}
	for range 100 {
		n := beyond(bound, time.Unix(0, 0))
		if n < bound+leap || n >= 1<<52 || seen[n>>16] {
			t.Errorf("%d", n)
		}
		seen[n>>16] = true
	}
}

// A back-up of either form is restored into either form, with all that is in it.
func TestRestored_IntoEitherForm(t *testing.T) {
	t.Parallel()
	group := vfs.NewMem()
	v := viewWith(t, group, "data", "a", "b")
	seal, err := v.Own(ownLog{v})
	must(t, errors.Join(err, seal.Seal(), seal.Close(), v.Close()))
	single := vfs.NewMem()
	db := open(t, Options{FS: single})
	fill(t, db, "a", "b")
	must(t, db.Close())
	for _, of := range []vfs.FS{single, group} {
		for _, to := range []Form{"", Single, Group} {
			fs := newOf(t, of)
			must(t, Restored(Options{Dir: "data", FS: fs}, to, []byte("checksum")))
			isView := to == Group || to == "" && of == vfs.FS(group)
			if isView {
				v, err := OpenView(Options{Dir: "data", FS: fs})
				must(t, err)
				db, err = v.Own(ownLog{v})
				if err != nil || v.Applied() == 0 {
					t.Fatalf("%d %v", v.Applied(), err)
				}
				defer v.Close()
			} else {
				db = open(t, Options{FS: fs})
			}
			for _, key := range []string{"a", "b"} {
				if e, err := db.Get("s", key); e == nil || err != nil {
					t.Errorf("to %q: %s: %v %v", to, key, e, err)
				}
			}
			must(t, db.Close())
		}
	}
}

// A group that begins with a back-up hands out revisions that the group of the back-up has not handed out since.
func TestView_HistoryBeginsWithNewRevisions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		last := uint64(0)
		for _, history := range []string{"first", "first", "second", "second", "third"} {
			v, err := OpenView(Options{Dir: "data", FS: fs})
			must(t, err)
			db, err := v.Own(ownLog{v})
			must(t, err)
			must(t, db.SetHistory(history))
			n, err := db.NextRevision()
			if begins := history != "first"; err != nil || n <= last || begins != (n > leap) {
				t.Errorf("%s: %d after %d: %v", history, n, last, err)
			}
			last = n
			must(t, errors.Join(db.Close(), v.Close()))
			time.Sleep(time.Second)
		}
	})
}

// newOf is a directory with nothing but a copy of the store to adopt.
func newOf(t *testing.T, fs vfs.FS) *vfs.MemFS {
	t.Helper()
	made := vfs.NewMem()
	o := Options{Dir: "data", FS: made}
	lock, err := Claim(o)
	if err == nil {
		_, err = vfs.Clone(fs, made, "data/store", NewDir(o))
	}
	if err != nil || lock.Close() != nil {
		t.Fatal(err)
	}
	return made
}
