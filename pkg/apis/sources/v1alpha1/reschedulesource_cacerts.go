package v1alpha1

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

	"knative.dev/pkg/apis"
)

// validateCACerts accepts nothing but certificates, at least one: with less, or
// with a broken one among them, deliveries would fail one after the other.
func validateCACerts(certs *string) *apis.FieldError {
	if certs == nil {
		return nil
	}
	if err := validateLength("CACerts", *certs, maxCACerts); err != nil {
		return err
	}
	n, rest := 0, []byte(*certs)
	for {
		block, tail := pem.Decode(rest)
		if block == nil {
			break
		}
		n, rest = n+1, tail
		if block.Type != "CERTIFICATE" {
			return apis.ErrGeneric(fmt.Sprintf("PEM block %d is a %.64q, not a certificate", n, block.Type), "CACerts")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return apis.ErrGeneric(fmt.Sprintf("PEM block %d: %v", n, err), "CACerts")
		}
	}
	if found := strings.Count(*certs, "-----BEGIN"); n == 0 || n != found { // Decode skips damaged certificates
		return apis.ErrGeneric(fmt.Sprintf("has %d certificates in PEM that can be read, of %d", n, found), "CACerts")
	}
	return nil
}
