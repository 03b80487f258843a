// Package scale scales workloads to zero while there is nothing to deliver, and back: spec.scale.
//
// It guarantees that a workload is not scaled to zero while a delivery is under way, a key
// is due, or one will be within the cooldown; that a due key does not wait on a workload
// that sleeps, but for its turn among the starts and for the API server; and that the
// workload ends in the state that the schedule asks for, also after another hand scaled it. Nothing
// is scaled to zero before the status of the source names the workload, so that a later
// adapter can scale it up again. Starts are bounded by namespace and over all namespaces, which
// take turns.
//
// How it works: each source with a workload is a [Member] of a target. The dispatcher tells it when
// the next key is due, and when deliveries begin and end; a due key waits until
// [Member.Admit] is true. A pure function, decide, says from that and from the observed
// replicas what to do. A target has a goroutine only while there is a call to make, and one for each
// source while it tries to connect. Between them it has a timer. State is derived: a new process
// reads the replicas, and continues.
//
// With mode Observe the same runs on replicas that are only counted.
//
// It leaves to others: which keys are due (queue), the calls (kube), and the status (cluster).
package scale
