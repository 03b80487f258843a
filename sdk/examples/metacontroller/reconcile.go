package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// fieldOwner is Metacontroller's own for server-side apply.
const fieldOwner = client.FieldOwner("metacontroller")

// bridge syncs the objects of one parent rule of a manifest.
type bridge struct {
	client.Client
	*manifest
	rule      parentRule
	parent    resource
	children  []child
	namespace string // of the parents; "" is all
}

type child struct {
	resource
	method string // of its update strategy
}

// hookResponse is the response of a sync or finalize hook, of either kind of controller.
type hookResponse struct{ decoratorResponse }

// Reconcile syncs one parent: it reads all that the hook needs, calls the hook, and does
// what the hook asks for. It calls no hook when a read failed: the hook would take what
// is missing for gone.
func (b *bridge) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	parent := &unstructured.Unstructured{}
	parent.SetGroupVersionKind(b.parent.GroupVersionKind)
	if err := b.Get(ctx, r.NamespacedName, parent); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	after, err := b.sync(ctx, parent)
	if later, ok := errors.AsType[tooManyRequests](err); ok {
		return reconcile.Result{RequeueAfter: later.after}, nil
	}
	return reconcile.Result{RequeueAfter: after}, err
}

func (b *bridge) sync(ctx context.Context, parent *unstructured.Unstructured) (time.Duration, error) {
	if err := b.syncFinalizer(ctx, parent); err != nil {
		return 0, fmt.Errorf("the finalizer: %w", err)
	}
	finalizing := b.Spec.Hooks.Finalize != nil && b.marked(parent) && (deleting(parent) || !b.rule.selects(parent))
	if !finalizing && (deleting(parent) || !b.rule.selects(parent)) {
		return 0, nil
	}
	selector, err := b.selectorOf(parent)
	if err != nil {
		return 0, err
	}
	found, err := b.gather(ctx, parent, selector)
	if err != nil {
		return 0, err
	}
	related, err := b.related(ctx, parent)
	if err != nil {
		return 0, err
	}
	w, err := b.ask(ctx, parent, found, related, finalizing)
	if err != nil {
		return 0, err
	}
	desired, err := b.desired(parent, selector, w.Attachments)
	if err != nil {
		return 0, err
	}
	if err := b.write(ctx, parent, w); err != nil {
		return 0, err
	}
	// The garbage collector deletes the children of a parent without our finalizer, or
	// with its own one.
	var managed error
	if !deleting(parent) || b.marked(parent) && !collected(parent) {
		managed = b.manage(ctx, parent, found, desired)
	}
	if b.composite() {
		managed = errors.Join(managed, b.writeStatus(ctx, parent, w.Status))
	}
	return b.after(w.ResyncAfterSeconds), managed
}

// after is when the parent is due again. The source has one timer for a key, so that the
// period counts when it is shorter.
func (b *bridge) after(seconds float64) time.Duration {
	period := time.Duration(b.Spec.ResyncPeriodSeconds) * time.Second
	if !(seconds > 0) {
		return 0 // maxInterval of the source is the period
	}
	d := time.Duration(min(seconds, 10*365*24*3600) * float64(time.Second))
	if period > 0 {
		d = min(d, period)
	}
	return max(d, 1)
}

func deleting(o client.Object) bool { return o.GetDeletionTimestamp() != nil }

func (b *bridge) marked(o client.Object) bool {
	return controllerutil.ContainsFinalizer(o, b.finalizer())
}

// collected reports whether the garbage collector works on the children of an object.
func collected(o client.Object) bool {
	return controllerutil.ContainsFinalizer(o, metav1.FinalizerDeleteDependents) || controllerutil.ContainsFinalizer(o, metav1.FinalizerOrphanDependents)
}

// syncFinalizer adds the finalizer before anything is made that the hook must clean up,
// and removes it when there is no finalize hook any more.
func (b *bridge) syncFinalizer(ctx context.Context, parent *unstructured.Unstructured) error {
	wanted := b.Spec.Hooks.Finalize != nil
	if b.marked(parent) == wanted || wanted && (deleting(parent) || !b.rule.selects(parent)) {
		return nil
	}
	return b.patchParent(ctx, parent, func() {
		if wanted {
			controllerutil.AddFinalizer(parent, b.finalizer())
		} else {
			controllerutil.RemoveFinalizer(parent, b.finalizer())
		}
	})
}

