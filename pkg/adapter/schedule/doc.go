// Package schedule is the vocabulary of the data plane: what a key, an entry,
// a request, an outcome and a source are, and what each does to the other.
//
// It guarantees that one request or outcome has one meaning: [Request.Apply]
// and [Finish] are pure functions, "now" and randomness are parameters, and
// the queue, the simulation and the documentation use the same ones. The table
// in transitions.go names every state a key can be in and every step between
// two states; docs/state-machine.md is generated from it.
//
// How it works: the store holds one [Entry] a key: its newest occurrence.
// While a delivery of that occurrence is under way the entry stays as it is,
// so a crash delivers it again; a newer request overwrites it, and the queue
// remembers in memory that an older delivery is still out. The rules about
// time are few: an occurrence has a DueAt, which retries do not move, and
// between two attempts a RetryAt.
//
// It leaves to others: storing (store), locking and revisions (queue), the
// limits and fairness of deliveries (dispatch), wire formats (api, ingest,
// sink).
package schedule
