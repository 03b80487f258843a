// Package controller lets an operator that is written with controller-runtime run as
// a Knative Service that scales to zero. Only main.go changes:
//
//	import reschedule "github.com/reschedule-dev/reschedule/sdk/controller"
//
//	mgr, err := reschedule.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{Scheme: scheme}, reschedule.WithAudience("my-operator"))
//
// instead of ctrl.NewManager. SetupWithManager, with For, Owns, Watches and
// predicates, and Reconcile stay as they are. Events come in over HTTP from a
// RescheduleSource, whose sink is the operator.
//
// # What it guarantees
//
// What Reconcile returns means what it means to controller-runtime (a test compares
// the two): an error and Requeue are retried with a back-off that grows with the
// failures in a row, RequeueAfter comes back after that time and resets the count, a
// TerminalError is not retried. An event is answered when all runs that it caused have
// ended and what they ask for is durable. Until then the source has it. So a process
// that is killed loses nothing. A panic, a schedule API that cannot be reached, and a
// predicate or map function that could not read are a 503, for which the event comes
// again. An event that would fail each time is a 400: a request that is not an event,
// an event without a reschedulekey, and a key that no controller knows. An event of a
// kind that no controller watches is dropped.
//
// When in doubt it reconciles once too often, never too seldom: an update is a change when this
// process has not seen the object before, or has no record of what waits under the key, and
// when a source that watches reports the same version again, as in a resync. An event that
// says nothing new may have taken the place of an event about an owned object: then there is
// a run, and after that runs with a back-off.
// But an object that predicates would keep out of an operator that starts, such as an
// object of another class, is not run, and neither maxInterval nor a timer that this process
// does not know brings it back. With a client the source is asked for the timer.
//
// Several controllers For one kind share the key of an object. Each has its own timer and
// its own back-off, which are in the event that comes back. Without any timer one failure
// fails the delivery, and all of them run again.
//
// A delivery's priority is the priority of its runs, low as [handler.LowPriority] and high as
// 100, unless a handler adds with one of its own. Result.Priority, RequeueAfter and errors
// mean what they mean to controller-runtime, and go back to the source as low, normal or high.
// Requests that share a key share the highest of what comes again.
//
// One request is never reconciled twice at once within the process. Events for it
// during a run lead to one more run. Between processes (replicas, and two revisions
// while one replaces the other) the RescheduleSource delivers a key to one process at
// a time. A process whose connection broke may still run it when the next process
// begins.
//
// When the process must stop, its port closes, and the events that came in are run and
// answered. What still waits for a worker after half of the GracefulShutdownTimeout is
// answered with a Reschedule-After of a second. To the source that is a success: it counts
// no attempt, and sends the event again as a new occurrence, whose attempts are counted
// anew and which does not expire. After the GracefulShutdownTimeout the contexts of runs end. The manager then takes at most that
// time again.
//
// There are no timers in the process and no watches. Its only calls are the calls of
// the reconcilers, of a client ([WithClient]), and for the keys of the API server
// ([WithAudience]). Waits are at most 100 years, and the source rounds up what is finer
// than its clock.
//
// # How it works
//
// The manager's cache has informers that are fed with the objects of events, so that
// sources, predicates and handlers run as always. A planner decides what an event leads
// to. The controllers get a [priorityqueue.PriorityQueue] that hands requests to their
// workers and reads the outcome from what the controller calls on it after a run. The
// outcome is the answer to the event.
//
// The public API of controller-runtime has no way to set the queue of all controllers
// of a manager, nor to read the kind that a controller is For. Both are reached by
// reflection. When a version of controller-runtime does not fit, Add returns an error that
// names it, and what differs.
//
// With [WithAudience] events are taken only with a token of the operator's own sources.
// Without it every sender is taken, and nothing about its events is remembered: a forged
// event may cause a run, and never suppresses one.
//
// [PrintSource] writes the RescheduleSource that watches what the controllers declare.
//
// It leaves to others: the watches, the back-off and the durable timers (the
// RescheduleSource), and who may send events to the source.
package controller
