package manifests

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

// typed decodes a built object; unknown fields are errors.
func typed[T any](t *testing.T, built any) (value T) {
	t.Helper()
	text, err := yaml.Marshal(built)
	if err == nil {
		err = yaml.UnmarshalStrict(text, &value)
	}
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// The three members of config/replicated find each other, with certificates for their names,
// on ports that only they reach; the flags of the single adapter stay.
func TestReplicated_MembersFindEachOther(t *testing.T) {
	t.Parallel()
	built := withComponent(t, "replicated")
	set, single := typed[appsv1.StatefulSet](t, built["StatefulSet/reschedule-adapter"]), adapter(t)
	if set.Annotations["sources.reschedule.dev/replicated"] != "true" || !is(set.Spec.Replicas, int32(3)) {
		t.Errorf("the controller would scale it: %v, %v", set.Annotations, set.Spec.Replicas)
	}
	if !cmp.Equal(set.Spec.VolumeClaimTemplates, single.Spec.VolumeClaimTemplates) || set.Spec.ServiceName != single.Spec.ServiceName || set.Spec.PodManagementPolicy != single.Spec.PodManagementPolicy {
		t.Error("fields differ that no StatefulSet can change")
	}
	c, before := container(t, set.Spec.Template, "adapter"), container(t, single.Spec.Template, "adapter")
	if len(c.Args) < len(before.Args) || !cmp.Equal(c.Args[:len(before.Args)], before.Args) {
		t.Fatalf("args are %v", c.Args)
	}
	var names, peers []string
	for _, ordinal := range []string{"0", "1", "2"} {
		names = append(names, set.Name+"-"+ordinal+"."+set.Spec.ServiceName)
		peers = append(peers, set.Name+"-"+ordinal+"="+set.Name+"-"+ordinal+"."+set.Spec.ServiceName+":7400")
	}
	want := []string{
		"--replicated", "--member=$(POD_NAME)", "--peers=" + strings.Join(peers, ","),
		"--peer-listen=:7400", "--forward-listen=:7401", "--peer-tls-dir=/etc/reschedule/peers",
	}
	if diff := cmp.Diff(want, c.Args[len(before.Args):]); diff != "" {
		t.Errorf("args (-want +got):\n%s", diff)
	}
	ports := map[string]int32{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	if ports["peers"] != 7400 || ports["forwarded"] != 7401 {
		t.Errorf("ports are %v", ports)
	}
	policy := typed[networkingv1.NetworkPolicy](t, built["NetworkPolicy/reschedule-adapter"])
	reached := 0
	for _, rule := range policy.Spec.Ingress {
		for _, p := range rule.Ports {
			if p.Port.StrVal != "peers" && p.Port.StrVal != "forwarded" {
				continue
			}
			reached++
			if len(rule.From) != 1 || rule.From[0].NamespaceSelector != nil || rule.From[0].IPBlock != nil || !cmp.Equal(rule.From[0].PodSelector, set.Spec.Selector) {
				t.Errorf("port %s is reached from %+v", p.Port, rule.From)
			}
		}
	}
	if reached != 2 {
		t.Errorf("members reach %d of their 2 ports", reached)
	}
	for _, o := range extra(t) {
		if o.Kind != "Certificate" || o.Name != "reschedule-adapter-peers" {
			continue
		}
		var certificate struct {
			Spec struct {
				SecretName string
				DNSNames   []string `json:"dnsNames"`
				Usages     []string
			}
		}
		if err := yaml.Unmarshal(o.raw, &certificate); err != nil {
			t.Fatal(err)
		}
		spec := certificate.Spec
		if !cmp.Equal(spec.DNSNames, names) || !slices.Contains(spec.Usages, "server auth") || !slices.Contains(spec.Usages, "client auth") {
			t.Errorf("the certificate is %+v", spec)
		}
		for _, v := range set.Spec.Template.Spec.Volumes {
			if v.Name == "peers" && v.Secret.SecretName == spec.SecretName {
				return
			}
		}
	}
	t.Error("there is no Certificate whose Secret is mounted")
}
