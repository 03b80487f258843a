// Package etcdlog is the replicated log on the server of etcd, embedded in the process.
//
// # What it guarantees
//
// What package replica asks of a [replica.Log]. A change that returned nil is on the disks of a
// majority of the members. An outcome is unknown only while there is no majority.
//
// # How it works
//
// One prefix holds a shard, so that one watch follows it: the owner, whose revision is the
// epoch; the head, with the number of the newest entry; the entries. Each change is one
// transaction that compares the revision of the owner. A proposal on its way to a leader
// that is gone is lost without an answer, so an attempt ends when there is another leader,
// and is repeated. A member reads entries as a range, and watches only from there: a
// watch from an old revision would need what compaction has removed.
//
// etcd has no port for clients: the client is in the process. Members call each other on the peer
// port, with TLS on both sides when files are given. The port has a server of its own, around etcd's
// handler, since etcd's takes any number of connections. The history is compacted behind each
// trim, and the file is defragmented when most of it is free, by a member that does not own
// the shard. The quota alarm, which would stop all writes for good, is disarmed when there is space again.
//
// # What it leaves to others
//
// Who may claim and when (replica). When etcd ends by itself, the process must end.
package etcdlog
