package store_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store/storetest"
)

// populated makes the store of a single adapter with a random history, marks of watched
// objects among it, and returns what is in it, and its id.
func populated(t *testing.T, fs vfs.FS) (storetest.State, string) {
	t.Helper()
	db := mustOpen(t, fs, "data")
	h := storetest.NewHistory(storetest.Seed(t), time.Now().UTC(), func() uint64 {
		n, err := db.NextRevision()
		if err != nil {
			t.Fatal(err)
		}
		return n
	})
	h.MaxData = 1 << 10
	for range 100 {
		if _, err := db.ApplyMarked(true, h.Marks(), h.Changes()...); err != nil {
			t.Fatal(err)
		}
		if err := h.Watch()(db); err != nil {
			t.Fatal(err)
		}
	}
	id := db.ID()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return h.State(), id
}

// group is a log that applies at once.
type group struct{ view *store.View }

func (g group) Append(batch []byte) error { return g.view.Apply(g.view.Applied()+1, batch) }
func (g group) Valid() bool               { return true }

// MostDisks implements store.Log.
func (group) MostDisks(func(store.Disk) bool) bool { return true }

// Full implements store.Log.
func (group) Full() bool { return false }

// asMember opens the directory as a member's, which owns it.
func asMember(fs vfs.FS, use func(*store.View, *store.DB) error) error {
	v, err := store.OpenView(store.Options{Dir: "data", FS: fs})
	if err != nil {
		return err
	}
	db, err := v.Own(group{v})
	if err == nil {
		err = errors.Join(use(v, db), db.Close())
	}
	return errors.Join(err, v.Close())
}

// asSingle opens the directory as a single adapter's.
func asSingle(fs vfs.FS, use func(*store.DB) error) error {
	db, err := store.Open(store.Options{Dir: "data", FS: fs})
	if err != nil {
		return err
	}
	return errors.Join(use(db), db.Close())
}

// same fails unless the store has the state, and the id.
func same(db *store.DB, want storetest.State, id string) error {
	found, err := storetest.Find(db)
	if err != nil {
		return err
	}
	if diff := cmp.Diff(want, found, cmpopts.EquateEmpty()); diff != "" {
		return fmt.Errorf("(-want +got):\n%s", diff)
	}
	if db.ID() != id {
		return fmt.Errorf("its id is %s, was %s", db.ID(), id)
	}
	return nil
}

// A directory becomes a member's, and a single adapter's again, with all that is in it. A
// power loss at any fsync leaves one or the other, whole, and the migration goes on.
func TestMigrate_PowerLoss(t *testing.T) {
	t.Parallel()
	mem, random := vfs.NewCrashableMem(), rand.New(rand.NewPCG(1, 2))
	state, id := populated(t, mem)
	var mu sync.Mutex
	var images []vfs.FS
	fs := syncFS{mem, func(name string) {
		mu.Lock()
		defer mu.Unlock()
		percent := []int{0, 50, 100}[random.IntN(3)]
		if name == "data" && percent == 50 {
			// One fsync of the directory is for a new manifest and for the marker that names it.
			// The engine counts on a file system that keeps their order; this one does not.
			percent = 100
		}
		images = append(images, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: random}))
	}}
	o := store.Options{Dir: "data", FS: fs}
	if err := mem.MkdirAll("data/log/member", 0o700); err != nil { // of an older group
		t.Fatal(err)
	}
	if changed, err := store.ToGroup(o); err != nil || !changed {
		t.Fatal(changed, err)
	}
	if _, err := mem.Stat("data/log"); err == nil {
		t.Error("the log of another group is left")
	}
	there := len(images)
	if err := asMember(mem, func(v *store.View, db *store.DB) error {
		if history, _, _, err := v.History(); err != nil || history == id || v.Applied() == 0 {
			t.Errorf("its history is %q, it is at %d: %v", history, v.Applied(), err)
		}
		return errors.Join(same(db, state, id), db.Seal())
	}); err != nil {
		t.Fatal(err)
	}
	images = images[:there]
	if changed, err := store.ToSingle(o); err != nil || !changed {
		t.Fatal(changed, err)
	}
	forms := map[bool]int{}
	every := 1
	if testing.Short() {
		every = 3
	}
	for i, image := range images {
		if i%every > 0 {
			continue
		}
		o := store.Options{Dir: "data", FS: image}
		check := func(db *store.DB) error { return same(db, state, id) }
		single := asSingle(image, check)
		member := asMember(image, func(v *store.View, db *store.DB) error {
			history, _, _, err := v.History()
			if history == id {
				t.Errorf("image %d of %d is a member's without a history of its own", i, len(images))
			}
			return errors.Join(err, check(db))
		})
		if (single == nil) == (member == nil) && !errors.Is(member, store.ErrSealed) {
			t.Fatalf("image %d of %d: as a single adapter's: %v; as a member's: %v", i, len(images), single, member)
		}
		forms[single == nil]++
		var err error
		if i < there {
			_, err = store.ToGroup(o)
			err = errors.Join(err, asMember(image, func(_ *store.View, db *store.DB) error { return check(db) }))
		} else {
			_, err = store.ToSingle(o)
			err = errors.Join(err, asSingle(image, check))
		}
		if err != nil {
			t.Fatalf("image %d of %d: the migration does not go on: %v", i, len(images), err)
		}
		mustVerify(t, image, "data")
	}
	if there < 5 || len(images) < there+5 || min(forms[true], forms[false]) < 3 {
		t.Errorf("%d images there, %d in all, forms %v", there, len(images), forms)
	}
	if err := asSingle(mem, func(db *store.DB) error { return same(db, state, id) }); err != nil {
		t.Error(err)
	}
	if _, err := mem.Stat("data/log"); err == nil {
		t.Error("the log is left")
	}
}

