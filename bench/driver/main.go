// Command driver measures the adapter against what it is held to and writes
// bench/RESULTS.md.
//
// It guarantees that what is compared was measured in one run, by one client,
// in turns, on the same cores and the same disk, with an fsync that is real;
// that everything stays on loopback, is bounded in time and count, and is gone
// when the run is over.
//
// Each scenario is a file; contest.go is the turns and the arithmetic. The
// adapter is built from the repository and runs as a process, and so do the
// bare ceilings, which are this program again (child.go). It needs Linux, for
// /proc and for the CPU affinity. Redis and PostgreSQL take part when they are
// installed. The results are left to package report, the load to package load.
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
	"regexp"
	"runtime"
	"syscall"
	"time"

	"github.com/reschedule-dev/reschedule/bench/report"
	"golang.org/x/sys/unix"
)

func main() {
	log.SetFlags(log.Ltime)
	var err error
	if len(os.Args) > 1 && os.Args[1] == "child" {
		err = child(os.Args[2:])
	} else {
		err = drive(os.Args[1:])
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		log.Fatal(err)
	}
}

func drive(args []string) error {
	flags := flag.NewFlagSet("driver", flag.ContinueOnError)
	b := &bench{say: log.Printf, settleEvery: 3 * time.Second, lead: 5 * time.Second, ahead: 5 * time.Second}
	run := flags.String("run", ".", "which scenarios: a regular expression over put, bulk, burst, lateness, memory, idle")
	dir := flags.String("dir", "/var/tmp", "where the data go: on a real disk, not in memory")
	repo := flags.String("repo", "..", "the repository to build the adapter from")
	file := flags.String("adapter", "", "an adapter binary to measure instead of building one; - for none: only the ceilings")
	out := flags.String("out", ".", "the directory of RESULTS.md, results/ and plots/; empty: print only")
	cores := flags.Int("cores", 2, "how many cores all of it may use")
	redis := flags.String("redis-server", "", "redis-server or valkey-server, when not in the PATH")
	postgres := flags.String("postgres-bin", "", "the directory of initdb and postgres, when not where Debian puts it")
	flags.IntVar(&b.rounds, "rounds", 5, "rounds of put, bulk and burst")
	flags.DurationVar(&b.warm, "warm", time.Second, "warming up of each round of put and bulk")
	flags.DurationVar(&b.window, "for", 5*time.Second, "each round of put and bulk")
	flags.IntVar(&b.callers, "callers", 64, "callers of put and bulk")
	flags.StringVar(&b.client, "client", rawClient, "the client of put and bulk: raw, or net/http as most callers have it, which weighs more on both")
	flags.IntVar(&b.batch, "batch", 100, "items of a bulk call")
	flags.IntVar(&b.burst, "burst", 100_000, "how many are due at one instant")
	flags.IntVar(&b.pending, "pending", 1_000_000, "how many are pending far away, in lateness and memory; up to 10,000,000")
	flags.IntVar(&b.lateRate, "late-rate", 1000, "how many are due a second in lateness")
	flags.DurationVar(&b.lateFor, "late-for", 30*time.Second, "each round of lateness")
	flags.IntVar(&b.lateRounds, "late-rounds", 3, "rounds of lateness")
	flags.BoolVar(&b.live, "late-live", false, "schedule each one of lateness five seconds ahead with a PUT of its own, instead of all beforehand")
	flags.IntVar(&b.restarts, "restarts", 5, "kills in memory")
	flags.DurationVar(&b.settle, "settle", 3*time.Minute, "how long memory and disk may take to settle")
	flags.DurationVar(&b.idle, "idle", time.Minute, "how long to look at the idle adapter")
	flags.DurationVar(&b.deliverLimit, "deliver-limit", 2*time.Minute, "how long deliveries may take before a round has failed")
	only := flags.Bool("render", false, "measure nothing, only write RESULTS.md and the plots from results/")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *only {
		return render(*out)
	}
	pattern, err := regexp.Compile(*run)
	if err != nil {
		return fmt.Errorf("driver: -run: %w", err)
	}
	if err := b.check(); err != nil {
		return err
	}
	if err := onCores(*cores); err != nil {
		return err
	}

	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if b.dir, err = os.MkdirTemp(*dir, "reschedule-bench"); err != nil {
		return fmt.Errorf("driver: %w", err)
	}
	defer os.RemoveAll(b.dir)
	if err := os.Chmod(b.dir, 0o711); err != nil {
		return fmt.Errorf("driver: %w", err)
	}
	if kind := fileSystem(b.dir); kind == "tmpfs" || kind == "ramfs" {
		return fmt.Errorf("driver: %s is a %s, where an fsync does nothing: choose another with -dir", *dir, kind)
	}
	b.children, b.redis, b.postgres = childProcesses{}, findRedis(*redis), findPostgres(*postgres)
	switch *file {
	case "":
		log.Print("building the adapter")
		if b.adapters, err = buildAdapter(ctx, *repo, b.dir); err != nil {
			return err
		}
	case "-":
		b.adapters = noAdapter{}
	default:
		absolute, err := filepath.Abs(*file)
		if err != nil {
			return fmt.Errorf("driver: %w", err)
		}
		b.adapters = adapterBinary{file: absolute}
	}
	return b.runAll(ctx, pattern, *repo, *out)
}

