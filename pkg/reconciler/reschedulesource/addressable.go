package reschedulesource

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"knative.dev/eventing/pkg/apis/feature"
	"knative.dev/eventing/pkg/auth"
	"knative.dev/pkg/controller"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/expression"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

// An obstacle is the reason why a source cannot be called at its address.
type obstacle struct{ reason, message string }

// markAddressable sets Addressable from the first obstacle.
func markAddressable(source *v1alpha1.RescheduleSource, obstacles ...*obstacle) {
	for _, o := range obstacles {
		if o != nil {
			source.Status.MarkNotAddressable(o.reason, "%s", o.message)
			return
		}
	}
	source.Status.MarkAddressable()
}

// validate checks the rules that the API server's schema cannot express, and
// that the expressions compile. Its failures are permanent: only a change of the
// spec helps.
func (r *Reconciler) validate(ctx context.Context, source *v1alpha1.RescheduleSource) (*obstacle, error) {
	invalid := func(reason string, err error) (*obstacle, error) {
		return &obstacle{reason, err.Error()},
			controller.NewPermanentError(failure(reason, "%w", err))
	}
	if err := source.Validate(ctx); err != nil {
		return invalid("SpecInvalid", err)
	}
	if ingest := source.Spec.Ingest; ingest != nil {
		if err := expression.Check(ingest.Key, ingest.When); err != nil {
			return invalid("IngestInvalid", err)
		}
	}
	return nil, nil
}

// tooLarge is the adapter's report that it has no memory for the spec, also for an older generation: a
// newer one that fits takes the report away.
func tooLarge(source *v1alpha1.RescheduleSource) *obstacle {
	if source.Status.Refused == "" {
		return nil
	}
	return &obstacle{v1alpha1.ReasonNoMemory, source.Status.Refused}
}

// publishAddresses sets the address, also when there is an obstacle.
func (r *Reconciler) publishAddresses(flags feature.Flags, source *v1alpha1.RescheduleSource) (*obstacle, error) {
	edge := resources.Edge{SystemNamespace: r.systemNamespace, Flags: flags}
	var audience *string
	if flags.IsOIDCAuthentication() || requiresTokens(source) {
		a := auth.GetAudience(source.GetGroupVersionKind(), source.ObjectMeta)
		audience = &a
	}
	var missing error
	if edge.WantsTLS() {
		edge.TLS, missing = r.secrets.Get(resources.TLSSecretName)
	}
	source.Status.AddressStatus = edge.Addresses(nameOf(source), audience)
	switch {
	case missing == nil:
		return nil, nil
	case apierrors.IsNotFound(missing):
		return &obstacle{"TLSSecretMissing", fmt.Sprintf("%s is %s, and there is no Secret %s/%s with the adapter's certificate.",
			feature.TransportEncryption, flags[feature.TransportEncryption], r.systemNamespace, resources.TLSSecretName)}, nil
	}
	err := fmt.Errorf("reading the adapter's certificate: %w", missing)
	return &obstacle{"TLSSecretUnknown", err.Error()}, err
}

// requiresTokens says whether events need a token whatever the flags say.
// Senders find the audience in the address.
func requiresTokens(source *v1alpha1.RescheduleSource) bool {
	in := source.Spec.Ingest
	return in != nil && in.Authentication != nil && *in.Authentication == v1alpha1.AuthenticationRequired
}

// applyPolicies lists the EventPolicies that apply to the source.
func (r *Reconciler) applyPolicies(flags feature.Flags, source *v1alpha1.RescheduleSource) (*obstacle, error) {
	var verdict policyVerdict
	err := auth.UpdateStatusWithEventPolicies(flags, &source.Status.AppliedEventPoliciesStatus, &verdict, r.policies,
		source.GetGroupVersionKind(), source.ObjectMeta)
	return verdict.obstacle, err
}

// policyVerdict is eventing's auth.EventPolicyStatusMarker for a resource that
// has no condition of its own for policies.
type policyVerdict struct{ *obstacle }

var _ auth.EventPolicyStatusMarker = (*policyVerdict)(nil)

func (v *policyVerdict) MarkEventPoliciesFailed(reason, format string, args ...any) {
	v.obstacle = &obstacle{reason, fmt.Sprintf(format, args...)}
}

func (v *policyVerdict) MarkEventPoliciesUnknown(reason, format string, args ...any) {
	v.MarkEventPoliciesFailed(reason, format, args...)
}

func (v *policyVerdict) MarkEventPoliciesTrue() { v.obstacle = nil }

func (v *policyVerdict) MarkEventPoliciesTrueWithReason(string, string, ...any) { v.obstacle = nil }
