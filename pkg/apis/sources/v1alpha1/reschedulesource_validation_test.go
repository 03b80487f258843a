package v1alpha1

import (
	"encoding/pem"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const sink = "sink: {uri: 'http://x'}\n"

func object(t *testing.T, spec string) *RescheduleSource {
	t.Helper()
	o := &RescheduleSource{ObjectMeta: metav1.ObjectMeta{Name: "git-repos", Namespace: "ops"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &o.Spec); err != nil {
		t.Fatalf("the test's own YAML: %v", err)
	}
	return o
}

// Good specs are accepted.
func TestValidate_AcceptsGoodSpecs(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]string{
		"the least":                sink,
		"a reference":              "sink: {ref: {apiVersion: v1, kind: Service, name: x}}",
		"a reference elsewhere":    "sink: {ref: {apiVersion: v1, kind: Service, name: x, namespace: other}}",
		"a path below a reference": "sink: {ref: {apiVersion: v1, kind: Service, name: x}, uri: /path}",
		"every policy":             sink + "conflictPolicy: keep\ningest: {conflictPolicy: fail}",
		"limits at their least":    sink + "limits: {maxInFlight: 1, maxPerSecond: 0, maxPending: 1}",
		"durations in Go style":    sink + "delay: 1h30m0.5s\nmaxInterval: 0s",
		"durations in ISO 8601":    sink + "delay: P1W\nmaxInterval: PT0.5S",
		"delivery":                 sink + "delivery: {retry: 0, backoffPolicy: linear, backoffDelay: PT0S, timeout: PT0.1S, backoffMax: PT0S, retryAfterMax: PT0S, format: json, deadLetterSink: {uri: 'https://y'}}",
		"overrides":                sink + "ceOverrides: {extensions: {team: platform, x1: 'ü \"'}}",
		"every policy for events":  sink + "ingest: {policies: [replace, earliest, latest, keep, fail], maxDelay: PT1H, authentication: required}",
		"no policy for events":     sink + "ingest: {policies: []}",
		"bytes":                    sink + "limits: {maxBytes: 1}",
		"access and audit":         sink + "access: rbac\naudit: true",
		"empty parts":              sink + "delivery: {}\ningest: {}\nlimits: {}\nceOverrides: {}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := object(t, spec)
			if err := o.Validate(t.Context()); err != nil {
				t.Errorf("refused: %v", err)
			}
			o.SetDefaults(t.Context())
			if err := o.Validate(t.Context()); err != nil {
				t.Errorf("refused with its defaults: %v", err)
			}
		})
	}
}

