// Command peers measures the adapter beside other durable timers, each with the settings that its documentation
// recommends for durability, and writes docs/adopters.md (make bench-peers).
//
// It guarantees that all are measured in one run, on the same cores and the same disk, with a real fsync, that each has as
// many callers, and that each delivery is one POST to the same sink, a hundred at a time at most. One exception: a peer
// that is slow to start may have its rounds of kill -9 in lanes, side by side, each with as many callers as another peer
// has in all; its settings on the page say so. A peer that cannot run, or fails once, is named with the reason and has no
// figures. All processes end with this one.
//
// peer.go has the seam, with one file for each peer; speed.go has put, burst and lateness, kill.go the rounds of kill -9
// and what is judged; sink.go receives; page.go writes. A worker or a server that is a library is a process of its own:
// this program, started again as "peers serve NAME".
package main
