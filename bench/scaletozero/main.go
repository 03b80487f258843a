// Command scaletozero measures, in the cluster of KUBECONFIG, the cost of an
// operator that runs all the time and the cost of the same operator that scales
// to zero behind a RescheduleSource. It writes docs/scale-to-zero.md and its plot.
//
// It guarantees that both forms are the same program doing the same work at the
// same time, and that the bill is complete: the pods of ApiServerSource,
// RescheduleSource, Knative and the ingress, the container runtime's process
// beside each pod, and the CPU of the node and of the control plane.
//
// It works in steps, and each writes its part of results.json. deploy creates the
// operators of test/expiry. idle measures them while nothing is due. wakes
// wakes each of them a few times and measures the whole life of the pods that
// start. run does sparse work for a longer time, to test whether idle and wakes
// together predict it. clean removes the operators. render writes the page. The
// cluster must have Knative Eventing and Serving, an ingress and RescheduleSource,
// and no other work while idle and wakes run. kubectl, go and a registry for ko
// (KO_DOCKER_REPO) are required.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/reschedule-dev/reschedule/bench/report"
)

// repo is the repository: the program runs in its directory bench.
const repo = ".."

// every is the interval between readings.
const every = time.Second

func main() {
	log.SetFlags(log.Ltime)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := measure(ctx, os.Args[1:])
	cancel()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		log.Fatal(err)
	}
}

// bench has what the steps share.
type bench struct {
	cluster                           cluster
	read                              meter
	n                                 operators
	settle, idleFor, wakesFor, runFor time.Duration
	results                           *results
	conditions                        conditions // saved by idle, the same for the other steps
}

type step struct {
	name string
	do   func(*bench, context.Context) error
}

// steps are in the order of a whole measurement.
var steps = []step{
	{"deploy", func(b *bench, ctx context.Context) error { return deploy(ctx, b.n) }},
	{"idle", (*bench).idle}, {"wakes", (*bench).wakes}, {"run", (*bench).run},
	{"clean", func(b *bench, ctx context.Context) error { return undeploy(ctx, b.n) }},
	{"render", func(b *bench, _ context.Context) error { return render(repo, b.results) }},
}

func measure(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("scaletozero", flag.ContinueOnError)
	b := &bench{n: operators{}, results: new(results)}
	knative := flags.String("knative", "", "the version of Knative, if the cluster does not have it")
	from := flags.String("from", "", "node: the kernel's own counters, when the pods run on this machine; kubelet: its metrics, 10 to 15 s old; unset: the node when it can")
	counts := map[string]*int{
		resident:   flags.Int("residents", 3, "operators that run all the time"),
		serverless: flags.Int("serverless", 3, "operators at zero, as the example has them"),
		warmed:     flags.Int("warmed", 2, "operators at zero with warm-up"),
		fed:        flags.Int("fed", 1, "operators at zero behind an ApiServerSource each"),
		defaults:   flags.Int("defaults", 2, "operators at zero with Knative's own settings"),
		shared:     flags.Int("shared", 1, "operators at zero behind a shared ApiServerSource and a Broker"),
	}
	flags.DurationVar(&b.settle, "settle", 3*time.Minute, "the wait before idle, until the started pods have come to rest")
	flags.DurationVar(&b.idleFor, "idle-for", 5*time.Minute, "the duration of idle")
	flags.DurationVar(&b.wakesFor, "wakes-for", 8*time.Minute, "the duration of wakes")
	flags.DurationVar(&b.runFor, "run-for", 24*time.Minute, "the duration of run")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for form, n := range counts {
		b.n[form] = *n
	}
	todo := flags.Args()
	if len(todo) == 0 {
		for _, s := range steps {
			todo = append(todo, s.name)
		}
	}
	file := filepath.Join("scaletozero", "results.json")
	if err := report.Load(file, b.results); err != nil {
		return err
	}
	if !slices.Equal(todo, []string{"render"}) {
		if err := b.connect(ctx, *from, *knative); err != nil {
			return err
		}
	}
	for _, name := range todo {
		i := slices.IndexFunc(steps, func(s step) bool { return s.name == name })
		if i < 0 {
			return fmt.Errorf("scaletozero: %q is not a step: want some of deploy, idle, wakes, run, clean, render", name)
		}
		log.Print(name)
		if err := steps[i].do(b, ctx); err != nil {
			return err
		}
		if err := report.Save(file, b.results); err != nil {
			return err
		}
	}
	return nil
}

