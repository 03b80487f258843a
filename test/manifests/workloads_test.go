package manifests

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

const user int64 = 65532

func adapter(t *testing.T) appsv1.StatefulSet {
	return one[appsv1.StatefulSet](t, "StatefulSet", "reschedule-adapter")
}

func controller(t *testing.T) appsv1.Deployment {
	return one[appsv1.Deployment](t, "Deployment", "reschedule-controller")
}

// templates are the pods, by the name of what makes them.
func templates(t *testing.T) map[string]corev1.PodTemplateSpec {
	return map[string]corev1.PodTemplateSpec{
		"reschedule-adapter":    adapter(t).Spec.Template,
		"reschedule-controller": controller(t).Spec.Template,
	}
}

func container(t *testing.T, pod corev1.PodTemplateSpec, name string) corev1.Container {
	t.Helper()
	if len(pod.Spec.Containers) != 1 || pod.Spec.Containers[0].Name != name {
		t.Fatalf("containers are %+v, want one %s", pod.Spec.Containers, name)
	}
	return pod.Spec.Containers[0]
}

// The fields that the Pod Security Standard restricted looks at, and the root
// file system beyond it.
func TestPods_PassRestricted(t *testing.T) {
	t.Parallel()
	for name, pod := range templates(t) {
		spec := pod.Spec
		if spec.HostNetwork || spec.HostPID || spec.HostIPC || len(spec.InitContainers)+len(spec.EphemeralContainers) > 0 {
			t.Errorf("%s shares something with the node, or has containers that no test looks at", name)
		}
		for _, v := range spec.Volumes {
			if v.Secret == nil && v.PersistentVolumeClaim == nil {
				t.Errorf("%s: volume %s is of a kind that is not allowed", name, v.Name)
			}
		}
		sc := spec.SecurityContext
		if sc == nil || !is(sc.RunAsNonRoot, true) || !is(sc.RunAsUser, user) || len(sc.Sysctls) > 0 ||
			sc.SeccompProfile == nil || sc.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: pod security context is %+v", name, sc)
		}
		c := spec.Containers[0].SecurityContext
		if c == nil || !is(c.AllowPrivilegeEscalation, false) || !is(c.RunAsNonRoot, true) || !is(c.ReadOnlyRootFilesystem, true) ||
			c.Privileged != nil || c.ProcMount != nil || c.SELinuxOptions != nil ||
			c.SeccompProfile == nil || c.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Fatalf("%s: container security context is %+v", name, c)
		}
		if c.Capabilities == nil || !cmp.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(c.Capabilities.Add) > 0 {
			t.Errorf("%s: capabilities are %+v", name, c.Capabilities)
		}
		for _, p := range spec.Containers[0].Ports {
			if p.HostPort != 0 {
				t.Errorf("%s takes port %d of the node", name, p.HostPort)
			}
		}
	}
}

func is[T comparable](have *T, want T) bool { return have != nil && *have == want }

// Pods are kept as Knative keeps its own.
func TestPods_FollowKnative(t *testing.T) {
	t.Parallel()
	for name, pod := range templates(t) {
		c := pod.Spec.Containers[0]
		if !is(pod.Spec.EnableServiceLinks, false) {
			t.Errorf("%s gets the addresses of all Services in its environment", name)
		}
		if pod.Labels["bindings.knative.dev/exclude"] != "true" {
			t.Errorf("%s could become the subject of a SinkBinding", name)
		}
		if c.StartupProbe == nil || c.LivenessProbe == nil || c.ReadinessProbe == nil {
			t.Fatalf("%s lacks a probe", name)
		}
		var ports []string
		for _, p := range c.Ports {
			ports = append(ports, p.Name)
		}
		for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			if p.HTTPGet == nil || !slices.Contains(ports, p.HTTPGet.Port.StrVal) {
				t.Errorf("%s: probe %+v asks a port that has no name", name, p)
			}
		}
		if _, limited := c.Resources.Limits[corev1.ResourceCPU]; limited {
			t.Errorf("%s has a CPU limit: throttling makes deliveries late", name)
		}
		if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
			t.Errorf("%s: resources are %+v", name, c.Resources)
		}
		want := "ko://github.com/reschedule-dev/reschedule/cmd/" + strings.TrimPrefix(name, "reschedule-")
		if c.Image != want {
			t.Errorf("%s: image is %s, want %s", name, c.Image, want)
		}
		env := map[string]string{}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
				env[e.Name] = e.ValueFrom.FieldRef.FieldPath
			}
		}
		if env["SYSTEM_NAMESPACE"] != "metadata.namespace" || env["POD_NAME"] != "metadata.name" {
			t.Errorf("%s: environment is %v", name, env)
		}
	}
}

