// Package cloudevent translates between the adapter's events ([schedule.Event],
// [schedule.Attempt]) and CloudEvents over HTTP.
//
// It guarantees that an event leaves as it came: attributes keep their exact text
// (a URI is validated, not rewritten), extensions of the JSON format keep
// their type, data keeps its bytes. Version 0.3 is read and becomes 1.0.
// Every event from outside passes the validations of the CloudEvents SDK, and no
// input panics. A refusal is an invalid_argument that names the attribute.
//
// How it works: [Read] takes the attributes out of headers or JSON itself and
// hands them to the SDK's context types for validation. The SDK's own reader
// is not used because it does not percent-decode headers, panics on a
// data_base64 that is no string, and loses base64 with escaped slashes or
// white space before it. [ToSDK] is the event that an attempt sends. [Describe] and
// [DeliveryExtensions] give its parts without the SDK, for the faster writer of package sink.
//
// It leaves to others: the meaning of the attributes that control a schedule
// (ingest, sink), and sending (sink).
package cloudevent
