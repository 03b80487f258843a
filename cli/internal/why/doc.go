// Package why says in one sentence why a key, or a source, is not delivered: the
// sentence, the name of the cause, and the evidence.
//
// It guarantees that the same facts have the same answer, wherever they are shown: in
// the command line and on the page. The first cause that holds is the answer, from the
// outside to the inside: the source object, the adapter, the caller's rights, the key,
// its sink, the quotas. Facts that are unknown are skipped, not guessed. The texts have
// no control characters.
//
// How it works: a [Target] asks the schedule API and the metrics for the [Facts]. [Explain] is
// a pure function of them, in the order of the questions that an operator would ask. Each
// question either answers or passes on.
//
// It leaves to others: the way to an adapter, its metrics and the source object, and printing
// the answer.
package why
