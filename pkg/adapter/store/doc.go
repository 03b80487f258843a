// Package store keeps entries, their indexes and marks of watched objects on stable storage. [Store] is
// the interface that the queue uses; [DB] is its implementation, on Pebble. This
// comment is the specification of the format.
//
// # What it guarantees
//
// A change is stored as a whole or not at all. Once Wait returned nil it survives
// kill -9 and power loss. A crash loses only the end of the history, never a change
// from its middle. Index rows never disagree with the records:
// all of them follow from the entry by one function ([rows.derive]) and are
// written in the entry's batch. No revision is handed out twice. A failed write
// or fsync of the log is never acknowledged and never repeated: the first one calls
// Options.Fatal, and every later call fails. While the disk is full, writes wait. A
// bad record gives a [CorruptError] and stops no other record; it can be replaced and
// removed. A bad block of an index hides no due key. Every
// corrupt place is logged and counted once.
//
// # How it works
//
// One ordered key space. The first byte of a key names its table, then comes
// '/'. Sources and keys hold no zero byte, so one ends them. Instants are Unix
// nanoseconds as 8 bytes, big-endian, with the sign bit flipped, so that bytes
// order like time; revisions are 8 bytes, big-endian.
//
//	s/ source 0 key                       → the record (below)
//	e/ source 0 key                       → the body of the entry's event, if it has more than 512 bytes
//	d/ source 0 at key 0 revision         → empty; 'r' if the entry has a RetryAt; 's' and the slack, a varint, if it may wait
//	r/ source 0 due key 0 revision        → empty; only entries with a RetryAt
//	x/ expires source 0 key 0 revision    → empty; only entries with an ExpiresAt
//	u/ source 0 key                       → instant, revision; only with an UnfinishedAt
//	c/ source                             → four zigzag varints: keys, dead letters, bytes, entries of unknown size
//	p/ source                             → empty; a purge under way
//	f/ source 0 watch object              → what was reported of a watched object last
//	w/ source 0 watch                     → where a watch stands
//	m/format, m/form, m/id, m/revision, m/clock → text; m/applied → two numbers, 8 bytes each, big-endian
//
// For example the row of key "k" of source "s", due one nanosecond after 1970
// with revision 258:
//
//	64 2f  73 00  80 00 00 00 00 00 00 01  6b 00  00 00 00 00 00 00 01 02
//	d  /   s  0   at                       k  0   revision
//
// "at" is when the next attempt may start: RetryAt between two attempts, else
// DueAt. "due" is the original time. So d/ is the order of delivery, while d/
// without the marked rows, merged with r/, is the order of original due times,
// for listings and counts. The source comes first in d/, so that the many rows of one
// source do not stand before the rows of another. x/ is in time order over all
// sources, since one sweep drops what expired.
//
// An event may have 256 KiB, and outcomes keep it: so a large body has a row of its own, which an
// outcome does not write again. Its ID, which an outcome takes from it, is in the record, and
// so is its size: counters, lists without events and changes that keep, replace or remove it
// do not read it. A small body is the end of the record: a row of its own would cost more than
// to write it again.
//
// A row of d/, r/ and x/ has a revision in its key, and is set once. A single delete ends with it
// where the two meet, most often in the first flush.
//
// A record is a version byte and fields; a bit set says which are there:
//
//	version (1) | field bits, uvarint | revision, uvarint | occurrence, uvarint
//	| scheduledAt, dueAt, retryAt, expiresAt, unfinishedAt, 8 bytes each
//	| attempt, tries, uvarint | maxInterval, varint
//	| uid, reason, traceparent, tracestate, each uvarint length and bytes
//	| event: size of the body, uvarint, id | dead letter | last failure: 8 bytes, code, data
//	| previousDueAt, 8 bytes | slack, varint | priority | calendar | the body of a small event
//
//	body of an event: field bits | source | time (seconds, nanoseconds, offset)
//	| type, subject, datacontenttype, dataschema
//	| count, then name, kind ('s', 't', 'f', 'i') and value, sorted by name | data
//
//	dead letter: key | due (as the event's time) | id | attempt, tries, revision
//	| failure's dest, code, data
//
// A watch is a number, 8 bytes, big-endian. The object comes last, so that the rows of
// a watch have the order of the API server's pages. The values of f/ and w/:
//
//	f/: version (1) | bits: 1 the uid is a UUID, 2 there are keys
//	    | uid, 16 bytes or uvarint length and bytes | fingerprint, 8 bytes, big-endian
//	    | count, then the keys, each uvarint length and bytes
//	w/: version (1) | bits: 1 the list is complete
//	    | scope, resourceVersion, the sink's revision, each uvarint length and bytes
//
// A record has no checksum of its own: Pebble has one on every block of a table and on
// every chunk of its log, and checks it on every read from disk.
//
// Lookups ask a Bloom filter, ten bits a record, also on the last level: a PUT
// mostly reads a key that is not there. Events have none: their records say where one is. A
// record and its event are read at one moment, with one iterator or its clone. Counters are merged by addition
// ("reschedule.counter.v1") and kept in memory once asked for. Durable changes
// share an fsync: the batch is applied, and visible, before the wait for it.
//
// # Crash safety by operation
//
// Apply: one batch, one record of the log with a checksum; a torn one is dropped
// with all after it. The marks of ApplyMarked are in the same batch, so that no mark is
// there without the keys that were scheduled for it. A lazy Apply is in the log's buffer until a durable one, or
// a timer within LazySync, syncs it. NextRevision: m/revision is the end of a
// reserved block of 2^16; it is on disk before a number of the block is handed
// out, and a start goes on behind it. SetClock is lazy. Purge: one durable batch
// removes the rows that are ordered by source, f/ and w/ among them, and sets p/; then, in the background,
// x/ loses the rows that follow from no record, in one pass for all sources that
// have a p/, and p/ is removed. A start goes on with what a crash cut off. A source
// that comes back meanwhile keeps its rows, since they follow from its records.
// RemoveWatch: one lazy batch, rows of f/ or, if they are many, a range of them, and the row of w/.
// Open of a new directory: format, id and
// revision are one batch, and an empty database without them is a new one. The directory is synced before a
// marker is made, so that a manifest is there before the marker that names it.
//
// # What it assumes of the disk
//
// fsync returns after the data are on stable storage and reports, once, if they
// are not; files created are there after an fsync of their directory; rename is
// atomic. It does not assume that sectors are written in order, or whole.
//
// # The data directory
//
// Pebble's files are in the folder store. A restore, a repair and a copy of another member's view are
// written to store.new, and renamed to store.next when they are whole; the next Open puts store.next in the
// place of store. So a crash at any time leaves one store, the old one or the new one.
//
// m/format is 3. A program refuses a directory with another number and names
// it and its own, before it changes anything but the log's housekeeping. Any change that
// another program would misread takes a new number; testdata has the bytes of
// this version. m/form is "single", or "group" in the view of a replicated store, which has m/applied, the number of the last
// entry of the log, and no log of its own: only a replicated adapter opens it to write.
// Such a view may have m/history, which distinguishes its group from others that began with the same
// store, and m/before, the history before and its last entry in the group; and m/sealed, once the group has ended.
// [Restored] changes a copy from one form into the other.
//
// # Limits
//
// Instants before 1678 or after 2262 are moved to those years (an event's own
// time is kept exactly). A process has the directory to itself: Pebble's LOCK
// file is locked, also to read. Memory: a
// cache of 56 MiB, in which the memtables of up to 16 MiB each are counted, at
// most 256 open tables, three numbers for each source asked for, and a filter of the keys
// that are not there, of at most 10 MiB while its successor is made; beyond that nothing
// grows with what is stored. A file system below 2 GiB gets smaller memtables and tables,
// since a few logs of their size are kept to be used again, and a compaction must fit the
// reserve.
//
// # Damage
//
// A block that cannot be read hides all rows in it. Scans go on behind it, with the next key at which a table of
// the engine begins or has ended. Of
// s/, Get reports it for each key, and lists take the names from d/. An event that cannot be
// read, is missing, or is not of the size that the record says, is damage of its record. Of d/ and u/,
// the rows are derived from s/ on the way. Of r/ and x/, they are passed over: lists
// by time lack them, expiry waits for the due time. A counter is added up from the records. Of
// f/ and w/, they count as absent, so that the objects are scheduled once more; a mark
// that was written since is found by Mark, not by Marks. Of
// m/, a start is refused. To replace or remove a bad record hides it by a range, which is
// seen without reading what is below; its index rows are looked for in the background, and the size
// of its source is counted by the next start.
// A log or a manifest that lacks what was on stable storage refuses the start: the file "synced" has
// the length and the checksum of what was synced of each, and is written after each fsync of them. A line
// of a file is removed, durably, before the file is, so that no crash leaves a file behind its line. After a
// power loss the lines may be a second old, or torn: what they lack is not checked.
// Repair copies what can be read into a new directory, and changes nothing in the old one. If it
// has lost an entry, it inverts every fingerprint, since a mark may be of that entry. A damaged manifest, or
// a file that the engine does not open, needs a back-up.
//
// # A full disk
//
// Space returns ErrFull for growth while less than Options.Reserve is free, so that
// outcomes, cancellations and compactions have space; replacements that do not grow
// may use half of the reserve, and a namespace that holds little three quarters. In a
// group a majority of disks must have the space, without what the log may take. In the last
// quarter SpaceForOutcomes is false. An outcome writes some hundred bytes. When an eighth of
// the reserve is left, the ballast is removed, a file that takes up space which nothing else
// may use: a flush and a compaction take space before they free any. While space is scarce
// (less than an eighth of the disk beyond the reserve, 64 MiB to 1 GiB) memtables are flushed
// after removals, until the engine compacts; below the reserve one compaction runs at a time,
// and none beside a flush. While space is scarce a namespace may hold only as much as is still
// free, so that one that has filled the disk leaves a part to the others. If other
// programs use that part too, a write to the log waits until there is space, and so
// do its callers; or they wait for a flush that has no space. Space returns ErrFull to
// all others meanwhile. A used-up quota is the same. No fsync is repeated, even if it
// failed for lack of space: it ends the process. A compaction without space is given
// up, and tried again.
//
// # What it leaves to others
//
// Which changes to make, one at a time for a key; recognising stale rows of the due
// order; the quotas of keys and bytes (all: queue); and what a
// fingerprint is of.
package store
