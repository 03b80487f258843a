// Package page is the web page of RescheduleSources: what is overdue and why, one key with
// its history, dead letters, and what happens now. A user can run or cancel a key, and
// redrive or discard dead letters.
//
// It guarantees that a page needs no JavaScript to be read, has a bounded size whatever
// the number of keys and sources, and is sent with a strict Content-Security-Policy. What
// tenants supply is escaped: [markup] is made of constants of this package and of escaped
// values alone. A change needs a POST of the page's own origin with a token of this
// process, and carries the revision that the user saw. [Loopback] admits callers of this
// machine only, and where rights are needed only callers who have the secret or a token.
//
// How it works: each view calls the schedule API ([Backend]), so the page serves inside
// the adapter and before a port-forward alike. Keys are in the query string only, because
// browsers resolve dots in paths. Views are Go functions instead of html/template, which
// makes the linker keep every method and grows the adapter by a quarter.
//
// It leaves the rules to the schedule API, and the sentence about a key to package why.
package page
