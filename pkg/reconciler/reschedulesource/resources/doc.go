// Package resources makes what the reconciler of RescheduleSource publishes:
// addresses, the source attribute of events, the adapter's availability, the
// patches of a status and of a scale.
//
// It guarantees that every function is pure: the same arguments give the same
// answer, no argument is changed, and nothing is read or written.
//
// It leaves to others: where the arguments come from and what is done with the
// answer (the reconciler).
package resources
