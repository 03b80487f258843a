// Package heap measures memory, for tests: what the process holds, and what it allocates.
//
// The figures are of the whole process. A test that compares them closely is not parallel.
package heap

import "runtime"

// Held returns the bytes of all objects that are in use.
func Held() int64 { return int64(collected().HeapAlloc) }

// WithStacks returns Held with the stacks of all goroutines.
func WithStacks() int64 {
	m := collected()
	return int64(m.HeapAlloc + m.StackInuse)
}

func collected() (m runtime.MemStats) {
	runtime.GC() // twice: a pool lets go at the second
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

// Allocated returns the bytes that are allocated while f runs, most of which may be garbage at once.
func Allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}
