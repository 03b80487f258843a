// Package sink makes one attempt to deliver an occurrence: one CloudEvent in
// one POST, and the answer read as the outcome.
//
// It guarantees that no byte of a request is written before Attempt.Begin has
// allowed it, that redirects are not followed, that an answer is bounded in time
// (delivery.timeout for its headers, a short time of its own for the rest) and in
// memory, and that every status has one meaning, even if the body cannot be read:
// see outcome.go. A new connection that breaks after the request was written is a failed
// attempt. One that was used before, and ends without a byte of an answer, is not: the
// request is repeated at once on another.
//
// How it works: binary mode writes the headers itself, several times faster
// than the SDK's writer, which does not percent-encode either; structured mode and
// replies use package cloudevent and the SDK. Values that depend on a source or a
// target alone are computed once. All targets with the same trusted certificates
// share one transport. A delivery is one goroutine, from the dial to the end of the
// answer, with net/http's codec, and closes its connection when its context ends; only
// the end of a large request is written in another one (ADR 14). Connections are
// HTTP/1.1: over HTTP/2 a request has no first byte of its own at which it can be
// stopped, and a sink may fill 4 MiB of memory for each request. conn.go has one
// exchange, idle.go the connections that wait for the next one, transport.go dials, names.go
// looks up names, within bounds: a tenant decides what they resolve to.
// Large replies claim memory from a budget. HTTP_PROXY, HTTPS_PROXY and NO_PROXY set
// the proxies, as for every Knative source, except for names of the cluster.
//
// It leaves to others: when and how often to try, the effect on the key (schedule,
// queue, dispatch), and the tokens (Config.Token).
package sink
