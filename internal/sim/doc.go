// Package sim runs the whole core of the data plane, store, queue and dispatch,
// through random histories in fake time, and holds the promises of the contract
// against the trace of each.
//
// It guarantees, whenever its tests pass, that no promise was broken in any history
// tried. The promises are the sentences at the top of promises.go. A test spoils good
// traces and asks that each broken promise is found and named.
//
// How it works: a history is a seed. From it follow the sources, the steps of a
// driver (requests, cancels, reloads, crashes, restarts, jumps of the wall clock,
// waits) and the answers of the sink. The core runs on Pebble's memory file system
// in a bubble of testing/synctest; a crash is a clone of that file system that lacks
// what was not synced. All that happens goes into a trace: calls and their answers,
// starts and ends of deliveries, settings, crashes, what a restart finds, jumps, and
// what GET, lists and counts show while nothing moves. A judge reads the trace moment
// by moment and knows nothing else; the driver does not look at the judge. A step
// draws from a generator of its own, so that a failing history can be shrunk by
// leaving steps out.
//
// Invariants cannot decide which time, counter, event and id follow from a policy, an
// outcome, and the state of the key: rules.go states that once more, from
// docs/http-api.md. It does not call package schedule, whose errors it must find.
// Package schedule works with flags that are set on entries and flights. The rules
// work with the trace, so that a misreading is less likely to be in both.
//
// Files: trace.go is the trace; judge.go follows each key through it; promises.go and
// lateness.go are the invariants, sinkless.go the ones without a sink, rules.go and
// calendar.go what they cannot decide. world.go is the process, disk.go what it stands on, sink.go its
// Sender, workload.go its API of workloads; driver.go, steps.go and requests.go are the
// history; run.go runs, replays and shrinks.
//
// It leaves sockets, encodings and real disks to other tests.
package sim
