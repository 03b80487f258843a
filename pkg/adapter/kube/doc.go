// Package kube is the plumbing between the adapter and the Kubernetes API
// server: every call that the adapter makes, and the limits on those calls.
//
// It guarantees:
//
//   - Each kind of call has a rate limit of its own, so that status reports do
//     not delay tokens. Each namespace has a share of the calls that others can cause.
//   - [Tokens] requests tokens of a source's own service account only, and never
//     for an audience of the API server.
//   - [Objects] lists and watches as the account that a source names, with a token for
//     the API server that never leaves this package. It asks for metadata only and hands
//     it over object by object: an object is bounded, and no list is held.
//   - The binary contains the kinds that the adapter reads and writes, and no
//     others (internal/house keeps it so): the clientsets of Kubernetes and
//     Knative doubled the size of the process.
//
// How it works: [NewClients] makes one REST client per kind on one HTTP/2
// connection. Tokens come from TokenRequest and are cached until five minutes
// before they expire. Watches have a transport of their own: each request has the token
// of its account in its header. [ReadClaims] and [KeySet] read JSON Web Tokens and the
// cluster's public keys; they verify nothing by themselves.
//
// It leaves to others: what is watched and applied (cluster), and who may call
// (access/guard).
package kube