// The adapter is one pod, whose volume stays when the pod goes.
func TestAdapter_OnePodAndItsVolume(t *testing.T) {
	t.Parallel()
	set := adapter(t)
	if set.Spec.Replicas != nil {
		t.Errorf("replicas are %d: tools that apply the manifest again and again would undo what the controller sets", *set.Spec.Replicas)
	}
	if set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement {
		t.Errorf("pods are managed %q; this cannot be changed later, and several adapters have to start together", set.Spec.PodManagementPolicy)
	}
	if p := set.Spec.PersistentVolumeClaimRetentionPolicy; p == nil || p.WhenDeleted != appsv1.RetainPersistentVolumeClaimRetentionPolicyType || p.WhenScaled != appsv1.RetainPersistentVolumeClaimRetentionPolicyType {
		t.Errorf("claims are kept %+v, want always", p)
	}
	if len(set.Spec.VolumeClaimTemplates) != 1 {
		t.Fatalf("claims are %+v", set.Spec.VolumeClaimTemplates)
	}
	claim := set.Spec.VolumeClaimTemplates[0]
	if claim.Name != "data" || !cmp.Equal(claim.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}) || claim.Spec.Resources.Requests.Storage().String() != "10Gi" {
		t.Errorf("the claim is %+v", claim)
	}
	sc := set.Spec.Template.Spec.SecurityContext
	if !is(sc.FSGroup, user) || !is(sc.FSGroupChangePolicy, corev1.FSGroupChangeOnRootMismatch) {
		t.Errorf("the volume is of %v, looked at %v", sc.FSGroup, sc.FSGroupChangePolicy)
	}
	if !is(set.Spec.Template.Spec.TerminationGracePeriodSeconds, int64(30)) {
		t.Error("the contract's 15 s to end need a grace period above them")
	}
}

