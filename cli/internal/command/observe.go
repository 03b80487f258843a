package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// workloads are the short forms of workloads.
var workloads = map[string]workloadRef{
	"deployment": {APIVersion: "apps/v1", Kind: "Deployment"}, "deploy": {APIVersion: "apps/v1", Kind: "Deployment"},
	"statefulset": {APIVersion: "apps/v1", Kind: "StatefulSet"}, "sts": {APIVersion: "apps/v1", Kind: "StatefulSet"},
}

// parseWorkload reads deployment/NAME, statefulset/NAME or GROUP/VERSION/KIND/NAME.
func parseWorkload(text string) (workloadRef, error) {
	parts := strings.Split(text, "/")
	if slices.Contains(parts, "") {
		return workloadRef{}, fmt.Errorf("%q is not deployment/NAME, statefulset/NAME or GROUP/VERSION/KIND/NAME", text)
	}
	switch ref, short := workloads[strings.ToLower(parts[0])]; {
	case len(parts) == 2 && short:
		ref.Name = parts[1]
		return ref, nil
	case len(parts) == 4:
		return workloadRef{APIVersion: parts[0] + "/" + parts[1], Kind: parts[2], Name: parts[3]}, nil
	}
	return workloadRef{}, fmt.Errorf("%q is not deployment/NAME, statefulset/NAME or GROUP/VERSION/KIND/NAME", text)
}

func (r workloadRef) object() map[string]any {
	return map[string]any{"apiVersion": r.APIVersion, "kind": r.Kind, "name": r.Name}
}

func subresource(name string) bool { return strings.Contains(name, "/") }

// maxKinds is how many kinds a source may watch.
const maxKinds = 32

// neverWatched are resources that every operator writes all the time for itself.
var neverWatched = map[schema.GroupResource]bool{
	{Group: "coordination.k8s.io", Resource: "leases"}: true, {Resource: "events"}: true, {Group: "events.k8s.io", Resource: "events"}: true,
}

// inspector reads workloads, and what their accounts may do.
type inspector struct{ *session }

// observed makes the parts of a source that observes a workload as it runs today, and returns what is not known.
func (s inspector) observed(ctx context.Context, o *unstructured.Unstructured, ref workloadRef, sinkGiven bool) (unknown []string, err error) {
	target, err := s.workloadOf(ctx, s.namespace, ref)
	if err != nil {
		return nil, err
	}
	account, _, _ := unstructured.NestedString(target.Object, "spec", "template", "spec", "serviceAccountName")
	account = cmp.Or(account, "default")
	rights, unknown, err := s.rightsOf(ctx, account)
	if err != nil {
		return nil, err
	}
	kinds, selector, more, err := s.kindsOf(rights)
	if err != nil {
		return nil, err
	}
	unknown = append(unknown, more...)
	if len(kinds) == 0 {
		return nil, fmt.Errorf("ServiceAccount %s of %s %s may list and watch no kind that can be named%s", account, ref.Kind, ref.Name, because(unknown))
	}
	spec := map[string]any{
		"scale": map[string]any{"targetRef": ref.object(), "mode": "Observe"},
		"watch": map[string]any{"serviceAccountName": account, "resources": kinds},
		// An operator that runs as it does today answers no event: a failed delivery is not repeated or kept.
		"delivery":    map[string]any{"retry": int64(0)},
		"deadLetters": map[string]any{"keep": int64(0)},
	}
	if selector != nil {
		spec["watch"].(map[string]any)["namespaceSelector"] = selector
	}
	if !sinkGiven {
		service, err := s.serviceOf(ctx, target)
		if err != nil {
			return nil, err
		}
		spec["sink"] = map[string]any{"ref": map[string]any{"apiVersion": "v1", "kind": "Service", "name": service}}
	}
	o.Object["spec"] = spec
	return append(unknown,
		"Timers inside of the workload are not seen: set --max-interval to its resync period.",
		"Each kind wakes by its own name. For kinds that belong to others, add owner (docs/reschedulesource.md), or a change of them counts as a start of its own."), nil
}

func because(unknown []string) string {
	if len(unknown) == 0 {
		return ""
	}
	return ": " + strings.Join(unknown, " ")
}

