// Package schedule has the rules of the data plane: the types of entries, requests,
// outcomes and sources, and the effect of each on a key.
//
// It guarantees that one request or outcome has one meaning: [Request.Apply] and
// [Flight.Finish] are pure functions of their [Inputs], which have the time and the
// randomness, and the queue, the simulation and the documentation use the same ones. The table
// in transitions.go names every state a key can be in and every step between
// two states; docs/state-machine.md is generated from it.
//
// How it works: the store holds one [Entry] for each key: its newest occurrence.
// During a delivery of that occurrence the entry stays as it is, so that it is
// delivered again after a crash. A newer request overwrites it, and the queue
// remembers in memory that an older delivery is under way. An occurrence has a
// DueAt, which retries do not move, and between two attempts a RetryAt.
//
// It leaves to others: storing (store), locking and revisions (queue), the
// limits and fairness of deliveries (dispatch), wire formats (api, ingest,
// sink).
package schedule
