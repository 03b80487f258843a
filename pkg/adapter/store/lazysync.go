package store

import (
	"sync"
	"sync/atomic"
	"time"
)

// lazySync starts one fsync for all lazy changes of a while. Its timer runs
// half of LazySync, which leaves the other half to the disk; when nothing lazy
// was applied there is no timer.
type lazySync struct {
	sync  func() error
	armed atomic.Bool

	mu      sync.Mutex
	timer   *time.Timer
	running sync.WaitGroup
	stopped bool
}

// arm makes sure that an fsync starts soon. A change is applied before it
// arms, and the timer disarms before it syncs: none falls in between.
func (l *lazySync) arm() {
	if l.armed.Load() || !l.armed.CompareAndSwap(false, true) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	l.running.Add(1)
	l.timer = time.AfterFunc(LazySync/2, func() {
		defer l.running.Done()
		l.armed.Store(false)
		_ = l.sync() // it has called Options.Fatal
	})
}

// stop returns when no fsync is under way; closing the log does the last one.
func (l *lazySync) stop() {
	l.mu.Lock()
	l.stopped = true
	if l.timer != nil && l.timer.Stop() {
		l.running.Done()
	}
	l.mu.Unlock()
	l.running.Wait()
}