// patchParent changes the metadata of a parent if nothing else has changed it.
func (b *bridge) patchParent(ctx context.Context, parent *unstructured.Unstructured, change func()) error {
	before := parent.DeepCopy()
	change()
	if equality.Semantic.DeepEqual(before.Object, parent.Object) {
		return nil
	}
	err := b.Patch(ctx, parent, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), fieldOwner)
	return client.IgnoreNotFound(err)
}

// ask calls sync or finalize.
func (b *bridge) ask(ctx context.Context, parent *unstructured.Unstructured, found, related observed, finalizing bool) (*hookResponse, error) {
	h := b.Spec.Hooks.Sync
	if finalizing {
		h = b.Spec.Hooks.Finalize
	}
	children, err := found.forHook(h, parent)
	if err != nil {
		return nil, err
	}
	objects := objectMap{}
	if c := b.Spec.Hooks.Customize; c != nil {
		if objects, err = related.forHook(c, parent); err != nil {
			return nil, err
		}
	}
	request := syncRequest{Controller: b.raw, Related: objects, Finalizing: finalizing}
	w := &hookResponse{}
	if !b.composite() {
		request.Object, request.Attachments = parent, children
		err = h.call(ctx, request, &w.decoratorResponse)
	} else {
		request.Parent, request.Children = parent, children
		var c compositeResponse
		err = h.call(ctx, request, &c)
		w.Status, w.Attachments, w.ResyncAfterSeconds, w.Finalized = c.Status, c.Children, c.ResyncAfterSeconds, c.Finalized
	}
	w.Finalized = w.Finalized && finalizing
	return w, err
}

// desired are the children that the hook returned, as they must be.
func (b *bridge) desired(parent *unstructured.Unstructured, selector labels.Selector, list []*unstructured.Unstructured) (observed, error) {
	all := observed{}
	for i, o := range list {
		if o == nil {
			return nil, fmt.Errorf("the hook returned null as child %d", i)
		}
		at := slices.IndexFunc(b.children, func(c child) bool { return c.GroupVersionKind == o.GroupVersionKind() })
		if at < 0 {
			return nil, fmt.Errorf("the hook returned a %s of %s, which the manifest does not have among its children", o.GetKind(), o.GetAPIVersion())
		}
		r := b.children[at].resource
		if r.namespaced && o.GetNamespace() == "" {
			o.SetNamespace(parent.GetNamespace())
		}
		about := fmt.Sprintf("the hook returned %s %s", o.GetKind(), client.ObjectKeyFromObject(o))
		switch {
		case o.GetName() == "":
			return nil, fmt.Errorf("%s: it has no name", about)
		case r.namespaced && o.GetNamespace() == "":
			return nil, fmt.Errorf("%s: it has no namespace, and neither has its parent", about)
		case b.parent.namespaced && o.GetNamespace() != parent.GetNamespace():
			return nil, fmt.Errorf("%s: it must be in the namespace of its parent, %s", about, parent.GetNamespace())
		}
		clean(o)
		if b.composite() {
			l, _, err := unstructured.NestedStringMap(o.Object, "metadata", "labels")
			if err != nil {
				return nil, fmt.Errorf("%s: its labels: %w", about, err)
			}
			if b.Spec.GenerateSelector && l[generatedLabel] == "" {
				l = maps.Clone(l)
				if l == nil {
					l = map[string]string{}
				}
				l[generatedLabel] = string(parent.GetUID())
				o.SetLabels(l)
			}
			if !selector.Matches(labels.Set(l)) {
				return nil, fmt.Errorf("%s: its labels do not match the selector of the parent, %s", about, selector)
			}
		} else {
			a := o.GetAnnotations()
			if a == nil {
				a = map[string]string{}
			}
			a[decoratedBy] = b.Metadata.Name
			o.SetAnnotations(a)
		}
		if !slices.ContainsFunc(o.GetOwnerReferences(), func(ref metav1.OwnerReference) bool { return ref.UID == parent.GetUID() }) {
			o.SetOwnerReferences(append(o.GetOwnerReferences(), controllerRef(parent)))
		}
		if all[r] == nil {
			all[r] = map[client.ObjectKey]*unstructured.Unstructured{}
		}
		all.add(r, o)
	}
	return all, nil
}

