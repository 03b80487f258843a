package group

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A forwarded call is as secured as the connection of its caller, whatever the connection of
// the members is.
func TestForwarded_IsAsSecuredAsItsCaller(t *testing.T) {
	t.Parallel()
	for _, members := range []*tls.ConnectionState{nil, {}} {
		for _, caller := range []string{"", "true"} {
			r := httptest.NewRequest(http.MethodGet, "/n/s", http.NoBody)
			r.TLS = members
			if caller != "" {
				r.Header.Set(secured, caller)
			}
			setSecured(r)
			if is := r.TLS != nil; is != (caller == "true") || r.Header.Get(secured) != "" {
				t.Errorf("members with TLS %v, caller %q: %v, header %q", members != nil, caller, is, r.Header.Get(secured))
			}
		}
	}
}
