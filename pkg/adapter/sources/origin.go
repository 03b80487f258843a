package sources

import (
	"context"
	"crypto/x509"
	"time"

	"knative.dev/pkg/observability"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// Origin is where the sources of an adapter come from, with everything else that
// differs between a standalone adapter ([File]) and one in a cluster (package
// cluster). Connect is called first; the other methods are safe for concurrent use
// once it returned without an error.
type Origin interface {
	// Connect reads what the adapter needs before it opens its data directory. It
	// may wait until ctx ends.
	Connect(ctx context.Context) (Settings, error)
	// Sources returns the sources that exist now. The uids in unusable exist too,
	// but their objects cannot be used: their schedules must not be purged. It is
	// called once, before Run, and the caller applies what it returns.
	Sources() (wanted []*schedule.Spec, unusable []string)
	// Run keeps the registry in step until ctx ends. It may outlast ctx by a call
	// to the registry.
	Run(ctx context.Context, r Registry)
	// Gone returns which of these sources exist no more, as the place where they are kept
	// says now: what this adapter knows may be old. None, if that cannot be known.
	Gone(ctx context.Context, uids []string) ([]string, error)
	// Guard decides who may call; nil: every caller who reaches the address.
	Guard() access.Guard
	// Token returns the bearer token of the source for the target's audience.
	Token(ctx context.Context, src *schedule.Spec, target schedule.Target) (string, error)
	// TokenRefused drops the token that Token returned, because the target refused it. It never blocks.
	TokenRefused(src *schedule.Spec, target schedule.Target)
	// Trust calls apply with the certificate authorities of sinks, if they are not
	// the system's, at once and after every change. Apply must not call the origin.
	Trust(apply func(*x509.CertPool))
	// Warn notifies the owner of the source. It never blocks.
	Warn(src *schedule.Spec, reason, message string)
	// EventsRefused notifies the owner of the source that events which were sent to it
	// were refused. It never blocks.
	EventsRefused(src *schedule.Spec, refusal error)
	// Objects are the calls of watching sources; nil: sources cannot watch.
	Objects() objects.API
	// WatchChanged reports that the watch status of the source has changed. It never
	// blocks.
	WatchChanged(src *schedule.Spec)
	// Workloads are the calls of sources that scale workloads; nil: they cannot.
	Workloads() scale.API
	// WorkloadSaved returns the status of the source's workload that an adapter reported last.
	WorkloadSaved(src *schedule.Spec) schedule.ScaleStatus
	// WorkloadChanged reports that it has changed. It never blocks.
	WorkloadChanged(src *schedule.Spec)
	// Refused is how many sources are not in force, or not as they are now, because there is
	// no memory for them.
	Refused() int64
	// Close ends what Connect started. It is idempotent, and may be called in any case.
	Close()
}

// Settings are what an origin decides about the process.
type Settings struct {
	Metrics observability.MetricsConfig
	Tracing observability.TracingConfig
	// Profiling serves profiles on the admin address.
	Profiling bool
}

// Registry is the set of sources that the adapter serves. Calls for different
// sources may be concurrent, calls for one source are not.
type Registry interface {
	// SetSource puts a source in force, also a new one. Without a sink it is
	// suspended. After an error it is called again.
	SetSource(src *schedule.Spec) error
	// RemoveSource purges a source and its schedules for good; a source that does
	// not exist is no error. After an error it is called again.
	RemoveSource(uid string) error
	// Counts returns what the status reports; ok is false for a source that is not
	// registered, or that another adapter of a group serves.
	Counts(uid string) (c Counts, ok bool)
	// WatchStatus returns what the status reports about the watch, the zero status for a
	// source that watches nothing; ok is as for Counts.
	WatchStatus(uid string) (status schedule.WatchStatus, ok bool)
	// Workload returns what the status reports about the workload; ok is as for Counts.
	Workload(uid string) (status schedule.ScaleStatus, ok bool)
	// Serves reports whether this adapter serves the sources now, also one that is not
	// registered: it is who reports on them.
	Serves() bool
}

// Counts are what the status of a source reports. An instant is zero when there is none.
type Counts struct {
	Pending, InFlight, Retrying int64
	NextDueAt                   time.Time // not in the past
	OldestDueAt                 time.Time
	Delivering                  Delivering
}

// Delivering says whether deliveries of a source succeed: the condition Delivering.
type Delivering struct {
	Status          string // True, False or Unknown
	Reason, Message string
}
