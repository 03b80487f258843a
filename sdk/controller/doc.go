// Package controller lets an operator that is written with controller-runtime
// run as a Knative Service that scales to zero. What changes is main.go:
//
//	mgr, err := controller.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{Scheme: scheme})
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
// sender has it. So a process that is killed loses nothing, and a panic, or a
// schedule API that cannot be reached, is a 503 for which the event comes again.
//
// One request is never reconciled twice at once within the process. What comes
// for it during a run leads to one more. When the process is asked to stop,
// nothing begins any more, what runs ends and is answered, and the rest is
// told to come again.
//
// There are no timers in the process, no watches, and without a client no calls
// but those of the reconcilers.
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
// It leaves to others: which objects are watched (the ApiServerSource), the
// back-off and the durable timers (the RescheduleSource), and who may send
// events (Knative).
package controller
