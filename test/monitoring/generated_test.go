package monitoring

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The PrometheusRule has the rules of the plain file. With -update the test writes it.
func TestGenerated_IsUpToDate(t *testing.T) {
	t.Parallel()
	const file = config + "prometheusrule.yaml"
	want := prometheusRule(t)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, file) != want {
		t.Errorf("%s is not up to date: run go test ./test/monitoring -run Generated -update", file)
	}
}

// prometheusRule wraps the plain rules for the Prometheus Operator.
func prometheusRule(t *testing.T) string {
	t.Helper()
	_, groups, found := strings.Cut(read(t, rulesFile), "\ngroups:\n")
	if !found {
		t.Fatal("the rules have no groups")
	}
	return `# Generated from rules/reschedule.yaml, which says how.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: reschedule
  namespace: knative-eventing
  labels:
    app.kubernetes.io/name: reschedule
    app.kubernetes.io/version: devel
spec:
  groups:
` + regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(groups, "  $1")
}
