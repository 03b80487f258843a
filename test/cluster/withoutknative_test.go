package cluster

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// withoutKnative is an API server without a kind of Knative, into which Helm has installed the chart, with the programs. It
// takes the place of the server of all tests, so a test of it is not parallel.
func withoutKnative(t *testing.T) *programs {
	t.Helper()
	// The port of the controller's probes has no setting.
	if started != nil {
		started.controller.Kill()
		t.Cleanup(func() {
			if err := started.startController(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	p, usual := &programs{dir: t.TempDir(), namespace: "reschedule-system"}, server
	s, err := kube.Start(t.Context(), p.dir)
	if err != nil {
		t.Fatal(err)
	}
	server = s
	t.Cleanup(func() {
		p.stop()
		server = usual
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	chart, err := filepath.Abs("../../charts/reschedule")
	if err != nil {
		t.Fatal(err)
	}
	helm(t, p, "install", "reschedule", chart, "--create-namespace")
	if err := server.AggregateRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the controller:\n%s\nthe adapter:\n%s", tail(p.controller.Log()), tail(p.adapter.Log()))
		}
	})
	return p
}

// helm runs Helm, of the module test/operators, as the administrator.
func helm(t *testing.T, p *programs, args ...string) {
	t.Helper()
	config, err := server.AdminKubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"-C", "../operators", "tool", "helm", "--kubeconfig", config, "--namespace", p.namespace}, args...)
	if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Fatalf("go %v: %v\n%s", args, err, out)
	}
}

// complaint is a line of a log that an administrator would have to look into.
var complaint = regexp.MustCompile(`(?m)^.*("level":"(error|warn|fatal|panic)"|"severity":"(ERROR|WARNING|CRITICAL|EMERGENCY)"|level=(ERROR|WARN)|^[EWF][0-9]{4} ).*$`)

// From the chart alone both programs run without a kind or a ConfigMap of Knative: sources are ready with an address and with a
// Service of Kubernetes, events arrive, and the logs have nothing to complain about. An EventPolicy counts once the cluster has
// the kind, and a Knative Service is found. Helm takes all away again but the CRD, with which the sources would go.
func TestWithoutKnative_RunsAndFindsIt(t *testing.T) {
	p, sink := withoutKnative(t), newSink(t)
	ns := namespace(t, "plain")
	s := p.create(t, ns, "x", to(sink, "in"))
	s.served()
	s.put("key", `{}`)
	sink.Next(t, "in", "key")
	applied(t, ns, `{apiVersion: v1, kind: Service, metadata: {name: operator}, spec: {ports: [{port: 80}]}}`)
	of := p.create(t, ns, "service", "sink: {ref: {apiVersion: v1, kind: Service, name: operator}}\n").ready()
	if got, want := of.Status.SinkURI.String(), "http://operator."+ns+".svc.cluster.local"; got != want {
		t.Errorf("the sink is %s, want %s", got, want)
	}
	for name, log := range map[string]string{"controller": p.controller.Log(), "adapter": p.adapter.Log()} {
		if lines := complaint.FindAllString(log, -1); lines != nil {
			t.Errorf("the %s complains: %q", name, lines)
		}
	}

	later := &source{programs: p, t: t, namespace: ns, name: "later", client: typedSourcesIn(t, ns)}
	later.make("sink: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: operator}}\n")
	later.until("without a sink", func(o *v1alpha1.RescheduleSource) bool {
		return condition(o, v1alpha1.ConditionSinkProvided) == corev1.ConditionFalse
	})
	if err := server.ApplyEventing(t.Context(), "resources/eventpolicy.yaml"); err != nil {
		t.Fatal(err)
	}
	other := namespace(t, "stranger")
	user, _ := serviceAccount(other, "stranger")
	token := s.tokenOf(other, "stranger", s.audience())
	s.policy("p", user, "{from: [{sub: '%s'}], to: [{ref: {apiVersion: sources.reschedule.dev/v1alpha1, kind: RescheduleSource, name: x}}]}", "True")
	settle(t, func() bool { return s.call(token, "PUT", harness.KeyPath("of-a-stranger"), `{}`).Status/100 == 2 }, "the policy has no effect")
	sink.Next(t, "in", "of-a-stranger")
	s.until("under the policy", func(o *v1alpha1.RescheduleSource) bool {
		return slices.ContainsFunc(o.Status.Policies, func(p eventingduckv1.AppliedEventPolicyRef) bool { return p.Name == "p" })
	})
	applied(t, ns, servingServices)
	if err := server.AggregateRoles(t.Context()); err != nil {
		t.Fatal(err)
	}
	later.ready()

	helm(t, p, "uninstall", "reschedule")
	if _, err := server.Client.AppsV1().StatefulSets(p.namespace).Get(t.Context(), adapterName, metav1.GetOptions{}); err == nil {
		t.Error("the StatefulSet is there after helm uninstall")
	}
	s.uid() // it is there
}

// servingServices defines as much of Knative's Service as a sink needs, and makes one.
const servingServices = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: services.serving.knative.dev}
spec:
  group: serving.knative.dev
  names: {kind: Service, plural: services, singular: service}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: knative-serving-addressable-resolver, labels: {duck.knative.dev/addressable: "true"}}
rules: [{apiGroups: [serving.knative.dev], resources: [services], verbs: [get, list, watch]}]
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: operator}
status: {address: {url: "http://operator.example.com"}}
`
