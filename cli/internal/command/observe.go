package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/reschedule-dev/reschedule/pkg/printable"
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

// observation is what is found about a workload, and what is written for it besides the source.
type observation struct {
	unknown, notes []string
	services       []string // that select its pods
	callers        []string // as the API server calls them
	rights         []*unstructured.Unstructured
}

func (seen *observation) note(format string, args ...any) {
	seen.notes = append(seen.notes, fmt.Sprintf(format, args...))
}

func (seen *observation) cannotKnow(format string, args ...any) {
	seen.unknown = append(seen.unknown, fmt.Sprintf(format, args...))
}

// print says what was found.
func (seen *observation) print(w io.Writer) {
	for _, text := range seen.unknown {
		fmt.Fprintln(w, "Not known: "+printable.Line(text))
	}
	for _, text := range seen.notes {
		fmt.Fprintln(w, "Note: "+printable.Line(text))
	}
}

// admitCallers refuses a workload that the API server calls.
func (seen *observation) admitCallers(ref workloadRef, force bool) error {
	if len(seen.callers) == 0 {
		return nil
	}
	what := fmt.Sprintf("%s %s answers the API server, which cannot call it while it sleeps (failurePolicy Fail blocks writes, a conversion and an APIService "+
		"block all use of their kinds): %s", ref.Kind, ref.Name, strings.Join(seen.callers, "; "))
	if !force {
		return usage("%s. With --force it may sleep nevertheless", what)
	}
	seen.note("%s.", what)
	return nil
}