// The flags say where; the mounts and ports have to be there.
func TestPods_FlagsPortsAndMountsAgree(t *testing.T) {
	t.Parallel()
	c := container(t, adapter(t).Spec.Template, "adapter")
	want := []string{
		"--data-dir=/var/lib/reschedule", "--listen=:8080", "--tls-listen=:8443",
		"--tls-dir=/etc/reschedule/tls", "--admin-listen=:9090",
	}
	if diff := cmp.Diff(want, c.Args); diff != "" {
		t.Errorf("args (-want +got):\n%s", diff)
	}
	ports := map[string]int32{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	if diff := cmp.Diff(map[string]int32{"http": 8080, "https": 8443, "http-metrics": 9090}, ports); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	mounts := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounts[m.MountPath] = m.Name
	}
	if diff := cmp.Diff(map[string]string{"/var/lib/reschedule": "data", "/etc/reschedule/tls": "tls"}, mounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	volume := adapter(t).Spec.Template.Spec.Volumes[0]
	if volume.Name != "tls" || volume.Secret.SecretName != "reschedule-adapter-server-tls" || !is(volume.Secret.Optional, true) {
		t.Errorf("the certificate is %+v", volume)
	}
	for _, e := range c.Env {
		if e.Name == "GOMEMLIMIT" {
			soft, err := resource.ParseQuantity(strings.TrimSuffix(e.Value, "B")) // Go writes MiB, Kubernetes Mi
			if err != nil {
				t.Fatal(err)
			}
			if limit := c.Resources.Limits.Memory().Value(); soft.Value() > limit*86/100 || soft.Value() < limit*75/100 {
				t.Errorf("GOMEMLIMIT is %s of %d bytes: what Go does not count needs a seventh beside it, and the budget the rest", e.Value, limit)
			}
			return
		}
	}
	t.Error("there is no GOMEMLIMIT")
}

// Services reach their pods.
func TestServices_ReachTheirPods(t *testing.T) {
	t.Parallel()
	pods := templates(t)
	want := map[string]map[string]int32{
		"reschedule-adapter":    {"http": 80, "https": 443, "http-metrics": 9090},
		"reschedule-controller": {"http-metrics": 9090, "http-profiling": 8008},
	}
	governing := adapter(t).Spec.ServiceName
	for _, s := range all[corev1.Service](t, "Service") {
		if s.Name == governing {
			checkSelector(t, "Service", "reschedule-adapter", s.Spec.Selector, pods)
			if s.Spec.ClusterIP != corev1.ClusterIPNone || !s.Spec.PublishNotReadyAddresses || len(s.Spec.Ports) > 0 {
				t.Errorf("the governing Service is %+v", s.Spec)
			}
			governing = ""
			continue
		}
		checkSelector(t, "Service", s.Name, s.Spec.Selector, pods)
		got := map[string]int32{}
		for _, p := range s.Spec.Ports {
			got[p.Name] = p.Port
			if !slices.ContainsFunc(pods[s.Name].Spec.Containers[0].Ports, func(c corev1.ContainerPort) bool { return c.Name == p.TargetPort.StrVal }) {
				t.Errorf("Service %s: port %s goes to %s, which the pod does not have", s.Name, p.Name, p.TargetPort.String())
			}
		}
		if diff := cmp.Diff(want[s.Name], got); diff != "" {
			t.Errorf("ports of %s (-want +got):\n%s", s.Name, diff)
		}
	}
	if governing != "" {
		t.Errorf("there is no Service %s, which governs the StatefulSet", governing)
	}
}

// checkSelector wants a selector to match the pods of its name and no others.
func checkSelector(t *testing.T, kind, name string, selector map[string]string, pods map[string]corev1.PodTemplateSpec) {
	t.Helper()
	for pod, template := range pods {
		matches := len(selector) > 0 && labels.SelectorFromSet(selector).Matches(labels.Set(template.Labels))
		if matches != (pod == name) {
			t.Errorf("%s %s selects the pods of %s: %v", kind, name, pod, matches)
		}
	}
}

// Selectors match their own pods and outlive a version.
func TestSelectors_OutliveAVersion(t *testing.T) {
	t.Parallel()
	pods := templates(t)
	selectors := map[string]*metav1.LabelSelector{
		"reschedule-adapter":    adapter(t).Spec.Selector,
		"reschedule-controller": controller(t).Spec.Selector,
	}
	for name, s := range selectors {
		checkSelector(t, "workload", name, s.MatchLabels, pods)
		if _, versioned := s.MatchLabels["app.kubernetes.io/version"]; versioned {
			t.Errorf("%s selects by version: no upgrade could be applied", name)
		}
	}
	for _, p := range all[networkingv1.NetworkPolicy](t, "NetworkPolicy") {
		checkSelector(t, "NetworkPolicy", p.Name, p.Spec.PodSelector.MatchLabels, pods)
	}
}

// Callers come from everywhere and bring a token; the other ports ask for none.
func TestNetworkPolicy_OnlyTokenPorts(t *testing.T) {
	t.Parallel()
	pods := templates(t)
	want := map[string]map[string]bool{ // by port, whether everybody gets there
		"reschedule-adapter":    {"http": true, "https": true, "http-metrics": false},
		"reschedule-controller": {"http-metrics": false},
	}
	for _, p := range all[networkingv1.NetworkPolicy](t, "NetworkPolicy") {
		if !cmp.Equal(p.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
			t.Errorf("%s is about %v: sinks may be anywhere", p.Name, p.Spec.PolicyTypes)
		}
		got := map[string]bool{}
		for _, rule := range p.Spec.Ingress {
			for _, port := range rule.Ports {
				got[port.Port.StrVal] = len(rule.From) == 0
				if !slices.ContainsFunc(pods[p.Name].Spec.Containers[0].Ports, func(c corev1.ContainerPort) bool { return c.Name == port.Port.StrVal }) {
					t.Errorf("%s is about port %s, which the pod does not have", p.Name, port.Port)
				}
			}
		}
		if diff := cmp.Diff(want[p.Name], got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", p.Name, diff)
		}
		delete(want, p.Name)
	}
	if len(want) > 0 {
		t.Errorf("no policy for %v", want)
	}
}

// The budget never holds up a drain.
func TestBudget_NeverBlocksADrain(t *testing.T) {
	t.Parallel()
	budget := one[policyv1.PodDisruptionBudget](t, "PodDisruptionBudget", "reschedule-adapter")
	if budget.Spec.MinAvailable != nil || budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("the budget is %+v", budget.Spec)
	}
	checkSelector(t, "PodDisruptionBudget", budget.Name, budget.Spec.Selector.MatchLabels, templates(t))
}

