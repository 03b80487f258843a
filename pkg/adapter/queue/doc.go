// Package queue is the keyed delaying work queue: it admits requests, keeps
// them in a store, and hands out what is due, one delivery of a key at a time.
//
// It guarantees, for one key:
//
//   - a change is durable when its call returned without error, and from then on
//     no delivery of an older occurrence starts, nor writes a first byte;
//   - from [Source.Take] to [Source.Finish] the key is not handed out again;
//   - it is never handed out before its time by Config.Now, nor after its expiry;
//   - what makes a source or a namespace exceed a quota is refused before it is
//     stored, exactly, whatever comes in at once; what does not grow never is,
//     nor an outcome, nor a removal;
//   - an outcome changes only what it is about: what was accepted during a
//     delivery stays, as package schedule says.
//
// How it works: every change is a read-modify-write under one of the striped
// locks; the store's batch is applied under the lock, and the wait for the
// fsync happens outside, so callers share an fsync and a slow disk never
// serialises keys. Deliveries under way live in memory beside the lock of
// their key, and the key's entry stays in the store until the outcome: after a
// crash it is simply still due. Each source has a page of the due index in
// memory (package timer) and loads on in the background, so memory depends
// neither on what is pending nor on what is overdue, and opening does not scan
// the store. A row in memory whose entry has changed since is recognised when
// its turn comes. A sweeper drops what expired, also where nothing is being delivered.
// Reads take no stripe: they look at the deliveries under way for a moment, then at
// the store, so that they answer while a change waits for a full disk. What a
// call holds of entries does not grow with what its keys hold: large ones are read
// page by page once there is room, without their event where it is not needed.
//
// Locks are taken in the order source gate, stripes by number, page.
//
// It leaves to others: who may deliver when and how often (dispatch), what a
// request means (schedule), bytes and fsyncs (store).
package queue
