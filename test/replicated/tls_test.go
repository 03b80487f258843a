package replicated

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/internal/certs"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// membersFiles are tls.crt and tls.key of a member, by a, and a as ca.crt. The member is on this machine
// or at one of the addresses.
func membersFiles(a *certs.Certificate, serial int64, addresses ...string) map[string][]byte {
	all := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	for _, address := range addresses {
		all = append(all, net.ParseIP(address))
	}
	files := certs.New(&x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "member"}, IPAddresses: all,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a).Files()
	files["ca.crt"] = a.PEM()
	return files
}

// mount puts files into a directory as a kubelet does: all at once.
func mount(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	data := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(data, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(data, data+".link"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(data+".link", dir); err != nil {
		t.Fatal(err)
	}
}

// serials are the serial numbers of the certificates at the log's port and the port for
// forwarded calls of a member, "" where the client's certificate is refused.
func serials(t *testing.T, log string, client map[string][]byte, trusted ...*certs.Certificate) (both [2]string) {
	t.Helper()
	pair, err := tls.X509KeyPair(client["tls.crt"], client["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	for _, a := range trusted {
		pool.AddCert(a.Certificate)
	}
	host, port, err := net.SplitHostPort(log)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	for i := range both {
		conn, err := tls.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(n+i)), &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13})
		if err != nil {
			t.Logf("port %d: %v", n+i, err)
			continue
		}
		// With TLS 1.3 the client learns with the first answer that it is refused.
		_, err = conn.Write([]byte("GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		if err == nil {
			both[i] = conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
		}
		conn.Close()
	}
	return both
}

// The certificate of the members is renewed while callers write, without a restart; the
// authority too, with a rolling restart for the log's port. Calls go on, and nothing is lost.
func TestGroup_CertificatesRenewed(t *testing.T) {
	t.Parallel()
	old, other := certs.Authority("old"), certs.Authority("new")
	dir := filepath.Join(t.TempDir(), "peers")
	mount(t, dir, membersFiles(old, 2))
	g := startWith(t, func(g *group) {
		g.more = func(int) []string { return []string{"--peer-tls-dir", dir} }
	})
	var logs []string
	for _, port := range g.ports {
		logs = append(logs, net.JoinHostPort("127.0.0.1", port))
	}
	stop := g.write()
	g.pass(time.Second)
	for i, a := range g.members { // a standby forwards with its certificate
		for _, path := range []string{"/-/view?above=0", "/%2D/view?above=0"} {
			if r, err := harness.Do(t.Context(), http.MethodGet, a.URL+path, ""); err != nil || r.Status == http.StatusOK {
				t.Errorf("a caller reads the view of the owner through %s: %v", name(i), err)
			}
		}
	}

	renewed, both := membersFiles(old, 3), slices.Concat(old.PEM(), other.PEM())
	mount(t, dir, trusting(renewed, both))
	foreign := membersFiles(other, 9)
	g.eventually("the renewed certificate and the new authority", func() bool {
		for _, log := range logs {
			if serials(t, log, renewed, old) != [2]string{"3", "3"} || serials(t, log, foreign, old)[1] != "3" {
				return false
			}
		}
		return true
	})
	g.pass(time.Second)

	// The log's port reads the authority at its start.
	roll := func() {
		for i := range g.members {
			g.mu.Lock()
			a := g.members[i]
			g.avoid, g.members[i] = i, nil
			g.mu.Unlock()
			ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
			if status, _, err := a.Terminate(ctx); err != nil || status != 0 {
				t.Errorf("SIGTERM: status %d, %v", status, err)
			}
			cancel()
			g.launch(i)
			g.ready(i)
			g.setAvoided(-1)
		}
	}
	roll()
	mount(t, dir, trusting(membersFiles(other, 4), both))
	g.eventually("a certificate of the new authority", func() bool {
		return serials(t, logs[0], foreign, other) == [2]string{"4", "4"}
	})
	mount(t, dir, membersFiles(other, 5))
	roll()
	for _, log := range logs {
		if got := serials(t, log, foreign, other); got != [2]string{"5", "5"} {
			t.Errorf("after the change of the authority: %v", got)
		}
		if got := serials(t, log, renewed, other); got != [2]string{} {
			t.Errorf("the old authority still counts: %v", got)
		}
	}
	stop()
	g.settled()
}

// Members whose addresses are IPv6's alone are a group, with TLS, and listen for IPv4 too where the
// listening address names no host. One that has lost its disk joins again.
func TestGroup_IPv6(t *testing.T) {
	t.Parallel()
	loopback := "127.0.0.1" // of a machine without IPv6
	if probe, err := net.ListenPacket("udp6", "[::1]:0"); err == nil {
		loopback = "::1"
		probe.Close()
	}
	a := certs.Authority("all")
	dir := filepath.Join(t.TempDir(), "peers")
	client := membersFiles(a, 2)
	mount(t, dir, client)
	g := startWith(t, func(g *group) {
		g.host = loopback
		g.more = func(i int) []string {
			n, err := strconv.Atoi(g.ports[i])
			if err != nil {
				t.Fatal(err)
			}
			return []string{"--peer-tls-dir", dir, "--peer-listen", ":" + g.ports[i], "--forward-listen", ":" + strconv.Itoa(n+1)}
		}
	})
	stop := g.write()
	g.pass(time.Second)
	i := g.owner()
	begun := time.Now()
	g.lose(i)
	g.recovery("the loss of the owner's disk", begun)
	begun = time.Now()
	g.launch(i)
	g.ready(i)
	t.Logf("it is a member again after %s", time.Since(begun).Round(time.Millisecond))
	stop()
	g.settled()
	for _, host := range []string{"127.0.0.1", loopback} {
		if got := serials(t, net.JoinHostPort(host, g.ports[0]), client, a); got != [2]string{"2", "2"} {
			t.Errorf("%s: %v", host, got)
		}
	}
}

// trusting are the files with other authorities.
func trusting(files map[string][]byte, authorities []byte) map[string][]byte {
	files = maps.Clone(files)
	files["ca.crt"] = authorities
	return files
}

// eventually waits until the condition holds.
func (g *group) eventually(what string, holds func() bool) {
	g.t.Helper()
	deadline := time.After(harness.Patience)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			g.t.Fatalf("not within %s: %s", harness.Patience, what)
		}
	}
}
