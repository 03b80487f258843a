// Package access is the vocabulary of authorisation: what a request asks for
// ([Request]), who may do it ([Guard]), and the guard of a standalone adapter, a
// file of bearer tokens ([Tokens]).
//
// It guarantees that a guard decides before anything but the head of a request is
// read, that a file without a token admits no caller, and that a token file which
// cannot be read changes nothing. Tokens are kept as salted hashes only.
//
// It leaves to others: the HTTP answer (api), and the decisions of a cluster
// (access/guard).
package access

import (
	"net/http"
	"strings"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Verb is what a request asks for, in the words of Kubernetes' RBAC, and
// ingest for a CloudEvent that is sent to a source's address.
type Verb string

// The verbs.
const (
	VerbGet    Verb = "get"    // one key, or the counts
	VerbList   Verb = "list"   // many keys
	VerbCreate Verb = "create" // PUT and bulk
	VerbDelete Verb = "delete" // one key or many
	VerbIngest Verb = "ingest"
)

// Request is what an HTTP request asks for, and of which source. Whether the
// source exists is not known yet. It is zero for a path that the API does not
// have.
type Request struct {
	Namespace, Name string
	Verb            Verb
}

// Judge returns an error for an event that its sender may not send.
type Judge func(*schedule.Event) error

// Caller is who makes a request that may go on.
type Caller struct {
	// User names the authenticated caller for the audit log; "" without
	// authentication.
	User string
	// Judge is asked about each event of an ingest before any is taken; nil: all
	// may pass.
	Judge Judge
}

// Guard decides who may call. It is asked before anything but the head of a
// request is read.
type Guard interface {
	// Admit returns the caller of a request that may go on. Its error is a
	// *schedule.Error: unauthenticated, permission_denied, or unavailable when
	// the guard cannot decide.
	Admit(r *http.Request, a Request) (Caller, error)
}

// Bearer returns the request's bearer token.
func Bearer(h http.Header) (string, bool) {
	lines := h["Authorization"]
	if len(lines) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(lines[0], " ")
	token = strings.TrimLeft(token, " ")
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}
