package resources

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

const (
	// WatchRoleName is the name of the ClusterRole with the accounts that the adapter
	// may watch and scale with.
	WatchRoleName = "reschedule-adapter-watch"
	// watchAccounts is a resource that no API serves, and watchAs its only verb. The
	// admission policy of the adapter's tokens asks for them.
	watchAccounts, watchAs = "watchaccounts", "watch-as"
	// apiAudiences and request are the same for the audiences of the API server. The policy knows
	// by itself what begins with usualAudience.
	apiAudiences, request = "apiaudiences", "request"
	usualAudience         = "https://kubernetes.default.svc"
	// maxWatchAccountBytes bounds the names in the role: the API server stores objects
	// of 1.5 MiB at most.
	maxWatchAccountBytes = 1 << 20
)

// Accounts names the accounts that the adapter may use for a source, as
// namespace:account: the accounts of spec.watch and spec.scale, and, also while the source
// is being deleted, the account of the workload that it holds. There are none for nil.
func Accounts(source *v1alpha1.RescheduleSource) (names []string) {
	if source == nil {
		return nil
	}
	if w := source.Spec.Watch; w != nil && source.DeletionTimestamp == nil {
		names = append(names, source.Namespace+":"+cmp.Or(w.ServiceAccountName, v1alpha1.DefaultWatchAccount))
	}
	if source.Spec.Scales() && source.DeletionTimestamp == nil {
		names = append(names, source.Namespace+":"+source.Spec.ScaleAccount())
	}
	if Holds(source) {
		names = append(names, source.Namespace+":"+source.Status.Scale.Held.ServiceAccountName)
	}
	return names
}

// APIAudiences are the audiences of the API server that the policy does not know by itself. They are read
// from a token that was requested without an audience.
func APIAudiences(token string) []string {
	var claims struct {
		Audiences []string `json:"aud"`
	}
	if _, rest, ok := strings.Cut(token, "."); ok {
		payload, _, _ := strings.Cut(rest, ".")
		if raw, err := base64.RawURLEncoding.DecodeString(payload); err == nil {
			_ = json.Unmarshal(raw, &claims) // what is no token of a ServiceAccount names none
		}
	}
	names := slices.DeleteFunc(claims.Audiences, func(a string) bool { return a == "" || strings.HasPrefix(strings.ToLower(a), usualAudience) })
	slices.Sort(names)
	return names
}

// WatchRules are the rules of the ClusterRole: the accounts of all sources and the
// audiences, sorted, and no rule without a name, because a rule without names grants all
// names. If the accounts are too long for one object, the namespaces take turns, and excess
// is the number of accounts that are left out.
func WatchRules(all []*v1alpha1.RescheduleSource, audiences []string) (rules []rbacv1.PolicyRule, excess int) {
	var names []string
	for _, source := range all {
		names = append(names, Accounts(source)...)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	fitting := fit(names)
	for _, r := range []struct {
		resource, verb string
		names          []string
	}{{watchAccounts, watchAs, fitting}, {apiAudiences, request, audiences}} {
		if len(r.names) > 0 {
			rules = append(rules, rbacv1.PolicyRule{
				APIGroups: []string{sources.GroupName}, Resources: []string{r.resource}, ResourceNames: r.names, Verbs: []string{r.verb},
			})
		}
	}
	return rules, len(names) - len(fitting)
}

// fit returns the sorted names that fit into the role: the first of each namespace,
// then the second of each namespace, and so on.
func fit(names []string) []string {
	turn, count := make(map[string]int, len(names)), map[string]int{}
	for _, name := range names {
		namespace, _, _ := strings.Cut(name, ":")
		turn[name] = count[namespace]
		count[namespace]++
	}
	inTurn := slices.SortedStableFunc(slices.Values(names), func(a, b string) int { return cmp.Compare(turn[a], turn[b]) })
	for i, bytes := 0, 0; i < len(inTurn); i++ {
		if bytes += len(inTurn[i]) + 3; bytes > maxWatchAccountBytes { // quotes and a comma
			inTurn = inTurn[:i]
		}
	}
	slices.Sort(inTurn)
	return inTurn
}
