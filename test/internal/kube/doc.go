// Package kube runs a real kube-apiserver on a real etcd, for tests that ask
// what the API server itself does: which objects it refuses, what a
// ServiceAccount may do, and whether our processes get along with it.
//
// It guarantees that nothing it started outlives the tests, that every wait
// ends, and that a failure comes with the logs. Nothing is downloaded but Go
// modules: the programs are built from the modules tools and tools/cluster,
// which pin them, unless KUBEBUILDER_ASSETS names a directory that has them.
//
// How it works: [Start] builds what is not built yet, makes keys and
// certificates, starts both on free ports, and waits for /readyz. Cluster.Apply
// and Server.InstallEventing put manifests in. A [Cluster] is any API server, for tests that have one already.
//
// There is no controller manager, no scheduler and no node. What tests need of
// the former is done here (Server.AggregateRoles, and Cluster.RunNode, which writes the
// status of a StatefulSet); owned objects are not
// collected, and a namespace is never quite gone.
package kube

import "time"

// Patience is the generous upper bound of everything that is waited for.
const Patience = 60 * time.Second
