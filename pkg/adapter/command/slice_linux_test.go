package command

import (
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// All threads have short slices, also the threads that are started later, and keep their
// policy and priority. A policy that the operator chose, as with chrt --idle, keeps its slices too.
func TestShortenTimeSlices_ReachesAllThreads(t *testing.T) {
	t.Parallel()
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	shortenTimeSlices()
	started, end := make(chan struct{}), make(chan struct{})
	defer close(end)
	for range 4 {
		go func() {
			runtime.LockOSThread()
			started <- struct{}{}
			<-end
		}()
		<-started
	}
	want := uint64(slice)
	if before.Runtime == 0 { // before 6.12 the kernel tells no slice, and has none to set
		want = 0
	} else if before.Policy != unix.SCHED_NORMAL {
		want = before.Runtime
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		got, err := unix.SchedGetAttr(id, 0)
		if err != nil {
			continue // it has ended
		}
		if got.Runtime != want || got.Policy != before.Policy || got.Nice != before.Nice {
			t.Errorf("a thread has a slice of %d ns, policy %d, priority %d; want %d, %d, %d", got.Runtime, got.Policy, got.Nice, want, before.Policy, before.Nice)
		}
	}
}
