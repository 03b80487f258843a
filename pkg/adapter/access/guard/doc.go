// Package guard decides who may call in a cluster.
//
// It guarantees:
//
//   - It fails closed. What it cannot decide it refuses: with unavailable when
//     the API server is at fault, so that no caller throws away a valid token.
//     An EventPolicy that cannot be read admits no caller.
//   - A caller who may not see that a source exists does not see it here.
//   - A forged token costs the API server nothing, and a flood of tokens delays
//     only the callers of its own namespace or peer. Known callers stay known:
//     their answers are renewed before they expire.
//   - Memory is bounded. No token is kept, only digests.
//
// How it works: the cluster's public keys show which tokens are forged,
// TokenReview returns who bears a token. What the caller may do is decided by the
// source's namespace, by EventPolicies, and by RBAC (SubjectAccessReview). A
// positive answer is cached for a minute, a negative one for ten seconds.
//
// EventPolicies are read as unstructured objects and their filters compiled
// here: Knative's own code links half of Knative, and ignores filters that it
// cannot read.
//
// It leaves to others: watching sources, policies and flags (cluster), the calls
// to the API server (kube), and the HTTP answer (api).
package guard
