package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/internal/certs"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

const (
	tlsSecret   = "reschedule-adapter-server-tls"
	adapterHost = "reschedule-adapter.knative-eventing.svc.cluster.local"
)

// ownCertificate is one that signs itself, as cert-manager would put it into
// the Secret.
func ownCertificate(host string) map[string]string {
	own := certs.Own(host)
	files := map[string]string{"ca.crt": string(own.PEM())}
	for name, text := range own.Files() {
		files[name] = string(text)
	}
	return files
}

// mount puts files into the adapter's TLS directory, as a kubelet does with
// the Secret.
func (p *programs) mount(t *testing.T, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(p.path("tls"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(p.path("tls"), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// httpsCall calls an https address as it stands in a status: only where the
// host is found is our own.
func (s *source) httpsCall(address, ca, path string) (int, string) {
	s.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(ca))
	client := &http.Client{Timeout: harness.Patience, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, s.tlsListen)
		},
	}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPut, address+path, strings.NewReader(`{}`))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+s.token)
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

// Transport encryption decides the addresses.
func TestTLS_TransportEncryptionDecides(t *testing.T) {
	p, sink := running(t), newSink(t)
	s := p.create(t, namespace(t, "tls"), "x", to(sink, "in"))
	s.served()
	urls := func(o *v1alpha1.RescheduleSource) string {
		var all []string
		for _, a := range o.Status.Addresses {
			all = append(all, a.URL.String())
		}
		return strings.Join(all, " ")
	}
	plain := "http://" + adapterHost + "/" + s.namespace + "/x"
	secure := "https://" + adapterHost + "/" + s.namespace + "/x"

	feature(t, "transport-encryption", "strict")
	o := s.until("without a certificate", func(o *v1alpha1.RescheduleSource) bool {
		return condition(o, v1alpha1.ConditionAddressable) == corev1.ConditionFalse
	})
	if c := o.Status.GetCondition(v1alpha1.ConditionAddressable); c.Reason != "TLSSecretMissing" {
		t.Errorf("%s: %s", c.Reason, c.Message)
	}

	files := ownCertificate(adapterHost)
	p.mount(t, files)
	secrets := server.Client.CoreV1().Secrets(kube.SystemNamespace)
	if _, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: tlsSecret}, Type: corev1.SecretTypeTLS, StringData: files}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := secrets.Delete(context.Background(), tlsSecret, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	o = s.ready()
	if o.Status.Address.URL.String() != secure || urls(o) != "" && urls(o) != secure {
		t.Errorf("strict: %s; %s", o.Status.Address.URL, urls(o))
	}
	if ca := o.Status.Address.CACerts; ca == nil || *ca != files["ca.crt"] {
		t.Errorf("status.address.CACerts are %v", ca)
	}
	settle(t, func() bool { return s.call(s.token, "GET", "", "").Status == http.StatusNotFound }, "strict: http is still answered")
	status, body := 0, ""
	settle(t, func() bool {
		status, body = s.httpsCall(secure, files["ca.crt"], "/schedules/strict")
		return status == http.StatusCreated
	},
		"strict: https is not answered")
	if status != http.StatusCreated {
		t.Errorf("https: %d %s", status, body)
	}
	sink.Next(t, "in", "strict")

	feature(t, "transport-encryption", "permissive")
	s.until("at both addresses", func(o *v1alpha1.RescheduleSource) bool { return urls(o) == secure+" "+plain })
	settle(t, func() bool { return s.call(s.token, "GET", "", "").Status == http.StatusOK }, "permissive: http is not answered")
	if status, body := s.httpsCall(secure, files["ca.crt"], "/schedules/permissive"); status != http.StatusCreated {
		t.Errorf("https: %d %s", status, body)
	}
	sink.Next(t, "in", "permissive")
}

// tlsSink is a sink with a certificate that no program trusts yet.
func tlsSink(t *testing.T) (sink *harness.Sink, url, ca string) {
	t.Helper()
	sink = newSink(t)
	files := ownCertificate("localhost")
	pair, err := tls.X509KeyPair([]byte(files["tls.crt"]), []byte(files["tls.key"]))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(sink)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes fail as they ought to
	s.StartTLS()
	t.Cleanup(s.Close)
	return sink, s.URL, files["ca.crt"]
}

// A trust bundle of the cluster holds for every sink.
func TestTLS_TrustBundleHoldsForEverySink(t *testing.T) {
	t.Parallel()
	p := running(t)
	sink, url, ca := tlsSink(t)
	s := p.create(t, namespace(t, "bundle"), "x", fmt.Sprintf("sink: {uri: %q}\ndelivery: {backoffDelay: PT0.1S, backoffPolicy: linear}", url+"/in"))
	s.served()
	s.put("a", `{}`)
	settle(t, func() bool {
		var now harness.Schedule
		s.call(s.token, "GET", "/schedules/a", "").Into(t, &now)
		return now.Attempt != nil && *now.Attempt > 0
	}, "a sink without trust is not tried")
	_, err := server.Client.CoreV1().ConfigMaps(kube.SystemNamespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bundle-", Labels: map[string]string{"networking.knative.dev/trust-bundle": "true"}},
		Data:       map[string]string{"ca.crt": ca},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sink.Next(t, "in", "a")
}
