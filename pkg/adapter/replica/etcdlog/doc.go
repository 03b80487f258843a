// Package etcdlog is the replicated log on the server of etcd, embedded in the process.
//
// # What it guarantees
//
// What package replica asks of a [replica.Log]. A change that returned nil is on the disks of a
// majority of the members. An outcome is unknown only while there is no majority.
//
// # How it works
//
// One watch follows the owner, whose revision is the epoch, and the head, with the number
// of the newest entry. Entries are read as a range, a page at a time. Each change is one
// transaction that compares the revision of the owner. A proposal on its way to a leader
// that is gone is lost without an answer, so an attempt ends when there is another leader,
// and is repeated. A member watches from where it has read: a watch from an old revision would need
// what compaction has removed.
//
// etcd has no port for clients: the client is in the process. Members call each other on the peer
// port, with TLS on both sides when files are given. The port has a server of its own, around etcd's
// handler, since etcd's takes any number of connections. The history is compacted behind each
// trim, and the file is defragmented when most of it is free, by a member that neither owns
// the group nor leads. etcd's quota is off, since its alarm stops also the changes that would make space.
// A snapshot each 100 entries bounds the write-ahead log, and what a start reads into memory, to some 200 MB.
//
// # What it leaves to others
//
// Who may claim and when (replica). When etcd ends by itself, the process must end.
package etcdlog
