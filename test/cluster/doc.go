// Package cluster holds config/, the controller and the adapter against a real
// API server.
//
// It guarantees that the API server refuses what pkg/apis refuses and accepts
// what it accepts; that each ServiceAccount can do what its program needs and
// nothing more; and that the two programs, as processes with these accounts,
// do what the contract says: from an object to an event at its sink.
//
// How it works: one API server for all tests, with Knative Eventing's own
// definitions and with config/ applied to it, as a user would; a namespace for
// each test. The sinks are of this process. There are no nodes, so that the
// adapter is a process here too, and a test says in its stead that its
// StatefulSet is ready.
//
// What single calls of the schedule API do is left to pkg/adapter/api, what the
// reconciler writes in each case to its table tests.
package cluster
