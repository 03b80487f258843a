package store

import (
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

func sized(n int) *schedule.Entry {
	now := time.Unix(1_800_000_000, 0)
	return &schedule.Entry{Revision: 1, Occurrence: 1, DueAt: now, Event: &schedule.Event{Data: make([]byte, n)}}
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