// observed makes the spec of a source that observes a workload as it runs today. value is of a flag of the
// command; "": it is not set. The account is the workload's own, whose token its pods have, or --scale-service-account.
func (s inspector) observed(ctx context.Context, o *unstructured.Unstructured, ref workloadRef, value func(flag string) string) (*observation, error) {
	given := func(flag string) bool { return value(flag) != "" }
	resource, err := s.resourceOf(ref)
	if err != nil {
		return nil, err
	}
	target, err := s.api.Resource(resource).Namespace(s.namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	account, _, _ := unstructured.NestedString(target.Object, "spec", "template", "spec", "serviceAccountName")
	account = cmp.Or(account, "default")
	own, unknown, err := s.rightsOf(ctx, account)
	if err != nil {
		return nil, err
	}
	rights := own
	if other := value("scale-service-account"); other != "" && other != account {
		account = other
		if rights, unknown, err = s.rightsOf(ctx, account); err != nil {
			return nil, err
		}
	}
	if rights.all {
		return nil, usage("ServiceAccount %s may do everything, and the adapter uses the token of no such account. Make a ServiceAccount that may list and watch "+
			"what %s %s works on, and give it with --scale-service-account", account, ref.Kind, ref.Name)
	}
	seen := &observation{unknown: unknown}
	if err := s.callers(ctx, target, seen); err != nil {
		return nil, err
	}
	if err := seen.admitCallers(ref, given("force")); err != nil {
		return nil, err
	}
	var each entry = plainEntry
	if !given("sink") {
		each = anyChange(s.namespace, seen.services)
	}
	kinds, selector, more, err := s.kindsOf(rights.watched, each)
	if err != nil {
		return nil, err
	}
	seen.unknown = append(seen.unknown, more...)
	if len(kinds) == 0 {
		return nil, fmt.Errorf("ServiceAccount %s of %s %s may list and watch no kind that can be named%s", account, ref.Kind, ref.Name, because(seen.unknown))
	}
	scale := map[string]any{"targetRef": ref.object(), "mode": "Observe"}
	spec := map[string]any{"scale": scale, "watch": map[string]any{"serviceAccountName": account, "resources": kinds}}
	if selector != nil {
		spec["watch"].(map[string]any)["namespaceSelector"] = selector
	}
	if n, _, _ := unstructured.NestedInt64(target.Object, "spec", "replicas"); n > 1 {
		scale["replicas"] = n
	}
	if given("sink") {
		// An operator that runs as it does today answers no event: a failed delivery is not repeated or kept.
		spec["delivery"], spec["deadLetters"] = map[string]any{"retry": int64(0)}, map[string]any{"keep": int64(0)}
		seen.note("Each kind wakes by its own name. For kinds that belong to others, add owner (docs/reschedulesource.md), or a change of them counts as a start of its own.")
		seen.note("Timers inside of the workload are not seen: set --max-interval to its resync period.")
	} else {
		lease := time.Duration(0)
		if own.leases {
			lease = s.leaseOf(ctx, ref.Name)
		}
		seen.sleeps(target, scale, account, lease, given)
		seen.note("Each object of a kind that the account may watch wakes the workload, also one that it does not look at: key watch shows which do. " +
			"A selector in spec.watch.resources narrows them.")
		if slices.ContainsFunc(kinds, func(k any) bool { return k.(map[string]any)["key"] != nil }) {
			seen.note("What its own start and end change wakes nothing: the endpoints of its Services, and the ResourceQuotas and PodDisruptionBudgets of its namespace.")
		}
	}
	if account == "default" {
		seen.note("ServiceAccount default is the account of every pod of the namespace that names no other: all of them get the rights of Role %s-scaler.", o.GetName())
	}
	o.Object["spec"] = spec
	seen.rights, err = scalerOf(o, resource.GroupResource(), ref.Name, account)
	return seen, err
}

// defaultLease is how long the Lease of controller-runtime lasts, and leaseMargin what a start takes besides.
const defaultLease, leaseMargin = 15 * time.Second, 15 * time.Second

// sleeps finds out when a workload without a sink works, and says what is lost while it sleeps.
func (seen *observation) sleeps(target *unstructured.Unstructured, scale map[string]any, account string, lease time.Duration, given func(flag string) bool) {
	found := findMetrics(target)
	busy := found.port != 0 || given("scale-busy-port")
	switch {
	case given("scale-busy-port"):
	case found.port == 0:
		seen.cannotKnow("Where the workload serves metrics: %s. So it stays awake for cooldown after the last change: set --scale-cooldown longer than its longest work, or --scale-busy-port.", found.from)
	default:
		at := map[string]any{"port": found.port}
		if found.path != "" {
			at["path"] = found.path
		}
		scale["busy"] = at
		seen.note("Its metrics on port %d (%s) say when it works.", found.port, found.from)
		if found.secure {
			seen.note("Port %d may ask for a token. Then ServiceAccount %s needs get on the nonResourceURL /metrics: a ClusterRole with that rule, and a ClusterRoleBinding.", found.port, account)
		}
	}
	seen.elects(target, scale, account, cmp.Or(lease, defaultLease), lease > 0, busy || given("scale-cooldown"))
	if !given("max-interval") {
		finds := "Without scale.busy nothing finds them: look in its documentation."
		if busy {
			finds = "After an hour savings says whether it has some."
		}
		seen.note("Timers inside of the workload (RequeueAfter, resync, cron) are not seen, and none fires while it sleeps: --max-interval wakes it. %s", finds)
	}
}

// elects says what leader election costs. Where only silence says that the workload is idle, the cooldown
// is longer than the wait: else it would be put to sleep before it has begun, at each start, if it was killed once.
func (seen *observation) elects(target *unstructured.Unstructured, scale map[string]any, account string, lease time.Duration, leases, isLong bool) {
	e := findElection(target)
	if e.flag != "" && !e.on || e.flag == "" && !leases {
		return
	}
	cost := fmt.Sprintf("A start may then wait %s for the Lease of the pod before, unless the workload releases it at its end (controller-runtime: LeaderElectionReleaseOnCancel), "+
		"and always after its pod was killed.", lease)
	if !isLong {
		cooldown := (2*lease + leaseMargin).String() // the wait, and as long until it has listed and asks again
		scale["cooldown"] = cooldown
		cost += " So cooldown is " + cooldown + ": with less than that wait a workload that was killed once never works again."
	}
	if e.flag == "" {
		seen.cannotKnow("Whether leader election is on: no argument says so, but ServiceAccount %s may write Leases. %s", account, cost)
		return
	}
	seen.note("Leader election is on. %s With one replica it is not needed: %s=false switches it off.", cost, e.flag)
}

// leaseOf is the longest duration of a Lease that a pod of the workload holds, or the default.
func (s inspector) leaseOf(ctx context.Context, workload string) time.Duration {
	leases := coordinationv1.SchemeGroupVersion.WithResource("leases")
	all, err := listed[coordinationv1.Lease](ctx, s.session, leases, "")
	if err != nil {
		all, _ = listed[coordinationv1.Lease](ctx, s.session, leases, s.namespace) // none: the default
	}
	longest := defaultLease
	for _, l := range all {
		if holder, seconds := l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds; holder != nil && seconds != nil && strings.HasPrefix(*holder, workload+"-") {
			longest = max(longest, time.Duration(*seconds)*time.Second)
		}
	}
	return longest
}

// entry makes the entry of a kind in spec.watch.resources.
type entry func(gr schema.GroupResource, apiVersion, kind string) map[string]any

func plainEntry(_ schema.GroupResource, apiVersion, kind string) map[string]any {
	return map[string]any{"apiVersion": apiVersion, "kind": kind}
}

// anyChange makes the entries of a source without a sink.
//
// Any change wakes. The default, Metadata, would lose what others write into a status, such as the artifact of
// Flux's GitRepository or the readiness of a Deployment. What the workload writes itself, it writes while it is
// awake: that makes it stay awake for another cooldown, and starts nothing. The adapter leaves out the workload and
// its pods, which its start and its end change. What else counts its pods is left out here: it would never sleep.
func anyChange(namespace string, services []string) entry {
	names := make([]string, len(services))
	for i, name := range services {
		names[i] = "'" + name + "'"
	}
	own := " in [" + strings.Join(names, ", ") + "]"
	return func(gr schema.GroupResource, apiVersion, kind string) map[string]any {
		e := plainEntry(gr, apiVersion, kind)
		e["changes"] = "Any"
		is := fmt.Sprintf("object.metadata.namespace == '%s'", namespace)
		switch gr {
		case schema.GroupResource{Resource: "endpoints"}:
			is += " && object.metadata.name" + own
		case schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}:
			is += " && has(object.metadata.labels) && 'kubernetes.io/service-name' in object.metadata.labels && object.metadata.labels['kubernetes.io/service-name']" + own
		case schema.GroupResource{Resource: "resourcequotas"}, schema.GroupResource{Group: "policy", Resource: "poddisruptionbudgets"}:
		default:
			return e
		}
		e["key"] = fmt.Sprintf("%s ? '' : '%s/' + object.metadata.namespace + '/' + object.metadata.name", is, kind)
		return e
	}
}

