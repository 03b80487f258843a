// Package command is the main program of the adapter, which two commands share. It guarantees
// that a flag which is not valid ends the program before a port or a data directory is opened.
// It reads flags and signals, and leaves the rest to package adapter.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/reschedule-dev/reschedule/pkg/adapter"
	"github.com/reschedule-dev/reschedule/pkg/adapter/backup"
	"github.com/reschedule-dev/reschedule/pkg/adapter/group"
	"github.com/reschedule-dev/reschedule/pkg/adapter/inspect"
)

// Main runs the adapter until it ends. replication has the functions of the replicated log, if this program has one.
func Main(version string, replication group.Settings) {
	if len(os.Args) > 1 {
		switch args := os.Args[1:]; args[0] {
		case "inspect", "verify", "repair":
			os.Exit(inspect.Main(args, os.Stdout, os.Stderr))
		case "backup", "restore", "seal":
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
			context.AfterFunc(ctx, stop) // a second signal ends the process at once
			code := backup.Main(ctx, args, replication.Replay(), os.Stdout, os.Stderr)
			stop()
			os.Exit(code)
		}
	}
	raiseGOMAXPROCS()
	afterCollections(newCollector().collected)
	if err := run(os.Args[1:], version, replication); err != nil {
		fmt.Fprintln(os.Stderr, "adapter cannot run:", err)
		os.Exit(1)
	}
}

// threads are so many for each processor.
const threads = 4

// raiseGOMAXPROCS gives Go's scheduler more threads than there are processors, unless the
// environment sets GOMAXPROCS, and the threads short slices. The kernel takes a processor from
// a long computation within about a millisecond when a short one is ready; Go's scheduler,
// which knows of no kernel threads that wait, lets the long one run for 10 ms.
func raiseGOMAXPROCS() {
	shortenTimeSlices()
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(threads * runtime.GOMAXPROCS(0))
	}
}

// usage names the commands, which have flags of their own.
const usage = `Usage of adapter:
  adapter [FLAGS]           serve: in a cluster, or with --standalone
  adapter backup, seal      copy the data of a running adapter; end it for good, for a move
  adapter restore           make a data directory of a back-up
  adapter inspect, verify, repair
                            read a data directory, check it, copy what can be read of it
Each command prints its own usage with --help.

Flags:
`

func run(args []string, version string, replication group.Settings) error {
	flags := flag.NewFlagSet("adapter", flag.ExitOnError)
	cfg := adapter.Config{Version: version}
	standalone := flags.Bool("standalone", false, "serve without Kubernetes, with the sources of --sources")
	kubeconfig := flags.String("kubeconfig", "", "`FILE` with the address of the API server and the credentials for it (default: the cluster in which the adapter runs)")
	flags.StringVar(&cfg.SourcesFile, "sources", "", "`FILE` of RescheduleSource manifests whose sinks are uris; read anew on SIGHUP")
	flags.StringVar(&cfg.CeilingsFile, "config", "", "`FILE` with the administrator's ceilings, the keys of the ConfigMap config-reschedule; read anew on SIGHUP (default none)")
	flags.StringVar(&cfg.DataDir, "data-dir", "", "`DIR`ectory on a disk that survives restarts")
	flags.StringVar(&cfg.Listen, "listen", adapter.DefaultListen, "`ADDRESS` of the schedule API; beyond loopback it needs --token-file or a cluster")
	flags.StringVar(&cfg.TLSListen, "tls-listen", "", "`ADDRESS` of the schedule API with TLS (default none)")
	flags.StringVar(&cfg.TLSDir, "tls-dir", "", "`DIR`ectory with tls.crt and tls.key, which may come and change at any time")
	flags.StringVar(&cfg.AdminListen, "admin-listen", adapter.DefaultAdminListen, "`ADDRESS` of /healthz, /readyz and /metrics")
	flags.StringVar(&cfg.TokenFile, "token-file", "", "`FILE` of bearer tokens for the schedule API and event ingress, one a line; read anew on SIGHUP")
	flags.IntVar(&cfg.MaxInFlight, "max-in-flight", 0, "`N` deliveries of all sources together (default 4096)")
	flags.BoolVar(&cfg.Profiling, "profiling", false, "serve /debug/pprof on the admin address")
	replicated := flags.Bool("replicated", false, "be one of a group of three that keeps the schedules together; only adapter-replicated can")
	flags.StringVar(&replication.Member, "member", "", "with --replicated: the `NAME` of this adapter in --peers")
	peers := flags.String("peers", "", "with --replicated: the logs of all members, a=`HOST:PORT`,b=…,c=…, the same for each of the three")
	flags.StringVar(&replication.PeerListen, "peer-listen", "", "with --replicated: the `ADDRESS` of the log (default the address in --peers)")
	flags.StringVar(&replication.ForwardListen, "forward-listen", "", "with --replicated: the `ADDRESS` for calls that another adapter forwards (default the port in --peers plus 1)")
	flags.StringVar(&replication.TLSDir, "peer-tls-dir", "", "with --replicated: `DIR`ectory with tls.crt, tls.key and ca.crt for both; required beyond loopback")
	showVersion := flags.Bool("version", false, "print the version and end")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	level := new(slog.LevelVar)
	flags.TextVar(level, "log-level", new(slog.LevelVar), "`LEVEL`: debug, info, warn or error; in a cluster config-logging may say otherwise")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *showVersion {
		_, _ = fmt.Fprintln(os.Stdout, version)
		return nil
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *replicated {
		var err error
		if replication.Peers, err = parsePeers(*peers); err != nil {
			return err
		}
		cfg.Replication = &replication
	} else if replication.Member != "" || *peers != "" {
		return errors.New("--member and --peers are for --replicated")
	}
	options := &slog.HandlerOptions{Level: level}
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, options))
	if !*standalone {
		cfg.Log = slog.New(slog.NewJSONHandler(escaped{os.Stderr}, options))
		var err error
		if cfg.Kubernetes, err = adapter.Cluster(*kubeconfig, os.Getenv("SYSTEM_NAMESPACE"), level); err != nil {
			return err
		}
	}
	slog.SetDefault(cfg.Log) // the standard library logs sinks that break HTTP through it
	cfg.Fatal = func(err error) {
		// It is not known what is durable, so no further change may be acknowledged.
		cfg.Log.Error("the disk failed: the adapter ends now; everything acknowledged is there after a restart", "error", err)
		os.Exit(1)
	}

	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	reload := make(chan struct{})
	go func() {
		for range hup {
			reload <- struct{}{}
		}
	}()
	return adapter.Run(ctx, cfg, reload, func(a *adapter.Adapter) {
		more := ""
		if address := a.TLSAddr(); address != "" {
			more += ", schedule API with TLS on https://" + address
		}
		_, _ = fmt.Fprintf(os.Stdout, "ready: schedule API on http://%s, probes and metrics on http://%s%s\n", a.Addr(), a.AdminAddr(), more)
	})
}

// parsePeers reads a=host:port,b=host:port, whose order counts.
func parsePeers(text string) ([]group.Peer, error) {
	var peers []group.Peer
	for part := range strings.SplitSeq(text, ",") {
		name, address, ok := strings.Cut(part, "=")
		if !ok || name == "" || address == "" {
			return nil, fmt.Errorf("--peers %q: want a=host:port,b=host:port,c=host:port", text)
		}
		if slices.ContainsFunc(peers, func(p group.Peer) bool { return p.Name == name }) {
			return nil, fmt.Errorf("--peers names member %s twice", name)
		}
		peers = append(peers, group.Peer{Name: name, Address: address})
	}
	return peers, nil
}
