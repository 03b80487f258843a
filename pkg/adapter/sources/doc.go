// Package sources is where the sources of an adapter come from: the seam [Origin],
// its implementation for a file ([File]), and the conversion of a RescheduleSource
// to a [schedule.Spec] ([FromObject]). The other implementation is package
// cluster.
//
// It guarantees that an object is refused as a whole or used as a whole: unknown
// fields, bad values and two objects of one name are errors that name the field and
// the document, and a file with one such error gives no sources at all, so that a
// reload never happens by halves. A file without any source is refused, because a
// file that is being written looks like that, and so is a file whose last line has
// no end; a List without items means that there is no source. Tokens are reloaded
// whatever is wrong with the sources.
//
// How it works: the file is a stream of YAML (or JSON) documents, read as kubectl
// reads them; each is a RescheduleSource or a List of them. The resource's own
// package fills in the defaults and validates the spec, this package reads the
// durations. In a file a sink is a uri, because no controller resolves references;
// status is ignored.
//
// Without a metadata.uid a source's UID is its namespace and name: standalone, the
// same name is the same source.
//
// It leaves to others: the rules for events (ingest), resolving references (the
// controller), and what a changed source means (queue).
package sources
