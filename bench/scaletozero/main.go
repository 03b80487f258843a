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
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

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
	cluster  *cluster
	meter    meter
	repo     string
	knative  string
	n        operators
	every    time.Duration
	settle   time.Duration
	idleFor  time.Duration
	wakesFor time.Duration
	runFor   time.Duration
	results  *results

	conditions conditions // saved by idle, the same for the other steps
}

type step struct {
	name string
	do   func(*bench, context.Context) error
}

var steps = []step{
	{"deploy", func(b *bench, ctx context.Context) error { return deploy(ctx, b.repo, b.n) }},
	{"idle", (*bench).idle}, {"wakes", (*bench).wakes}, {"run", (*bench).run},
	{"clean", func(b *bench, ctx context.Context) error { return undeploy(ctx, b.n) }},
	{"render", func(b *bench, _ context.Context) error { return render(b.repo, b.results) }},
}

func measure(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("scaletozero", flag.ContinueOnError)
	b := &bench{n: operators{}}
	flags.StringVar(&b.repo, "repo", "..", "the repository with the example, the page and the plot")
	flags.StringVar(&b.knative, "knative", "", "the version of Knative, if the cluster does not have it")
	from := flags.String("from", "", "node: the kernel's own counters, when the pods run on this machine; kubelet: its metrics, 10 to 15 s old; unset: the node when it can")
	residents := flags.Int("residents", 3, "operators that run all the time")
	serverlesses := flags.Int("serverless", 3, "operators at zero, as the example has them")
	warms := flags.Int("warmed", 2, "operators at zero with warm-up")
	feds := flags.Int("fed", 1, "operators at zero behind an ApiServerSource each")
	defaultses := flags.Int("defaults", 2, "operators at zero with Knative's own settings")
	shareds := flags.Int("shared", 1, "operators at zero behind a shared ApiServerSource and a Broker")
	flags.DurationVar(&b.every, "every", time.Second, "the interval between readings")
	flags.DurationVar(&b.settle, "settle", 3*time.Minute, "the wait before idle, until the started pods have come to rest")
	flags.DurationVar(&b.idleFor, "idle-for", 5*time.Minute, "the duration of idle")
	flags.DurationVar(&b.wakesFor, "wakes-for", 8*time.Minute, "the duration of wakes")
	flags.DurationVar(&b.runFor, "run-for", 24*time.Minute, "the duration of run")
	if err := flags.Parse(args); err != nil {
		return err
	}
	b.n[resident], b.n[serverless], b.n[warmed], b.n[defaults], b.n[fed], b.n[shared] = *residents, *serverlesses, *warms, *defaultses, *feds, *shareds
	todo := flags.Args()
	if len(todo) == 0 {
		for _, s := range steps {
			todo = append(todo, s.name)
		}
	}
	file := filepath.Join(b.repo, "bench", "scaletozero", "results.json")
	var err error
	if b.results, err = load(file); err != nil {
		return err
	}
	if !slices.Equal(todo, []string{"render"}) {
		if b.cluster, err = connect(ctx); err != nil {
			return err
		}
		if err := b.chooseMeter(ctx, *from); err != nil {
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
		if err := b.results.save(file); err != nil {
			return err
		}
	}
	return nil
}

// chooseMeter uses the kernel's counters if they have pods of the cluster.
func (b *bench) chooseMeter(ctx context.Context, from string) error {
	here := node{cgroups: "/sys/fs/cgroup", proc: "/proc"}
	b.meter = b.cluster.kubelets
	meterName := "the kubelet's metrics, 10 to 15 s old"
	if from != "kubelet" {
		pods, err := b.cluster.pods(ctx)
		if err != nil {
			return err
		}
		readings, err := here.read(ctx)
		if err != nil {
			return err
		}
		seen := slices.ContainsFunc(pods, func(p metadata) bool { _, ok := readings[subject{podOf, p.UID}]; return ok })
		switch {
		case seen:
			b.meter, meterName = here.read, "the kernel's counters, read every "+b.every.String()
		case from == "node":
			return errors.New("scaletozero: -from node: no pod of the cluster has a cgroup on this machine: use -from kubelet")
		}
	}
	c, err := b.cluster.conditions(ctx, b.repo, b.knative)
	if err != nil {
		return err
	}
	c.Meter = meterName
	b.conditions = c
	log.Printf("%s; %s; %s", c.Node, strings.Join(c.Versions, ", "), c.Meter)
	return nil
}

// during records while do runs, and returns the record with its begin and its end.
func (b *bench) during(ctx context.Context, do func(context.Context) error) (*record, map[string][]float64, time.Time, time.Time, error) {
	recording, stop := context.WithCancel(ctx)
	defer stop()
	r := newRecord(b.meter)
	if err := r.once(ctx, b.cluster, true); err != nil {
		return nil, nil, time.Time{}, time.Time{}, err
	}
	kept := make(chan struct{})
	late := make(chan map[string][]float64, 1)
	go func() {
		defer close(kept)
		r.keep(recording, b.cluster, b.every)
	}()
	go func() { late <- b.cluster.lateness(recording) }()
	began := time.Now()
	err := do(ctx)
	ended := time.Now()
	if err == nil {
		err = wait(ctx, 2*b.every) // one more reading after the end
	}
	stop()
	<-kept
	if r.missed > 0 {
		log.Printf("%d readings failed", r.missed)
	}
	return r, <-late, began, ended, err
}

func (b *bench) idle(ctx context.Context) error {
	if err := b.cluster.atZero(ctx); err != nil {
		return err
	}
	log.Printf("%s to come to rest, then %s", b.settle, b.idleFor)
	if err := wait(ctx, b.settle); err != nil {
		return err
	}
	r, _, began, ended, err := b.during(ctx, func(ctx context.Context) error { return wait(ctx, b.idleFor) })
	if err != nil {
		return err
	}
	b.results.Conditions = b.conditions
	b.results.Idle = idleOf(r.between(began, ended), began, ended)
	for _, name := range slices.Sorted(maps.Keys(b.results.Idle.Parts)) {
		p := b.results.Idle.Parts[name]
		log.Printf("%-22s %4.1f: %6.1f MB and %6.1f of programs, %6.2f thousandths of a core", name, p.Pods, p.Rate.Memory/1e6, p.Rate.Text/1e6, p.Rate.CPU*1e3)
	}
	return nil
}

// gap is more than the time from a delivery until an operator is at zero again.
var gap = map[string]time.Duration{resident: 80 * time.Second, serverless: 80 * time.Second, warmed: 80 * time.Second, fed: 80 * time.Second, shared: 80 * time.Second, defaults: 2 * time.Minute}

// cycles returns the jobs of the step wakes: each operator is woken, its ConfigMap
// expires when it is at zero again, and so on; operators take turns.
func cycles(n operators, long time.Duration) ([]job, map[string]int) {
	var jobs []job
	asked := map[string]int{}
	k := 0
	for _, form := range forms {
		for i := range n[form] {
			begin := 5 * time.Second * time.Duration(k)
			k++
			for at := begin; at+2*gap[form] <= long; at += 2 * gap[form] {
				jobs = append(jobs, job{ns: namespace(form, i), after: at, lives: gap[form]})
				asked[form] += 2
			}
		}
	}
	return jobs, asked
}

func (b *bench) wakes(ctx context.Context) error {
	if b.results.Idle == nil {
		return errors.New("scaletozero: wakes is measured above idle: run the step idle first")
	}
	if err := b.cluster.atZero(ctx); err != nil {
		return err
	}
	jobs, asked := cycles(b.n, b.wakesFor)
	log.Printf("%d ConfigMaps in %s", len(jobs), b.wakesFor)
	r, late, began, ended, err := b.during(ctx, func(ctx context.Context) error {
		if err := b.cluster.work(ctx, jobs, b.wakesFor); err != nil {
			return err
		}
		if err := b.cluster.atZero(ctx); err != nil {
			return err
		}
		return wait(ctx, 5*time.Second)
	})
	if err != nil {
		return err
	}
	w := wakesOf(r.between(began, ended), began, ended, b.results.Idle, asked)
	w.Late = late
	b.results.Wakes = w
	for form, n := range asked {
		one := w.of(form)
		log.Printf("%-12s %2d deliveries, %2d pods: %.0f MB·s and %.0f of programs, %.3f s of CPU each; deleted late by %.2f s",
			form, n, len(w.Pods[form]), one.Memory/1e6, one.Text/1e6, one.CPU, late[form])
	}
	for _, name := range slices.Sorted(maps.Keys(w.Extra)) {
		log.Printf("%-22s %.3f s of CPU each", name, w.Extra[name])
	}
	return nil
}

// sparse returns the jobs of the step run: in each operator two ConfigMaps, one
// after the other, that live for a quarter of the time; operators take turns.
func sparse(n operators, long time.Duration) ([]job, map[string]int) {
	var jobs []job
	asked := map[string]int{}
	for _, form := range forms {
		for i := range n[form] {
			begin := long/48 + time.Duration(i)*long/48
			for _, at := range []time.Duration{begin, begin + long/2} {
				jobs = append(jobs, job{ns: namespace(form, i), after: at, lives: (long / 4).Round(time.Second)})
				asked[form] += 2
			}
		}
	}
	return jobs, asked
}

func (b *bench) run(ctx context.Context) error {
	if b.results.Idle == nil || b.results.Wakes == nil {
		return errors.New("scaletozero: run is compared with idle and wakes: run these steps first")
	}
	if err := b.cluster.atZero(ctx); err != nil {
		return err
	}
	jobs, asked := sparse(b.n, b.runFor)
	log.Printf("%d ConfigMaps in %s", len(jobs), b.runFor)
	r, late, began, ended, err := b.during(ctx, func(ctx context.Context) error {
		if err := b.cluster.work(ctx, jobs, b.runFor); err != nil {
			return err
		}
		return b.cluster.atZero(ctx)
	})
	if err != nil {
		return err
	}
	v := runOf(r.between(began, ended), began, ended, asked)
	v.Late = late
	for _, form := range []string{resident, serverless, defaults} {
		v.Traces[form] = r.trace(began, ended, 2*time.Second, func(s subject, pod metadata) bool {
			return s.kind == podOf && pod.Namespace == namespace(form, 0) && podPart(pod) == form
		})
	}
	b.results.Run = v
	for _, name := range slices.Sorted(maps.Keys(v.Used)) {
		want, got := b.results.foretold(name), v.Used[name]
		log.Printf("%-14s foretold %.0f MB·s, %.2f s; measured %.0f MB·s, %.2f s", name, want.bytes()/1e6, want.CPU, got.bytes()/1e6, got.CPU)
	}
	return nil
}