// connect finds the cluster, and uses the kernel's counters if they have pods of it.
func (b *bench) connect(ctx context.Context, from, knative string) (err error) {
	if b.cluster, err = connect(); err != nil {
		return err
	}
	if b.conditions, err = b.cluster.conditions(ctx, knative); err != nil {
		return err
	}
	b.read, b.conditions.Meter = b.cluster.kubelets, "the kubelet's metrics, 10 to 15 s old"
	if from != "kubelet" {
		pods, err := b.cluster.pods(ctx)
		if err != nil {
			return err
		}
		here := node{cgroups: "/sys/fs/cgroup", proc: "/proc"}
		readings, err := here.read(ctx)
		if err != nil {
			return err
		}
		for _, p := range pods {
			if _, seen := readings[subject{podOf, string(p.UID)}]; seen {
				b.read, b.conditions.Meter = here.read, "the kernel's counters, read every "+every.String()
			}
		}
		if from == "node" && !strings.HasPrefix(b.conditions.Meter, "the kernel") {
			return errors.New("scaletozero: -from node: no pod of the cluster has a cgroup on this machine: use -from kubelet")
		}
	}
	log.Printf("%s; %s; %s", b.conditions.Node, strings.Join(b.conditions.Versions, ", "), b.conditions.Meter)
	return nil
}

// recorded is what was recorded while a step did its work.
type recorded struct {
	*record
	began, ended time.Time
	late         map[string][]float64
}

// during records while do runs.
func (b *bench) during(ctx context.Context, do func(context.Context) error) (recorded, error) {
	recording, stop := context.WithCancel(ctx)
	defer stop()
	r := recorded{record: newRecord(b.read)}
	if err := errors.Join(r.once(ctx), r.name(ctx, b.cluster)); err != nil {
		return r, err
	}
	kept := make(chan struct{})
	late := make(chan map[string][]float64, 1)
	go func() {
		defer close(kept)
		r.keep(recording, b.cluster, every)
	}()
	go func() { late <- b.cluster.lateness(recording) }()
	r.began = time.Now()
	err := do(ctx)
	r.ended = time.Now()
	if err == nil {
		err = wait(ctx, 2*every) // one more reading after the end
	}
	stop()
	<-kept
	if r.missed > 0 {
		log.Printf("%d readings failed", r.missed)
	}
	r.late = <-late
	return r, err
}

func (b *bench) idle(ctx context.Context) error {
	if err := b.cluster.atZero(ctx); err != nil {
		return err
	}
	log.Printf("%s to come to rest, then %s", b.settle, b.idleFor)
	if err := wait(ctx, b.settle); err != nil {
		return err
	}
	r, err := b.during(ctx, func(ctx context.Context) error { return wait(ctx, b.idleFor) })
	if err != nil {
		return err
	}
	b.results.Conditions = b.conditions
	b.results.Idle = idleOf(r.between(r.began, r.ended), r.began, r.ended)
	return nil
}

// deliver does the jobs and waits until all operators are at zero again and for a while longer.
func (b *bench) deliver(ctx context.Context, jobs []job, long, longer time.Duration) (recorded, error) {
	if err := b.cluster.atZero(ctx); err != nil {
		return recorded{}, err
	}
	log.Printf("%d ConfigMaps in %s", len(jobs), long)
	return b.during(ctx, func(ctx context.Context) error {
		if err := b.cluster.work(ctx, jobs, long); err != nil {
			return err
		}
		if err := b.cluster.atZero(ctx); err != nil {
			return err
		}
		return wait(ctx, longer)
	})
}

func (b *bench) wakes(ctx context.Context) error {
	if b.results.Idle == nil {
		return errors.New("scaletozero: wakes is measured above idle: run the step idle first")
	}
	jobs := cycles(b.n, b.wakesFor)
	r, err := b.deliver(ctx, jobs, b.wakesFor, 5*time.Second)
	if err != nil {
		return err
	}
	b.results.Wakes = wakesOf(r.between(r.began, r.ended), r.began, r.ended, b.results.Idle, deliveries(jobs))
	b.results.Wakes.Late = r.late
	return nil
}

func (b *bench) run(ctx context.Context) error {
	if b.results.Idle == nil || b.results.Wakes == nil {
		return errors.New("scaletozero: run is compared with idle and wakes: run these steps first")
	}
	jobs := sparse(b.n, b.runFor)
	r, err := b.deliver(ctx, jobs, b.runFor, 0)
	if err != nil {
		return err
	}
	v := runOf(r.between(r.began, r.ended), r.began, r.ended, deliveries(jobs))
	v.Late = r.late
	for _, form := range []string{resident, serverless, defaults} {
		v.Traces[form] = r.trace(r.began, r.ended, 2, form, namespace(form, 0))
	}
	b.results.Run = v
	return nil
}
