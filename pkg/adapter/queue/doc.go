// Package queue is the keyed delaying work queue: it admits requests, keeps
// them in a store, and hands out what is due, one delivery of a key at a time.
//
// It guarantees, for one key:
//
//   - a change is durable when its call returned without error, and from then on
//     no delivery of an older occurrence starts, nor writes a first byte;
//   - from [Source.Take] to [Source.Finish] the key is not handed out again;
//   - it is never handed out before its time by Config.Now, nor after its expiry;
//   - a change that would exceed a quota of the source or the namespace is refused
//     before it is stored, exactly, even among concurrent calls; changes that do not
//     grow, outcomes and removals are never refused for a quota;
//   - the mark of a watched object is stored with the keys that it schedules, or
//     neither is ([Marks.Report]); marks count in max-bytes of the namespace, and not in
//     limits.maxBytes; a full ceiling or a full disk refuses them;
//   - an outcome changes only its own occurrence: a change that was accepted during a
//     delivery stays, by the rules of package schedule.
//
// How it works: every change is a read-modify-write under one of the striped
// locks; the store's batch is applied under the lock, and the wait for the
// fsync happens outside, so callers share an fsync and a slow disk never
// serialises keys. Deliveries under way are in memory, beside the lock of their key.
// The key's entry stays in the store until the outcome: after a crash it is still
// due. Each source has a page of the due index in
// memory (package timer) and loads more rows in the background, so memory depends
// neither on the number of pending keys nor of overdue ones, and opening does not
// scan the store. A row whose entry has changed is recognised when it is popped. A
// sweeper drops expired entries, of suspended sources too.
// Reads take no stripe: they copy the delivery under way, then read the store, so
// they answer while a change waits for a full disk. The memory of a call is bounded:
// large entries are read page by page once memory is claimed, and without their
// event if the call does not need it.
//
// A [Source] is made of parts: [Letters] and [Marks], which callers use directly, the locks of its keys (stripes), its
// page, and what quotas count (usage). Its comment has the order of all locks.
//
// It leaves to others: the limits of deliveries (dispatch), the meaning of a request
// (schedule), bytes and fsyncs (store).
package queue
