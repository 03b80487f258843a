// Package budget shares a bounded number of bytes (or of slots) among namespaces
// first and among their sources second.
//
// It guarantees that the claims never exceed the total; that one source
// alone holds at most a quarter of it (but for the rest of its oldest claim),
// one namespace at most a half, and the shares of many become equal; and that
// a new source always finds a part free, however much the others claim. A claim that
// fits is granted at once: a small one never waits behind a large one.
//
// How it works: thresholds that move. A namespace may hold as much as stays
// free, a source half of the rest of its namespace, and each of them may always
// hold one claim. So the more there are, the smaller the share of each, without a
// queue that one caller could fill. Claims that grow step by step cannot deadlock
// within their source: the oldest one may exceed the source's share, up to its
// namespace's. Waiting claims are tried whenever bytes are given back, the longest
// waiting one first. Claims without an end give way to namespaces that hold less (Renew).
//
// It leaves to others: which bytes are counted and when, and how long to wait.
package budget
