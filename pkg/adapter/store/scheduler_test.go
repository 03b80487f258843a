package store

import (
	"testing"

	"github.com/cockroachdb/pebble/v2"
)

// fakeEngine asks for one compaction in the moment in which the scheduler has seen none.
type fakeEngine struct {
	pebble.DBForCompaction
	s                  *scheduler
	looks              int
	waiting, scheduled bool
}

func (*fakeEngine) GetAllowedWithoutPermission() int { return 1 }

func (e *fakeEngine) GetWaitingCompaction() (bool, pebble.WaitingCompaction) {
	was := e.waiting
	if e.looks++; e.looks == 1 {
		ok, _ := e.s.TrySchedule()
		e.waiting = !ok
	}
	return was, pebble.WaitingCompaction{}
}

func (e *fakeEngine) Schedule(pebble.CompactionGrantHandle) bool {
	ok := e.waiting
	e.scheduled, e.waiting = e.scheduled || ok, false
	return ok
}

// A compaction that is refused because the scheduler looks for one at that moment starts all the same.
func TestScheduler_RefusedWhileItLooks(t *testing.T) {
	s := &scheduler{low: func() bool { return false }, flushing: func() bool { return false }}
	e := &fakeEngine{s: s}
	s.Register(0, e)
	s.grant()
	if !e.scheduled {
		t.Error("the compaction waits for ever")
	}
}
