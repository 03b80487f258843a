package knative

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"time"

	"k8s.io/client-go/rest"
	"knative.dev/pkg/observability"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Config is what Connect needs.
type Config struct {
	// REST is how to reach the API server; required.
	REST *rest.Config
	// Namespace is the system namespace, where Knative's ConfigMaps are; required.
	Namespace string
	Log       *slog.Logger // default: discards
	// Level follows config-logging; nil: nothing does.
	Level *slog.LevelVar
}

// Settings are what Knative's ConfigMaps say about the process.
type Settings struct {
	Metrics observability.MetricsConfig // as read at the start
	Tracing observability.TracingConfig // as read at the start
	// Profiling is runtime-profiling, as read at the start.
	Profiling bool
	// StrictTransport is transport-encryption: strict, as it is now.
	StrictTransport bool
}

// Plane is the data plane. Calls for different sources may be concurrent.
type Plane interface {
	// SetSource makes the source what it says from now on, a new one too.
	SetSource(src *schedule.Source) error
	// RemoveSource purges the source and its schedules for good; that there is
	// none is no error.
	RemoveSource(uid string) error
	// Counts is what the status reports; ok is false for a source that the
	// plane does not have, and nextDueAt is zero when nothing waits.
	Counts(uid string) (pending int64, nextDueAt time.Time, ok bool)
}

// Cluster is a connection to the cluster.
type Cluster struct{}

// Connect makes the clients and starts the informers. It returns when each has
// its first list. What it started ends with Close, or when ctx ends.
func Connect(ctx context.Context, cfg Config) (*Cluster, error) {
	return nil, errors.New("knative: not there yet")
}

// Close ends what Connect started, and waits a moment for Events on their way.
func (c *Cluster) Close() {}

// Guard says who may call.
func (c *Cluster) Guard() api.Guard { return nil }

// Token is the bearer token of the source for the target's audience.
func (c *Cluster) Token(ctx context.Context, src *schedule.Source, target schedule.Target) (string, error) {
	return "", nil
}

// Roots are the system's certificates and those of the trust bundles.
func (c *Cluster) Roots() *x509.CertPool { return nil }

// OnTrust calls f with the new Roots when they change.
func (c *Cluster) OnTrust(f func(*x509.CertPool)) {}

// Warn records a Warning Event on the RescheduleSource. It never blocks.
func (c *Cluster) Warn(src *schedule.Source, reason, message string) {}

// Sources are the sources that there are now. Those of others exist but cannot
// be used now: their schedules must not be purged.
func (c *Cluster) Sources() (wanted []*schedule.Source, others []string) { return nil, nil }

// Run keeps the plane's sources and the objects' status in step until ctx ends.
// What Sources returned last it takes as applied.
func (c *Cluster) Run(ctx context.Context, p Plane) {}

// Settings are those now in force.
func (c *Cluster) Settings() Settings { return Settings{} }
