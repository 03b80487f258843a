//go:build e2e

package knative

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/test"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"knative.dev/eventing/test/rekt/features"
	"knative.dev/eventing/test/rekt/features/authz"
	"knative.dev/eventing/test/rekt/features/knconf"
	"knative.dev/eventing/test/rekt/features/oidc"
	"knative.dev/eventing/test/rekt/resources/broker"
	"knative.dev/eventing/test/rekt/resources/eventtype"
	"knative.dev/reconciler-test/pkg/environment"
	"knative.dev/reconciler-test/pkg/eventshub"
	"knative.dev/reconciler-test/pkg/eventshub/assert"
	"knative.dev/reconciler-test/pkg/feature"
	"knative.dev/reconciler-test/pkg/k8s"
	"knative.dev/reconciler-test/pkg/knative"
	"knative.dev/reconciler-test/pkg/manifest"
)

const (
	system = "knative-eventing"
	kind   = "RescheduleSource"
)

var (
	resource = schema.GroupVersionResource{Group: "sources.reschedule.dev", Version: "v1alpha1", Resource: "reschedulesources"}
	global   environment.GlobalEnvironment
)

func TestMain(m *testing.M) {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	global = environment.NewStandardGlobalEnvironment()
	os.Exit(m.Run())
}

// prepare says what is missing.
func prepare() error {
	if os.Getenv("KUBECONFIG") == "" {
		return errors.New("KUBECONFIG is not set: it names the cluster to test in; make cluster-up says what to set it to")
	}
	return os.Setenv("SYSTEM_NAMESPACE", system)
}

//go:embed source.yaml
var manifests embed.FS

// install makes a source that delivers to an object of the same namespace.
func install(name, apiVersion, sinkKind, sink string) feature.StepFn {
	return func(ctx context.Context, t feature.T) {
		if _, err := manifest.InstallYamlFS(ctx, manifests, map[string]any{"name": name, "apiVersion": apiVersion, "kind": sinkKind, "sink": sink}); err != nil {
			t.Fatal(err)
		}
	}
}

// source makes a sink, and a source that is ready to deliver to it.
func source(f *feature.Feature) (name, sink string) {
	name, sink = feature.MakeRandomK8sName("source"), feature.MakeRandomK8sName("sink")
	f.Setup("install the sink", eventshub.Install(sink, eventshub.StartReceiver))
	f.Setup("install the source", install(name, "v1", "Service", sink))
	f.Requirement("the source is ready", k8s.IsReady(resource, name))
	f.Requirement("the source is addressable", k8s.IsAddressable(resource, name))
	return name, sink
}

func environmentOf(t *testing.T) (context.Context, environment.Environment) {
	ctx, env := global.Environment(
		knative.WithKnativeNamespace(system),
		knative.WithLoggingConfig,
		knative.WithObservabilityConfig,
		k8s.WithEventListener,
		environment.Managed(t), // which ends it
	)
	return ctx, env
}

// The resource follows Knative's conventions.
func TestKnative_Conventions(t *testing.T) {
	t.Parallel()
	ctx, env := environmentOf(t)
	f := feature.NewFeature()
	name, _ := source(f)
	f.Stable(kind).
		Must("have an observed generation", knconf.KResourceHasObservedGeneration(resource, name)).
		Must("have the condition Ready", knconf.KResourceHasReadyInConditions(resource, name)).
		Must("accept both versions of CloudEvents", func(ctx context.Context, t feature.T) {
			knconf.AcceptsCEVersions(ctx, t, resource, name)
		})
	env.Test(ctx, t, f)
}

// The source delivers as Knative's sources do.
func TestKnative_Delivery(t *testing.T) {
	t.Parallel()
	ctx, env := environmentOf(t)
	f := feature.NewFeature()
	name, sink := source(f)
	event := test.FullEvent()
	f.Requirement("send an event", eventshub.Install(feature.MakeRandomK8sName("sender"),
		eventshub.StartSenderToResource(resource, name), eventshub.InputEvent(event)))
	f.Stable(kind).Must("deliver it", func(ctx context.Context, t feature.T) {
		assert.OnStore(sink).
			Match(features.HasKnNamespaceHeader(environment.FromContext(ctx).Namespace())).
			MatchEvent(test.HasId(event.ID()), test.HasType(event.Type()), test.HasExtension("team", "platform")).
			AtLeast(1)(ctx, t)
	})
	env.Test(ctx, t, f)
}

// Event types in front of a broker.
func TestKnative_EventTypes(t *testing.T) {
	t.Parallel()
	ctx, env := environmentOf(t)
	acquaint(ctx, t)
	f := feature.NewFeature()
	name, to := feature.MakeRandomK8sName("source"), feature.MakeRandomK8sName("broker")
	f.Setup("install the broker", broker.Install(to, broker.WithEnvConfig()...))
	f.Setup("install the source", install(name, "eventing.knative.dev/v1", "Broker", to))
	f.Requirement("the source is ready", k8s.IsReady(resource, name))
	types := sets.New("dev.reschedule.due")
	f.Stable(kind).Must("have EventTypes", eventtype.WaitForEventType(
		eventtype.AssertReady(types),
		eventtype.AssertPresent(types),
		eventtype.AssertReferencePresent(broker.AsKReference(to)),
	))
	env.Test(ctx, t, f)
}

// acquaint restarts Knative's controller, as docs/install.md says for who wants
// EventTypes: it looks for the objects of a new kind of source once, and too early.
func acquaint(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, command := range []string{"restart", "status"} {
		cmd := exec.CommandContext(ctx, "kubectl", "-n", system, "rollout", command, "deployment/eventing-controller")
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, said)
		}
	}
}

// Authentication and authorization. It is not parallel, since it switches them on for all.
func TestKnative_Auth(t *testing.T) {
	ctx, env := environmentOf(t)
	authenticated(ctx, t)
	f := feature.NewFeature()
	_, sink := source(f)
	env.Test(ctx, t, f)
	env.ParallelTestSet(ctx, t, withOwnSources(sink, func(name string) *feature.FeatureSet {
		return withoutExpiry(t, oidc.AddressableOIDCConformance(resource, kind, name, env.Namespace()))
	}))
	env.ParallelTestSet(ctx, t, withOwnSources(sink, func(name string) *feature.FeatureSet {
		return authz.AddressableAuthZConformance(resource, kind, name)
	}))
}

// withOwnSources gives each feature of a set a source of its own, so that all can run at once: an
// EventPolicy of one feature says nothing of the source of another.
func withOwnSources(sink string, set func(name string) *feature.FeatureSet) *feature.FeatureSet {
	all := set("")
	for i := range all.Features {
		name := feature.MakeRandomK8sName("source")
		f := set(name).Features[i]
		f.Setup("install the source", install(name, "v1", "Service", sink))
		f.Setup("the source is ready", k8s.IsReady(resource, name))
		f.Setup("the source is addressable", k8s.IsAddressable(resource, name))
		all.Features[i] = f
	}
	return all
}

// withoutExpiry leaves out the feature that waits eleven minutes for the end of a token.
func withoutExpiry(t *testing.T, set *feature.FeatureSet) *feature.FeatureSet {
	t.Helper()
	all := len(set.Features)
	set.Features = slices.DeleteFunc(set.Features, func(f *feature.Feature) bool { return strings.Contains(f.Name, "expired") })
	if len(set.Features) != all-1 {
		t.Fatalf("%d of %d features are about tokens that have expired", all-len(set.Features), all)
	}
	return set
}
