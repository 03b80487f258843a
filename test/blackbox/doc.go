// Package blackbox tries the contract sentence by sentence on the real binary,
// as a caller who has only the contract: the schedule API, CloudEvents in and
// out, the promises, and the standalone command.
//
// It guarantees that what the contract says of one adapter's behaviour on the
// wire is held by a test whose name is that sentence.
//
// How it works: one adapter serves nearly all tests, each on a source of its
// own (see declare) with its own inbox at one sink; tests of the process itself start
// their own. Lower bounds of time are strict, upper bounds generous.
//
// It leaves kill -9 to test/crash, and how fast things are to bench.
package blackbox
