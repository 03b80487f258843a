package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"k8s.io/client-go/rest"
)

// The keys and the issuer are read from the API server; an incomplete answer is an
// error.
func TestFetchKeys_ReadsWhatTheAPIServerShows(t *testing.T) {
	t.Parallel()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{"/.well-known/openid-configuration": `{"issuer":"https://kubernetes.default.svc","jwks_uri":"https://10.0.0.1/openid/v1/jwks"}`}
	raw, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: private.Public(), KeyID: "a", Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	pages["/openid/v1/jwks"] = string(raw)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// It produces application/jwk-set+json, and nothing else.
		if !strings.Contains(r.Header.Get("Accept"), "*/*") {
			w.WriteHeader(http.StatusNotAcceptable)
			return
		}
		if _, ok := pages[r.URL.Path]; !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(pages[r.URL.Path]))
	}))
	defer server.Close()
	made, err := NewClients(&rest.Config{Host: server.URL, BearerToken: token(`{"aud":["own-1","own-2"],"iss":"own-3"}`)}, systemNamespace)
	if err != nil {
		t.Fatal(err)
	}
	set, err := made.FetchKeys(t.Context())
	if err != nil || set.Issuer != "https://kubernetes.default.svc" || len(set.Key("a")) != 1 {
		t.Errorf("%+v, %v", set, err)
	}
	expect(t, "own audiences", Claims{Issuer: "own-3", Audiences: Audiences{"own-1", "own-2"}, KeyID: "x"}, made.OwnAudiences())
	for path, page := range map[string]string{"/openid/v1/jwks": `{"keys":[]}`, "/.well-known/openid-configuration": `{}`} {
		before := pages[path]
		for _, bad := range []string{page, "{", ""} {
			if pages[path] = bad; bad == "" {
				delete(pages, path)
			}
			if set, err := made.FetchKeys(t.Context()); err == nil {
				t.Errorf("%s %q: %+v", path, bad, set)
			}
		}
		pages[path] = before
	}
}