// The certificate is for the names of the service.
func TestCertificate_NamesTheService(t *testing.T) {
	t.Parallel()
	for _, o := range extra(t) {
		if o.Kind != "Certificate" || o.Name != "reschedule-adapter-server-tls" {
			continue
		}
		var c struct {
			Spec struct {
				SecretName string
				DNSNames   []string `json:"dnsNames"`
			}
		}
		if err := yaml.Unmarshal(o.raw, &c); err != nil {
			t.Fatal(err)
		}
		if want := []string{"reschedule-adapter.knative-eventing.svc.cluster.local", "reschedule-adapter.knative-eventing.svc"}; !cmp.Equal(c.Spec.DNSNames, want) {
			t.Errorf("names are %v, want %v", c.Spec.DNSNames, want)
		}
		if got, want := c.Spec.SecretName, adapter(t).Spec.Template.Spec.Volumes[0].Secret.SecretName; got != want {
			t.Errorf("the secret is %s, want %s", got, want)
		}
		return
	}
	t.Error("there is no Certificate")
}

// built fails the test unless ko compiles as all scripts do: a release of other flags would be another program.
func built(t *testing.T, what string, env, flags []string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(configDir, "..", "hack", "flags.sh"))
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("\nexport %s GOFLAGS='%s'\n", strings.Join(env, " "), strings.Join(flags, " ")); !strings.Contains(string(raw), want) {
		t.Errorf("ko builds %s with %v %v, and hack/flags.sh has others", what, env, flags)
	}
}

// The images of the test cluster are compiled as all else.
func TestKo_BuildsTheClusterAlike(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join(configDir, "..", "hack", "cluster", ".ko.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var ko struct{ DefaultEnv, DefaultFlags []string }
	if err := yaml.Unmarshal(raw, &ko); err != nil {
		t.Fatal(err)
	}
	built(t, "the cluster", ko.DefaultEnv, ko.DefaultFlags)
}

// What .ko.yaml builds is what config runs, and ko stops at nothing it cannot find.
func TestKo_BuildsEveryImage(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join(configDir, "..", ".ko.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var ko struct {
		Builds []struct {
			Main  string
			Env   []string
			Flags []string
		}
	}
	if err := yaml.Unmarshal(raw, &ko); err != nil {
		t.Fatal(err)
	}
	images := map[string]bool{}
	replicated, err := os.ReadFile(filepath.Join(configDir, "replicated", "Kustomization"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range append(installed(t), object{raw: replicated}) {
		for _, m := range regexp.MustCompile(`ko://github.com/reschedule-dev/reschedule/(\S+)`).FindAllSubmatch(o.raw, -1) {
			images["./"+string(m[1])] = true
		}
	}
	for _, b := range ko.Builds {
		if !images[b.Main] {
			t.Errorf("%s is built, but runs nowhere", b.Main)
		}
		delete(images, b.Main)
		built(t, b.Main, b.Env, b.Flags)
	}
	if len(images) > 0 {
		t.Errorf("%v are not in .ko.yaml", slices.Collect(maps.Keys(images)))
	}
}
