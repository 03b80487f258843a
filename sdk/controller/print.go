package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/yaml"
)

// printVariable makes Start print the source and end, instead of serving events.
const printVariable = "RESCHEDULE_PRINT_SOURCE"

// PrintSource writes the RescheduleSource of an operator, with the ServiceAccount and the
// role of its watches, as YAML. What is watched is read from what the controllers of the
// manager declare: For, Owns, Watches, the predicates of controller-runtime, and the
// selectors and namespaces of the manager's cache. Where a line cannot be known a comment
// says so. Call it when all controllers are set up. The source has the name of the
// operator's Knative Service.
//
// The environment variable RESCHEDULE_PRINT_SOURCE=NAMESPACE/NAME makes Start do the same
// on the standard output, and end.
func PrintSource(mgr ctrl.Manager, w io.Writer, source types.NamespacedName) error {
	m, ok := mgr.(*manager)
	if !ok {
		return fmt.Errorf("controller: PrintSource needs a manager of NewManager, this is a %T", mgr)
	}
	if source.Namespace == "" || source.Name == "" {
		return fmt.Errorf("controller: PrintSource needs the namespace and the name of the source, this is %q", source)
	}
	if err := m.readKinds(); err != nil {
		return err
	}
	d := &declared{manager: m, source: source}
	for _, a := range m.adopted {
		if err := d.add(a); err != nil {
			return err
		}
	}
	if len(d.resources) == 0 {
		return errors.New("controller: PrintSource: no controller watches anything that a source can watch")
	}
	_, err := io.WriteString(w, d.yaml())
	return err
}

// printed prints the source if the environment asks for it.
func (m *manager) printed() (bool, error) {
	value, ok := os.LookupEnv(printVariable)
	if !ok {
		return false, nil
	}
	namespace, name, _ := strings.Cut(value, "/")
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return true, fmt.Errorf("controller: %s: %q is not NAMESPACE/NAME", printVariable, value)
	}
	return true, PrintSource(m, os.Stdout, types.NamespacedName{Namespace: namespace, Name: name})
}

// declared is what the controllers of a manager watch.
type declared struct {
	*manager
	source     types.NamespacedName
	resources  []*declaredResource
	namespaces map[string]bool // of objects that have one; nil: no such kind yet
	all        bool            // of all namespaces
	elsewhere  bool            // so are watches of another cache than the manager's
	notes      []string
}

// declaredResource is an entry of spec.watch.resources.
type declaredResource struct {
	kind
	plural    string
	clustered bool
	elsewhere bool // its cache is not the manager's
	owner     kind // zero: none
	selector  string
	changes   changes
	notes     []string
}

// changes are the changes that count. Each kind includes the kinds before it.
type changes int

const (
	changesSpec changes = iota
	changesMetadata
	changesAny
)

func (c changes) String() string { return [...]string{"Spec", "Metadata", "Any"}[c] }

// add adds the watches of a controller.
func (d *declared) add(a *adopted) error {
	watches, others := a.sources()
	for _, t := range others {
		d.note("controller %s: a %s is no watch of objects, so a source cannot take its place", a.queue.name, nameOf(t))
	}
	for _, w := range watches {
		k, err := kindOfValue(w.object, d.GetScheme())
		if err != nil {
			return err
		}
		r := &declaredResource{kind: k, elsewhere: w.elsewhere(d.informers)}
		about := "Watches"
		switch itself := mapsToItself(w.handler.Type()); {
		case itself && k.GroupKind() == a.queue.kind.GroupKind():
			about = "For"
		case itself && !r.elsewhere:
		case mapsToOwners(w.handler) && !a.queue.kind.Empty():
			about, r.owner = "Owns", a.queue.kind
		default:
			about += ", by a " + nameOf(w.handler.Type())
			namespace := "/' + object.metadata.namespace + '/"
			if m, err := d.GetRESTMapper().RESTMapping(a.queue.kind.GroupKind(), a.queue.kind.Version); err == nil && m.Scope.Name() == meta.RESTScopeNameRoot {
				namespace = "//"
			}
			key := fmt.Sprintf("key: \"'%s%s' + object.metadata.labels['…']\"", a.queue.prefix, namespace)
			if r.elsewhere {
				d.note("controller %s: %s, of another cache than the manager's: no event reaches this handler. If the key", a.queue.name, about)
				d.note("follows from labels or names, add it, and its rights: {apiVersion: %s, kind: %s, %s}", k.GroupVersion(), k.Kind, key)
				continue
			}
			r.note("the map function is asked when the event comes. If the key follows from labels or names, add it, so that")
			r.note("deletions are mapped too: " + key)
		}
		if r.elsewhere {
			about += ", WatchesRawSource with another cache than the manager's"
			r.note("the namespaces and selectors of that cache are not here. Remove this if it is of another cluster")
		}
		r.notes = slices.Insert(r.notes, 0, "controller "+a.queue.name+": "+about)
		r.readPredicates(w.predicates, about)
		if err := d.scope(r); err != nil {
			return err
		}
		d.merge(r)
	}
	return nil
}

