// Package driver measures the adapter beside the ceilings of the machine and writes
// bench/RESULTS.md. It is a test: `go test` runs every scenario with small numbers, to see
// that it works, and with -full it measures (`make bench`).
//
// It guarantees that the sides of a comparison are measured in one run, by one client, in
// turns, on the same cores and the same disk, with a real fsync; that everything stays on
// loopback, is bounded in time and count, and is removed when the run is over.
//
// main_test.go has the table of scenarios and the page, load_test.go the callers, the turns
// and the arithmetic. The adapter, the stores, the bare server and the bare client run as
// processes; the sink, bare Pebble and client-go's queue run in the driver, which does
// nothing else meanwhile. It needs Linux. Redis and PostgreSQL take part when they are installed.
package driver