// runAll measures the scenarios that match. One that fails does not keep the others from being measured.
func (b *bench) runAll(ctx context.Context, pattern *regexp.Regexp, repo, out string) error {
	var failed error
	for _, s := range scenarios {
		if !pattern.MatchString(s.name) {
			continue
		}
		c, err := conditions(b.dir, repo)
		if err != nil {
			return err
		}
		log.Printf("%s: %s (%s)", s.name, s.title, c)
		if c.FsyncP50 < 20*time.Microsecond {
			log.Printf("  an fsync of %s is too fast to reach a disk: read the numbers as those of a disk that lies", c.FsyncP50)
		}
		r, err := b.measure(ctx, s, c)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			log.Print(err)
			failed = errors.Join(failed, err)
			continue
		}
		for _, bar := range r.Bars {
			log.Printf("  %s: %s: %s", bar.Verdict, bar.Wants, bar.Got)
		}
		if out == "" {
			fmt.Println(report.Markdown([]*report.Result{r}))
			continue
		}
		// Saved at once: what comes after may fail, and takes long.
		if err := report.Save(filepath.Join(out, "results"), r); err != nil {
			return err
		}
		if err := render(out); err != nil {
			return err
		}
	}
	return failed
}

// render writes the page and the plots from the saved results.
func render(out string) error {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	results, err := report.Load(filepath.Join(out, "results"), names)
	if err != nil {
		return err
	}
	if err := report.Plot(filepath.Join(out, "plots"), results); err != nil {
		return err
	}
	return report.Update(filepath.Join(out, "RESULTS.md"), results)
}

// check refuses what cannot be measured.
func (b *bench) check() error {
	if b.client != rawClient && b.client != netHTTPClient {
		return fmt.Errorf("driver: -client is %q: want %s or %s", b.client, rawClient, netHTTPClient)
	}
	for _, v := range []struct {
		name             string
		value, low, high int
	}{
		{"-rounds", b.rounds, 1, maxRounds/2 - 1}, {"-callers", b.callers, 1, 150}, {"-batch", b.batch, 1, 1000},
		{"-burst", b.burst, 2, 10_000_000}, {"-pending", b.pending, 0, 10_000_000}, {"-late-rate", b.lateRate, 1, 100_000},
		{"-late-rounds", b.lateRounds, 1, maxRounds/2 - 1}, {"-restarts", b.restarts, 1, 100},
	} {
		if v.value < v.low || v.value > v.high {
			return fmt.Errorf("driver: %s is %d: want %d to %d", v.name, v.value, v.low, v.high)
		}
	}
	return nil
}

// noAdapter is measured when only the ceilings are.
type noAdapter struct{}

func (noAdapter) start(context.Context, adapterConfig) (*service, time.Duration, error) {
	return nil, 0, errors.New("the ceilings only")
}

// onCores confines the driver and all that it starts to the first n cores it
// may use. The Go runtime asks for its cores once, as it starts, so the driver
// starts itself anew.
func onCores(n int) error {
	if n < 1 || runtime.NumCPU() <= n {
		return nil
	}
	runtime.LockOSThread() // the affinity is the thread's, which exec makes the process's
	defer runtime.UnlockOSThread()
	var have, want unix.CPUSet
	if err := unix.SchedGetaffinity(0, &have); err != nil {
		return fmt.Errorf("driver: %w", err)
	}
	for i := 0; want.Count() < n; i++ {
		if have.IsSet(i) {
			want.Set(i)
		}
	}
	if err := unix.SchedSetaffinity(0, &want); err != nil {
		return fmt.Errorf("driver: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("driver: %w", err)
	}
	return fmt.Errorf("driver: %w", syscall.Exec(self, os.Args, os.Environ()))
}
