package api

import (
	"net/http"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
)

// accessOf is what the request asks for.
func accessOf(method string, p *path) access.Request {
	a := access.Request{Namespace: p.namespace, Name: p.name}
	switch p.kind {
	case pathUnknown, pathOpenAPI:
		return access.Request{}
	case pathSchedules, pathEvents, pathLetters:
		a.Verb = access.VerbList
	default:
		a.Verb = access.VerbGet
	}
	switch method {
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
