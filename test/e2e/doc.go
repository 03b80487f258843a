// Package e2e holds the product where its users run it: real pods, Knative
// Eventing and Serving, and operators that scale to zero.
//
// It guarantees, when it passes, that what the pages promise of a cluster was
// seen in one: what was scheduled arrived, not early, also while its operator
// had no pod.
//
// How it works: it takes the cluster of KUBECONFIG, which make cluster-up and
// make deploy bring up or any other cluster with Knative and this product in
// it, and pushes images of its own to KO_DOCKER_REPO. Each test has a
// namespace, with a recorder in it that keeps what it is sent and calls the
// schedule API from where pods call; functions tell the recorder of each run.
// The namespaces of tests that failed are written to a folder, logs and all:
// E2E_LOGS, or one that is named at the end.
//
// What is missing in the cluster is told at the start, and fails; nothing is
// skipped. Tests that disturb the others (they kill the adapter, or change
// Knative's settings) have the cluster alone, in TestAlone_InTurn. All files but this one have the build
// tag e2e; nodes_test.go, which takes nodes away, has the tag nodes too, for the
// cluster of make cluster-up.
//
// What single calls do is left to pkg/adapter, what the API server refuses
// to test/cluster.
package e2e
