// Package sink makes one attempt to deliver an occurrence: one CloudEvent in
// one POST, and the answer read as the outcome.
//
// It guarantees that no byte of a request is written before Attempt.Begin has
// allowed it, that redirects are not followed, that an answer is bounded in time
// (delivery.timeout for its headers, a short time of its own for the rest) and in
// memory, and that every status has one meaning, even if the body cannot be read:
// see outcome.go. A connection that breaks after the request was written is a failed
// attempt. So is an idle one that the sink closed at that moment, because it is not
// known whether the sink has run.
//
// How it works: binary mode writes the headers itself, several times faster
// than the SDK's writer, which does not percent-encode either; structured mode and
// replies use package cloudevent and the SDK. Values that depend on a source or a
// target alone are computed once. All targets with the same trusted certificates
// share one transport. All connections are dialled in conn.go, which calls
// Attempt.Begin before the first byte of each request and bounds the idle
// connections. They are HTTP/1.1, where a request has the connection for itself.
// Large replies claim memory from a budget. HTTP_PROXY, HTTPS_PROXY and NO_PROXY set
// the proxies, as for every Knative source, except for names of the cluster.
//
// It leaves to others: when and how often to try, the effect on the key (schedule,
// queue, dispatch), and the tokens (Config.Token).
package sink
