package sdk_test

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/reschedule-dev/reschedule/sdk"
)

// A wrong address or option is an error of New.
func TestNew_AddressesAndOptions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		address string
		opts    []sdk.Option
		words   string // of the error; "" is none
	}{
		{"http://127.0.0.1:8080/ops/web", nil, ""},
		{"https://example.com/prefix/ops/web/", nil, ""},
		{"", nil, "does not begin with http(s)://HOST"},
		{"example.com/ops/web", nil, "does not begin with"},
		{"ftp://example.com/ops/web", nil, "does not begin with"},
		{"http:///ops/web", nil, "does not begin with"},
		{"http://example.com", nil, "does not end with /NAMESPACE/NAME"},
		{"http://example.com/ops/", nil, "does not end with /NAMESPACE/NAME"},
		{"http://me:hush@example.com/ops/web", nil, "has a user"},
		{"http://example.com/ops/web?a=b", nil, "a query"},
		{"http://example.com/ops/web#x", nil, "a fragment"},
		{"http://exa mple.com/ops/web", nil, "the address"},
		{"http://h/ops/web", []sdk.Option{sdk.WithToken("")}, "the token is empty"},
		{"http://h/ops/web", []sdk.Option{sdk.WithToken("hush hush")}, "the token has blanks"},
		{"https://h/ops/web", []sdk.Option{sdk.WithCACerts("")}, ""},
		{"https://h/ops/web", []sdk.Option{sdk.WithHTTPClient(http.DefaultClient)}, ""},
		{"https://h/ops/web", []sdk.Option{sdk.WithCACerts("nonsense")}, "not in PEM format"},
		{"https://h/ops/web", []sdk.Option{sdk.WithCACerts("x"), sdk.WithHTTPClient(http.DefaultClient)}, "give the CA certificates to its transport"},
	} {
		_, err := sdk.New(c.address, c.opts...)
		if c.words == "" && err != nil || c.words != "" && (err == nil || !strings.Contains(err.Error(), c.words) || strings.Contains(err.Error(), "hush")) {
			t.Errorf("%q: %v, want %q", c.address, err, c.words)
		}
	}
	if http.DefaultClient.CheckRedirect != nil {
		t.Error("the http.Client that was given is changed")
	}
}

// The environment of a pod has the address, the token and the certificates.
func TestFromEnv_ReadsTheSource(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &fake{answers: []answer{refused(403, sdk.ErrForbidden)}}
	for _, c := range []struct{ url, token, ca, words string }{
		{"http://source/ops/web", file, "", "403"},
		{"", file, "", "RESCHEDULE_URL is not set"},
		{"http://source/ops/web", file + "x", "", "is the volume mounted?"},
		{"http://source/ops/web", file, "nonsense", "CA certificates"},
	} {
		t.Setenv("RESCHEDULE_URL", c.url)
		t.Setenv("RESCHEDULE_TOKEN_FILE", c.token)
		t.Setenv("RESCHEDULE_CA_CERTS", c.ca)
		client, err := sdk.FromEnv(sdk.WithHTTPClient(&http.Client{Transport: f}))
		if err == nil {
			err = get(t.Context(), client)
		}
		if err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if len(f.requests) != 1 || f.requests[0].Header.Get("Authorization") != "Bearer hush" {
		t.Errorf("there were %d requests", len(f.requests))
	}
}

// tlsSource answers as a source does, over TLS.
func tlsSource(t *testing.T) (server *httptest.Server, ca string) {
	t.Helper()
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, waiting)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that fail, as they are to
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

// A client trusts the certificates that it was given, and many callers share it.
func TestNew_TrustsGivenCertificates(t *testing.T) {
	t.Parallel()
	server, ca := tlsSource(t)
	c, err := sdk.New(server.URL+"/ops/web", sdk.WithCACerts(ca))
	if err != nil {
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			if err := get(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	if c, err = sdk.New(server.URL + "/ops/web"); err != nil {
		t.Fatal(err)
	}
	// At once, as another try would end the same.
	if err := get(t.Context(), c); err == nil || errors.Is(err, sdk.ErrUnavailable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate of an unknown authority: %v", err)
	}
}
