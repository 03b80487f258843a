package group

import (
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/internal/certs"
)

// The end of the members' certificate is known, and so is the end of its authority. Renewed files count without a restart,
// and an authority that signs nothing any more does not count.
func TestPeerTLS_KnowsTheEnd(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second)
	day := func(n int) time.Time { return now.Add(time.Duration(n) * 24 * time.Hour) }
	authority := func(end time.Time) *certs.Certificate {
		return certs.New(&x509.Certificate{NotBefore: day(-9), NotAfter: end, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
	}
	dir := t.TempDir()
	mount := func(end time.Time, by *certs.Certificate, trusted ...*certs.Certificate) {
		files := certs.New(&x509.Certificate{NotBefore: day(-9), NotAfter: end}, by).Files()
		for _, ca := range append(trusted, by) {
			files["ca.crt"] = append(files["ca.crt"], ca.PEM()...)
		}
		var err error
		for name, text := range files {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), text, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	long, short := authority(day(100)), authority(day(3))
	mount(day(5), long)
	p, err := newPeerTLS(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		end     time.Time
		by      *certs.Certificate
		trusted []*certs.Certificate
		want    time.Time
	}{
		{day(5), long, nil, day(5)},
		{day(50), long, nil, day(50)},
		{day(50), short, nil, day(3)},
		{day(50), long, []*certs.Certificate{short}, day(50)},
		{day(-1), long, nil, day(-1)},
	} {
		mount(test.end, test.by, test.trusted...)
		p.looked = time.Time{} // a second later
		if got := p.end(); !got.Equal(test.want) {
			t.Errorf("it ends at %s, want %s", got, test.want)
		}
	}
}
