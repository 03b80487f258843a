// Package sources turns RescheduleSource objects into [schedule.Source], and
// reads them from a file.
//
// It guarantees that an object is refused as a whole or understood as a whole:
// unknown fields, bad values and two objects of one name are errors that say
// which field of which document is at fault, and a file with one such error
// gives no sources at all, so that a reload never half happens. A file without
// any source is refused, since a file that is being written looks like that, and
// so is one whose last line has no end; a List with no items says that none are
// wanted.
//
// How it works: the file is a stream of YAML (or JSON) documents, read as
// kubectl reads them; each is a RescheduleSource or a List of them. The
// resource's own package fills in the defaults and judges the spec, this one
// reads the durations. In a file a sink is a uri, since there is nobody to
// resolve a reference; status is ignored.
//
// Without a metadata.uid a source's UID is its namespace and name: standalone,
// the same name is the same source.
//
// It leaves to others: compiling CEL (ingest), resolving references (the
// controller), and what a changed source means (queue).
package sources
