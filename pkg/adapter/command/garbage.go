package command

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// collector says when Go collects garbage, and when memory goes back to the system. By itself Go allows garbage in
// proportion to what is in use, of which most are the store's memtables. They are cheap to look at and not worth
// keeping twice, so garbage has a bound of its own. And Go plans a collection by the last one: the memory of a busy
// moment stays until the next, which at rest comes after two minutes.
//
// It works after collections, so that it does not wake an adapter at rest.
type collector struct {
	garbage   uint64 // how much may be there, in bytes
	inUse     func() uint64
	allocated func() uint64 // since the start of the process
	percent   func(int)     // sets what GOGC sets; nil: GOGC is set
	release   func()

	mu       sync.Mutex
	awaiting bool   // a rest
	released uint64 // what was allocated at the last release
}

const (
	// garbageShare is the share of garbage in the memory limit.
	garbageShare = 32
	// defaultGarbage is for an adapter without a limit: of the limit that is shipped.
	defaultGarbage = 28 << 20
	// leastPercent and mostPercent bound garbage too, in percent of what is in use: with much in use a collection takes
	// long, and what was in use during a start says little.
	leastPercent, mostPercent = 25, 100

	// At rest less than restBytes are allocated in restTime.
	restBytes = 4 << 20
	restTime  = 5 * time.Second
)

// newCollector returns the collector of the process. A GOGC in the environment is kept.
func newCollector() *collector {
	c := &collector{
		garbage:   defaultGarbage,
		inUse:     func() uint64 { return read("/gc/heap/live:bytes") },
		allocated: func() uint64 { return read("/gc/heap/allocs:bytes") },
		release:   debug.FreeOSMemory,
	}
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		c.garbage = uint64(limit) / garbageShare
	}
	if os.Getenv("GOGC") == "" {
		c.percent = func(p int) { debug.SetGCPercent(p) }
	}
	return c
}

// collected is called after each collection.
func (c *collector) collected() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.percent != nil {
		c.percent(int(min(max(c.garbage*100/max(c.inUse(), 1), leastPercent), mostPercent)))
	}
	if now := c.allocated(); !c.awaiting && now-c.released >= restBytes {
		c.awaiting = true
		c.awaitRest(now)
	}
}

// awaitRest releases memory once little is allocated. before is what was allocated until now.
func (c *collector) awaitRest(before uint64) {
	time.AfterFunc(restTime, func() {
		if now := c.allocated(); now-before >= restBytes {
			c.awaitRest(now)
			return
		}
		c.release()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.awaiting, c.released = false, c.allocated()
	})
}

// afterCollections calls f after each collection.
func afterCollections(f func()) {
	// With a pointer in it, the object does not share its memory with others, which may be in use for longer.
	runtime.AddCleanup(&struct{ _ *byte }{}, func(f func()) {
		afterCollections(f)
		f()
	}, f)
}

func read(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
