// Package api is the HTTP edge: the schedule API below a source's address, the
// CloudEvents ingress at the address itself, and /openapi.json.
//
// It guarantees that what reaches the queue is well formed and authorised,
// that a 2xx is sent only after the queue reported the change durable, that
// every refusal is an RFC 9457 problem with a stable code, and that a caller
// costs a bounded amount of memory and time whatever it sends. openapi.json
// describes every call, field, status and code; a test holds it against the
// handlers in both directions.
//
// How it works: a request is routed on the path as it was sent (a key is one
// percent-encoded segment and may be ".." or hold a "/", so nothing is ever
// cleaned), its bearer token is checked, its query, headers and JSON body are
// decoded into a [schedule.Request], the queue is called, and the answer is
// appended to a pooled buffer. Decoding walks the JSON once and distinguishes faults of
// a field, which in a bulk call fail one item, from JSON that is broken, which
// fails the request.
//
// What a request holds is taken from two budgets of package budget: by being
// under way, shared by peers, and for its body and answer, shared by namespaces
// and sources, or by peers where the caller is not authenticated. A body is
// charged as it arrives, an answer before it is read.
//
// It leaves to others: every rule about times, policies, revisions and limits
// (schedule, queue), what a CloudEvent means (ingest), and connections
// (listener; see [Server] for the timeouts).
package api
