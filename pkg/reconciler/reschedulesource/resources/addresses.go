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

// Edge is what all sources of a cluster have in common at their addresses.
type Edge struct {
	// SystemNamespace is where the adapter's Service is.
	SystemNamespace string
	// Flags say which schemes there are.
	Flags feature.Flags
	// TLS is the Secret with the adapter's certificate, nil if there is none.
	TLS *corev1.Secret
}

// WantsTLS says whether there is to be an https address.
func (e Edge) WantsTLS() bool {
	return e.Flags.IsPermissiveTransportEncryption() || e.Flags.IsStrictTransportEncryption()
}

// Addresses makes the addresses of a source as Knative wants them: http only;
// when encryption is permissive http, but with https as the first of the
// choices; when it is strict https only. The audience, if any, is on each.
//
// Without the Secret nobody answers https, so nobody is sent there who could
// use http; when encryption is strict the URL is given all the same, since it
// will be that one as soon as there is a certificate.
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

// caCerts is nil for a certificate that everybody trusts already: a public
// authority's issuer leaves the field out or empty.
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
// addresses. The certificate itself is renewed often and is not in them.
func SameCertificates(a, b *corev1.Secret) bool {
	x, y := caCerts(a), caCerts(b)
	return (a == nil) == (b == nil) && (x == nil) == (y == nil) && (x == nil || *x == *y)
}
