package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	pageSize   = 500
	maxObjects = 10_000 // that one request to a hook may have
	// decoratedBy marks the attachments of a DecoratorController, as in Metacontroller.
	decoratedBy = "metacontroller.k8s.io/decorator-controller"
	// generatedLabel is the label of a generated selector, as in Metacontroller.
	generatedLabel = "controller-uid"
)

// resource is a resource of a rule, as the API server has it.
type resource struct {
	schema.GroupVersionKind
	namespaced bool
}

// id is the name of a kind in requests to hooks, such as Pod.v1.
func (r resource) id() string { return r.Kind + "." + r.GroupVersion().String() }

func resolve(mapper meta.RESTMapper, apiVersion, plural string) (resource, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return resource{}, err
	}
	kind, err := mapper.KindFor(gv.WithResource(plural))
	if err != nil {
		return resource{}, fmt.Errorf("the resource %s of %s: %w", plural, apiVersion, err)
	}
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return resource{}, fmt.Errorf("the resource %s of %s: %w", plural, apiVersion, err)
	}
	return resource{kind, mapping.Scope.Name() == meta.RESTScopeNameNamespace}, nil
}

// observed are objects by kind, each by namespace/name.
type observed map[resource]map[client.ObjectKey]*unstructured.Unstructured

func (o observed) add(r resource, object *unstructured.Unstructured) {
	o[r][client.ObjectKeyFromObject(object)] = object
}

func (o observed) count() (n int) {
	for _, objects := range o {
		n += len(objects)
	}
	return n
}

// forHook names the objects as the version of a hook wants it: v2 always by namespace and
// name, v1 relative to the parent.
func (o observed) forHook(h *hook, parent metav1.Object) (objectMap, error) {
	m := objectMap{}
	for r, objects := range o {
		named := map[string]json.RawMessage{}
		for key, object := range objects {
			name := key.Name
			if key.Namespace != "" && (h.v2() || parent.GetNamespace() == "" || parent.GetNamespace() != key.Namespace) {
				name = key.String()
			}
			text, err := object.MarshalJSON()
			if err != nil {
				return nil, err
			}
			named[name] = text
		}
		m[r.id()] = named
	}
	return m, nil
}

