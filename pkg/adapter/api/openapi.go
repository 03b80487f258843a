package api

import (
	_ "embed"
	"net/http"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// openAPIDocument describes the API; see TestOpenAPI_IsTrue.
//
//go:embed openapi.json
var openAPIDocument []byte

// getOpenAPI is GET /openapi.json, which needs no token: it holds no secrets, and
// tools read it before they have one.
func getOpenAPI(c *call) error {
	switch c.r.Method {
	case http.MethodGet, http.MethodHead:
		c.send(http.StatusOK, typeJSON, openAPIDocument)
		return nil
	}
	c.w.Header()["Allow"] = []string{"GET, HEAD"}
	return schedule.Refuse(schedule.CodeMethod, "%.32q is not allowed here, only GET, HEAD", c.r.Method)
}
