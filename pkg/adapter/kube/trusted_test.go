package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	authn "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// authority makes a certificate that signs itself, and its text.
func authority(t *testing.T) (*tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	raw, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

// The proxy-url of a kubeconfig holds for lists and watches too.
func TestObjects_ProxyOfTheKubeconfig(t *testing.T) {
	t.Parallel()
	asked := errors.New("the proxy was asked for")
	c := trustedClients{config: &rest.Config{Host: "https://127.0.0.1:1", Proxy: func(*http.Request) (*url.URL, error) { return nil, asked }}}
	for _, lists := range []bool{true, false} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.config.Host, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := c.of(lists).Do(r); !errors.Is(err, asked) {
			t.Errorf("lists %v: %v, %v", lists, resp, err)
		}
	}
}

// A new CA of the cluster is trusted once it is in the file, without a restart, and an old one no longer once it
// is not.
func TestObjects_CAIsRotated(t *testing.T) {
	t.Parallel()
	old, oldText := authority(t)
	renewed, newText := authority(t)
	var shown atomic.Pointer[tls.Certificate]
	shown.Store(old)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"metadata":{"resourceVersion":"7"},"items":[]}`))
	}))
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*shown.Load()}}, nil
	}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "ca.crt")
	write := func(text []byte) {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(oldText)
	c, err := NewObjects(&rest.Config{Host: "https://" + server.Listener.Addr().String(), TLSClientConfig: rest.TLSClientConfig{CAFile: file}},
		func(context.Context, cache.ObjectName, *authn.TokenRequest) (*authn.TokenRequest, error) {
			return &authn.TokenRequest{Status: authn.TokenRequestStatus{Token: "a", ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour))}}, nil
		}, nil)
	if err != nil {
		t.Fatal(err)
	}
	call := func(what string, ok bool) {
		t.Helper()
		version, err := c.Newest(t.Context(), watcher, objects.Query{Resource: objects.Resource{Version: "v1", Plural: "configmaps"}})
		if (err == nil && version == "7") != ok {
			t.Errorf("%s: %q, %v", what, version, err)
		}
	}
	later := func() { // of the file's age
		c.clients.mu.Lock()
		c.clients.read = time.Now().Add(-rootsGap)
		c.clients.mu.Unlock()
	}
	call("the old one", true)
	shown.Store(renewed)
	server.CloseClientConnections()
	call("a certificate of the new one", false)
	write([]byte("half of a"))
	later()
	call("while the file is written", false)
	write(append(oldText, newText...))
	later()
	call("both are trusted", true)
	write(newText)
	shown.Store(old)
	c.clients.mu.Lock()
	c.clients.read = time.Now().Add(-rootsEvery)
	c.clients.mu.Unlock()
	call("the old one is not trusted any more", false)
}