// nameOf is the name of a type without its parameters.
func nameOf(t reflect.Type) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(t.String(), "*"), "[")
	return name
}

func (d *declared) note(format string, values ...any) {
	d.notes = append(d.notes, fmt.Sprintf(format, values...))
}

func (r *declaredResource) note(text string) {
	if text != "" {
		r.notes = append(r.notes, text)
	}
}

// merge adds a resource, or makes one of two that a source may not have beside each other.
func (d *declared) merge(r *declaredResource) {
	i := slices.IndexFunc(d.resources, func(o *declaredResource) bool {
		return o.GroupKind() == r.GroupKind() && o.owner.GroupKind() == r.owner.GroupKind()
	})
	if i < 0 {
		d.resources = append(d.resources, r)
		return
	}
	one := d.resources[i]
	one.notes = append(one.notes, r.notes...)
	differ := one.changes != r.changes
	if one.changes = max(one.changes, r.changes); differ {
		one.note("each of these changes comes to all of these controllers, whose predicates compare with what the process saw last")
		if one.changes == changesAny && (d.server.audience == nil || d.server.replicas) {
			one.note("which is nothing without WithAudience, or with WithReplicas: a status written in each run then runs them for ever")
		}
	}
}

// readPredicates finds out which changes pass all predicates.
func (r *declaredResource) readPredicates(all reflect.Value, about string) {
	r.changes = changesAny
	list := predicatesOf(all)
	for _, p := range list {
		c, known := changesOf(p)
		if !known && !r.elsewhere {
			r.note("a predicate of its own is asked when the event comes; if it selects by labels, add a selector")
		}
		r.changes = min(r.changes, c)
	}
	if len(list) == 0 && about == "For" {
		r.note("no predicate: the status counts too. If only this operator writes it, remove changes")
	}
}

// scope finds the resource of a kind, its namespaces and its selector.
func (d *declared) scope(r *declaredResource) error {
	mapping, err := d.GetRESTMapper().RESTMapping(r.GroupKind(), r.Version)
	if err != nil {
		guess, _ := meta.UnsafeGuessKindToResource(r.GroupVersionKind)
		r.plural = guess.Resource
		why := "cannot be asked about"
		if meta.IsNoMatchError(err) {
			why = "does not serve"
		}
		d.note("the API server %s %s in %s: its resource in the role is a guess", why, r.Kind, r.GroupVersion())
	} else {
		r.plural, r.clustered = mapping.Resource.Resource, mapping.Scope.Name() == meta.RESTScopeNameRoot
	}
	if r.elsewhere {
		d.elsewhere = d.elsewhere || !r.clustered
		return nil
	}
	namespaces, own, err := d.informers.namespaces(r.kind)
	if err != nil {
		return err
	}
	o := d.informers.options
	selector := own.Label
	if selector == nil {
		selector = o.DefaultLabelSelector
	}
	if own.Field != nil || o.DefaultFieldSelector != nil {
		r.note("the field selector of the cache is not here: a source selects by labels")
	}
	if d.namespaces == nil {
		d.namespaces = map[string]bool{}
	}
	for name, c := range namespaces {
		if c.LabelSelector != nil || c.FieldSelector != nil {
			r.note("the selectors of the cache for the namespace " + name + " are not here")
		}
		d.namespaces[name] = d.namespaces[name] || !r.clustered
	}
	d.all = d.all || !r.clustered && (len(namespaces) == 0 || d.namespaces[metav1.NamespaceAll])
	if selector == nil || selector.Empty() {
		return nil
	}
	if r.selector = selectorJSON(selector); r.selector == "" {
		r.note("the selector of the cache is not here: " + selector.String())
	}
	return nil
}

// selectorJSON is a selector as manifests have it, "" if they cannot.
func selectorJSON(s labels.Selector) string {
	parsed, err := metav1.ParseToLabelSelector(s.String())
	if err != nil {
		return ""
	}
	return asJSON(parsed)
}

