// Package certs makes certificates for tests.
//
// It guarantees that each has a key of its own, and that what is wrong with a template is a panic:
// it is the test that is wrong.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"time"
)

// Certificate is a certificate with its key.
type Certificate struct {
	*x509.Certificate
	Key *ecdsa.PrivateKey
}

// New makes the certificate of a template. by signs it; with nil it signs itself. Without times in
// the template it is valid for a day.
func New(template *x509.Certificate, by *Certificate) *Certificate {
	t := *template
	if t.NotAfter.IsZero() {
		t.NotBefore, t.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	}
	c := &Certificate{&t, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))}
	if by == nil {
		by = c
	}
	c.Certificate = must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, &t, by.Certificate, c.Key.Public(), by.Key))))
	return c
}

// Authority makes a certificate that signs others.
func Authority(name string) *Certificate {
	return New(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil)
}

// Own makes a server's certificate that signs itself, for the loopback address and the hosts. Clients
// can trust it as an authority.
func Own(hosts ...string) *Certificate {
	return New(&x509.Certificate{
		DNSNames: hosts, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}, nil)
}

// PEM returns the certificate as text.
func (c *Certificate) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// Files returns the certificate and its key, by the names that they have in a Secret of Kubernetes.
func (c *Certificate) Files() map[string][]byte {
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(c.Key))})
	return map[string][]byte{"tls.crt": c.PEM(), "tls.key": key}
}

// TLS returns the certificate as a server has it, with more in its chain.
func (c *Certificate) TLS(more ...*Certificate) tls.Certificate {
	chain := tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: c.Key}
	for _, m := range more {
		chain.Certificate = append(chain.Certificate, m.Raw)
	}
	return chain
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
