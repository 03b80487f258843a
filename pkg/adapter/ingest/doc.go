// Package ingest turns CloudEvents sent to a source's address into requests
// for keys.
//
// It guarantees that the events of one HTTP request are judged together:
// either every one becomes a request (or is dropped by spec.ingest.when), or
// none does and the error names what is wrong. The event is kept as it came.
// An expression costs a bounded amount of time and memory, so do all expressions
// of one request together, and they end with the caller. No sender of many
// events keeps the events of others from being judged. An event gets no policy
// and no delay that its source does not allow.
//
// How it works: [Compile] makes [Rules] of spec.ingest.key and spec.ingest.when,
// CEL over one variable:
//
//	event: the context attributes and extensions by name; time is the RFC 3339
//	string. namespace, kind, name and subject are "" where they are missing,
//	any other missing attribute is an error (has(event.x) asks for it).
//	event.data: the data where it is JSON; whole numbers are int, else uint, and above
//	2^64-1 an error; others are double.
//
// CEL's standard functions are there, within the bounds of package expression.
// Expressions are evaluated by half of the processors, which namespaces get in
// turn, then their sources (package turns). [Rules.Read] reads the message through package
// cloudevent and applies the rules. A [Receiver] holds the rules of all sources and
// passes what they make of a message to the queue.
//
// It leaves to others: bounding the body and refusing one that is encoded,
// authentication and the answer (api), policies and times (queue).
package ingest