// clean removes what the API server sets itself: hooks return objects that they read.
func clean(o *unstructured.Unstructured) {
	unstructured.RemoveNestedField(o.Object, "status")
	for _, field := range []string{"selfLink", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
}

// write writes what a hook asks for on the parent itself, but for the status of a
// CompositeController, which says what was seen.
func (b *bridge) write(ctx context.Context, parent *unstructured.Unstructured, w *hookResponse) error {
	if !b.composite() && w.Status != nil {
		if err := b.writeStatus(ctx, parent, w.Status); err != nil {
			return err
		}
	}
	return b.patchParent(ctx, parent, func() {
		parent.SetLabels(merged(parent.GetLabels(), w.Labels))
		parent.SetAnnotations(merged(parent.GetAnnotations(), w.Annotations))
		if w.Finalized {
			controllerutil.RemoveFinalizer(parent, b.finalizer())
		}
	})
}

// merged sets values, and removes values that are null.
func merged(have map[string]string, want map[string]*string) map[string]string {
	for key, value := range want {
		if value == nil {
			delete(have, key)
			continue
		}
		if have == nil {
			have = map[string]string{}
		}
		have[key] = *value
	}
	return have
}

// writeStatus replaces the whole status if it differs. For a CompositeController it has
// the generation that the hook saw.
func (b *bridge) writeStatus(ctx context.Context, parent *unstructured.Unstructured, status map[string]any) error {
	status = maps.Clone(status)
	if b.composite() {
		if status == nil {
			status = map[string]any{}
		}
		status["observedGeneration"] = parent.GetGeneration()
	}
	if equality.Semantic.DeepEqual(parent.Object["status"], any(status)) {
		return nil
	}
	parent.Object["status"] = status
	changed := parent.DeepCopy() // an update overwrites it
	err := b.Status().Update(ctx, parent, fieldOwner)
	if apierrors.IsNotFound(err) { // of the subresource, or the parent
		*parent = *changed
		err = client.IgnoreNotFound(b.Update(ctx, parent, fieldOwner))
	}
	if err != nil {
		return fmt.Errorf("the status: %w", err)
	}
	return nil
}

// manage makes the children what they must be. A failure of one does not keep the others.
func (b *bridge) manage(ctx context.Context, parent *unstructured.Unstructured, found, desired observed) error {
	var failed []error
	for _, c := range b.children {
		for key, o := range found[c.resource] {
			if desired[c.resource][key] == nil && !deleting(o) {
				failed = append(failed, b.remove(ctx, o))
			}
		}
		for key, o := range desired[c.resource] {
			if err := b.apply(ctx, c, found[c.resource][key], o); err != nil {
				failed = append(failed, fmt.Errorf("%s %s: %w", o.GetKind(), key, err))
			}
		}
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("the children of %s: %w", client.ObjectKeyFromObject(parent), err)
	}
	return nil
}

func (b *bridge) remove(ctx context.Context, o *unstructured.Unstructured) error {
	uid := o.GetUID()
	err := b.Delete(ctx, o, client.Preconditions{UID: &uid}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	return client.IgnoreNotFound(err)
}

// apply makes a child, or changes it in the way of its update strategy.
func (b *bridge) apply(ctx context.Context, c child, have, want *unstructured.Unstructured) error {
	if have == nil {
		// An apply would take over an object that is not a child. It is read again, since
		// an object without a controller is no child either.
		other := &unstructured.Unstructured{}
		other.SetGroupVersionKind(c.GroupVersionKind)
		err := b.Get(ctx, client.ObjectKeyFromObject(want), other)
		if err == nil {
			return errors.New("an object of this name exists and is not a child of this parent")
		} else if !apierrors.IsNotFound(err) {
			return err
		}
		return b.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), fieldOwner, client.ForceOwnership)
	}
	if deleting(have) || c.method == "" || c.method == "OnDelete" {
		return nil
	}
	want.SetUID(have.GetUID()) // it fails if the child is another one by now
	if c.method == "InPlace" {
		return b.Apply(ctx, client.ApplyConfigurationFromUnstructured(want), fieldOwner, client.ForceOwnership)
	}
	applied := want.DeepCopy()
	err := b.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), fieldOwner, client.ForceOwnership, client.DryRunAll)
	switch {
	case apierrors.IsInvalid(err): // a field that must not change
	case err != nil:
		return err
	case same(have, applied):
		return nil
	}
	return b.remove(ctx, have) // it is made again when its deletion is reported
}

// same compares a child with what it would be after an apply.
func same(have, applied *unstructured.Unstructured) bool {
	a, c := have.DeepCopy(), applied.DeepCopy()
	clean(a)
	clean(c)
	return equality.Semantic.DeepEqual(a.Object, c.Object)
}
