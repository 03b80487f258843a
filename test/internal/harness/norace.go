//go:build !race

package harness

// RaceEnabled says whether the tests, and so the adapter, are built with the
// race detector, which takes several times the memory.
const RaceEnabled = false
