package sink

import (
	"crypto/x509"
	"testing"
)

// A transport that is made while the trust changes has the new roots, or is dropped by the change.
// When the transports were dropped first, one that was made in between kept the old roots.
func TestTrust_LeavesNoTransportOfOldRoots(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	t.Cleanup(s.Close)
	if _, err := s.transport(""); err != nil {
		t.Fatal(err)
	}
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
	if transport, err := s.transport(""); err != nil || transport.tls.RootCAs != roots {
		t.Errorf("the next transport has other roots: %v", err)
	}
}

// Certificates that cannot be read are read once: each delivery would read a megabyte of them, which the
// status of an object that is a sink may have, under the lock that all deliveries need.
func TestTrust_UnreadableCertificatesAreReadOnce(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	t.Cleanup(s.Close)
	for range 2 {
		if _, err := s.transport("no PEM"); err == nil {
			t.Error("no error")
		}
	}
	s.transports.weight = func(string) int { t.Error("it is made again"); return 1 }
	if _, err := s.transport("no PEM"); err == nil {
		t.Error("no error")
	}
}
