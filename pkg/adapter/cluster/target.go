package cluster

import (
	"strings"

	"knative.dev/pkg/apis"
	"knative.dev/pkg/kmeta"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	group "github.com/reschedule-dev/reschedule/pkg/apis/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// accountOf is the service account of a source, the only one whose tokens are
// requested: the name that eventing's auth.GetOIDCServiceAccountNameForResource gives
// it. It is not read from the status: the right to write statuses would give the
// tokens of every account of the namespace.
func accountOf(source string) string {
	return strings.ToLower(kmeta.ChildName(source, "-oidc-"+group.GroupName+"-"+v1alpha1.Kind))
}

// describe returns the source that an object describes, with the targets in its
// status and its limits cut to the ceilings. A target that is missing in the status
// is the target that was applied before, unless the controller reports that it cannot
// resolve the target: then the spec names another one. The source is suspended (it takes schedules,
// and what is due waits)
//
//   - while a target that its spec asks for was not resolved yet;
//   - while a target has an audience, the cluster or the spec requires a token for it,
//     and the source has no service account yet: the target would refuse the event, and
//     it would be lost;
//   - while a target with an audience does not exist any more: its address may belong
//     to another service by now, which must not get the source's token.
func describe(o *v1alpha1.RescheduleSource, before *schedule.Spec, oidc bool, limits *ceilings.Config) (*schedule.Spec, error) {
	status := &o.Status
	sinkless, targets := o.Spec.Sinkless(), schedule.Targets{}
	if !sinkless {
		targets.Sink = target(status.SinkURI, status.SinkCACerts, status.SinkAudience)
		if targets.Sink.URL == "" && before != nil && !isUnresolved(status, v1alpha1.ConditionSinkProvided) {
			targets.Sink = before.Sink
		}
	}
	suspended := targets.Sink.URL == "" && !sinkless
	audience := targets.Sink.Audience
	if d := o.Spec.Delivery; d != nil && d.DeadLetterSink != nil {
		dead := target(status.DeadLetterSinkURI, status.DeadLetterSinkCACerts, status.DeadLetterSinkAudience)
		switch {
		case dead.URL != "":
			targets.DeadLetter = &dead
		case before != nil && before.DeadLetter != nil && !isUnresolved(status, v1alpha1.ConditionDeadLetterSinkResolved):
			targets.DeadLetter = before.DeadLetter
		default:
			suspended = true
		}
		if targets.DeadLetter != nil {
			audience += targets.DeadLetter.Audience
		}
	}
	if auth := status.Auth; auth != nil && auth.ServiceAccountName != nil && *auth.ServiceAccountName == accountOf(o.Name) {
		targets.ServiceAccount = *auth.ServiceAccountName
	}
	if (oidc && audience != "" || o.NamesAudience()) && targets.ServiceAccount == "" {
		suspended = true
	}
	if targets.ServiceAccount != "" {
		gone := targets.Sink.Audience != "" && isGone(status, v1alpha1.ConditionSinkProvided)
		if d := targets.DeadLetter; d != nil && d.Audience != "" {
			gone = gone || isGone(status, v1alpha1.ConditionDeadLetterSinkResolved)
		}
		suspended = suspended || gone
	}
	src, err := sources.FromObject(o, targets, limits)
	if err != nil {
		return nil, err
	}
	src.Suspend = src.Suspend || suspended
	sources.Held(&src.Scale, o)
	return src, nil
}

// ends reports whether an object is being deleted that may hold a workload.
func ends(o *v1alpha1.RescheduleSource) bool {
	return o.DeletionTimestamp != nil && (o.Spec.Scale != nil || o.Status.Scale != nil)
}

// ending returns the source of an object that is being deleted: nothing is delivered any
// more, and the workload that it holds is scaled up. That does not depend on its spec,
// which may not be valid.
func ending(o *v1alpha1.RescheduleSource, before *schedule.Spec) *schedule.Spec {
	src := &schedule.Spec{UID: string(o.UID), Namespace: o.Namespace, Name: o.Name}
	if before != nil {
		*src = *before
	}
	src.Suspend, src.Scale = true, schedule.Scale{}
	sources.Held(&src.Scale, o)
	return src
}

// isGone reports whether the controller found that a target does not exist. A target
// that exists without an address keeps its last address.
func isGone(status *v1alpha1.RescheduleSourceStatus, condition apis.ConditionType) bool {
	return isUnresolved(status, condition) && status.GetCondition(condition).Reason == v1alpha1.ReasonNotFound
}

// isUnresolved reports whether the controller could not resolve a target.
func isUnresolved(status *v1alpha1.RescheduleSourceStatus, condition apis.ConditionType) bool {
	return status.GetCondition(condition).IsFalse()
}

func target(url *apis.URL, certs, audience *string) schedule.Target {
	if url.IsEmpty() {
		return schedule.Target{}
	}
	t := schedule.Target{URL: url.String()}
	if certs != nil {
		t.CACerts = *certs
	}
	if audience != nil {
		t.Audience = *audience
	}
	return t
}
