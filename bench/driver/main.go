// Command driver measures the adapter beside the ceilings of the machine and
// writes bench/RESULTS.md.
//
// It guarantees that the sides of a comparison are measured in one run, by one
// client, in turns, on the same cores and the same disk, with a real fsync; that
// everything stays on loopback, is bounded in time and count, and is removed
// when the run is over.
//
// Each scenario is a file; contest.go has the turns and the arithmetic. The
// adapter is built from the repository and runs as a process. So do the bare
// ceilings, which are this program again (child.go). It needs Linux, for /proc
// and for the CPU affinity. Redis and PostgreSQL take part when they are
// installed. Package report writes the results, package load makes the load.
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

// The driver runs in the directory bench of the repository.
const repo, cores = "..", 2

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

// settings are the flags.
type settings struct {
	scenarios            *regexp.Regexp
	dir, adapter         string
	rounds, pending      int
	smoke, onlyRendering bool
}

func parseFlags(args []string) (settings, error) {
	flags := flag.NewFlagSet("driver", flag.ContinueOnError)
	var s settings
	run := flags.String("run", ".", "which scenarios: a regular expression over put, bulk, burst, lateness, growth, churn, memory, idle")
	flags.StringVar(&s.dir, "dir", "/var/tmp", "the directory of the data: on a real disk, not in memory")
	flags.StringVar(&s.adapter, "adapter", "", "an adapter binary to measure instead of building one; - for none: only the ceilings")
	flags.IntVar(&s.rounds, "rounds", 5, "rounds of put, bulk and burst")
	flags.IntVar(&s.pending, "pending", 1_000_000, "schedules pending far away in lateness, growth and memory, and the keys of churn; up to 10,000,000")
	flags.BoolVar(&s.smoke, "smoke", false, "run everything with small numbers and print the page, to see that it works")
	flags.BoolVar(&s.onlyRendering, "render", false, "measure nothing, only write RESULTS.md and the plots from results/")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if s.rounds < 1 || s.rounds >= maxRounds/2 {
		return s, fmt.Errorf("driver: -rounds is %d: want 1 to %d", s.rounds, maxRounds/2-1)
	}
	if s.pending < 0 || s.pending > 10_000_000 {
		return s, fmt.Errorf("driver: -pending is %d: want 0 to 10000000", s.pending)
	}
	var err error
	if s.scenarios, err = regexp.Compile(*run); err != nil {
		return s, fmt.Errorf("driver: -run: %w", err)
	}
	return s, nil
}

func drive(args []string) error {
	s, err := parseFlags(args)
	if err != nil {
		return err
	}
	if s.onlyRendering {
		return render()
	}
	if err := confine(cores); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	dir, err := os.MkdirTemp(s.dir, "reschedule-bench")
	if err != nil {
		return fmt.Errorf("driver: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o711); err != nil { // PostgreSQL does not run as root
		return fmt.Errorf("driver: %w", err)
	}
	if kind := fileSystem(dir); kind == "tmpfs" || kind == "ramfs" {
		return fmt.Errorf("driver: -dir %s is a %s, where an fsync does nothing: choose a directory on a disk", s.dir, kind)
	}
	b := newBench(s)
	b.dir = dir
	if b.adapters, err = findAdapter(ctx, s.adapter, dir); err != nil {
		return err
	}
	return b.runAll(ctx, s)
}

// findAdapter returns the adapter of the flag: built from the repository, a binary, or none.
func findAdapter(ctx context.Context, file, dir string) (adapters, error) {
	switch file {
	case "":
		log.Print("building the adapter")
		return buildAdapter(ctx, repo, dir)
	case "-":
		return noAdapter{}, nil
	}
	absolute, err := filepath.Abs(file)
	if err != nil {
		return nil, fmt.Errorf("driver: %w", err)
	}
	return adapterBinary{file: absolute}, nil
}

// runAll measures the scenarios that match. When one fails, the others are measured all the same.
func (b *bench) runAll(ctx context.Context, wanted settings) error {
	var failed error
	for _, s := range scenarios {
		if !wanted.scenarios.MatchString(s.name) {
			continue
		}
		c, err := conditions(b.dir, repo)
		if err != nil {
			return err
		}
		log.Printf("%s: %s (%s)", s.name, s.title, c)
		if c.FsyncP50 < 20*time.Microsecond {
			log.Printf("  an fsync of %s is too fast to reach a disk: the figures do not hold for a durable disk", c.FsyncP50)
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
		if wanted.smoke {
			fmt.Println(report.Markdown([]*report.Result{r}))
			continue
		}
		// Saved at once: the next scenario may fail, and takes long.
		if err := report.Save("results", r); err != nil {
			return err
		}
		if err := render(); err != nil {
			return err
		}
	}
	return failed
}

// render writes the page and the plots from the saved results.
func render() error {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	results, err := report.Load("results", names)
	if err != nil {
		return err
	}
	if err := report.Plot("plots", results); err != nil {
		return err
	}
	return report.Update("RESULTS.md", results)
}

// noAdapter is for a run with the ceilings only.
type noAdapter struct{}

func (noAdapter) start(context.Context, adapterConfig) (*service, time.Duration, error) {
	return nil, 0, errors.New("the ceilings only")
}

// confine limits the driver and its children to the first n cores. The Go
// runtime counts its cores once, when it starts, so the driver starts itself again.
func confine(n int) error {
	if runtime.NumCPU() <= n {
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
