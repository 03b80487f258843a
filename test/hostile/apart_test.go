package hostile

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// apart lets the threads of this process run before all others from now on, as if the
// neighbour were on a machine of its own: attackers may delay the adapter, but not the clock
// that measures it. It needs root. Without it the figures include the waits of this process
// for a processor.
func apart(t *testing.T) {
	t.Helper()
	for seen := map[int]bool{}; ; {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		more := false
		for _, thread := range threads { // later ones inherit it
			id, err := strconv.Atoi(thread.Name())
			if err != nil {
				t.Fatal(err)
			}
			if seen[id] {
				continue
			}
			seen[id], more = true, true
			err = unix.SchedSetAttr(id, &unix.SchedAttr{Policy: unix.SCHED_RR, Priority: 1}, 0)
			if errors.Is(err, unix.EPERM) {
				t.Log("the neighbour shares the processors with the attackers: its threads may get no precedence")
				return
			}
			if err != nil && !errors.Is(err, unix.ESRCH) {
				t.Fatal(err)
			}
		}
		if !more {
			return
		}
	}
}
