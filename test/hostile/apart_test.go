package hostile

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// apart lets the threads of this process run before all others, until the test ends, as if the
// neighbour were on a machine of its own: attackers may delay the adapter, but not the clock
// that measures it. It needs root. Without it the figures include the waits of this process
// for a processor.
func apart(t *testing.T) {
	t.Helper()
	err := everyThread(unix.SchedAttr{Policy: unix.SCHED_RR, Priority: 1})
	if errors.Is(err, unix.EPERM) {
		t.Log("the neighbour shares the processors with the attackers: its threads may get no precedence")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // processes that are started later would inherit it
		if err := everyThread(unix.SchedAttr{Policy: unix.SCHED_NORMAL}); err != nil {
			t.Error(err)
		}
	})
}

// everyThread sets how the threads of this process are scheduled. Later ones inherit it.
func everyThread(attr unix.SchedAttr) error {
	for seen := map[int]bool{}; ; {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		before := len(seen)
		for _, thread := range threads {
			id, err := strconv.Atoi(thread.Name())
			if err != nil {
				return err
			}
			if seen[id] {
				continue
			}
			seen[id] = true
			if err := unix.SchedSetAttr(id, &attr, 0); err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
				return err
			}
		}
		if len(seen) == before {
			return nil
		}
	}
}
