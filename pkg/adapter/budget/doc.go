// Package budget shares a bounded number of bytes, or of slots, among namespaces
// first and among their sources second.
//
// It guarantees that the claims never exceed the total; that one source
// alone holds at most a quarter of it (but for the rest of its oldest claim),
// one namespace at most a half, and the shares of many become equal; and that
// a new source always finds a part free, however much the others claim. A claim that
// fits is granted at once: a small one never waits behind a large one. Claims that wait
// are served by namespace first, then by source, each in its turn: a caller who sends
// more waits longer.
//
// How it works: thresholds that move. A namespace may hold as much as stays
// free, a source half of the rest of its namespace, and each of them may always
// hold one claim. So the more there are, the smaller the share of each. Claims that
// grow step by step cannot deadlock within their source: the oldest one may exceed the
// source's share, up to its namespace's. Waiting claims are tried whenever bytes are
// given back. Claims without an end give way to namespaces that hold less (Renew).
//
// A budget of turns has a fixed share for each namespace, which may be all of them: long
// computations share half of the processors, so that short requests and deliveries find
// a free one. A computation takes a turn, and passes it on after each step of about a
// millisecond. A turn is not held while its holder waits for the network or for memory;
// a long write keeps its turn until it is stored.
//
// It leaves to others: which bytes are counted and when.
package budget