// serviceOf is the one Service in front of the workload's pods.
func (s inspector) serviceOf(ctx context.Context, target *unstructured.Unstructured) (string, error) {
	of, _, _ := unstructured.NestedStringMap(target.Object, "spec", "template", "metadata", "labels")
	list, err := s.api.Resource(schema.GroupVersionResource{Version: "v1", Resource: "services"}).Namespace(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	var found []string
	for i := range list.Items {
		selector, _, _ := unstructured.NestedStringMap(list.Items[i].Object, "spec", "selector")
		if len(selector) > 0 && contains(of, selector) {
			found = append(found, list.Items[i].GetName())
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", usage("no Service selects the pods of %s %s: give --sink, such as http://HOST/PATH, that takes a POST for each key that is due", target.GetKind(), target.GetName())
	}
	return "", usage("%d Services select the pods of %s %s (%s): give one as --sink svc:NAME", len(found), target.GetKind(), target.GetName(), strings.Join(found, ", "))
}

func contains(all, some map[string]string) bool {
	for name, value := range some {
		if all[name] != value {
			return false
		}
	}
	return true
}

// rights are the namespaces in which an account may list and watch, by resource; "" is everywhere.
type rights map[schema.GroupResource]map[string]bool

// rightsOf reads what the account may list and watch from the Roles that are bound to it.
func (s inspector) rightsOf(ctx context.Context, account string) (rights, []string, error) {
	verbs := map[string]rights{"list": {}, "watch": {}}
	var unknown []string
	grant := func(namespace string, rules []rbacv1.PolicyRule, role string) {
		for _, r := range rules {
			if len(r.ResourceNames) > 0 {
				continue // a list needs more
			}
			for verb, granted := range verbs {
				if !slices.Contains(r.Verbs, verb) && !slices.Contains(r.Verbs, "*") {
					continue
				}
				if slices.Contains(r.APIGroups, "*") || slices.Contains(r.Resources, "*") {
					unknown = append(unknown, fmt.Sprintf("%s allows * (groups %s, resources %s), which names no kind.", role, strings.Join(r.APIGroups, ","), strings.Join(r.Resources, ",")))
					continue
				}
				for _, group := range r.APIGroups {
					for _, name := range r.Resources {
						gr := schema.GroupResource{Group: group, Resource: name}
						if granted[gr] == nil {
							granted[gr] = map[string]bool{}
						}
						granted[gr][namespace] = true
					}
				}
			}
		}
	}
	isBound := func(subjects []rbacv1.Subject, in string) bool {
		return slices.ContainsFunc(subjects, func(b rbacv1.Subject) bool {
			return b.Kind == rbacv1.ServiceAccountKind && b.Name == account && cmp.Or(b.Namespace, in) == s.namespace ||
				b.Kind == rbacv1.GroupKind && slices.Contains([]string{"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:" + s.namespace}, b.Name)
		})
	}
	everywhere, err := listed[rbacv1.ClusterRoleBinding](ctx, s.session, "clusterrolebindings", "")
	if err != nil {
		return nil, nil, fmt.Errorf("reading which roles are bound to ServiceAccount %s: %w", account, err)
	}
	bindings, err := listed[rbacv1.RoleBinding](ctx, s.session, "rolebindings", "")
	if apierrors.IsForbidden(err) {
		unknown = append(unknown, "You may not list the RoleBindings of other namespaces: rights there are not known.")
		bindings, err = listed[rbacv1.RoleBinding](ctx, s.session, "rolebindings", s.namespace)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading which roles are bound to ServiceAccount %s: %w", account, err)
	}
	type bound struct {
		namespace string
		ref       rbacv1.RoleRef
	}
	var all []bound
	for _, b := range everywhere {
		if isBound(b.Subjects, "") {
			all = append(all, bound{"", b.RoleRef})
		}
	}
	for _, b := range bindings {
		if isBound(b.Subjects, b.Namespace) {
			all = append(all, bound{b.Namespace, b.RoleRef})
		}
	}
	for _, b := range all {
		role, in := "roles", b.namespace
		if b.ref.Kind == "ClusterRole" {
			role, in = "clusterroles", ""
		}
		raw, err := s.api.Resource(rbacv1.SchemeGroupVersion.WithResource(role)).Namespace(in).Get(ctx, b.ref.Name, metav1.GetOptions{})
		if err != nil {
			unknown = append(unknown, fmt.Sprintf("%s %s cannot be read: %s.", b.ref.Kind, b.ref.Name, words(err)))
			continue
		}
		var read rbacv1.ClusterRole
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, &read); err != nil {
			return nil, nil, err
		}
		grant(b.namespace, read.Rules, b.ref.Kind+" "+b.ref.Name)
	}
	both := rights{}
	for gr, namespaces := range verbs["list"] {
		for in := range namespaces {
			if watched := verbs["watch"][gr]; watched[in] || watched[""] {
				if both[gr] == nil {
					both[gr] = map[string]bool{}
				}
				both[gr][in] = true
			}
		}
	}
	slices.Sort(unknown)
	return both, slices.Compact(unknown), nil
}

func listed[T any](ctx context.Context, s *session, name, namespace string) (all []T, err error) {
	list, err := s.api.Resource(rbacv1.SchemeGroupVersion.WithResource(name)).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		var item T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &item); err != nil {
			return nil, err
		}
		all = append(all, item)
	}
	return all, nil
}