// A bad spec is refused, and the error names the field.
func TestValidate_NamesTheField(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, spec, field string }{
		{"no sink", "", "spec.sink.ref, spec.sink.uri"},
		{"an empty sink", "sink: {}", "spec.sink.ref, spec.sink.uri"},
		{"an empty uri", "sink: {uri: ''}", "spec.sink.ref, spec.sink.uri"},
		{"a relative uri alone", "sink: {uri: /path}", "spec.sink.uri"},
		{"a uri without a host", "sink: {uri: 'http:///path'}", "spec.sink.uri"},
		{"a uri with a port and no host", "sink: {uri: 'http://:80'}", "spec.sink.uri"},
		{"a uri of another scheme", "sink: {uri: 'ftp://x'}", "spec.sink.uri"},
		{"a port beyond the last", "sink: {uri: 'http://x:65536'}", "spec.sink.uri"},
		{"a host beside a reference", "sink: {uri: //x/path, ref: {apiVersion: v1, kind: Service, name: x}}", "spec.sink.uri"},
		{"an absolute uri beside a reference", "sink: {uri: 'http://x', ref: {apiVersion: v1, kind: Service, name: x}}", "spec.sink.uri"},
		{"a reference without a name", "sink: {uri: /path, ref: {apiVersion: v1, kind: Service}}", "spec.sink.ref.name"},
		{"certificates that are none", "sink: {uri: 'http://x', CACerts: nonsense}", "spec.sink.CACerts"},
		{"empty certificates", "sink: {ref: {apiVersion: v1, kind: Service, name: x}, CACerts: ''}", "spec.sink.CACerts"},
		{"override of id", sink + "ceOverrides: {extensions: {id: x}}", "spec.ceOverrides.extensions.id"},
		{"override of source", sink + "ceOverrides: {extensions: {source: x}}", "spec.ceOverrides.extensions.source"},
		{"override of type", sink + "ceOverrides: {extensions: {type: x}}", "spec.ceOverrides.extensions.type"},
		{"override of specversion", sink + "ceOverrides: {extensions: {specversion: x}}", "spec.ceOverrides.extensions.specversion"},
		{"override of Id", sink + "ceOverrides: {extensions: {Id: x}}", "spec.ceOverrides.extensions.Id"},
		{"override of time", sink + "ceOverrides: {extensions: {time: x}}", "spec.ceOverrides.extensions.time"},
		{"override of data", sink + "ceOverrides: {extensions: {data: x}}", "spec.ceOverrides.extensions.data"},
		{"override of the key", sink + "ceOverrides: {extensions: {reschedulekey: x}}", "spec.ceOverrides.extensions.reschedulekey"},
		{"a name of ours", sink + "ceOverrides: {extensions: {reschedulefoo: x}}", "spec.ceOverrides.extensions.reschedulefoo"},
		{"a name in capitals", sink + "ceOverrides: {extensions: {Team: x}}", "spec.ceOverrides.extensions.Team"},
		{"a name with a dash", sink + "ceOverrides: {extensions: {a-b: x}}", "spec.ceOverrides.extensions.a-b"},
		{"a name with a line break", sink + `ceOverrides: {extensions: {"a\nb": x}}`, `spec.ceOverrides.extensions."a\nb"`},
		{"an empty name", sink + "ceOverrides: {extensions: {'': x}}", `spec.ceOverrides.extensions.""`},
		{"a control character", sink + `ceOverrides: {extensions: {team: "a\nb"}}`, "spec.ceOverrides.extensions.team"},
		{"an unknown policy for events", sink + "ingest: {policies: [keep, never]}", "spec.ingest.policies[1]"},
		{"a policy for events twice", sink + "ingest: {policies: [keep, keep]}", "spec.ingest.policies[1]"},
		{"a delay of events that is none", sink + "ingest: {maxDelay: soon}", "spec.ingest.maxDelay"},
		{"unknown authentication", sink + "ingest: {authentication: 'off'}", "spec.ingest.authentication"},
		{"unknown access", sink + "access: everyone", "spec.access"},
		{"no bytes", sink + "limits: {maxBytes: 0}", "spec.limits.maxBytes"},
		{"negative bytes", sink + "limits: {maxBytes: -1Gi}", "spec.limits.maxBytes"},
		{"negative retry", sink + "delivery: {retry: -1}", "spec.delivery.retry"},
		{"unknown back-off", sink + "delivery: {backoffPolicy: cubic}", "spec.delivery.backoffPolicy"},
		{"a back-off in capitals", sink + "delivery: {backoffPolicy: Linear}", "spec.delivery.backoffPolicy"},
		{"Go style in delivery", sink + "delivery: {backoffDelay: 1s}", "spec.delivery.backoffDelay"},
		{"years", sink + "delivery: {backoffDelay: P1Y}", "spec.delivery.backoffDelay"},
		{"a timeout of nothing", sink + "delivery: {timeout: PT0.0S}", "spec.delivery.timeout"},
		{"a timeout that is none", sink + "delivery: {timeout: soon}", "spec.delivery.timeout"},
		{"Go style in backoffMax", sink + "delivery: {backoffMax: 15m}", "spec.delivery.backoffMax"},
		{"a negative bound", sink + "delivery: {retryAfterMax: -PT1S}", "spec.delivery.retryAfterMax"},
		{"unknown format", sink + "delivery: {format: xml}", "spec.delivery.format"},
		{"an empty dead letter sink", sink + "delivery: {deadLetterSink: {}}", "spec.delivery.deadLetterSink.ref"},
		{"a number without a unit", sink + "delay: '30'", "spec.delay"},
		{"an empty delay", sink + "delay: ''", "spec.delay"},
		{"a negative delay", sink + "delay: -1s", "spec.delay"},
		{"months", sink + "maxInterval: P1M", "spec.maxInterval"},
		{"unknown policy", sink + "conflictPolicy: newest", "spec.conflictPolicy"},
		{"an empty policy", sink + "conflictPolicy: ''", "spec.conflictPolicy"},
		{"unknown policy of events", sink + "ingest: {conflictPolicy: newest}", "spec.ingest.conflictPolicy"},
		{"no parallel deliveries", sink + "limits: {maxInFlight: 0}", "spec.limits.maxInFlight"},
		{"a negative rate", sink + "limits: {maxPerSecond: -1}", "spec.limits.maxPerSecond"},
		{"no keys", sink + "limits: {maxPending: 0}", "spec.limits.maxPending"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := object(t, c.spec).Validate(t.Context())
			if err == nil {
				t.Fatal("accepted")
			}
			if len(err.WrappedErrors()) != 1 {
				t.Errorf("more than one error: %v", err)
			}
			if !strings.HasPrefix(strings.Join(err.WrappedErrors()[0].Paths, ", "), c.field) {
				t.Errorf("%q does not name %s", err, c.field)
			}
		})
	}
}

// The error names every fault of a spec at once.
func TestValidate_NamesEveryError(t *testing.T) {
	t.Parallel()
	err := object(t, "delay: x\nlimits: {maxPending: -1}\nceOverrides: {extensions: {id: x}}").Validate(t.Context())
	for _, field := range []string{"spec.sink.ref", "spec.delay", "spec.limits.maxPending", "spec.ceOverrides.extensions.id"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not name %s", err, field)
		}
	}
}

// CACerts must be whole certificates.
func TestValidate_WholeCertificates(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	good := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	for _, c := range []struct {
		name, certs string
		ok          bool
	}{
		{"one", good, true},
		{"two with text between", good + "# the next\n" + good, true},
		{"a damaged one first", strings.Replace(good, "\n", "\n!", 1) + good, false},
		{"a damaged one last", good + strings.Replace(good, "\n", "\n!", 1), false},
		{"a key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})), false},
		{"a certificate of nothing", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})), false},
		{"half a one", good[:len(good)/2], false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := object(t, sink)
			o.Spec.Sink.CACerts = &c.certs
			if err := o.Validate(t.Context()); (err == nil) != c.ok {
				t.Errorf("error is %v, want none: %v", err, c.ok)
			}
		})
	}
}
