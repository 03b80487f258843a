// Package listener accepts connections for a server in the memory that a
// number of them takes.
//
// It guarantees that a new connection is accepted at once also when there are
// as many as there may be: the longest idle one of the peer that has the most
// gives way. So whoever opens thousands of connections, idle or half-open, loses
// its own, and a probe of another peer is answered. Where there is no idle one
// the oldest request of the peer with the most gives way, be it a body that does
// not arrive, but only to a peer with fewer connections: a peer with few never
// loses a request to one with many. What connections take before a request is
// complete is bounded by a budget of bytes that peers share.
//
// How it works: a connection is idle from its start, and from the end of each
// answer, until the headers of a request have arrived and its handler runs. Each
// peer has a list of its idle connections and one of its busy ones, the longest
// first, and the peers are a heap by their number of connections. A connection counts until the server
// has let go of it; one that gave way does so at once, and while too many are on
// their way out no further one is accepted.
//
// It leaves to others: timeouts, TLS, HTTP (the server), and how many requests
// are under way (api).
package listener
