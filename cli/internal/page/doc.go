// Package page is the web page of RescheduleSources: what is overdue and why, one key with
// its history, dead letters, and what happens now. A user can run or cancel a key, and
// redrive or discard dead letters.
//
// It guarantees that a page needs no JavaScript to be read, has a bounded size whatever
// the number of keys and sources, and is sent with a strict Content-Security-Policy. What
// tenants supply is escaped. A change needs a POST of the page's own origin, and carries the
// revision that the user saw. [Loopback] admits one browser of this machine.
//
// How it works: each view asks a [why.Target] and its client of the schedule API, and fills a
// template. Keys are in the query string only, because browsers resolve dots in paths.
//
// It leaves the rules to the schedule API, the way to it to a [Backend], and the sentence about
// a key to package why.
package page
