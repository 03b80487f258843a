package adapter

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/reschedule-dev/reschedule/pkg/adapter/cluster"
	"github.com/reschedule-dev/reschedule/pkg/adapter/group"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/hostname"
)

// Config is what an Adapter needs. The zero value of a field is its default.
type Config struct {
	// SourcesFile holds RescheduleSource manifests; required without Kubernetes.
	SourcesFile string
	// CeilingsFile holds the administrator's ceilings, "" = none; only without
	// Kubernetes, whose ConfigMap config-reschedule holds them.
	CeilingsFile string
	// Kubernetes is the cluster whose sources are served; nil: standalone.
	Kubernetes *cluster.Config
	// DataDir is the data directory, made when it is not there; required. One
	// adapter at a time can use it.
	DataDir string
	// Listen is the address of the schedule API, default 127.0.0.1:8080. Beyond
	// loopback it needs a TokenFile.
	Listen string
	// TLSListen is the address of the schedule API with TLS, "" = none; TLSDir
	// holds its tls.crt and tls.key, which may come and change at any time.
	TLSListen, TLSDir string
	// AdminListen is the address of probes and metrics, default 127.0.0.1:9090.
	// It has no authentication.
	AdminListen string
	// TokenFile holds the bearer tokens that may call the schedule API, one per
	// line; "" admits every caller who can reach a loopback address. In a cluster
	// the API server decides.
	TokenFile string
	// Profiling serves net/http/pprof on the admin address.
	Profiling bool
	// Replication makes the adapter one of a group; nil: it is alone.
	Replication *group.Settings
	// MaxInFlight bounds the deliveries of all sources together, default 4096.
	MaxInFlight int

	// Version is of the program, for metrics.
	Version string

	Log *slog.Logger // default: discards
	// Fatal is called when durability is unknown; the process must end at once.
	// Default: panics.
	Fatal func(error)
}

// The addresses when none are given.
const (
	DefaultListen      = "127.0.0.1:8080"
	DefaultAdminListen = "127.0.0.1:9090"
)

// The parts of the 15 s that stopping may take: open requests, deliveries
// under way, and the rest for the store; and all of it, should the disk hang. One of a
// group leaves it first.
const (
	drainRequests   = 2 * time.Second
	drainDeliveries = 8 * time.Second
	drainAll        = 13 * time.Second
)

func (c *Config) complete() error {
	if c.SourcesFile == "" && c.Kubernetes == nil {
		return errors.New("adapter: sources file is not set: give --sources FILE.yaml with RescheduleSource manifests")
	}
	if c.CeilingsFile != "" && c.Kubernetes != nil {
		return errors.New("adapter: --config is for --standalone: in a cluster the ceilings are in the ConfigMap config-reschedule")
	}
	if c.DataDir == "" {
		return errors.New("adapter: data directory is not set: give --data-dir DIR on a disk that survives restarts")
	}
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if c.AdminListen == "" {
		c.AdminListen = DefaultAdminListen
	}
	if c.MaxInFlight < 0 {
		return fmt.Errorf("adapter: --max-in-flight is %d: give 0, the default, or more", c.MaxInFlight)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Fatal == nil {
		c.Fatal = func(err error) { panic(err) }
	}
	if c.Replication != nil {
		if err := c.Replication.Check(); err != nil {
			return err
		}
	}
	if c.TLSListen != "" && c.TLSDir == "" {
		return fmt.Errorf("adapter: --tls-listen %s needs a certificate: give --tls-dir", c.TLSListen)
	}
	if c.Kubernetes != nil {
		return nil // the API server says who may call
	}
	return c.checkListen()
}

// checkListen refuses an address beyond loopback that every caller could use.
func (c *Config) checkListen() error {
	for _, address := range []string{c.Listen, c.TLSListen} {
		if address == "" {
			continue
		}
		if !hostname.IsLoopback(hostname.Of(address)) && c.TokenFile == "" {
			return fmt.Errorf("adapter: will not listen on %s without authentication: give --token-file, or listen on a loopback address such as %s", address, DefaultListen)
		}
	}
	return nil
}

// origin returns where the sources come from.
func (c *Config) origin(reload <-chan struct{}) sources.Origin {
	if c.Kubernetes != nil {
		kubernetes := *c.Kubernetes
		kubernetes.Log, kubernetes.Replicated = c.Log, c.Replication != nil
		return cluster.New(kubernetes)
	}
	return sources.NewFile(sources.FileConfig{
		Sources: c.SourcesFile, Ceilings: c.CeilingsFile, Tokens: c.TokenFile, Reload: reload, Log: c.Log,
	})
}

// Cluster returns the configuration of the cluster that the kubeconfig file names, ""
// = the cluster that the process runs in. Namespace is Knative Eventing's, "" =
// knative-eventing. The level follows its config-logging.
func Cluster(kubeconfig, namespace string, level *slog.LevelVar) (*cluster.Config, error) {
	connection, err := rest.InClusterConfig()
	if kubeconfig != "" {
		connection, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("adapter: no cluster (give --kubeconfig FILE, or --standalone to serve without one): %w", err)
	}
	if namespace == "" {
		namespace = "knative-eventing"
	}
	return &cluster.Config{REST: connection, Namespace: namespace, Level: level}, nil
}
