// Command scaletozero measures, in the cluster of KUBECONFIG, what an operator
// costs that runs all the time, and what the same operator costs that scales to
// zero behind a RescheduleSource; it writes docs/scale-to-zero.md and its plot.
//
// It guarantees that both forms are the same program doing the same work at the
// same time, and that nothing they need is left out: the pods of ApiServerSource,
// RescheduleSource, Knative and the ingress, the container runtime's process
// beside each pod, and the node's and the control plane's own CPU.
//
// It works in steps, each of which leaves its part of results.json: deploy makes
// the operators of test/expiry; idle looks at them while there is nothing to
// do; wakes has each of them woken some times and looks at the whole life of the
// pods that come up; run does sparse work for as long as one likes, which tells
// whether idle and wakes together foretell it; clean removes the operators;
// render writes the page. The cluster must have Knative Eventing and Serving, an
// ingress and RescheduleSource, and be quiet while idle and wakes run. kubectl, go
// and what ko wants (KO_DOCKER_REPO) are needed.
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

// bench is what the steps share.
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

	conditions conditions // saved with idle: the other steps want the same
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
	flags.StringVar(&b.repo, "repo", "..", "the repository: where the example, the page and the plot are")
	flags.StringVar(&b.knative, "knative", "", "its version, where the cluster does not say")
	from := flags.String("from", "", "node: the kernel's own counters, when the pods run on this machine; kubelet: its metrics, 10 to 15 s old; unset: the node when it can")
	residents := flags.Int("residents", 3, "operators that run all the time")
	serverlesses := flags.Int("serverless", 3, "operators at zero, as the example has them")
	defaultses := flags.Int("defaults", 2, "operators at zero with Knative's own settings")
	shareds := flags.Int("shared", 1, "operators at zero behind a shared ApiServerSource and a Broker")
	flags.DurationVar(&b.every, "every", time.Second, "how often to read")
	flags.DurationVar(&b.settle, "settle", 3*time.Minute, "how long before idle, so that what started has come to rest")
	flags.DurationVar(&b.idleFor, "idle-for", 5*time.Minute, "how long idle is")
	flags.DurationVar(&b.wakesFor, "wakes-for", 8*time.Minute, "how long wakes is")
	flags.DurationVar(&b.runFor, "run-for", 24*time.Minute, "how long run is")
	if err := flags.Parse(args); err != nil {
		return err
	}
	b.n[resident], b.n[serverless], b.n[defaults], b.n[shared] = *residents, *serverlesses, *defaultses, *shareds
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
			return fmt.Errorf("scaletozero: %q is no step: want some of deploy, idle, wakes, run, clean, render", name)
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

// chooseMeter takes the kernel's counters when pods of the cluster are seen in them.
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
			return errors.New("scaletozero: -from node: no pod of the cluster has a cgroup on this machine; take -from kubelet")
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

// during records for as long as do takes, and gives the record with when it began and ended.
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

// gap is how long after a delivery an operator is at zero again, generously.
var gap = map[string]time.Duration{resident: 80 * time.Second, serverless: 80 * time.Second, shared: 80 * time.Second, defaults: 2 * time.Minute}

// cycles makes the jobs of the step wakes: each operator is woken, once it is at
// zero again the ConfigMap expires, and so on; operators take turns.
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
		return errors.New("scaletozero: wakes is measured beyond idle: run the step idle first")
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

// sparse makes the jobs of the step run: in each operator ConfigMaps that live
// for a quarter of the time, two after each other; the operators take turns.
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
		return errors.New("scaletozero: run is compared with what follows from idle and wakes: run these first")
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
