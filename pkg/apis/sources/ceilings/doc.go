// Package ceilings reads the administrator's ceilings, the ConfigMap
// config-reschedule, and lowers the limits of a source to them.
//
// It guarantees that the controller and the adapter apply the same limits: the
// adapter enforces the result of [Ceilings.Limits], and the controller reports it
// in a condition. A ConfigMap is valid as a whole or refused, and the error names
// the key; an unknown key is refused too.
//
// How it works: a [Config] has one set of [Ceilings] for all namespaces and one
// for each namespace in the key "namespaces". An absent key has the shipped
// value, and below "namespaces" the value for all namespaces. Each ceiling bounds
// all sources of a namespace together; the adapter enforces the sums over them
// (keys, bytes, deliveries). A limit that a source does not name is the
// administrator's default, and is lowered without a report.
//
// It leaves to others: watching the ConfigMap, handling one that is not valid
// (both programs keep the previous values), and enforcement (packages queue and
// dispatch).
package ceilings
