// Package replica makes a few adapters a group, which one of them owns at a time: it appends
// to an ordered log that a majority of them keeps on disk, and each applies it to its own view.
//
// # What it guarantees
//
// An entry for which Append returned nil is in the log, and applied to the owner's view.
// Every view applies the same entries in the same order. Two members never hold the lease of
// the group at one time, as long as the rates of their clocks differ by less than a fifth,
// and no clock stands still; the clocks need not agree. The group's clock does not run ahead with a new owner, as long as
// wall clocks differ by less than a second. An owner that was deposed appends nothing,
// whatever its clock says: the log compares the epoch.
//
// # How it works
//
// [Log] is the seam: entries with a number, a head that each append and each renewal moves,
// and an owner. The revision of the owner's claim is its epoch. The owner renews when it has
// nothing to append. A standby that has seen no change of the head for T claims the group,
// if epoch and head are still as it saw them: with the epoch alone, a standby whose
// watch lags could depose an owner that was never silent. The lease of the owner lasts 0.8 T
// from the moment before it sent its last successful append. So it has ended when a standby
// may claim. A delivery begins only while 0.2 T of the lease are left.
//
// A batch is one entry, or several, of at most [MaxEntry]: a large batch counts once its last
// part is in the log. Each entry has a checksum. A member that finds an entry damaged does not
// apply it, and takes a copy of another one's view.
//
// An attempt whose outcome is unknown is repeated with the same number: the log takes an
// entry with that number once. Only where that fails for [GiveUp] the outcome stays unknown:
// then the owner resigns, and the log says later what is in it.
//
// The group's clock, [Tenure.Now], is the owner's wall clock. A new owner holds its own back
// so far that it is not ahead of the last owner's: the head of the log shows the clock, so a
// standby can compute the least that it shows. A reading may be old; then the measured
// difference of the two wall clocks ([Clocks]) and the last owner's own holdback are the limit.
//
// Members compare a hash of their views. A standby whose view differs from the owner's and most
// others' takes a copy; where that is not known, it is not caught up, and claims nothing.
//
// An entry is removed from the log when all members have their views on disk beyond it, or
// a majority has and [KeepBytes] of newer entries are there. A member that comes back later
// takes a copy of another one's view. The log is kept while it does; from [LogBytes] on appends are
// slow, so that the copy ends, and the caller lets nothing grow.
//
// # What it leaves to others
//
// Consensus, transport and the log on disk (etcdlog); what an entry means (store); what an
// owner does (group).
package replica