func because(unknown []string) string {
	if len(unknown) == 0 {
		return ""
	}
	return ": " + strings.Join(unknown, " ")
}

// namespaces are those in which an account may do something, by resource; "" is everywhere.
type namespaces map[schema.GroupResource]map[string]bool

// rights are what an account may do.
type rights struct {
	watched namespaces // to list and watch
	leases  bool       // it may write Leases
	all     bool       // it may do everything
}

// rightsOf reads what the account may do from the Roles that are bound to it.
func (s inspector) rightsOf(ctx context.Context, account string) (may rights, unknown []string, err error) {
	verbs := map[string]namespaces{"list": {}, "watch": {}}
	grant := func(namespace string, rules []rbacv1.PolicyRule, role string) {
		for _, r := range rules {
			may.leases = may.leases || writesLeases(&r)
			may.all = may.all || namespace == "" && slices.Contains(r.Verbs, "*") && slices.Contains(r.APIGroups, "*") && slices.Contains(r.Resources, "*")
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
	everywhere, err := listed[rbacv1.ClusterRoleBinding](ctx, s.session, rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings"), "")
	if err != nil {
		return may, nil, fmt.Errorf("reading which roles are bound to ServiceAccount %s: %w", account, err)
	}
	bindings, err := listed[rbacv1.RoleBinding](ctx, s.session, rbacv1.SchemeGroupVersion.WithResource("rolebindings"), "")
	if apierrors.IsForbidden(err) {
		unknown = append(unknown, "You may not list the RoleBindings of other namespaces: rights there are not known.")
		bindings, err = listed[rbacv1.RoleBinding](ctx, s.session, rbacv1.SchemeGroupVersion.WithResource("rolebindings"), s.namespace)
	}
	if err != nil {
		return may, nil, fmt.Errorf("reading which roles are bound to ServiceAccount %s: %w", account, err)
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
			return may, nil, err
		}
		grant(b.namespace, read.Rules, b.ref.Kind+" "+b.ref.Name)
	}
	both := namespaces{}
	for gr, all := range verbs["list"] {
		for in := range all {
			if watched := verbs["watch"][gr]; watched[in] || watched[""] {
				if both[gr] == nil {
					both[gr] = map[string]bool{}
				}
				both[gr][in] = true
			}
		}
	}
	may.watched = both
	slices.Sort(unknown)
	return may, slices.Compact(unknown), nil
}

// writesLeases reports whether a rule lets an account take part in a leader election.
func writesLeases(r *rbacv1.PolicyRule) bool {
	has := func(all []string, some ...string) bool {
		return slices.ContainsFunc(all, func(one string) bool { return one == "*" || slices.Contains(some, one) })
	}
	return has(r.APIGroups, "coordination.k8s.io") && has(r.Resources, "leases") && has(r.Verbs, "create", "update", "patch")
}

func listed[T any](ctx context.Context, s *session, resource schema.GroupVersionResource, namespace string) (all []T, err error) {
	list, err := s.api.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
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

// kindsOf finds the kinds of the resources, each with its entry in spec.watch.resources, and the namespaces in which
// all of them may be watched.
func (s inspector) kindsOf(r namespaces, each entry) (kinds []any, selector map[string]any, unknown []string, err error) {
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
	in := map[string]bool{}
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
		maps.Copy(in, r[gr])
		kinds = append(kinds, each(gr, of.apiVersion, of.kind))
	}
	switch {
	case everywhere:
		return kinds, map[string]any{}, unknown, nil
	case len(kinds) == 0, len(in) == 1 && in[s.namespace]:
		return kinds, nil, unknown, nil
	}
	var names []any
	for _, name := range slices.Sorted(maps.Keys(in)) {
		names = append(names, name)
	}
	unknown = append(unknown, "The account has to list and watch namespaces too, to follow the named ones.")
	return kinds, map[string]any{"matchExpressions": []any{map[string]any{"key": "kubernetes.io/metadata.name", "operator": "In", "values": names}}}, unknown, nil
}
