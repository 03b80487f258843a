package knative

import (
	"knative.dev/pkg/apis"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// describe is the source that an object describes, with the targets that its
// status says. A target that the status does not know is the one that was
// applied before. A source still without one that its spec asks for is
// suspended: it takes schedules, and what is due waits. So does one that
// would have to go to a target with an audience as nobody, where it is about to be
// somebody, by the cluster's flag or its own spec: it would be turned away, and the
// event lost. Its limits are cut to the ceilings.
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
	if auth := status.Auth; auth != nil && auth.ServiceAccountName != nil {
		targets.ServiceAccount = *auth.ServiceAccountName
	}
	if (identified && audience != "" || o.NamesAudience()) && targets.ServiceAccount == "" {
		waits = true
	}
	src, err := sources.FromObject(o, targets, limits)
	if err != nil {
		return nil, err
	}
	src.Suspend = src.Suspend || waits
	return src, nil
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
