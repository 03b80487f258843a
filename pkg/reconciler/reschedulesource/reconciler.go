package reschedulesource

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"knative.dev/eventing/pkg/apis/feature"
	"knative.dev/eventing/pkg/auth"
	eventinglisters "knative.dev/eventing/pkg/client/listers/eventing/v1alpha1"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/reconciler"
	"knative.dev/pkg/resolver"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/client/clientset/versioned"
	generated "github.com/reschedule-dev/reschedule/pkg/client/injection/reconciler/sources/v1alpha1/reschedulesource"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

// Reconciler brings the status of RescheduleSources up to date.
type Reconciler struct {
	systemNamespace string
	client          versioned.Interface
	kube            kubernetes.Interface
	dynamic         dynamic.Interface // reads Services, also of Knative
	resolver        *resolver.URIResolver
	statefulSets    appslisters.StatefulSetNamespaceLister
	secrets         corelisters.SecretNamespaceLister
	accounts        corelisters.ServiceAccountLister // with the OIDC label
	policies        eventinglisters.EventPolicyLister
	ceilings        func() *ceilings.Config
}

var _ generated.Interface = (*Reconciler)(nil)

// ReconcileKind implements generated.Interface. A step that fails does not undo
// the conditions of the other steps; the first failure is returned.
func (r *Reconciler) ReconcileKind(ctx context.Context, source *v1alpha1.RescheduleSource) reconciler.Event {
	source, err := r.whole(ctx, source)
	if source == nil {
		return err
	}
	before := source.DeepCopy()
	reconciler.PreProcessReconcile(ctx, source)
	failures := r.steps(ctx, source)
	source.Status.Summarize()
	reconciler.PostProcessReconcile(ctx, source, before)
	if err := r.patchStatus(ctx, before, source); err != nil {
		return err
	}
	return first(failures)
}

func (r *Reconciler) steps(ctx context.Context, source *v1alpha1.RescheduleSource) []error {
	flags := feature.FromContext(ctx)
	var failures []error
	failed := func(err error) {
		if err != nil {
			failures = append(failures, err)
		}
	}

	invalid, err := r.validate(ctx, source)
	failed(err)
	failed(r.resolveSink(ctx, source))
	failed(r.resolveDeadLetterSink(ctx, source))
	failed(r.observeAdapter(source))
	unencrypted, err := r.publishAddresses(flags, source)
	failed(err)
	failed(r.identify(ctx, flags, source))
	publishEventAttributes(source)
	r.limit(source)
	failed(r.publishSinkRevision(ctx, source))
	failed(observeWatch(source))
	failed(r.observeScale(ctx, source))
	source.Status.MarkDelivering()
	unpolicied, err := r.applyPolicies(flags, source)
	failed(err)
	markAddressable(source, invalid, tooLarge(source), unencrypted, unpolicied)
	return failures
}

// first is the failure to return. If it is permanent and a later failure is not,
// it is returned as one that is worth another attempt.
func first(failures []error) error {
	if len(failures) == 0 {
		return nil
	}
	report := failures[0]
	for _, f := range failures[1:] {
		if !controller.IsPermanentError(f) && controller.IsPermanentError(report) {
			return errors.Unwrap(report)
		}
	}
	return report
}

// failure is a Warning Event on the source that is also an error. An event alone
// counts as success, and there would be no further attempt.
func failure(reason, format string, args ...any) error {
	return fmt.Errorf("reconciling: %w", reconciler.NewEvent(corev1.EventTypeWarning, reason, format, args...))
}

// patchStatus sends the changes. After a conflict, or when the object is gone,
// the informer brings the source up again.
func (r *Reconciler) patchStatus(ctx context.Context, before, source *v1alpha1.RescheduleSource) error {
	patch, err := resources.StatusPatch(before, source)
	if err != nil || patch == nil {
		return err
	}
	_, err = r.client.SourcesV1alpha1().RescheduleSources(source.Namespace).
		Patch(ctx, source.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patching the status: %w", err)
	}
	return nil
}

// observeAdapter sets Deployed.
func (r *Reconciler) observeAdapter(source *v1alpha1.RescheduleSource) error {
	s, err := r.statefulSets.Get(resources.AdapterName)
	if err != nil && !apierrors.IsNotFound(err) {
		source.Status.MarkDeploying("AdapterUnknown", "StatefulSet %s cannot be read: %v", resources.AdapterName, err)
		return fmt.Errorf("reading the adapter's StatefulSet: %w", err)
	}
	switch a := resources.AdapterAvailability(r.systemNamespace, s); a.Status {
	case corev1.ConditionTrue:
		source.Status.MarkDeployed()
	case corev1.ConditionFalse:
		source.Status.MarkNotDeployed(a.Reason, "%s", a.Message)
	default:
		source.Status.MarkDeploying(a.Reason, "%s", a.Message)
	}
	return nil
}

// identify sets OIDCIdentityCreated, and creates or deletes the ServiceAccount
// with which the source authenticates to its sinks. A source that names an
// audience always has one: tokens for one operator must not depend on a flag for
// all of eventing.
func (r *Reconciler) identify(ctx context.Context, flags feature.Flags, source *v1alpha1.RescheduleSource) error {
	if source.NamesAudience() {
		flags = feature.Flags{feature.OIDCAuthentication: feature.Enabled}
	}
	err := auth.SetupOIDCServiceAccount(ctx, flags, r.accounts, r.kube, source.GetGroupVersionKind(), source.ObjectMeta,
		&source.Status, func(s *duckv1.AuthStatus) { source.Status.Auth = s })
	if err != nil && !flags.IsOIDCAuthentication() {
		// Eventing leaves the condition as it was.
		source.Status.MarkOIDCIdentityCreatedFailed("ServiceAccountNotDeleted", "%v", err)
	}
	return err
}

// publishEventAttributes lets eventing make EventTypes of the events that the
// source creates. Events that it passes on keep the type that they came with.
func publishEventAttributes(source *v1alpha1.RescheduleSource) {
	all := []string{resources.EventType}
	if source.Spec.Watch != nil {
		all = append(all, resources.WatchEventTypes...)
	}
	source.Status.CloudEventAttributes = nil
	for _, t := range all {
		source.Status.CloudEventAttributes = append(source.Status.CloudEventAttributes,
			duckv1.CloudEventAttributes{Type: t, Source: resources.EventSource(nameOf(source))})
	}
}

func nameOf(source *v1alpha1.RescheduleSource) types.NamespacedName {
	return types.NamespacedName{Namespace: source.Namespace, Name: source.Name}
}
