package api

import (
	"net/http"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Verb is what a request wants to do, in the words of Kubernetes' RBAC, and
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

// Access is what a request asks for. Whether there is such a source is not
// known yet. It is zero for a path that there is none of.
type Access struct {
	Namespace, Name string
	Verb            Verb
}

// Judge says of one event whether its sender may send it.
type Judge func(*schedule.Event) error

// Caller is who may make a request.
type Caller struct {
	// User names who was authenticated, for the audit log; "" where nobody was.
	User string
	// Judge is asked about each event of an ingest before any is taken; nil: all
	// may pass.
	Judge Judge
}

// Guard says who may call. It is asked before anything is read of a request
// but its head.
type Guard interface {
	// Admit says who makes a request that may go on. Its error is a
	// *schedule.Error: unauthenticated, permission_denied, or unavailable when
	// it cannot tell.
	Admit(r *http.Request, a Access) (Caller, error)
}

// access is what the request asks for.
func (c *call) access(p *path) Access {
	a := Access{Namespace: p.namespace, Name: p.name}
	switch p.kind {
	case pathUnknown, pathOpenAPI:
		return Access{}
	case pathSchedules:
		a.Verb = VerbList
	default:
		a.Verb = VerbGet
	}
	switch c.r.Method {
	case http.MethodPut:
		a.Verb = VerbCreate
	case http.MethodDelete:
		a.Verb = VerbDelete
	case http.MethodPost:
		a.Verb = VerbCreate
		if p.kind == pathSource {
			a.Verb = VerbIngest
		}
	}
	return a
}
