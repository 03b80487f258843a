// Package cloudevent translates between events as the house keeps them
// ([schedule.Event], [schedule.Attempt]) and CloudEvents on HTTP.
//
// It guarantees that what came in goes out: attributes keep their very text
// (a URI is validated, not rewritten), extensions of the JSON format keep
// their type, data keeps its bytes. Version 0.3 is read and becomes 1.0.
// Nothing read from outside panics or is accepted without the validations of
// the CloudEvents SDK; a refusal is an invalid_argument that names the
// attribute.
//
// How it works: [Read] takes the attributes out of headers or JSON itself and
// hands them to the SDK's context types for validation. The SDK's own reader
// is not used because it does not percent-decode headers, panics on a
// data_base64 that is no string, and loses base64 with escaped slashes or
// white space before it. [ToSDK] is what an attempt sends, and [Attributes]
// the same for a writer in a hurry.
//
// It leaves to others: what steers a schedule (ingest, sink), sending (sink).
package cloudevent
