// Package resources makes the values that the reconciler of RescheduleSource
// publishes: addresses, the source attribute of events, the adapter's
// availability, the patches of a status and of a scale, the rules of the accounts to
// watch with.
//
// It guarantees that every function is pure: the same arguments give the same
// result, no argument is changed, and nothing is read or written.
//
// It leaves to others: reading the arguments and writing the results (the
// reconciler).
package resources
