// Package listener accepts connections for a server, in a bounded number and in
// bounded memory.
//
// It guarantees that a new connection is accepted at once even when the limit is
// reached: the longest idle connection of the peer with the most gives way. So a
// peer that opens thousands of connections, idle or half-open, loses its own, and a
// probe of another peer is answered. If no connection is idle, the oldest request of
// the peer with the most gives way, even while its body arrives, but only to a peer
// with fewer connections: a peer with few never loses a request to a peer with many.
// Where only trusted callers can make requests, none is ever cut off.
// A budget of bytes, shared among peers, bounds the memory of incomplete requests. A handler that panics is in the
// log as an error, with its stack, once a second at most.
//
// How it works: a connection is idle from its start, and from the end of each
// answer, until the headers of a request have arrived and its handler runs. Each
// peer has a list of its idle connections and one of its busy ones, the longest
// first, and the peers are a heap by their number of connections. A connection
// counts until the server has closed it. One that gave way stops counting at once,
// and while too many of these are still open no further connection is accepted.
//
// It leaves to others: timeouts, TLS, HTTP (the server), and how many requests
// are under way (api).
package listener
