//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const sleepPage = "docs/sleep-an-operator.md"

// An operator as others published it sleeps and works, step by step as the page says; one that serves a webhook is
// refused. It watches the Secrets of all namespaces, so it sleeps only while it has the cluster alone.
func publishedSleeps(t *testing.T, turn func()) {
	n := newNamespace(t, "published")
	binary, err := commandLine()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	kn := fmt.Sprintf("#!/bin/sh\nshift 2 # source reschedule\nexec %s \"$@\"\n", binary)
	if err := os.WriteFile(filepath.Join(dir, "kn"), []byte(kn), 0o755); err != nil {
		t.Fatal(err)
	}
	do := func(commands string) error { return inCheckout(t.Context(), dir, "PATH=$DIR:$PATH\n"+commands) }
	must := func(commands string) {
		t.Helper()
		if err := do(commands); err != nil {
			t.Fatal(err)
		}
	}
	must("test/published/install.sh cert-manager trust-manager")
	t.Cleanup(func() {
		for _, file := range []string{"bin/published/cert-manager/sample.yaml", "bin/published/trust-manager/all.yaml", "bin/published/cert-manager/all.yaml"} {
			if err := kubectl(context.Background(), "delete", "--ignore-not-found", "--timeout=2m", "-f", "../../"+file); err != nil {
				t.Error(err)
			}
		}
	})
	eventually(t, patience, "cert-manager's webhook has its CA", func() error {
		return do("kubectl apply -f bin/published/cert-manager/sample.yaml")
	})
	turn()
	must(n.onPageOf(sleepPage, "--dry-run"))
	if err := do(n.onPageOf(sleepPage, "deployment/trust-manager")); err == nil || !strings.Contains(err.Error(), "ValidatingWebhookConfiguration trust-manager") {
		t.Errorf("trust-manager is not refused with the name of its webhook: %v", err)
	}
	must(n.onPageOf(sleepPage, "savings"))
	must(n.onPageOf(sleepPage, "--scale-mode Auto"))
	before, err := injected(t)
	if err != nil {
		t.Fatal(err)
	}
	must("kubectl -n published delete secret sample-certificate")
	eventually(t, patience, "the new CA is in the webhook", func() error {
		now, err := injected(t)
		if err == nil && bytes.Equal(now, before) {
			err = errors.New("it has the old one")
		}
		return err
	})
	must("kubectl -n cert-manager wait reschedulesource/cainjector --for=jsonpath='{.status.scale.state}'=Asleep --timeout=3m")
	must(n.onPageOf(sleepPage, "--scale-mode Awake"))
	must("kubectl -n cert-manager wait deployment cert-manager-cainjector --for=condition=Available --timeout=2m")
}

// injected is the CA in the webhook of the sample.
func injected(t *testing.T) ([]byte, error) {
	out, err := exec.CommandContext(t.Context(), "kubectl", "get", "validatingwebhookconfiguration", "published-sample", "-o", "json").Output()
	if err != nil {
		return nil, err
	}
	var is struct {
		Webhooks []struct{ ClientConfig struct{ CABundle []byte } }
	}
	if err := json.Unmarshal(out, &is); err != nil {
		return nil, err
	}
	if len(is.Webhooks) != 1 || len(is.Webhooks[0].ClientConfig.CABundle) == 0 {
		return nil, errors.New("it has no CA")
	}
	return is.Webhooks[0].ClientConfig.CABundle, nil
}
