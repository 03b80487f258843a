// Package group makes an adapter one of a group: it joins what package replica decides, who
// owns the group and for how long, with the queue and the deliveries of the owner.
//
// # What it guarantees
//
// A member answers calls and delivers only while it holds the lease. Any member answers any
// call: here, or at the owner, one hop. A change whose outcome is unknown is never answered
// as made, or as not made.
//
// # How it works
//
// A [Member] has the view of the state. While it owns the group, a tenure runs a store over
// the view, the queue and a dispatcher; all of them are thrown away with the tenure, and the
// next owner reads the log. When the lease lapses, deliveries are cut off, and the answer of
// a read is replaced by 503. The members call each other on a port of their own, the next after the log's.
//
// A member without a log asks the others before it starts one. It is new where none knows
// it. Where they know it, it has lost its disk, and one of them puts it in its own place in
// the log, without what it promised. A view that is too old for the log is replaced by a
// copy, which is written beside it, synced and verified before.
//
// Each group has an identity of its own, a random id on each disk, which decides etcd's ids too. A member
// with the log of another group ends. One whose disk went back to an earlier state, and so lacks what it
// promised, joins as one that has lost its disk.
//
// A new group may begin with what one member has: the empty ones take a copy before they
// join. A group ends with a seal, after which its owner writes and delivers nothing.
//
// # What it leaves to others
//
// Who owns the group (replica), the log (etcdlog,
// through [Settings]), the state (store), and the addresses for callers (adapter).
package group
