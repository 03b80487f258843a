package cluster

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// bundleLabel and bundleValue mark Knative's trust bundles.
const (
	bundleLabel = "networking.knative.dev/trust-bundle"
	bundleValue = "true"
)

// trust is the set of authorities that may sign the certificates of sinks: the
// system's and the trust bundles'.
type trust struct {
	system *x509.CertPool
	log    *slog.Logger

	mu      sync.Mutex
	content [sha256.Size]byte // of all bundles
	roots   *x509.CertPool
	apply   func(*x509.CertPool) // called with every change
}

func newTrust(log *slog.Logger) *trust {
	system, err := x509.SystemCertPool()
	if err != nil {
		log.Warn("the system's certificates could not be read; only certificates of trust bundles and sinks are trusted", "error", err)
		system = x509.NewCertPool()
	}
	return &trust{system: system, log: log, roots: system, content: sha256.Sum256(nil), apply: func(*x509.CertPool) {}}
}

func isBundle(cm *corev1.ConfigMap) bool {
	return cm.Labels[bundleLabel] == bundleValue
}

// set replaces the bundles.
func (t *trust) set(bundles []*corev1.ConfigMap) {
	slices.SortFunc(bundles, func(a, b *corev1.ConfigMap) int { return cmp.Compare(a.Name, b.Name) })
	var all []byte
	for _, cm := range bundles {
		for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
			all = append(append(append(append(append(all, cm.Name...), 0), key...), 0), cm.Data[key]...)
			all = append(all, 0)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	content := sha256.Sum256(all)
	if content == t.content {
		return
	}
	t.content, t.roots = content, t.system.Clone()
	for _, cm := range bundles {
		for _, key := range slices.Sorted(maps.Keys(cm.Data)) {
			t.add(cm.Name, key, []byte(cm.Data[key]))
		}
	}
	t.apply(t.roots)
}

// add trusts the certificates of one bundle, except unreadable ones.
func (t *trust) add(name, key string, data []byte) {
	certificates := 0
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificates++
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.log.Warn("a certificate of a trust bundle cannot be read and is left out", "configMap", name, "key", key, "number", certificates, "error", err)
			continue
		}
		t.roots.AddCert(cert)
	}
	if certificates == 0 {
		t.log.Warn("a trust bundle has no certificates", "configMap", name, "key", key)
	}
}

// follow calls apply with the roots now and after every change.
func (t *trust) follow(apply func(*x509.CertPool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.apply = apply
	apply(t.roots)
}
