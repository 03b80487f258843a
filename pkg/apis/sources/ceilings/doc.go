// Package ceilings reads the administrator's ceilings, the ConfigMap
// config-reschedule, and cuts the limits of a source to them.
//
// It guarantees that both planes understand the same: the adapter enforces, and
// the controller reports in a condition, what [Ceilings.Limits] says. A ConfigMap
// is understood as a whole or refused with the key at fault, unknown keys too.
//
// How it works: a [Config] has one set of [Ceilings] for all namespaces and one
// for each namespace that the key "namespaces" names. A key that is absent has
// the shipped value, and below "namespaces" the value for all namespaces. Each
// ceiling bounds all sources of a namespace together; what is summed up over
// them (keys, bytes, deliveries) is for the adapter to hold. A limit that a
// source does not name is the administrator's default, and is cut in silence.
//
// It leaves to others: watching the ConfigMap, what a bad one means (both planes
// keep the values before), and enforcement (packages queue and dispatch).
package ceilings
