// Package watch wakes the keys of a source when objects of the cluster change:
// spec.watch.
//
// It guarantees:
//
//   - Every change of an object since the last one that was reported schedules its
//     keys, also a change or a deletion while the adapter or the API server was down.
//   - Nothing else does: a restart, a new list or an expired version schedules nothing
//     by itself. The first list of a resource schedules each object once, and so does
//     the list after etcd was put back to an older state.
//   - A deletion counts when the API server reports it: by a DELETED event, by a complete
//     and ordered list without the object, or by the end of its namespace.
//   - Memory does not grow with the objects. Lists are read page by page and compared
//     with the marks in the store.
//   - A source that is refused, for its quota or a full disk, waits alone. Its changes
//     stay at the API server until it goes on.
//
// How it works: the store has a mark for each object: its uid, a fingerprint of what
// counts, and the keys that it maps to. The batch that schedules the keys also writes
// the mark and the version from which a watch goes on ([queue.Source.Report]), so a
// crash repeats a change or does not, but never loses or doubles it. What a change
// means is decided by pure functions (change.go, fingerprint.go, keys.go). A stream
// (stream.go) is one watch: it lists when it must (list.go), then watches, and goes on
// where it ended. A source has a stream for each resource, or one for each namespace
// where its account may not watch all of them (namespaces.go).
//
// It leaves to others: the calls to the API server (package objects is the seam, kube
// makes the calls), and what a scheduled key does (queue, schedule).
package watch
