package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pki is what the API server proves itself with: its certificate, of an
// authority of its own, and the key that signs ServiceAccount tokens.
type pki struct {
	dir    string
	ca     []byte // PEM
	signer *ecdsa.PrivateKey
}

// serviceRange is of ClusterIPs, which lead nowhere here.
const serviceRange = "10.96.0.0/16"

func newPKI(dir string) (*pki, error) {
	authority, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kube test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: root.NotBefore, NotAfter: root.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)},
	}
	p := &pki{dir: dir, signer: signer}
	for _, c := range []struct {
		file     string
		template *x509.Certificate
		key      *ecdsa.PrivateKey
	}{{"ca.crt", root, authority}, {"apiserver.crt", server, own}} {
		der, err := x509.CreateCertificate(rand.Reader, c.template, root, &c.key.PublicKey, authority)
		if err != nil {
			return nil, err
		}
		text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
		if p.ca == nil {
			p.ca = text
		}
		if err := os.WriteFile(p.path(c.file), text, 0o600); err != nil {
			return nil, err
		}
	}
	return p, p.writeKeys(own)
}

func (p *pki) writeKeys(own *ecdsa.PrivateKey) error {
	public, err := x509.MarshalPKIXPublicKey(&p.signer.PublicKey)
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.path("sa.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600); err != nil {
		return err
	}
	for file, key := range map[string]*ecdsa.PrivateKey{"apiserver.key": own, "sa.key": p.signer} {
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return err
		}
		if err := os.WriteFile(p.path(file), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (p *pki) path(file string) string { return filepath.Join(p.dir, file) }

// SignToken signs claims with the key that the API server signs
// ServiceAccount tokens with. Tests make with it what the API server does not
// hand out, such as a token that has expired.
func (s *Server) SignToken(claims map[string]any) (string, error) {
	body, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("kube: signing a token: %w", err)
	}
	b64 := base64.RawURLEncoding
	text := b64.EncodeToString([]byte(`{"alg":"ES256","typ":"JWT"}`)) + "." + b64.EncodeToString(body)
	digest := sha256.Sum256([]byte(text))
	r, v, err := ecdsa.Sign(rand.Reader, s.pki.signer, digest[:])
	if err != nil {
		return "", fmt.Errorf("kube: signing a token: %w", err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	v.FillBytes(signature[32:])
	return text + "." + b64.EncodeToString(signature), nil
}
