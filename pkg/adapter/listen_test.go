package adapter

import (
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/internal/certs"
)

// mount writes a certificate with the serial number as a Secret is mounted.
func mount(t *testing.T, dir string, serial int64) {
	t.Helper()
	for name, text := range certs.New(&x509.Certificate{SerialNumber: big.NewInt(serial)}, nil).Files() {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, time.Time{}, time.Unix(serial, 0)); err != nil {
			t.Fatal(err)
		}
	}
}

// A certificate may come later, and change.
func TestListen_CertificateMayComeLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		c := &certificate{dir: dir}
		get := c.server().GetCertificate
		serial := func() int64 {
			pair, err := get(&tls.ClientHelloInfo{})
			if err != nil {
				return 0
			}
			return pair.Leaf.SerialNumber.Int64()
		}
		if got := serial(); got != 0 {
			t.Errorf("%d from an empty directory", got)
		}
		if end := c.end(); !end.IsZero() {
			t.Errorf("no certificate ends at %s", end)
		}
		mount(t, dir, 1)
		if got := serial(); got != 1 {
			t.Errorf("the first is read at the next handshake: %d", got)
		}
		if left := time.Until(c.end()); left < 23*time.Hour || left > 24*time.Hour {
			t.Errorf("it ends in %s, want a day", left)
		}
		mount(t, dir, 2)
		time.Sleep(certificateAge)
		if got := serial(); got != 2 {
			t.Errorf("a new one is read within %s: %d", certificateAge, got)
		}
		if err := os.WriteFile(filepath.Join(dir, "tls.crt"), []byte("half a fi"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(certificateAge)
		if got := serial(); got != 2 {
			t.Errorf("one that cannot be read replaces nothing: %d", got)
		}
	})
}
