// Package sim runs the whole core of the data plane, store, queue and dispatch,
// through random histories in fake time, and holds what it does against a small
// model of the contract.
//
// It guarantees, whenever its tests pass, that in all the histories tried no
// promise was broken: nothing acknowledged was lost, nothing was early, late or
// out of order, a repeat carried the same id and a new occurrence another, no
// key was delivered twice at a time, no older occurrence started after an
// acknowledged change, limits and expiries were kept, every answer was the one
// that the model gives, and what was left on disk was whole.
//
// How it works: a history is a seed. From it follow the sources, the steps of a
// driver (requests, cancels, reloads, crashes, restarts, jumps of the wall
// clock, waits) and the answers of the sink. The core runs on Pebble's memory
// file system in a bubble of testing/synctest; a crash is a clone of that file
// system that lacks what was not synced. The driver acts only when nothing else
// moves, so the model can say beforehand what an operation will do; deliveries
// it judges as they start. After a crash, what is there must be what the model
// had at some moment after the last acknowledged change. A step draws from a
// generator of its own, so that a failing history can be shrunk by leaving steps out.
//
// Files: model*.go are the oracle, written from the contract; world.go is the
// process, disk.go what it stands on, sink.go its Sender; driver.go, steps.go
// and requests.go are the history; run.go runs, replays and shrinks.
//
// It leaves sockets, encodings and real disks to other tests.
package sim