// What a group has acknowledged and a member lacks is not left behind: without the seal the
// directory of a member stays one.
func TestMigrate_NeedsTheSeal(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	state, id := populated(t, fs)
	o := store.Options{Dir: "data", FS: fs}
	if _, err := store.ToGroup(o); err != nil {
		t.Fatal(err)
	}
	// Until it has a log no other member knows more: it may go back.
	if changed, err := store.ToSingle(o); err != nil || !changed {
		t.Fatal(changed, err)
	}
	if _, err := store.ToGroup(o); err != nil {
		t.Fatal(err)
	}
	// With the log of a join that was cut off, a file alone is left.
	for _, name := range []string{"identity", "joining", "member"} {
		if err := errors.Join(fs.RemoveAll("data/log"), fs.MkdirAll("data/log/"+name, 0o700)); err != nil {
			t.Fatal(err)
		}
		if _, err := store.ToSingle(o); !errors.Is(err, store.ErrNotSealed) {
			t.Fatal(name, err)
		}
	}
	if err := asMember(fs, func(_ *store.View, db *store.DB) error { return same(db, state, id) }); err != nil {
		t.Error("it is no member's any more:", err)
	}
	if err := asMember(fs, func(_ *store.View, db *store.DB) error { return db.Seal() }); err != nil {
		t.Fatal(err)
	}
	if changed, err := store.ToSingle(o); err != nil || !changed {
		t.Error(changed, err)
	}
	for range 2 { // it is done again without harm
		if changed, err := store.ToSingle(o); err != nil || changed {
			t.Error(changed, err)
		}
	}
	if err := asSingle(fs, func(db *store.DB) error { return same(db, state, id) }); err != nil {
		t.Error(err)
	}
}

// After the seal nothing is changed any more, by no owner.
func TestMigrate_SealIsTheEnd(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	if err := asMember(fs, func(v *store.View, db *store.DB) error {
		if v.Sealed() {
			t.Error("it is sealed at once")
		}
		if err := db.Seal(); err != nil {
			t.Fatal(err)
		}
		at := v.Applied()
		if err := db.Purge("s"); !errors.Is(err, store.ErrNotOwner) {
			t.Error("a change after the seal:", err)
		}
		if err := db.Seal(); err == nil {
			t.Error("it was sealed twice")
		}
		if !v.Sealed() || v.Applied() != at {
			t.Errorf("sealed: %v; it is at %d, was %d", v.Sealed(), v.Applied(), at)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := asMember(fs, nil); !errors.Is(err, store.ErrSealed) {
		t.Error("another owner:", err)
	}
}

// A directory that holds nothing, and one in use, are left alone.
func TestMigrate_Refuses(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	o := store.Options{Dir: "data", FS: fs}
	to := map[string]func() error{
		"group":  func() error { _, err := store.ToGroup(o); return err },
		"single": func() error { _, err := store.ToSingle(o); return err },
	}
	for form, migrate := range to {
		if err := migrate(); !errors.Is(err, store.ErrNothing) {
			t.Errorf("to %s: a directory that is not there: %v", form, err)
		}
	}
	v, err := store.OpenView(o) // of a member that has heard nothing
	if err != nil {
		t.Fatal(err)
	}
	for form, migrate := range to {
		if err := migrate(); err == nil || errors.Is(err, store.ErrNothing) {
			t.Errorf("to %s: a directory in use: %v", form, err)
		}
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	for form, migrate := range to {
		if err := migrate(); !errors.Is(err, store.ErrNothing) {
			t.Errorf("to %s: a member's that has heard nothing: %v", form, err)
		}
	}
	// What a member has heard may be in its log alone.
	if err := fs.MkdirAll("data/log/member", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := to["group"](); err != nil {
		t.Error("it is a member's already:", err)
	}
	if err := to["single"](); !errors.Is(err, store.ErrNotSealed) {
		t.Error("a member's with a log, and nothing on disk:", err)
	}
	if db, err := store.Open(o); err == nil {
		t.Error("a single adapter began anew with a member's directory", db.Close())
	}
}
