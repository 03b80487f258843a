//go:build e2e

package knative

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeclient "knative.dev/pkg/client/injection/kube/client"
)

// authenticated gives the adapter a certificate and switches on Knative's authentication
// and strict transport encryption, until the test ends.
func authenticated(ctx context.Context, t *testing.T) {
	t.Helper()
	client := kubeclient.Get(ctx).CoreV1()
	const certificate = "reschedule-adapter-server-tls"
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: certificate}, Type: corev1.SecretTypeTLS, Data: selfSigned(t)}
	if _, err := client.Secrets(system).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		t.Fatal("the adapter's certificate: ", err)
	}
	// A pod that is there already would see it a minute later.
	if err := client.Pods(system).Delete(ctx, "reschedule-adapter-0", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal("the adapter without its certificate: ", err)
	}
	t.Cleanup(func() {
		if err := client.Secrets(system).Delete(context.WithoutCancel(ctx), certificate, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})

	before, err := client.ConfigMaps(system).Get(ctx, "config-features", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	set := func(ctx context.Context, data map[string]any) {
		patch, err := json.Marshal(map[string]any{"data": data})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.ConfigMaps(system).Patch(ctx, "config-features", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Error("config-features: ", err)
		}
	}
	back := map[string]any{}
	for _, flag := range []string{"authentication-oidc", "transport-encryption"} {
		back[flag] = nil // as if it had never been there
		if value, set := before.Data[flag]; set {
			back[flag] = value
		}
	}
	t.Cleanup(func() { set(context.WithoutCancel(ctx), back) })
	set(ctx, map[string]any{"authentication-oidc": "enabled", "transport-encryption": "strict"})
}

// selfSigned makes a certificate for the adapter, as cert-manager would.
func selfSigned(t *testing.T) map[string][]byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const host = "reschedule-adapter." + system + ".svc"
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host, host + ".cluster.local"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	return map[string][]byte{
		"ca.crt": text, corev1.TLSCertKey: text,
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}
