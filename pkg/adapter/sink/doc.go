// Package sink makes one attempt to deliver an occurrence: one CloudEvent in
// one POST, and the answer read as the outcome.
//
// It guarantees that an attempt is at most one request that the sink acts
// upon (the transport repeats one only when nothing of it was written), that
// redirects are not followed, that what an answer costs is bounded in time
// (delivery.timeout, until its last byte) and in memory, and that every status
// has one meaning: see outcome.go.
//
// How it works: binary mode writes the headers itself, several times faster
// than through the SDK's writer, which moreover does not percent-encode;
// structured mode and replies go through package cloudevent and the SDK. What
// follows from a source or a target alone is computed once. All targets with
// the same trusted certificates share one transport with wide pools. Proxies
// are those of HTTP_PROXY, HTTPS_PROXY and NO_PROXY, as for every Knative
// source.
//
// It leaves to others: when to try, how often and what becomes of the key
// (schedule, queue, dispatch), and where tokens come from (Config.Token).
package sink