// asJSON is a value in JSON, which is YAML too.
func asJSON(v any) string {
	b, _ := json.Marshal(v) // it has strings only
	return string(b)
}

// namespaceSelector is the selector in the form of manifests, "" for the source's own
// namespace.
func (d *declared) namespaceSelector() string {
	names := slices.Sorted(maps.Keys(d.namespaces))
	names = slices.DeleteFunc(names, func(n string) bool { return !d.namespaces[n] })
	switch {
	case d.all, d.elsewhere:
		return "{}"
	case len(names) == 0, len(names) == 1 && names[0] == d.source.Namespace:
		return ""
	}
	return asJSON(metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpIn, Values: names},
	}})
}

func (d *declared) yaml() string {
	var b strings.Builder
	p := func(format string, values ...any) { fmt.Fprintf(&b, format+"\n", values...) }
	name, namespace := plain(d.source.Name), plain(d.source.Namespace)
	account, selector := plain(d.source.Name+"-watcher"), d.namespaceSelector()
	p("# From what the controllers declare. Check the comments.")
	for _, n := range d.notes {
		p("# %s", n)
	}
	p("apiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource")
	p("metadata: {name: %s, namespace: %s}", name, namespace)
	p("spec:\n  sink:\n    ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: %s}", name)
	if audience := d.server.audience; audience != nil {
		p("    audience: %s", asJSON(*audience))
	}
	p("  maxInterval: %s # SyncPeriod", shortest(d.server.resync))
	p("  limits: {maxInFlight: %d} # the sum of MaxConcurrentReconciles: no delivery waits for a worker", d.server.workers())
	p("  delivery: {timeout: PT2M} # more than a cold start and timeoutSeconds of the Service together")
	p("  watch:\n    serviceAccountName: %s", account)
	if selector != "" {
		widened := ""
		if d.elsewhere && !d.all {
			widened = " # because of the other cache: name its namespaces and the manager's, if they are not all"
		}
		p("    namespaceSelector: %s%s", selector, widened)
	}
	p("    resources:")
	clustered := selector != ""
	for _, r := range d.resources {
		clustered = clustered || r.clustered
		for _, n := range r.notes {
			p("      # %s", n)
		}
		fields := []string{"apiVersion: " + r.GroupVersion().String(), "kind: " + r.Kind}
		usual := changesMetadata
		if !r.owner.Empty() {
			usual = changesAny
			fields = append(fields, fmt.Sprintf("owner: {apiVersion: %s, kind: %s}", r.owner.GroupVersion(), r.owner.Kind))
		}
		if r.selector != "" {
			fields = append(fields, "selector: "+r.selector)
		}
		if r.changes != usual {
			fields = append(fields, "changes: "+r.changes.String())
		}
		p("      - {%s}", strings.Join(fields, ", "))
	}
	p("---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %s, namespace: %s}", account, namespace)
	role, in := "Role", ", namespace: "+namespace
	if clustered {
		role, in = "ClusterRole", ""
	}
	p("---\napiVersion: rbac.authorization.k8s.io/v1\nkind: %s\nmetadata: {name: %s%s}\nrules:", role, account, in)
	for _, rule := range d.rules(selector) {
		p("  - {apiGroups: [%q], resources: [%s], verbs: [get, list, watch]}", rule.Group, rule.Resource)
	}
	p("---\napiVersion: rbac.authorization.k8s.io/v1\nkind: %sBinding\nmetadata: {name: %s%s}", role, account, in)
	p("roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %s, name: %s}", role, account)
	p("subjects: [{kind: ServiceAccount, name: %s, namespace: %s}]", account, namespace)
	return b.String()
}

// plain is a string in YAML, in quotes only if it would be something else, such as a number.
func plain(s string) string {
	b, _ := yaml.Marshal(s) // it is a string
	return strings.TrimSpace(string(b))
}

// shortest is a duration as people write it: 10h, not 10h0m0s.
func shortest(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// rules are the resources that the account of the source reads, each once. A selector of
// namespaces needs the namespaces themselves.
func (d *declared) rules(namespaces string) (rules []schema.GroupResource) {
	add := func(r schema.GroupResource) {
		if !slices.Contains(rules, r) {
			rules = append(rules, r)
		}
	}
	for _, r := range d.resources {
		add(schema.GroupResource{Group: r.Group, Resource: r.plural})
	}
	if namespaces != "" && namespaces != "{}" {
		add(schema.GroupResource{Resource: "namespaces"})
	}
	return rules
}
