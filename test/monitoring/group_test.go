package monitoring

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/internal/certs"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// launchGroup starts three members.
func launchGroup(t *testing.T) []*harness.Adapter {
	t.Helper()
	dir := t.TempDir()
	program, sources := filepath.Join(dir, "adapter-replicated"), filepath.Join(dir, "sources.yaml")
	if err := harness.Build(program, "github.com/reschedule-dev/reschedule/cmd/adapter-replicated"); err != nil {
		t.Fatal(err)
	}
	const source = "apiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\nmetadata: {name: s, namespace: tests}\nspec: {sink: {uri: 'http://127.0.0.1:1'}}\n"
	if err := os.WriteFile(sources, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	files := certs.New(&x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(100 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}, nil).Files()
	files["ca.crt"] = files["tls.crt"]
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	members, err := harness.Process{Binary: program}.LaunchGroup(func(name string) []string {
		return harness.Flags(sources, filepath.Join(dir, name), "--peer-tls-dir", dir)
	})
	t.Cleanup(func() {
		for _, a := range members {
			a.Kill()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(maps.Values(members))
}

// A real Prometheus scrapes three members: each query of the board of a group returns series,
// and no alert about a group fires or waits for its time.
func TestLive_Group(t *testing.T) {
	t.Parallel()
	members := launchGroup(t)
	working, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for i := 0; working.Err() == nil; i++ {
			_, _ = harness.Do(working, http.MethodPut, members[i%3].URL+"/tests/s/schedules/k", `{"delay":3600}`) // 503 until there is an owner
			select {
			case <-tick.C:
			case <-working.Done():
			}
		}
	}()
	address := prometheus(t, true, members...)
	eventually(t, func() string { return emptyPanels(t, address, true) })
	eventually(t, func() string {
		return fmt.Sprint(query(t.Context(), t, address, `ALERTS{alertname=~"Reschedule(AdapterDown|NoOwner|Member.*|OwnerChanges|ClocksDiffer|CertificateEnds)"}`).Data.Result)[2:]
	})
	var text strings.Builder // the owner forwards nothing
	for _, a := range members {
		text.WriteString(exposed(t, a))
	}
	promtool(t, exposed(t, members[0]), "check", "metrics")
	for name := range inTable(t, ofGroup) {
		if !strings.Contains(text.String(), "# TYPE "+name+" ") {
			t.Errorf("no member exposes %s", name)
		}
	}
	end()
	<-done
}