// kindsOf finds the kinds of the resources, and the namespaces in which all of them may be watched.
func (s inspector) kindsOf(r rights) (kinds []any, selector map[string]any, unknown []string, err error) {
	client, err := discovery.NewDiscoveryClientForConfig(s.config)
	if err != nil {
		return nil, nil, nil, err
	}
	lists, err := client.ServerPreferredResources()
	if len(lists) == 0 && err != nil {
		return nil, nil, nil, fmt.Errorf("reading the kinds of the API server: %w", err)
	}
	if failed := (*discovery.ErrGroupDiscoveryFailed)(nil); errors.As(err, &failed) {
		unknown = append(unknown, "Some groups of the API server do not answer, and their kinds are not known.")
	}
	type kind struct{ apiVersion, kind string }
	known := map[schema.GroupResource]kind{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, one := range list.APIResources {
			if !subresource(one.Name) && slices.Contains(one.Verbs, "watch") {
				known[gv.WithResource(one.Name).GroupResource()] = kind{list.GroupVersion, one.Kind}
			}
		}
	}
	byName := func(a, b schema.GroupResource) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
	}
	everywhere := slices.ContainsFunc(slices.Collect(maps.Values(r)), func(in map[string]bool) bool { return in[""] })
	namespaces := map[string]bool{}
	for _, gr := range slices.SortedFunc(maps.Keys(r), byName) {
		of, ok := known[gr]
		switch {
		case subresource(gr.Resource):
			continue
		case neverWatched[gr]:
			unknown = append(unknown, fmt.Sprintf("%s is left out: operators write it for themselves.", gr))
			continue
		case !ok:
			unknown = append(unknown, fmt.Sprintf("%s is left out: the API server has no such kind now.", gr))
			continue
		case everywhere && !r[gr][""]:
			unknown = append(unknown, fmt.Sprintf("%s is left out: it may be watched in namespaces %s only, and others everywhere. Make a second source for it.",
				gr, strings.Join(slices.Sorted(maps.Keys(r[gr])), ", ")))
			continue
		case len(kinds) == maxKinds:
			unknown = append(unknown, fmt.Sprintf("%s is left out: a source watches %d kinds at most.", gr, maxKinds))
			continue
		}
		maps.Copy(namespaces, r[gr])
		kinds = append(kinds, map[string]any{"apiVersion": of.apiVersion, "kind": of.kind})
	}
	switch {
	case everywhere:
		return kinds, map[string]any{}, unknown, nil
	case len(kinds) == 0, len(namespaces) == 1 && namespaces[s.namespace]:
		return kinds, nil, unknown, nil
	}
	var names []any
	for _, name := range slices.Sorted(maps.Keys(namespaces)) {
		names = append(names, name)
	}
	unknown = append(unknown, "The account has to list and watch namespaces too, to follow the named ones.")
	return kinds, map[string]any{"matchExpressions": []any{map[string]any{"key": "kubernetes.io/metadata.name", "operator": "In", "values": names}}}, unknown, nil
}
