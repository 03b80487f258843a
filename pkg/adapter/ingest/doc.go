// Package ingest turns CloudEvents sent to a source's address into requests
// for keys.
//
// It guarantees that the events of one HTTP request are judged together:
// either every one becomes a request (or is dropped by spec.ingest.when), or
// none does and the error names what is wrong. The event is kept as it came.
// An expression costs a bounded amount of time and memory.
//
// How it works: [Compile] makes [Rules] of spec.ingest.key and spec.ingest.when,
// CEL over one variable:
//
//	event: the context attributes and extensions by name; time is the RFC 3339
//	string. namespace, kind, name and subject are "" where they are missing,
//	any other missing attribute is an error (has(event.x) asks for it).
//	event.data: the data where it is JSON; whole numbers are int, others double.
//
// CEL's standard functions are there; the strings extension is not, because
// its replace and join make gigabytes of one small event before the cost limit
// sees them. [Rules.Read] reads the message through package
// cloudevent and applies the rules.
//
// It leaves to others: bounding the body and refusing one that is encoded,
// authentication and the answer (api), policies and times (queue).
package ingest
