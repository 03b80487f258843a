package command

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// slice is how long a thread of this process runs before another thread that became ready may
// take its processor. It is the shortest slice that Linux allows.
const slice = 100 * time.Microsecond

// shortenTimeSlices asks the kernel for short slices, for this process's threads and the threads
// that they start. Since 6.12 a thread that wakes up waits for the slice of the thread that runs, 3 ms
// and the rest of a tick, unless its own slice is shorter
// (https://docs.kernel.org/scheduler/sched-eevdf.html). Older kernels ignore the request.
func shortenTimeSlices() {
	done := map[int]bool{}
	for again := true; again; { // a thread may have been started by one that was not yet asked for
		again = false
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil || done[id] {
				continue
			}
			done[id], again = true, true
			_ = shortenTimeSlice(id) // the kernel may refuse
		}
	}
}

// shortenTimeSlice keeps the thread's policy and priority.
func shortenTimeSlice(id int) error {
	attr, err := unix.SchedGetAttr(id, 0)
	if err != nil {
		return err
	}
	if attr.Policy != unix.SCHED_NORMAL {
		return nil // chosen by the operator
	}
	attr.Runtime = uint64(slice)
	return unix.SchedSetAttr(id, attr, 0)
}
