package guard

import (
	"errors"
	"strings"
	"testing"

	"knative.dev/eventing/pkg/apis/feature"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// setSource changes the source.
func (w *env) setSource(change ...func(*v1alpha1.RescheduleSource)) {
	w.addSource(name, nil)
	o, _, _ := w.sources.GetByKey(ns + "/" + name)
	for _, c := range change {
		c(o.(*v1alpha1.RescheduleSource))
	}
}

func byRBACOnly(o *v1alpha1.RescheduleSource) { o.Spec.Access = new(v1alpha1.AccessRBAC) }

func requiringTokens(o *v1alpha1.RescheduleSource) {
	o.Spec.Ingest = &v1alpha1.RescheduleSourceIngest{Authentication: new(v1alpha1.AuthenticationRequired)}
}

// With access rbac a namespace is no key by itself.
func TestAccessRBAC_HasNoShortcut(t *testing.T) {
	t.Parallel()
	for user, says := range map[string]string{insider: "spec.access is rbac", outsider: "no service account of that namespace"} {
		w := newEnv(t)
		w.setSource(byRBACOnly)
		token := w.issue(user)
		for _, verb := range []access.Verb{access.VerbGet, access.VerbList, access.VerbCreate, access.VerbDelete} {
			if _, err := w.admit(t, token, verb); code(t, err) != schedule.CodeDenied || !strings.Contains(err.Error(), says) {
				t.Errorf("%s %s: %v", user, verb, err)
			}
		}
		w = newEnv(t)
		w.setSource(byRBACOnly)
		w.grants[user+" get"] = true
		token = w.issue(user)
		for verb, want := range map[access.Verb]schedule.Code{access.VerbGet: "", access.VerbDelete: schedule.CodeDenied} {
			if _, err := w.admit(t, token, verb); code(t, err) != want {
				t.Errorf("%s %s with RBAC: %v", user, verb, err)
			}
		}
		w.setPolicies(newPolicy("p", user))
		if _, err := w.admit(t, token, access.VerbCreate); err != nil {
			t.Errorf("%s by EventPolicy: %v", user, err)
		}
	}
}

// Events of a source with access rbac that need a token need a grant too.
func TestAccessRBAC_CountsForEvents(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"default", "allow all", "deny all"} {
		for _, user := range []string{insider, outsider} {
			for _, granted := range []bool{false, true} {
				w := newEnv(t)
				w.setSource(byRBACOnly)
				w.setFlags(modes[mode])
				w.grants[user+" create"] = granted
				if _, err := w.admit(t, w.issue(user), access.VerbIngest); (err == nil) != granted {
					t.Errorf("%s, %s, granted %t: %v", mode, user, granted, err)
				}
			}
		}
	}
	w := newEnv(t)
	w.setSource(byRBACOnly)
	if _, err := w.admit(t, "", access.VerbIngest); err != nil {
		t.Errorf("without tokens in the cluster: %v", err)
	}
}

// The flag is for all of Knative; a source can ask for more.
func TestIngest_CanRequireTokens(t *testing.T) {
	t.Parallel()
	type user struct{ name, why string }
	for _, u := range []user{{insider, "its namespace"}, {outsider, "nothing"}, {outsider, "RBAC"}, {outsider, "a policy"}, {insider, "a policy for others"}} {
		for _, mode := range []string{"off, allow same namespace", "off, deny all", "default"} {
			w := newEnv(t)
			w.setSource(requiringTokens)
			deny := strings.HasSuffix(mode, "deny all")
			switch {
			case mode == "default":
				w.setFlags(modes[mode])
			case deny:
				w.setFlags(feature.Flags{feature.AuthorizationDefaultMode: feature.AuthorizationDenyAll})
			}
			want := schedule.CodeDenied
			switch u.why {
			case "its namespace":
				if !deny {
					want = ""
				}
			case "RBAC":
				w.grants[u.name+" create"], want = true, ""
			case "a policy":
				w.setPolicies(newPolicy("p", u.name))
				want = ""
			case "a policy for others":
				w.setPolicies(newPolicy("p", "another"))
			}
			for token, want := range map[string]schedule.Code{
				"": schedule.CodeUnauthenticated, newToken(u.name): schedule.CodeUnauthenticated, w.issue(u.name): want,
			} {
				if _, err := w.admit(t, token, access.VerbIngest); code(t, err) != want {
					t.Errorf("%s, %+v, token of %d bytes: %v", mode, u, len(token), err)
				}
			}
		}
	}
	w := newEnv(t)
	w.setSource(requiringTokens)
	w.addSource("another", nil)
	if _, err := w.guard.Admit(request(t.Context(), ""), access.Request{Namespace: ns, Name: "another", Verb: access.VerbIngest}); err != nil {
		t.Errorf("a source that does not ask for more: %v", err)
	}
}

// A filter still judges each event of a sender that RBAC does not know.
func TestIngest_AppliesFiltersWithTokens(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	w.setSource(requiringTokens)
	w.setPolicies(filtered(newPolicy("p", outsider), typeIs("t")))
	judge, err := w.admit(t, w.issue(outsider), access.VerbIngest)
	if err != nil || judge == nil {
		t.Fatalf("judged %t: %v", judge != nil, err)
	}
	w.set(func() { w.down = errors.New("connection refused") })
	if _, err := w.admit(t, w.issue(outsider, claim("jti", 2)), access.VerbIngest); code(t, err) != schedule.CodeUnavailable {
		t.Errorf("an API server that is down: %v", err)
	}
	if verb := w.lastAccess.Load().ResourceAttributes.Verb; verb != "create" {
		t.Errorf("RBAC is asked about %q", verb)
	}
}
