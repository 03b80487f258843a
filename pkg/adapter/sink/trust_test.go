package sink

import (
	"crypto/x509"
	"strings"
	"testing"
)

// A transport that is made while the trust changes has the new roots, or is dropped by the change.
func TestTrust_LeavesNoTransportOfOldRoots(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	t.Cleanup(s.Close)
	must(t, errorOf(s.transport("")))
	roots := x509.NewCertPool()
	dropped := 0
	s.transports.evicted = func(*transport) { // called in the change, by the drop
		dropped++
		if s.roots.Load() != roots {
			t.Error("transports are dropped before the new roots are there")
		}
	}
	s.Trust(roots)
	s.transports.evicted = (*transport).retire
	if dropped != 1 {
		t.Errorf("%d transports are dropped", dropped)
	}
	transport, err := s.transport("")
	must(t, err)
	if config, err := transport.tls(); err != nil || config.RootCAs != roots {
		t.Errorf("the next transport has other roots: %v", err)
	}
}

// Nothing is read while a transport is made, which is under the lock that all deliveries need.
func TestTrust_CertificatesAreNotReadUnderTheLock(t *testing.T) {
	s := New(Config{RootCAs: x509.NewCertPool()})
	t.Cleanup(s.Close)
	authority, _ := signed()
	certificates := strings.Repeat(authority, 100)
	if n := testing.AllocsPerRun(10, func() { s.newTransport(certificates) }); n > 20 {
		t.Errorf("%.0f allocations for a transport of 100 certificates", n)
	}
	if config, err := s.newTransport(certificates).tls(); err != nil || config.RootCAs.Equal(x509.NewCertPool()) {
		t.Errorf("the certificates are not read: %v", err)
	}
}

// Certificates that cannot be read are read once, not by each delivery under the lock that all need.
func TestTrust_UnreadableCertificatesAreReadOnce(t *testing.T) {
	const unreadable = "no PEM"
	s := New(Config{})
	t.Cleanup(s.Close)
	for range 2 {
		if _, err := s.transport(unreadable); err == nil {
			t.Error("no error")
		}
	}
	if n := testing.AllocsPerRun(10, func() { _, _ = s.transport(unreadable) }); n > 0 {
		t.Errorf("%.0f allocations for an error that is known", n)
	}
}
