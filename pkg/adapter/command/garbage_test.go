package command

import (
	"runtime/debug"
	"testing"
)

// Beside the store's memtables and cache the process kept as much garbage again: 80,000 schedules of 1 KiB took 130
// MiB. The collector follows GOGC where it is set.
func TestMemory_GarbageIsHalfTheHeap(t *testing.T) {
	was := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(was) })
	t.Setenv("GOGC", "80")
	boundGarbage()
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("with GOGC it was set to %d", got)
	}
	t.Setenv("GOGC", "")
	boundGarbage()
	if got := debug.SetGCPercent(100); got != 50 {
		t.Errorf("it is %d", got)
	}
}
