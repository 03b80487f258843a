package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// AggregateRoles fills the rules of aggregated ClusterRoles in, as the
// controller manager would: also of admin, edit and view. It must be called
// after roles were applied.
func (s *Server) AggregateRoles(ctx context.Context) error {
	// Aggregated roles are aggregated again (edit in admin), so until nothing
	// changes; the deepest is three.
	for range 5 {
		changed, err := s.aggregateOnce(ctx)
		if err != nil {
			return fmt.Errorf("kube: aggregating roles: %w", err)
		}
		if !changed {
			return nil
		}
	}
	return fmt.Errorf("kube: aggregating roles: no end to it")
}

func (s *Server) aggregateOnce(ctx context.Context) (changed bool, err error) {
	roles := s.Client.RbacV1().ClusterRoles()
	list, err := roles.List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	slices.SortFunc(list.Items, func(a, b rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
	for _, role := range list.Items {
		if role.AggregationRule == nil {
			continue
		}
		rules, err := aggregated(&role, list.Items)
		if err != nil {
			return false, err
		}
		if equality.Semantic.DeepEqual(rules, role.Rules) {
			continue
		}
		role.Rules = rules
		if _, err := roles.Update(ctx, &role, metav1.UpdateOptions{}); err != nil {
			return false, err
		}
		changed = true
	}
	return changed, nil
}

// aggregated is the sum of the roles that a role selects, each rule once.
func aggregated(role *rbacv1.ClusterRole, all []rbacv1.ClusterRole) ([]rbacv1.PolicyRule, error) {
	var rules []rbacv1.PolicyRule
	for _, s := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", role.Name, err)
		}
		for _, other := range all {
			if other.Name == role.Name || !selector.Matches(labels.Set(other.Labels)) {
				continue
			}
			for _, rule := range other.Rules {
				if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules, nil
}
