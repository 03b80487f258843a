// Package controller lets an operator that is written with controller-runtime
// run as a Knative Service that scales to zero. What changes is main.go:
//
//	mgr, err := controller.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{Scheme: scheme}, controller.WithAudience("my-operator"))
//
// instead of ctrl.NewManager; SetupWithManager, its For, Owns, Watches and
// predicates, and Reconcile stay as they are. Events come in over HTTP, from an
// ApiServerSource or, better, from a RescheduleSource that it sends to.
//
// # What it guarantees
//
// What Reconcile returns means what it means to controller-runtime (a test runs
// both beside each other): an error and Requeue are retried with a back-off that
// grows with the failures in a row, RequeueAfter comes back then and resets
// the count, a TerminalError is not retried. An event is answered when the
// runs that it caused have ended and their outcome is durable; until then the
// sender has it. So a process that is killed loses nothing, and a panic, a
// schedule API that cannot be reached, or a predicate or map function that could
// not read, is a 503 for which the event comes again. What no repetition mends
// is a 400: what is no event, and a key of which no controller knows what it
// stands for. An event of a kind that nobody watches is dropped.
//
// In doubt there is a run too many, never one too few: when this process has
// not seen an object before, or does not know what its key waits for, an update
// is a change. But what predicates would keep out of an operator that starts,
// such as objects of another class, is not run.
//
// One request is never reconciled twice at once within the process. What comes
// for it during a run leads to one more. Between processes (replicas, and two
// revisions while one takes the place of the other) it is the RescheduleSource
// that delivers a key to one at a time, so a process whose connection broke may
// still be at it when the next one begins.
//
// When the process is asked to stop, nothing begins any more, what runs ends
// and is answered, and the rest is told to come again. After the
// GracefulShutdownTimeout the contexts of runs end, and then the manager takes
// no longer than that again.
//
// There are no timers in the process, no watches, and without a client no calls
// but those of the reconcilers, and for the keys that tokens are checked with. Waits are those of [time.Duration], of at most
// ten years; what is finer than the clock of the source is rounded up.
//
// # How it works
//
// The manager's cache has informers that are fed with the objects of events, so
// that sources, predicates and handlers run as ever. The controllers get a
// [priorityqueue.PriorityQueue] that hands requests to their workers and reads
// the outcome from what the controller calls on it after a run. Behind a
// RescheduleSource (its deliveries have a reschedulekey) the outcome is the
// answer; elsewhere it is a call of the client, see [WithClient].
//
// The queue of a controller cannot be set for all of a manager, and what a
// controller is For is known to nobody outside, so that both are reached by
// reflection. With another version of controller-runtime than the one this
// module requires, and where that does not fit, Add says so.
//
// With [WithAudience] events are taken of the operator's own sources only, by the
// tokens that these send. Without it they are taken of anyone, and nothing of them
// is remembered: a forged event may cause a run, and never keeps one back.
//
// It leaves to others: which objects are watched (the ApiServerSource), the
// back-off and the durable timers (the RescheduleSource), and who may send
// events to the source.
package controller
