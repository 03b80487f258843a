package resources

import (
	"cmp"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

const (
	// WatchRoleName is the name of the ClusterRole with the accounts that the adapter
	// may watch with.
	WatchRoleName = "reschedule-adapter-watch"
	// watchAccounts is a resource that no API serves, and watchAs its only verb. The
	// admission policy of the adapter's tokens asks for them.
	watchAccounts, watchAs = "watchaccounts", "watch-as"
	// maxWatchAccountBytes bounds the names in the role: the API server stores objects
	// of 1.5 MiB at most.
	maxWatchAccountBytes = 1 << 20
)

// WatchAccount names the account that a source watches with, as namespace:account.
// It is empty for nil, and for a source that does not watch or is being deleted.
func WatchAccount(source *v1alpha1.RescheduleSource) string {
	if source == nil || source.Spec.Watch == nil || source.DeletionTimestamp != nil {
		return ""
	}
	return source.Namespace + ":" + cmp.Or(source.Spec.Watch.ServiceAccountName, v1alpha1.DefaultWatchAccount)
}

// WatchRules are the rules of the ClusterRole: the accounts of all sources, sorted,
// and no rule without an account, because a rule without names grants all names. If
// the names are too long for one object, the namespaces take turns, and excess is the
// number of accounts that are left out.
func WatchRules(all []*v1alpha1.RescheduleSource) (rules []rbacv1.PolicyRule, excess int) {
	var names []string
	for _, source := range all {
		if name := WatchAccount(source); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	fitting := fit(names)
	if len(fitting) == 0 {
		return nil, len(names)
	}
	return []rbacv1.PolicyRule{{
		APIGroups: []string{sources.GroupName}, Resources: []string{watchAccounts}, ResourceNames: fitting, Verbs: []string{watchAs},
	}}, len(names) - len(fitting)
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
