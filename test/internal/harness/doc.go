// Package harness runs the adapter as its users do: the real binary as a
// process of its own, called over real sockets, with a sink that remembers what
// it was sent.
//
// It guarantees that nothing it started outlives the tests, and that every
// wait ends: with what was waited for, or after [Patience] with the adapter's
// log.
//
// It knows nothing of the adapter's packages, on purpose: a test on it has the
// contract only.
package harness

import "time"

// Patience is the generous upper bound of everything that is waited for. How
// late something may be is for benchmarks to say; that it comes, and not too
// early, for these tests.
const Patience = time.Minute
