// Package reschedulesource is the control plane: the reconciler of
// RescheduleSources, the scaler of the adapter that serves them all, the keeper of the
// accounts that the adapter may watch and scale with, and the keeper of finalizers.
//
// It guarantees that the status of a source names everything that is missing. A
// step that fails does not hide the other steps, and the last known URL of a
// sink stays in the status while the sink cannot be found. The adapter writes the
// counts and times of the status, and its reports deliveries, watch and scale; the reconciler
// overwrites none of them. It runs when a report changes, and not when a count or a time
// does. A single adapter has one replica while there is a source, and
// none otherwise; a group has three always. The ClusterRole reschedule-adapter-watch
// names only accounts that a source names in spec.watch or spec.scale, or whose workload it
// holds, and all of them up to 1 MiB. A source has a finalizer only while it may scale a
// workload or holds one, and once deleted for 5 minutes at most.
//
// How it works: ReconcileKind runs steps that each set one condition or a few
// fields, and then sends one merge patch with the changes. Generated reconcilers
// send an update instead, which after a conflict replaces the newer status.
// The adapter's StatefulSet, the Secret with its certificate and the ClusterRole are
// watched as single objects. A change of the first two that a status shows queues all
// sources. The namespaces of the sources take turns, also after failures.
//
// It leaves to others: schedules and deliveries (the adapter), the values that
// are made from a source (pkg/reconciler/reschedulesource/resources), and the
// EventTypes, which eventing makes from status.ceAttributes.
package reschedulesource
