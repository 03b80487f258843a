package store

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// levelLog is the log of a group of one, whose members understand a level.
type levelLog struct {
	ownLog
	agreed int
	last   []byte
}

func (l *levelLog) Level() int { return l.agreed }
func (l *levelLog) Append(batch []byte) error {
	l.last = append([]byte{}, batch...)
	return l.ownLog.Append(batch)
}

// The form of a batch is the newest that all members understand, and never an older one than
// is in the view. A view refuses what is newer than its program, and stays as it is.
func TestLevel_WrittenOnceAllUnderstand(t *testing.T) {
	defer func(was string) { level = was }(level)
	level = "3"
	fs := vfs.NewMem()
	log := &levelLog{}
	for _, step := range []struct{ agreed, want int }{{1, 1}, {2, 2}, {1, 2}, {3, 3}} {
		v, err := OpenView(Options{Dir: "data", FS: fs})
		must(t, err)
		log.view, log.agreed = v, step.agreed
		db, err := v.Own(log)
		must(t, err)
		fill(t, db, "a")
		if got := levelOf(log.last); got != step.want {
			t.Errorf("agreed %d: it wrote %d, want %d", step.agreed, got, step.want)
		}
		must(t, errors.Join(db.Close(), v.Close()))
	}
	level = "2"
	if _, err := OpenView(Options{Dir: "data", FS: fs}); !errors.Is(err, ErrLevel) {
		t.Error("an older program opened the view:", err)
	}
	v := viewWith(t, vfs.NewMem(), "data", "a")
	at := v.Applied()
	for _, newer := range []uint64{3, 1 << 63} {
		binary.LittleEndian.PutUint64(log.last, newer)
		if err := v.Apply(at+1, log.last); !errors.Is(err, ErrLevel) || v.Applied() != at {
			t.Errorf("an older program applied an entry of level %d: %v, it is at %d", newer, err, v.Applied())
		}
	}
	binary.LittleEndian.PutUint64(log.last, 0) // of a program without levels
	must(t, errors.Join(v.Apply(at+1, log.last), v.Close()))
}
