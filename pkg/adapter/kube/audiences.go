package kube

import (
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// APIAudiences are the audiences of the API server, as the adapter's own token names them: a token that
// was requested without an audience is for all of them. The token is read again when it was renewed, since
// the audiences change with a flag of the API server. A sink that received a token for one of them could use
// all rights of the service account, so none is requested for a sink.
type APIAudiences func() Claims

// apiServer is the address of every API server in its cluster, and the audience of most of them.
const apiServer = "https://kubernetes.default.svc"

// audiencesOf are the audiences of the token with which the adapter calls the API server.
func audiencesOf(c *rest.Config) APIAudiences {
	if c.BearerTokenFile == "" {
		own, _ := ReadClaims(c.BearerToken)
		return func() Claims { return own }
	}
	file := transport.NewCachedFileTokenSource(c.BearerTokenFile)
	return func() (own Claims) {
		if token, err := file.Token(); err == nil { // else no call is answered
			own, _ = ReadClaims(token.AccessToken)
		}
		return own
	}
}

func (a APIAudiences) claims() Claims {
	if a == nil {
		return Claims{}
	}
	return a()
}

// has reports whether the audience is the API server's. The issuer is one of them by default.
func (a APIAudiences) has(audience string) bool {
	own := a.claims()
	return audience == "" || strings.HasPrefix(strings.ToLower(audience), apiServer) || audience == own.Issuer || slices.Contains(own.Audiences, audience)
}

// one is the audience for a token that the API server shall accept: the API server would fill in all of
// its own, and the admission policy allows one. None is named when they are not known.
func (a APIAudiences) one() []string {
	all := a.claims().Audiences
	if i := slices.IndexFunc(all, func(audience string) bool { return strings.HasPrefix(audience, apiServer) }); i > 0 {
		all = all[i:]
	}
	return all[:min(len(all), 1)]
}
