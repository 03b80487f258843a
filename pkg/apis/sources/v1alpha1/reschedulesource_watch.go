package v1alpha1

import (
	"cmp"
	"fmt"
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"knative.dev/pkg/apis"
)

// RescheduleSourceWatch says which objects of the API server schedule keys when
// they change.
type RescheduleSourceWatch struct {
	// ServiceAccountName is the account, in the source's namespace, that lists and
	// watches; default "default".
	// +optional
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// NamespaceSelector selects the namespaces to watch; unset = the source's own,
	// empty = all.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// Resources are the kinds to watch.
	Resources []WatchResource `json:"resources"`

	// Resync says when every object is scheduled once more.
	// +optional
	Resync *WatchResync `json:"resync,omitempty"`
}

// WatchResource is one kind to watch. At most one of Owner and Key is set; without
// both a change schedules the object's own key.
type WatchResource struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// Selector selects objects by their labels; unset = all.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Owner makes a change schedule the keys of the object's owners of this group
	// and kind.
	// +optional
	Owner *WatchOwner `json:"owner,omitempty"`

	// Key is a CEL expression over object that makes the keys: a string or a list
	// of strings.
	// +optional
	Key string `json:"key,omitempty"`

	// Changes says which differences are a change; default Metadata, with owner or
	// key Any.
	// +optional
	Changes *Changes `json:"changes,omitempty"`

	// Priority is the rank of a changed object's keys among the due keys of the source;
	// default normal. First lists and resyncs are low.
	// +optional
	Priority *Priority `json:"priority,omitempty"`
}

// Priority is the rank of a key among the due keys of its source.
type Priority string

// The priorities.
const (
	PriorityHigh   Priority = "high"
	PriorityNormal Priority = "normal"
	PriorityLow    Priority = "low"
)

// WatchOwner is the group and the kind of owners; the version does not matter.
type WatchOwner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// WatchResync says when every watched object is scheduled once more.
type WatchResync struct {
	// OnRevision schedules every object when a new revision of a sink that is a
	// Knative Service becomes ready; default true.
	// +optional
	OnRevision *bool `json:"onRevision,omitempty"`

	// Over is the time over which a resync is spread; unset: ten keys a second, at most
	// 10m in all.
	// +optional
	Over *string `json:"over,omitempty"`
}

// Changes says which differences of a watched object are a change.
type Changes string

// The kinds of changes. For objects without a generation all three mean ChangesAny.
const (
	ChangesSpec     Changes = "Spec"     // generation, deletionTimestamp, uid
	ChangesMetadata Changes = "Metadata" // all metadata except resourceVersion and managedFields
	ChangesAny      Changes = "Any"      // everything
)

