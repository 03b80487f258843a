// Package reschedulesource is the control plane: the reconciler of
// RescheduleSources, and the scaler of the adapter that serves them all.
//
// It guarantees that a source says what it lacks: a step that fails does not
// hide the others, a sink that cannot be found for a while stays in the status,
// and status.pending and nextDueAt, which the adapter writes, are neither
// overwritten nor a reason for work. The adapter has one replica while there
// is a source, and none otherwise.
//
// How it works: ReconcileKind runs steps that each set one condition or a few
// fields, and then sends one merge patch of what changed. That patch takes the
// place of the update that generated reconcilers make: when that update meets a
// conflict it puts its whole status over a newer one. What all sources share,
// the adapter's StatefulSet and the Secret of its certificate, is watched as
// the one object that it is; the sources are looked at again when one of them
// changes in a way that they show.
//
// It leaves to others: what runs on schedule (the adapter), the objects that
// are made from the source (pkg/reconciler/reschedulesource/resources), and
// the types of events, which eventing makes from status.ceAttributes.
package reschedulesource
