package resources

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/eventing/pkg/apis/feature"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	"knative.dev/pkg/network"
)

// Edge is the common part of the addresses of all sources of a cluster.
type Edge struct {
	// SystemNamespace is the namespace of the adapter's Service.
	SystemNamespace string
	// Flags say which schemes there are.
	Flags feature.Flags
	// TLS is the Secret with the adapter's certificate, nil if there is none.
	TLS *corev1.Secret
}

// WantsTLS says whether sources need an https address.
func (e Edge) WantsTLS() bool {
	return e.Flags.IsPermissiveTransportEncryption() || e.Flags.IsStrictTransportEncryption()
}

// Addresses makes the addresses of a source as Knative defines them. Without
// encryption it is http. With permissive encryption it is http too, but https
// is the first of the addresses. With strict encryption it is https only. Each
// address has the audience, if there is one.
//
// Without the Secret the adapter does not answer https, so permissive
// encryption then has no https address. Strict encryption has one even then,
// because there is no other address to use.
func (e Edge) Addresses(source types.NamespacedName, audience *string) duckv1.AddressStatus {
	http, https := e.address(source, "http", audience), e.address(source, "https", audience)
	https.CACerts = caCerts(e.TLS)
	switch {
	case e.Flags.IsStrictTransportEncryption():
		return duckv1.AddressStatus{Address: &https, Addresses: []duckv1.Addressable{https}}
	case e.Flags.IsPermissiveTransportEncryption() && e.TLS == nil:
		return duckv1.AddressStatus{Address: &http, Addresses: []duckv1.Addressable{http}}
	case e.Flags.IsPermissiveTransportEncryption():
		return duckv1.AddressStatus{Address: &http, Addresses: []duckv1.Addressable{https, http}}
	}
	return duckv1.AddressStatus{Address: &http}
}

func (e Edge) address(source types.NamespacedName, scheme string, audience *string) duckv1.Addressable {
	return duckv1.Addressable{
		Name: &scheme,
		URL: &apis.URL{
			Scheme: scheme,
			Host:   network.GetServiceHostname(AdapterName, e.SystemNamespace),
			Path:   "/" + source.Namespace + "/" + source.Name,
		},
		Audience: audience,
	}
}

// caCerts is nil for the certificate of a public authority, which clients trust
// already: its issuer leaves the field out or empty.
func caCerts(secret *corev1.Secret) *string {
	if secret == nil {
		return nil
	}
	certs := string(secret.Data[caCertsKey])
	if strings.TrimSpace(certs) == "" {
		return nil
	}
	return &certs
}

// SameCertificates says whether two versions of the Secret make the same
// addresses. The certificate itself, which is renewed often, is no part of an
// address.
func SameCertificates(a, b *corev1.Secret) bool {
	x, y := caCerts(a), caCerts(b)
	return (a == nil) == (b == nil) && (x == nil) == (y == nil) && (x == nil || *x == *y)
}
