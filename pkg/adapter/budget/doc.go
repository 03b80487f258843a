// Package budget shares a bounded number of bytes (or of anything else that
// is counted) among namespaces first and among their sources second.
//
// It guarantees that what is held never exceeds the total; that one source
// alone holds at most a quarter of it (but for the rest of its oldest claim),
// one namespace at most a half, and the shares of many become equal; and that
// a newcomer finds something free however greedy the others are. A claim that
// fits is granted at once: a small one never waits behind a large one.
//
// How it works: thresholds that move. A namespace may hold as much as stays
// free, a source half of what its namespace could still take, and each of them
// may always hold one claim. Thus the more there are, the smaller the share of
// each, without a queue that somebody could fill. A claim that grows step by
// step cannot meet a deadlock within its source: the oldest one goes beyond the
// source's share, up to its namespace's. A claim that waits is looked at
// whenever something is given back, the longest waiting one first.
//
// It leaves to others: what is charged and when, and how long to wait.
package budget
