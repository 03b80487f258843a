package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ownLog is the log of a group of one.
type ownLog struct{ view *View }

func (l ownLog) Append(batch []byte) error { return l.view.Apply(l.view.Applied()+1, batch) }
func (l ownLog) Valid() bool               { return true }

// MostDisks implements store.Log.
func (ownLog) MostDisks(func(Disk) bool) bool { return true }

// Full implements store.Log.
func (ownLog) Full() bool { return false }

// viewWith makes a view that has the keys.
func viewWith(t *testing.T, fs vfs.FS, dir string, keys ...string) *View {
	t.Helper()
	v, err := OpenView(Options{Dir: dir, FS: fs})
	must(t, err)
	db, err := v.Own(ownLog{v})
	must(t, err)
	fill(t, db, keys...)
	must(t, db.Close())
	return v
}

// copied makes two views, and puts a copy of the newer one beside the older one.
func copied(t *testing.T, fs vfs.FS) (before, after uint64) {
	t.Helper()
	old := viewWith(t, fs, "data", "a")
	newer := viewWith(t, fs, "other", "a", "b", "c")
	before, after = old.Applied(), newer.Applied()
	err := newer.Checkpoint(func(dir string) error {
		_, err := vfs.Clone(fs, fs, dir, NewDir(Options{Dir: "data", FS: fs}), vfs.CloneSync)
		return err
	})
	must(t, errors.Join(err, old.Close(), newer.Close(), syncDir(fs, "data")))
	return before, after
}

// The first owner of a group begins its history, and a view says with which entry of which history it began.
func TestView_HistoryBegins(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	v := viewWith(t, fs, "data", "a")
	first, before, _, err := v.History()
	if first == "" || before != "" || err != nil {
		t.Errorf("%q, before %q: %v", first, before, err)
	}
	for range 2 { // the second owner changes nothing
		db, err := v.Own(ownLog{v})
		must(t, err)
		at := v.Applied()
		if before != "" {
			at--
		}
		must(t, errors.Join(db.SetHistory("g"), db.Close()))
		var history string
		var begun uint64
		if history, before, begun, err = v.History(); history != "g" || before != first || begun != at || err != nil {
			t.Errorf("%q, before %q at %d, want %q at %d: %v", history, before, begun, first, at, err)
		}
	}
	must(t, v.Close())
}

// A copy takes the place of the view, and nothing is left of the old one. An older copy does not.
func TestView_ReplacedByACopy(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	_, after := copied(t, fs)
	v, err := ReplaceView(Options{Dir: "data", FS: fs})
	must(t, err)
	if v.Applied() != after {
		t.Errorf("it is at %d, want %d", v.Applied(), after)
	}
	for _, name := range []string{"store.new", "store.next"} {
		if _, err := fs.Stat(fs.PathJoin("data", name)); err == nil {
			t.Errorf("%s is left", name)
		}
	}
	err = v.Checkpoint(func(dir string) error {
		_, err := vfs.Clone(fs, fs, dir, NewDir(Options{Dir: "data", FS: fs}), vfs.CloneSync)
		return err
	})
	must(t, errors.Join(err, v.Close()))
	if _, err := ReplaceView(Options{Dir: "data", FS: fs}); !errors.Is(err, ErrOldCopy) {
		t.Errorf("a copy of itself: %v", err)
	}
	if r := clean(t, Options{FS: fs}); r.Keys != 3 {
		t.Errorf("%+v", r)
	}
}

// A replacement that is cut off anywhere, by kill -9 or a power loss, leaves the old view or the new one, whole.
func TestView_ReplacementCutOff(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	seen := map[uint64]int{}
	var before, after uint64
	for n, ended := 0, false; !ended; n++ {
		fs := vfs.NewCrashableMem()
		before, after = copied(t, fs)
		v, err := ReplaceView(Options{Dir: "data", FS: &cutFS{FS: fs, left: n}})
		if ended = err == nil; ended {
			must(t, v.Close())
		} else if !errors.Is(err, errCut) {
			t.Fatal(err)
		}
		for name, disk := range map[string]vfs.FS{
			"kill -9":      fs,
			"a power loss": fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: random}),
		} {
			what := fmt.Sprintf("%s after %d steps", name, n)
			v, err := OpenView(Options{Dir: "data", FS: disk})
			must(t, err)
			at := v.Applied()
			if at != before && at != after || ended && at != after {
				t.Errorf("%s: it is at %d, want %d or %d", what, at, before, after)
			}
			seen[at]++
			must(t, v.Close())
			if r := clean(t, Options{FS: disk}); r.Keys != map[uint64]int64{before: 1, after: 3}[at] {
				t.Errorf("%s: %+v", what, r)
			}
		}
	}
	if seen[before] < 2 || seen[after] < 4 {
		t.Errorf("the old view was there %d times, the new one %d times", seen[before], seen[after])
	}
}

var errCut = errors.New("cut off")

// cutFS fails all changes of names in the data directory after some.
type cutFS struct {
	vfs.FS
	left int
}

func (f *cutFS) Rename(from, to string) error {
	if f.PathDir(from) != "data" { // the engine's
		return f.FS.Rename(from, to)
	}
	if f.left--; f.left < 0 {
		return errCut
	}
	return f.FS.Rename(from, to)
}

func (f *cutFS) RemoveAll(name string) error {
	if f.left--; f.left < 0 {
		return errCut
	}
	return f.FS.RemoveAll(name)
}

// After the seal nothing is changed any more, by no owner.
func TestView_SealIsTheEnd(t *testing.T) {
	t.Parallel()
	v, err := OpenView(Options{Dir: "data", FS: vfs.NewMem()})
	must(t, err)
	db, err := v.Own(ownLog{v})
	if err != nil || v.Sealed() {
		t.Fatal(v.Sealed(), err)
	}
	must(t, db.Seal())
	at := v.Applied()
	if err := db.Purge("s"); !errors.Is(err, ErrNotOwner) {
		t.Error("a change after the seal:", err)
	}
	if err := db.Seal(); err == nil {
		t.Error("it was sealed twice")
	}
	if !v.Sealed() || v.Applied() != at {
		t.Errorf("sealed: %v; it is at %d, was %d", v.Sealed(), v.Applied(), at)
	}
	must(t, db.Close())
	if _, err := v.Own(ownLog{v}); !errors.Is(err, ErrSealed) {
		t.Error("another owner:", err)
	}
	must(t, v.Close())
}

// A single adapter refuses the directory of a member, also before the member's view has anything, and the other way round.
func TestOpen_RefusesTheOtherForm(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	must(t, viewWith(t, fs, "data", "a").Close())
	if _, err := Open(Options{Dir: "data", FS: fs}); !errors.Is(err, errMembers) {
		t.Error(err)
	}
	must(t, fs.MkdirAll("log only/log/member", 0o700))
	if _, err := Open(Options{Dir: "log only", FS: fs}); !errors.Is(err, errMembers) {
		t.Error(err)
	}
	must(t, open(t, Options{Dir: "single", FS: fs}).Close())
	if _, err := OpenView(Options{Dir: "single", FS: fs}); !errors.Is(err, errSingle) {
		t.Error(err)
	}
}
