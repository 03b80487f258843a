package guard

import (
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources"
)

// examples are the YAML documents of docs/security.md of a kind.
func examples(t *testing.T, kind string) []string {
	t.Helper()
	b, err := os.ReadFile("../../../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(b), -1) {
		for document := range strings.SplitSeq(block[1], "---\n") {
			if strings.Contains(document, "\nkind: "+kind+"\n") {
				found = append(found, document)
			}
		}
	}
	return found
}

func parse[T any](t *testing.T, document string) *T {
	t.Helper()
	v := new(T)
	if err := yaml.UnmarshalStrict([]byte(document), v); err != nil {
		t.Fatal(err)
	}
	return v
}

// The documented volume is for the audience of the source.
func TestDocs_VolumeIsForTheAudience(t *testing.T) {
	t.Parallel()
	pods := examples(t, "Pod")
	if len(pods) != 1 {
		t.Fatalf("%d examples", len(pods))
	}
	got := parse[corev1.Pod](t, pods[0]).Spec.Volumes[0].Projected.Sources[0].ServiceAccountToken.Audience
	if want := audience(ns, name); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// The documented policies do what the page says.
func TestDocs_PoliciesDoWhatTheyPromise(t *testing.T) {
	t.Parallel()
	ps := examples(t, "EventPolicy")
	if len(ps) != 2 {
		t.Fatalf("%d examples", len(ps))
	}
	for i, user := range []string{"system:serviceaccount:team-a:operator", "system:serviceaccount:team-b:watcher"} {
		w := newEnv(t)
		w.setFlags(modes["deny all"])
		w.addSource(name, map[string]string{"tier": "gold"})
		p := parse[theirPolicy](t, ps[i])
		p.Status = newPolicy("", *p.Spec.From[0].Sub).Status
		w.setPolicies(p)
		_, err := w.admit(t, w.issue(user), access.VerbCreate)
		if want := []schedule.Code{"", schedule.CodeDenied}[i]; code(t, err) != want {
			t.Errorf("%s, create: %v", p.Name, err)
		}
		if _, err := w.admit(t, w.issue(user), access.VerbDelete); code(t, err) != schedule.CodeDenied {
			t.Errorf("%s, delete: %v", p.Name, err)
		}
		judge, err := w.admit(t, w.issue(user), access.VerbIngest)
		if err != nil || (judge != nil) != (i == 1) || judge != nil && judge(commit) != nil {
			t.Errorf("%s, events: %v", p.Name, err)
		}
		if _, err := w.admit(t, w.issue("system:serviceaccount:team-c:operator"), access.VerbIngest); code(t, err) != schedule.CodeDenied {
			t.Errorf("%s, another user: %v", p.Name, err)
		}
	}
}

// The documented role grants what RBAC is asked.
func TestDocs_RoleGrantsWhatRBACIsAsked(t *testing.T) {
	t.Parallel()
	roles := examples(t, "Role")
	if len(roles) != 1 {
		t.Fatalf("%d examples", len(roles))
	}
	rule := parse[rbac.Role](t, roles[0]).Rules[0]
	if rule.APIGroups[0] != sources.GroupName || rule.Resources[0] != sourcesResource+"/"+rbacSubresource || rule.ResourceNames[0] != name {
		t.Errorf("%+v", rule)
	}
}
