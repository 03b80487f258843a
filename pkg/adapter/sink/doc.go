// Package sink makes one attempt to deliver an occurrence: one CloudEvent in
// one POST, and the answer read as the outcome.
//
// It guarantees that nothing of a request is written before Attempt.Begin has
// said yes, that redirects are not followed, that what an answer costs is
// bounded in time (delivery.timeout for its headers, a short time of its own
// for the rest) and in memory, and that every status has one meaning, whatever
// becomes of the body: see outcome.go. A connection that breaks after the request
// was written is a failed attempt, also an idle one that the sink closed at that
// moment: whether the sink has run cannot be known.
//
// How it works: binary mode writes the headers itself, several times faster
// than through the SDK's writer, which moreover does not percent-encode;
// structured mode and replies go through package cloudevent and the SDK. What
// follows from a source or a target alone is computed once. All targets with
// the same trusted certificates share one transport. All connections are
// dialled in conn.go, which asks before the first byte of each request and
// bounds those that are idle; they are of HTTP/1.1, where a request has the
// connection for itself. Large replies take memory from a package budget.
// Proxies are those of HTTP_PROXY, HTTPS_PROXY and NO_PROXY, as for every
// Knative source, but for names of the cluster.
//
// It leaves to others: when to try, how often and what becomes of the key
// (schedule, queue, dispatch), and where tokens come from (Config.Token).
package sink
