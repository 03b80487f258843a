package ceilings

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

func mustParse(t *testing.T, data map[string]string) *Config {
	t.Helper()
	c, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What is absent has the shipped value, and what a namespace's own block leaves
// out is what holds for all.
func TestParse_ValuesAndOverrides(t *testing.T) {
	t.Parallel()
	if got := mustParse(t, nil).For("any"); got != Shipped {
		t.Errorf("without keys: %+v", got)
	}
	c := mustParse(t, map[string]string{
		"_example": "anything: at all", "max-pending": "5", "max-bytes": "1Gi", "max-in-flight": "6", "max-per-second": "7",
		"max-timeout": "PT2H", "min-delay": "1.5s", "max-starts": "8", "max-starts-of-all": "9",
		"default-max-pending": "1", "default-max-bytes": "2k", "default-max-in-flight": "3", "default-max-per-second": "4", "default-timeout": "30s",
		"namespaces": "big: {max-bytes: 8Gi, max-in-flight: 4000, max-timeout: 0s, max-starts: '0'}\nsmall:\n  max-pending: '2'\nsame:\n",
	})
	all := Ceilings{
		MaxPending: 5, MaxBytes: 1 << 30, MaxInFlight: 6, MaxPerSecond: 7, MaxTimeout: 2 * time.Hour, MinDelay: 1500 * time.Millisecond,
		MaxStarts: 8, MaxStartsOfAll: 9,
		Default: Limits{MaxPending: 1, MaxBytes: 2000, MaxInFlight: 3, MaxPerSecond: 4, Timeout: 30 * time.Second},
	}
	big, small := all, all
	big.MaxBytes, big.MaxInFlight, big.MaxTimeout, big.MaxStarts = 8<<30, 4000, 0, 0
	small.MaxPending = 2
	for namespace, want := range map[string]Ceilings{"other": all, "big": big, "small": small, "same": all} {
		if diff := cmp.Diff(want, c.For(namespace)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", namespace, diff)
		}
	}
	if got := (*Config)(nil).For("any"); got.MaxBytes != 0 || got.MaxTimeout != 0 || got.Default.MaxInFlight != 100 {
		t.Errorf("without a config: %+v", got)
	}
}

// A bad ConfigMap is refused as a whole, and every key at fault is named.
func TestParse_NamesTheKeyAtFault(t *testing.T) {
	t.Parallel()
	for key, values := range map[string][]string{
		"max-pending":            {"", "-1", "1.5", "many", "9007199254740992", "1Gi"},
		"max-bytes":              {"", "-1", "ten", "1GB"},
		"max-in-flight":          {"-1", "2147483648"},
		"max-per-second":         {"-1", "x"},
		"max-timeout":            {"", "1", "-1s", "P1Y", "876600h1s"},
		"min-delay":              {"5", "soon"},
		"max-starts":             {"-1", "some", "2147483648"},
		"max-starts-of-all":      {"-1", "1.5"},
		"default-max-pending":    {"0"},
		"default-max-bytes":      {"-1Gi"},
		"default-max-in-flight":  {"0"},
		"default-max-per-second": {"-1"},
		"default-timeout":        {"0s", "P1M"},
		"namespaces":             {"a", "- a", "a: 1", "a: {}\na: {}"},
		"maxPending":             {"1"},
		"max_pending":            {"1"},
	} {
		for _, value := range values {
			_, err := Parse(map[string]string{key: value, "min-delay-": "1s"})
			if err == nil || !strings.Contains(err.Error(), key+":") || !strings.Contains(err.Error(), "min-delay-:") {
				t.Errorf("%s: %q gives %v", key, value, err)
			}
			if key == "namespaces" {
				continue
			}
			_, err = Parse(map[string]string{"namespaces": "ops: {" + key + ": '" + value + "'}"})
			if err == nil || !strings.Contains(err.Error(), "namespaces.ops."+key) {
				t.Errorf("of a namespace, %s: %q gives %v", key, value, err)
			}
		}
	}
	for _, text := range []string{"Ops: {}", "ops: {namespaces: {}}", "ops: {_example: x}", "ops: {max-bytes: {a: b}}", "ops: {max-starts-of-all: '1'}"} {
		if _, err := Parse(map[string]string{"namespaces": text}); err == nil || !strings.Contains(err.Error(), "namespaces.") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A file may be the manifest of the ConfigMap, or its data alone.
func TestParseFile_ManifestOrData(t *testing.T) {
	t.Parallel()
	const manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: config-reschedule, labels: {a: b}}\ndata:\n"
	for name, text := range map[string]string{
		"data":                     "max-pending: 5\nmax-bytes: \"1Gi\"\nnamespaces:\n  ops: {max-pending: 6}\n",
		"data, namespaces as text": "max-pending: 5\nmax-bytes: 1Gi\nnamespaces: |\n  ops:\n    max-pending: 6\n",
		"a manifest":               manifest + "  max-pending: \"5\"\n  max-bytes: 1Gi\n  namespaces: |\n    ops:\n      max-pending: \"6\"\n",
		"JSON":                     `{"max-pending": 5, "max-bytes": "1Gi", "namespaces": {"ops": {"max-pending": 6}}}`,
	} {
		c, err := ParseFile([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if all, ops := c.For("x"), c.For("ops"); all.MaxPending != 5 || all.MaxBytes != 1<<30 || ops.MaxPending != 6 || ops.MaxBytes != 1<<30 {
			t.Errorf("%s: %+v %+v", name, all, ops)
		}
	}
	if c, err := ParseFile([]byte(manifest + "  {}\n")); err != nil || c.For("x") != Shipped {
		t.Errorf("a manifest that says that there is no key: %v", err)
	}
	for text, want := range map[string]string{
		"max-pending: x":                 "max-pending:",
		"max-pending: 1e6":               "max-pending:",
		"- a":                            "YAML",
		"max-pending: 1\nmax-pending: 2": "max-pending",
		"kind: Secret\ndata: {}":         "kind:",
		manifest + "  max-pendig: '1'":   "max-pendig:",
		strings.Replace(manifest, "data:", "dta:", 1): "dta",
	} {
		if _, err := ParseFile([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A file that was emptied or cut says nothing about the ceilings.
func TestParseFile_WithoutAKeyIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n", "# nothing\n", "---\n", "null\n", "{}\n", "apiVersion: v1\nkind: ConfigMap\n", "apiVersion: v1\nkind: ConfigMap\ndata:\n"} {
		if _, err := ParseFile([]byte(text)); err == nil || !strings.Contains(err.Error(), "no key") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What a source names is cut to the ceiling and reported, what it does not name is
// the administrator's default and is cut in silence.
func TestLimits_CutsWhatIsNamed(t *testing.T) {
	t.Parallel()
	c := mustParse(t, map[string]string{
		"max-pending": "10", "max-bytes": "1Gi", "max-in-flight": "20", "max-per-second": "30", "max-timeout": "1m", "min-delay": "5s",
		"default-max-pending": "100", "default-max-in-flight": "7", "default-timeout": "30s",
	}).For("ops")
	limits, cuts := c.Limits(&v1alpha1.RescheduleSourceSpec{})
	if want := (Limits{MaxPending: 10, MaxBytes: 1 << 30, MaxInFlight: 7, Timeout: 30 * time.Second}); limits != want || cuts != nil {
		t.Errorf("nothing named: %+v %v", limits, cuts)
	}

	named := func(of Limits, timeout, delay, interval string) *v1alpha1.RescheduleSourceSpec {
		return &v1alpha1.RescheduleSourceSpec{
			Limits: &v1alpha1.RescheduleSourceLimits{
				MaxPending: &of.MaxPending, MaxBytes: resource.NewQuantity(of.MaxBytes, resource.BinarySI), MaxInFlight: &of.MaxInFlight, MaxPerSecond: &of.MaxPerSecond,
			},
			Delivery: &v1alpha1.RescheduleSourceDelivery{DeliverySpec: eventingduckv1.DeliverySpec{Timeout: &timeout}}, Delay: &delay, MaxInterval: &interval,
		}
	}
	limits, cuts = c.Limits(named(Limits{MaxPending: 10, MaxBytes: 1 << 30, MaxInFlight: 20, MaxPerSecond: 30}, "PT60S", "0s", "0s"))
	if want := (Limits{MaxPending: 10, MaxBytes: 1 << 30, MaxInFlight: 20, MaxPerSecond: 30, Timeout: time.Minute}); limits != want || cuts != nil {
		t.Errorf("at the ceilings: %+v %v", limits, cuts)
	}
	limits, cuts = c.Limits(named(Limits{MaxPending: 11, MaxBytes: 2 << 30, MaxInFlight: 21, MaxPerSecond: 31}, "PT1M1S", "4s", "PT4S"))
	if want := (Limits{MaxPending: 10, MaxBytes: 1 << 30, MaxInFlight: 20, MaxPerSecond: 30, Timeout: time.Minute}); limits != want {
		t.Errorf("above the ceilings: %+v", limits)
	}
	var reported []string
	for _, c := range cuts {
		reported = append(reported, c.String())
	}
	if diff := cmp.Diff([]string{
		"limits.maxPending: 11 is cut to 10 (max-pending)",
		"limits.maxBytes: 2Gi is cut to 1Gi (max-bytes)",
		"limits.maxInFlight: 21 is cut to 20 (max-in-flight)",
		"limits.maxPerSecond: 31 is cut to 30 (max-per-second)",
		"delivery.timeout: PT1M1S is cut to 1m0s (max-timeout)",
		"delay: 4s is raised to 5s (min-delay)",
		"maxInterval: PT4S is raised to 5s (min-delay)",
	}, reported); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
	if limits, cuts := c.Limits(named(Limits{MaxPending: 1, MaxBytes: 1, MaxInFlight: 1, MaxPerSecond: 0}, "PT1S", "5s", "5s")); limits.MaxPerSecond != 0 || cuts != nil {
		t.Errorf("no rate of its own: %+v %v", limits, cuts)
	}
	if _, cuts := none.Limits(named(Limits{MaxPending: 1 << 52, MaxBytes: 1 << 60, MaxInFlight: 1 << 30, MaxPerSecond: 0}, "P36525D", "1s", "1s")); cuts != nil {
		t.Errorf("without ceilings: %v", cuts)
	}
	if limits, cuts := c.Limits(named(Limits{MaxPending: 1, MaxBytes: 1, MaxInFlight: 1, MaxPerSecond: 1}, "bad", "bad", "-1s")); cuts != nil || limits.Timeout != 30*time.Second {
		t.Errorf("fields that are not valid: %+v %v", limits, cuts)
	}
}
