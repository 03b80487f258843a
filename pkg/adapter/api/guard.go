package api

import (
	"net/http"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
)

// access is what the request asks for.
func (c *call) access(p *path) access.Request {
	a := access.Request{Namespace: p.namespace, Name: p.name}
	switch p.kind {
	case pathUnknown, pathOpenAPI:
		return access.Request{}
	case pathSchedules, pathEvents, pathLetters:
		a.Verb = access.VerbList
	default:
		a.Verb = access.VerbGet
	}
	switch c.r.Method {
	case http.MethodPut:
		a.Verb = access.VerbCreate
	case http.MethodDelete:
		a.Verb = access.VerbDelete
	case http.MethodPost:
		a.Verb = access.VerbCreate
		if p.kind == pathSource {
			a.Verb = access.VerbIngest
		}
	}
	return a
}