// WatchStatus is the adapter's report about spec.watch.
type WatchStatus struct {
	// ObservedGeneration is the generation that the report is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Status is True when the list of every resource is complete, else False or
	// Unknown.
	// +optional
	Status string `json:"status,omitempty"`
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`

	// WasTrue reports that Status was True before.
	// +optional
	WasTrue bool `json:"wasTrue,omitempty"`
}

// Bounds of spec.watch. The schema of the CRD has the same, and bounds the parts of
// a selector.
const (
	maxWatchResources = 32
	// maxSelector bounds the text form of a selector: it is part of a URL.
	maxSelector = 4096
)

// The syntax of kinds, as regular expressions that a CEL rule can match too.
const (
	// APIVersionPattern is a group and a version, or the version of the core group.
	APIVersionPattern = `^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`
	// KindPattern is a kind.
	KindPattern = `^[A-Za-z]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?$`
)

var (
	apiVersion = regexp.MustCompile(APIVersionPattern)
	kind       = regexp.MustCompile(KindPattern)
)

func (w *RescheduleSourceWatch) setDefaults() {
	if w == nil {
		return
	}
	w.ServiceAccountName = cmp.Or(w.ServiceAccountName, DefaultWatchAccount)
	if w.Resync == nil {
		w.Resync = &WatchResync{}
	}
	setDefault(&w.Resync.OnRevision, true)
}

// EffectiveChanges is Changes or its default. The default depends on other fields,
// so it is not filled in.
func (r *WatchResource) EffectiveChanges() Changes {
	switch {
	case r.Changes != nil:
		return *r.Changes
	case r.Owner != nil || r.Key != "":
		return ChangesAny
	}
	return ChangesMetadata
}

// ResyncsOnRevision says whether a new revision of the sink schedules every object.
func (w *RescheduleSourceWatch) ResyncsOnRevision() bool {
	return w != nil && (w.Resync == nil || w.Resync.OnRevision == nil || *w.Resync.OnRevision)
}

func (w *RescheduleSourceWatch) validate() *apis.FieldError {
	if w == nil {
		return nil
	}
	var errs *apis.FieldError
	if name := w.ServiceAccountName; name != "" && len(validation.IsDNS1123Subdomain(name)) > 0 {
		errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("%.64q is not the name of a ServiceAccount", name), "serviceAccountName"))
	}
	_, bad := SelectorText(w.NamespaceSelector)
	errs = errs.Also(bad.ViaField("namespaceSelector"))
	switch n := len(w.Resources); {
	case n == 0:
		errs = errs.Also(apis.ErrGeneric("is empty: name a kind to watch, or leave out watch", "resources"))
	case n > maxWatchResources:
		errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("has %d kinds, more than %d: use several sources", n, maxWatchResources), "resources"))
	}
	seen := map[watchIdentity]int{}
	for i := range min(len(w.Resources), maxWatchResources) {
		r := &w.Resources[i]
		errs = errs.Also(r.validate().ViaFieldIndex("resources", i))
		if first, twice := seen[r.identity()]; twice {
			errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("has the kind, owner, key and changes of resources[%d]: join the two with one selector", first),
				apis.CurrentField).ViaFieldIndex("resources", i))
		} else {
			seen[r.identity()] = i
		}
	}
	if w.Resync != nil {
		errs = errs.Also(validateDuration("over", w.Resync.Over).ViaField("resync"))
	}
	return errs
}

func (r *WatchResource) validate() *apis.FieldError {
	errs := validateKind(r.APIVersion, r.Kind)
	_, bad := SelectorText(r.Selector)
	errs = errs.Also(bad.ViaField("selector"))
	if r.Owner != nil {
		errs = errs.Also(validateKind(r.Owner.APIVersion, r.Owner.Kind).ViaField("owner"))
		if r.Key != "" {
			errs = errs.Also(apis.ErrGeneric("must not be beside owner: leave out one of the two", "key"))
		}
	}
	errs = errs.Also(validateLength("key", r.Key, maxExpression))
	errs = errs.Also(validateOneOf("changes", r.Changes, ChangesSpec, ChangesMetadata, ChangesAny))
	return errs.Also(validateOneOf("priority", r.Priority, PriorityHigh, PriorityNormal, PriorityLow))
}

// watchIdentity is what two resources of a source must not have in common: what is
// remembered of their objects is stored under it.
type watchIdentity struct {
	group, kind, ownerGroup, ownerKind, key string
	changes                                 Changes
}

func (r *WatchResource) identity() watchIdentity {
	id := watchIdentity{group: groupOf(r.APIVersion), kind: r.Kind, key: r.Key, changes: r.EffectiveChanges()}
	if r.Owner != nil {
		id.ownerGroup, id.ownerKind = groupOf(r.Owner.APIVersion), r.Owner.Kind
	}
	return id
}

func groupOf(apiVersion string) string {
	gv, _ := schema.ParseGroupVersion(apiVersion) // validateKind reports the error
	return gv.Group
}

func validateKind(version, name string) *apis.FieldError {
	var errs *apis.FieldError
	if len(version) > maxAPIVersion || !apiVersion.MatchString(version) {
		errs = apis.ErrGeneric(fmt.Sprintf("%.64q is not a group and version such as apps/v1, or v1", version), "apiVersion")
	}
	if !kind.MatchString(name) {
		errs = errs.Also(apis.ErrGeneric(fmt.Sprintf("%.64q is not a kind such as Deployment", name), "kind"))
	}
	return errs
}

// SelectorText is the text form of a selector, "" for one that is nil or empty: it
// selects everything.
func SelectorText(s *metav1.LabelSelector) (string, *apis.FieldError) {
	if s == nil {
		return labels.Everything().String(), nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "", apis.ErrGeneric(fmt.Sprintf("%.256s", err.Error()), apis.CurrentField)
	}
	text := selector.String()
	if len(text) > maxSelector {
		return "", apis.ErrGeneric(fmt.Sprintf("has %d bytes as a text, more than %d: select by fewer labels", len(text), maxSelector), apis.CurrentField)
	}
	return text, nil
}
