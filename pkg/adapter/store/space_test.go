package store

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// disksLog is the log of a group whose other members' disks are d, but for one that is away.
type disksLog struct {
	ownLog
	d    Disk
	full bool
}

func (l *disksLog) MostDisks(is func(Disk) bool) bool { return is(l.d) }
func (l *disksLog) Full() bool                        { return l.full }

// The rules of space hold for a majority of the disks. Where the log alone has no space, only growth is refused.
func TestSpace_FollowersDisksCount(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem()
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 40, TotalBytes: 1 << 41})
	v, err := OpenView(Options{Dir: "data", FS: mem})
	must(t, err)
	log := &disksLog{ownLog: ownLog{v}}
	db, err := v.Own(log)
	must(t, err)
	const r, held = 64 << 20, 10 << 20
	for name, test := range map[string]struct {
		disk                             Disk
		full                             bool
		grows, small, replaces, outcomes bool
	}{
		"space":                     {Disk{3 * r, r, r}, false, true, true, true, true},
		"the log is full":           {Disk{3 * r, r, r}, true, false, false, true, true},
		"scarce":                    {Disk{r + held - 1, r, r}, false, false, true, true, true},
		"below the reserve":         {Disk{r - 1, r, r}, false, false, true, true, true},
		"below half of the reserve": {Disk{r/2 - 1, r, r}, false, false, false, true, true},
		"below a quarter of it":     {Disk{r/4 - 1, r, r}, false, false, false, false, false},
		"changes wait for space":    {Disk{-1, r, r}, false, false, false, false, false},
		"no limit":                  {Disk{1 << 60, 0, 0}, false, true, true, true, true},
	} {
		log.d, log.full = test.disk, test.full
		for what, got := range map[string]bool{
			"growth":                   !errors.Is(db.Space(1, held), ErrFull) == test.grows,
			"growth of a small tenant": !errors.Is(db.Space(1, 1), ErrFull) == test.small,
			"replacements":             !errors.Is(db.Space(0, held), ErrFull) == test.replaces,
			"outcomes":                 db.SpaceForOutcomes() == test.outcomes,
		} {
			if !got {
				t.Errorf("%s: %s", name, what)
			}
		}
	}
	must(t, errors.Join(db.Close(), v.Close()))
}

// What the group's log may still take is not free; on a small disk that is a quarter.
func TestSpace_LogHasItsPart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ total, now, want int64 }{
		"the log is empty": {1 << 40, 0, 1<<39 - 512},
		"it has a part":    {1 << 40, 500, 1<<39 - 12},
		"it has more":      {1 << 40, 600, 1 << 39},
		"a small disk":     {1 << 10, 100, 512 - 156},
	} {
		mem := vfs.NewMem()
		mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: uint64(test.total / 2), TotalBytes: uint64(test.total)})
		v, err := OpenView(Options{Dir: "data", FS: mem, Reserve: -1, LogUse: func() (now, most int64) { return test.now, 512 }})
		must(t, err)
		if free, _, _, _ := v.Usage(); free != test.want {
			t.Errorf("%s: %d are free", name, free)
		}
		must(t, v.Close())
	}
}
