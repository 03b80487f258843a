// Package crash kills the real adapter with kill -9, again and again, while
// clients call it and a sink answers its deliveries, and holds afterwards what
// was acknowledged against what was delivered.
//
// It guarantees, for the seeds it was run with: nothing acknowledged is lost;
// nothing is early; one key has one delivery at a time; after an acknowledged
// PUT or DELETE no older occurrence is delivered; revisions of a key only grow
// and an id stays with its occurrence; and the data directory verifies after
// every kill.
//
// How it works: every key has one writer, so that the order of its calls is
// known; the history of a key is its writer's calls with their answers, and
// the sink's deliveries with theirs. A call without an answer, because the
// adapter was killed, may have had its effect or not: the oracle accepts both.
// All times are of one clock.
//
// The seed decides what the clients call, how the sink answers and when the
// adapter dies; the scheduling of processes stays the machine's, so a failure
// may take several runs of its seed to show again. It is not for power loss, which
// the store's tests simulate.
package crash
