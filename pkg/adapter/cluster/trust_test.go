package cluster

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"testing"

	"github.com/reschedule-dev/reschedule/internal/certs"
)

// authority is a certificate that signs others, as PEM.
func authority(name string) string { return string(certs.Authority(name).PEM()) }

// with are the system's roots and these.
func with(authorities ...string) *x509.CertPool {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	for _, a := range authorities {
		pool.AppendCertsFromPEM([]byte(a))
	}
	return pool
}

// The certificates of trust bundles are trusted besides the system's.
func TestTrust_AddsBundlesToTheSystem(t *testing.T) {
	t.Parallel()
	one, two, three := authority("one"), authority("two"), authority("three")
	inCluster(t, func(r *env) {
		c := r.connect()
		var got []*x509.CertPool
		c.Trust(func(p *x509.CertPool) { got = append(got, p) })
		if len(got) != 1 || !got[0].Equal(with(one, two)) {
			t.Fatal("the roots are not the system's and the bundles'")
		}
		got = nil
		r.put(bundle("b", map[string]string{"x.crt": two + "# and one more\n" + three}))
		r.remove(bundle("a", nil))
		unlabelled := configMap("b", map[string]string{"x.crt": two})
		r.put(unlabelled)
		if len(got) != 3 || !got[0].Equal(with(one, two, three)) || !got[1].Equal(with(two, three)) || !got[2].Equal(with()) {
			t.Errorf("%d changes, want three: one more, one bundle less, and none", len(got))
		}
	}, bundle("a", map[string]string{"ca.crt": one}), bundle("b", map[string]string{"x.crt": two}), configMap("c", map[string]string{"ca.crt": three}))
}

// Only a change of the certificates is a change of trust.
func TestTrust_ChangesWithTheContentOnly(t *testing.T) {
	t.Parallel()
	one := authority("one")
	inCluster(t, func(r *env) {
		c := r.connect()
		changes := -1 // without the call at once
		c.Trust(func(*x509.CertPool) { changes++ })
		annotated := bundle("a", map[string]string{"ca.crt": one})
		annotated.Annotations = map[string]string{"x": "y"}
		r.put(annotated)
		r.put(configMap("other", map[string]string{"ca.crt": one}))
		r.put(configMap(configFeatures, map[string]string{"delivery-timeout": "enabled"}))
		expect(t, "changes", 0, changes)
	}, bundle("a", map[string]string{"ca.crt": one}))
}

// A change before Trust is called is not missed.
func TestTrust_AppliesAnEarlierChange(t *testing.T) {
	t.Parallel()
	one := authority("one")
	inCluster(t, func(r *env) {
		c := r.connect()
		r.put(bundle("a", map[string]string{"ca.crt": one}))
		var got []*x509.CertPool
		c.Trust(func(p *x509.CertPool) { got = append(got, p) })
		if len(got) != 1 || !got[0].Equal(with(one)) {
			t.Errorf("%d changes, want one", len(got))
		}
	})
}

// A certificate that cannot be read is left out.
func TestTrust_LeavesOutABrokenBundle(t *testing.T) {
	t.Parallel()
	one, two := authority("one"), authority("two")
	block, _ := pem.Decode([]byte(one))
	torn := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: bytes.Repeat(block.Bytes[:20], 3)}))
	inCluster(t, func(r *env) {
		c := r.connect()
		c.Trust(func(p *x509.CertPool) {
			if !p.Equal(with(one, two)) {
				t.Error("the roots are not the system's and the readable ones")
			}
		})
		expect(t, "lines about certificates", 1, r.log.count("cannot be read and is left out"))
		expect(t, "lines about bundles", 1, r.log.count("a trust bundle has no certificates"))
	}, bundle("a", map[string]string{"ca.crt": torn + one}), bundle("b", map[string]string{"ca.crt": "not PEM", "x": two}))
}
