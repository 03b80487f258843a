// Package recent remembers in memory what happened lately: the last outcomes of each key
// ([History]), and the events of a source for callers who follow it ([Feed]).
//
// It guarantees that both take a fixed number of bytes, whatever tenants do. The history
// drops the oldest outcomes of the namespace that has the most, so that a busy namespace
// costs the others nothing. A feed is a ring: a follower who is slower than the ring is
// cut off. A source without a follower costs one read of a pointer for each event.
//
// How it works: the history has a chain of outcomes for each key, and for each namespace
// the order in which they came. A feed begins with its first follower, stays for a while
// after the last one, so that a follower who comes back misses nothing, and numbers its
// events.
//
// It leaves to others: what is worth remembering (queue), and the wire format (api).
package recent