// list calls see for each object of a resource, page by page, so that objects that do not
// matter are not kept. An error means that the list is not complete.
func (b *bridge) list(ctx context.Context, r resource, namespace string, s labels.Selector, see func(*unstructured.Unstructured) error) error {
	o := &client.ListOptions{Limit: pageSize, LabelSelector: s}
	if r.namespaced {
		o.Namespace = namespace
	}
	for {
		page := &unstructured.UnstructuredList{}
		page.SetGroupVersionKind(r.GroupVersion().WithKind(r.Kind + "List"))
		if err := b.List(ctx, page, o); err != nil {
			return fmt.Errorf("listing %s: %w", r.id(), err)
		}
		for i := range page.Items {
			if err := see(&page.Items[i]); err != nil {
				return err
			}
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}

var errTooMany = fmt.Errorf("more than %d objects for one request to a hook", maxObjects)

// gather returns the children of a parent, and gives each kind an entry.
func (b *bridge) gather(ctx context.Context, parent *unstructured.Unstructured, selector labels.Selector) (observed, error) {
	found := observed{}
	for _, c := range b.children {
		found[c.resource] = map[client.ObjectKey]*unstructured.Unstructured{}
		err := b.list(ctx, c.resource, parent.GetNamespace(), nil, func(o *unstructured.Unstructured) error {
			ours, err := b.claim(ctx, parent, selector, o)
			if err != nil {
				return fmt.Errorf("%s %s: %w", o.GetKind(), client.ObjectKeyFromObject(o), err)
			}
			if ours {
				found.add(c.resource, o)
			}
			if found.count() > maxObjects {
				return errTooMany
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// claim reports whether an object is a child of the parent. A CompositeController adopts
// objects that its selector matches and that have no controller, and releases children
// that it does not match any more.
func (b *bridge) claim(ctx context.Context, parent *unstructured.Unstructured, selector labels.Selector, o *unstructured.Unstructured) (bool, error) {
	ref := metav1.GetControllerOf(o)
	switch {
	case ref != nil && ref.UID != parent.GetUID():
		return false, nil
	case !b.composite():
		return ref != nil && o.GetAnnotations()[decoratedBy] == b.Metadata.Name, nil
	}
	matches := selector.Matches(labels.Set(o.GetLabels()))
	if ref != nil && matches {
		return true, nil
	}
	if ref == nil && !matches || parent.GetDeletionTimestamp() != nil || o.GetDeletionTimestamp() != nil {
		return false, nil
	}
	before := o.DeepCopy()
	if matches {
		o.SetOwnerReferences(append(o.GetOwnerReferences(), controllerRef(parent)))
	} else {
		o.SetOwnerReferences(slices.DeleteFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == parent.GetUID() }))
	}
	err := b.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), fieldOwner)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return matches, err
}

func controllerRef(parent *unstructured.Unstructured) metav1.OwnerReference {
	return *metav1.NewControllerRef(parent, parent.GroupVersionKind())
}

// selectorOf is the selector of a parent's children. A DecoratorController has none.
func (b *bridge) selectorOf(parent *unstructured.Unstructured) (labels.Selector, error) {
	switch {
	case !b.composite():
		return labels.Everything(), nil
	case b.Spec.GenerateSelector:
		return labels.SelectorFromSet(labels.Set{generatedLabel: string(parent.GetUID())}), nil
	}
	var p struct {
		Spec struct {
			Selector *metav1.LabelSelector `json:"selector"`
		} `json:"spec"`
	}
	text, err := parent.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		return nil, fmt.Errorf("spec.selector: %w", err)
	}
	s, err := metav1.LabelSelectorAsSelector(p.Spec.Selector)
	if err == nil && (p.Spec.Selector == nil || s.Empty()) {
		err = errors.New("must have matchLabels or matchExpressions, or the CompositeController generateSelector: true")
	}
	if err != nil {
		return nil, fmt.Errorf("spec.selector: %w", err)
	}
	return s, nil
}

// related asks the customize hook which objects a parent needs, and reads them.
func (b *bridge) related(ctx context.Context, parent *unstructured.Unstructured) (observed, error) {
	found := observed{}
	rules, err := b.customize(ctx, parent)
	if err != nil {
		return nil, err
	}
	for _, rule := range rules {
		r, namespaces, selector, err := b.scope(ctx, parent, rule)
		if err != nil {
			return nil, err
		}
		if found[r] == nil {
			found[r] = map[client.ObjectKey]*unstructured.Unstructured{}
		}
		for _, namespace := range namespaces {
			if named := len(rule.Names) > 0; named && (namespace != "" || !r.namespaced) {
				if err := b.getAll(ctx, r, namespace, rule.Names, found); err != nil {
					return nil, err
				}
				continue
			}
			err := b.list(ctx, r, namespace, selector, func(o *unstructured.Unstructured) error {
				if len(rule.Names) == 0 || slices.Contains(rule.Names, o.GetName()) {
					found.add(r, o)
				}
				if found.count() > maxObjects {
					return errTooMany
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// getAll reads the objects of these names that exist.
func (b *bridge) getAll(ctx context.Context, r resource, namespace string, names []string, into observed) error {
	if !r.namespaced {
		namespace = ""
	}
	for _, name := range names {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(r.GroupVersionKind)
		err := b.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, o)
		switch {
		case err == nil:
			into.add(r, o)
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("reading %s %s/%s: %w", r.id(), namespace, name, err)
		}
	}
	if into.count() > maxObjects {
		return errTooMany
	}
	return nil
}

func (b *bridge) customize(ctx context.Context, parent *unstructured.Unstructured) ([]relatedRule, error) {
	h := b.Spec.Hooks.Customize
	if h == nil {
		return nil, nil
	}
	var response customizeResponse
	if err := h.call(ctx, customizeRequest{b.raw, parent}, &response); err != nil {
		return nil, err
	}
	return response.RelatedResources, nil
}

// scope is what a rule of the customize hook selects: a resource, namespaces ("" is all of
// them) and labels.
func (b *bridge) scope(ctx context.Context, parent *unstructured.Unstructured, rule relatedRule) (r resource, namespaces []string, s labels.Selector, err error) {
	fail := func(err error) error {
		return fmt.Errorf("hook customize: relatedResources: %s of %s: %w", rule.Resource, rule.APIVersion, err)
	}
	if r, err = resolve(b.RESTMapper(), rule.APIVersion, rule.Resource); err != nil {
		return r, nil, nil, fail(err)
	}
	if len(rule.Names) > 0 && (rule.LabelSelector != nil || rule.NamespaceSelector != nil) {
		return r, nil, nil, fail(errors.New("names must not have a selector beside them"))
	}
	s = labels.Everything()
	if rule.LabelSelector != nil {
		if s, err = metav1.LabelSelectorAsSelector(rule.LabelSelector); err != nil {
			return r, nil, nil, fail(err)
		}
	}
	// The objects of a v1 hook have no namespace in their names.
	own := !b.Spec.Hooks.Customize.v2() && parent.GetNamespace() != "" && r.namespaced
	switch {
	case rule.NamespaceSelector != nil:
		if rule.Namespace != "" || own || !r.namespaced {
			return r, nil, nil, fail(errors.New("namespaceSelector must have no namespace beside it, and a namespaced resource; for a namespaced parent the hook must have version v2"))
		}
		selected, err := metav1.LabelSelectorAsSelector(rule.NamespaceSelector)
		if err != nil {
			return r, nil, nil, fail(err)
		}
		all := resource{schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, false}
		err = b.list(ctx, all, "", selected, func(o *unstructured.Unstructured) error {
			namespaces = append(namespaces, o.GetName())
			return nil
		})
		if err != nil {
			return r, nil, nil, fail(err)
		}
		return r, namespaces, s, nil
	case own && rule.Namespace != "" && rule.Namespace != parent.GetNamespace():
		return r, nil, nil, fail(fmt.Errorf("namespace %s must be the namespace of the parent, %s, or the hook must have version v2", rule.Namespace, parent.GetNamespace()))
	case own:
		return r, []string{parent.GetNamespace()}, s, nil
	}
	return r, []string{rule.Namespace}, s, nil
}
