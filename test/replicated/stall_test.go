package replicated

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// stalls are the times in which nothing was written to the disk below a directory, for want of the disk or
// of a processor. A group may refuse calls then: the owner's lease ends without a change in the log,
// an owner that ends waits for two seconds for the changes that are on their way to the log, and a call
// for three seconds for an owner.
type stalls struct {
	end  chan struct{}
	over sync.WaitGroup
	all  []interval // complete once over
}

type interval struct{ from, to time.Time }

const (
	leastStall = 200 * time.Millisecond // a busy disk needs less
	// A refused call is explained by so much, of the two seconds and the three, during the call or
	// shortly before it.
	excuse = time.Second
	before = 3 * time.Second
	// leaseLeft is the least that a lease of patient members lasts: four seconds since the last
	// change, which was 1.25 seconds ago at most. When it ends, deliveries are cut off.
	leaseLeft = 2750 * time.Millisecond
)

// watchDisk writes to a file of the directory, again and again, and measures how long each write takes.
func watchDisk(t testing.TB, dir string) *stalls {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "probe"))
	if err != nil {
		t.Fatal(err)
	}
	s := &stalls{end: make(chan struct{})}
	s.over.Go(func() {
		defer f.Close()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		begun := time.Now()
		for {
			_, err := f.WriteAt([]byte{1}, 0)
			if err == nil {
				err = f.Sync()
			}
			if err != nil {
				t.Error(err)
				return
			}
			now := time.Now()
			if now.Sub(begun) >= leastStall {
				s.all = append(s.all, interval{begun, now})
			}
			begun = now
			select {
			case <-s.end:
				return
			case <-tick.C:
			}
		}
	})
	t.Cleanup(s.stop)
	return s
}

// stop ends the watch.
func (s *stalls) stop() {
	select {
	case <-s.end:
	default:
		close(s.end)
	}
	s.over.Wait()
}

// within is how long the disk took no write, between two times.
func (s *stalls) within(from, to time.Time) (total time.Duration) {
	for _, i := range s.all {
		if i.from.Before(from) {
			i.from = from
		}
		if i.to.After(to) {
			i.to = to
		}
		total += max(0, i.to.Sub(i.from))
	}
	return total
}

// longest is how long the longest one was.
func (s *stalls) longest() (d time.Duration) {
	for _, i := range s.all {
		d = max(d, i.to.Sub(i.from))
	}
	return d
}

// explain reports that a call may have been refused for the disk.
func (s *stalls) explain(call interval) bool {
	return s.within(call.from.Add(-before), call.to) >= excuse
}

// refused is a call that was answered 503.
type refused struct {
	call interval
	what string
}
