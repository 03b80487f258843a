// Package backup copies the store of an adapter, and puts the copy back.
//
// It guarantees that a back-up holds every change that was acknowledged before it began,
// and that half a one is never restored. Of an adapter that does not run it holds all that
// its disk has; where a member's log is damaged, what comes before. A restored directory has
// passed adapter verify, and hands out no revision again.
//
// How it works: a back-up holds the events of all tenants, so the right to it is the right
// to the data directory. The adapter serves it on a Unix socket in that directory, which
// only its own user can open, and on no network; members of a group send the same to each
// other, on their own port (group). It sends a checkpoint of the store as a
// tar; the last file of the tar marks its end. A back-up waits for its reader at most
// [stallTime] at a time, and ends when the disk is nearly full, because it keeps the space
// of deleted tables.
//
// It leaves to others: what a checkpoint is, and what is verified (store).
package backup
