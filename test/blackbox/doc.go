// Package blackbox tries on the real binary what needs a process or a socket: signals,
// restarts, reloads, full disks, damage, slow and hostile peers, back-ups, upgrades.
//
// It guarantees that each family of calls works on the wire, once; the rules of the
// contract are held by tables in pkg/adapter.
//
// How it works: one adapter serves nearly all tests, each on a source of its
// own (see declare) with its own inbox at one sink; tests of the process itself start
// their own. Lower bounds of time are strict, upper bounds generous.
//
// It leaves kill -9 to test/crash, and how fast things are to bench.
package blackbox
