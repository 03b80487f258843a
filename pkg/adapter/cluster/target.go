package cluster

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/pkg/apis"
	"knative.dev/pkg/kmeta"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	group "github.com/reschedule-dev/reschedule/pkg/apis/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// accountOf is the service account of a source, the only one whose tokens are
// asked for: the same name as eventing's auth.GetOIDCServiceAccountNameForResource
// gives it. What a status says is not taken at its word: with the right to write
// statuses would come the tokens of every account of the namespace.
func accountOf(source string) string {
	return strings.ToLower(kmeta.ChildName(source, "-oidc-"+group.GroupName+"-"+v1alpha1.Kind))
}

// describe is the source that an object describes, with the targets that its
// status says. A target that the status does not know is the one that was
// applied before. A source still without one that its spec asks for is
// suspended: it takes schedules, and what is due waits. So does one that
// would have to go to a target with an audience as nobody, where it is about to be
// somebody, by the cluster's flag or its own spec: it would be turned away, and the
// event lost. And one whose target with an audience does not exist any more: its
// address may already be another's, who must not get the source's token. Its limits
// are cut to the ceilings.
func describe(o *v1alpha1.RescheduleSource, before *schedule.Source, identified bool, limits *ceilings.Config) (*schedule.Source, error) {
	status := &o.Status
	targets := sources.Targets{Sink: target(status.SinkURI, status.SinkCACerts, status.SinkAudience)}
	if targets.Sink.URL == "" && before != nil {
		targets.Sink = before.Sink
	}
	waits := targets.Sink.URL == ""
	audience := targets.Sink.Audience
	if d := o.Spec.Delivery; d != nil && d.DeadLetterSink != nil {
		dead := target(status.DeadLetterSinkURI, status.DeadLetterSinkCACerts, status.DeadLetterSinkAudience)
		switch {
		case dead.URL != "":
			targets.DeadLetter = &dead
		case before != nil && before.DeadLetter != nil:
			targets.DeadLetter = before.DeadLetter
		default:
			waits = true
		}
		if targets.DeadLetter != nil {
			audience += targets.DeadLetter.Audience
		}
	}
	if auth := status.Auth; auth != nil && auth.ServiceAccountName != nil && *auth.ServiceAccountName == accountOf(o.Name) {
		targets.ServiceAccount = *auth.ServiceAccountName
	}
	if (identified && audience != "" || o.NamesAudience()) && targets.ServiceAccount == "" {
		waits = true
	}
	if targets.ServiceAccount != "" {
		gone := targets.Sink.Audience != "" && isGone(status, v1alpha1.ConditionSinkProvided)
		if d := targets.DeadLetter; d != nil && d.Audience != "" {
			gone = gone || isGone(status, v1alpha1.ConditionDeadLetterSinkResolved)
		}
		waits = waits || gone
	}
	src, err := sources.FromObject(o, targets, limits)
	if err != nil {
		return nil, err
	}
	src.Suspend = src.Suspend || waits
	return src, nil
}

// isGone says whether the controller looked for a target and there is none. One
// that is there without an address keeps its last one.
func isGone(status *v1alpha1.RescheduleSourceStatus, condition apis.ConditionType) bool {
	c := status.GetCondition(condition)
	return c != nil && c.Status == corev1.ConditionFalse && c.Reason == v1alpha1.ReasonNotFound
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
