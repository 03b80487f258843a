// Command driver measures the adapter beside the ceilings of the machine and
// writes bench/RESULTS.md.
//
// It guarantees that the sides of a comparison are measured in one run, by one
// client, in turns, on the same cores and the same disk, with a real fsync; that
// everything stays on loopback, is bounded in time and count, and is removed
// when the run is over.
//
// bench.go has the table of scenarios, contest.go the turns and the arithmetic.
// The adapter is built from the repository and runs as a process. So do the bare
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
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"

	"github.com/reschedule-dev/reschedule/bench/report"
	"golang.org/x/sys/unix"
)

// The driver runs in the directory bench of the repository.
const repo, cores = "..", 2

func main() {
	log.SetFlags(log.Ltime)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	run := drive
	if len(os.Args) > 1 && os.Args[1] == "child" {
		run = child
	}
	err := run(ctx, os.Args[1:])
	cancel()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		log.Fatal(err)
	}
}

func drive(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("driver", flag.ContinueOnError)
	run := flags.String("run", ".", "which scenarios: a regular expression over put, bulk, burst, lateness, growth, churn, memory, idle")
	parent := flags.String("dir", "/var/tmp", "the directory of the data: on a real disk, not in memory")
	binary := flags.String("adapter", "", "an adapter binary to measure instead of building one; - for none: only the ceilings")
	pending := flags.Int("pending", 1_000_000, "schedules pending far away in lateness, growth and memory, and the keys of churn; up to 10,000,000")
	smoke := flags.Bool("smoke", false, "run everything with small numbers and print the page, to see that it works")
	rendering := flags.Bool("render", false, "measure nothing, only write RESULTS.md and the plots from results/")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *pending < 0 || *pending > 10_000_000 {
		return fmt.Errorf("driver: -pending is %d: want 0 to 10000000", *pending)
	}
	wanted, err := regexp.Compile(*run)
	if err != nil {
		return fmt.Errorf("driver: -run: %w", err)
	}
	if *rendering {
		return render()
	}
	if err := confine(cores); err != nil {
		return err
	}
	dir, err := scratch(*parent, "reschedule-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if kind := fileSystem(dir); kind == "tmpfs" || kind == "ramfs" {
		return fmt.Errorf("driver: -dir %s is a %s, where an fsync does nothing: choose a directory on a disk", *parent, kind)
	}
	b := &bench{dir: dir, sizes: full(*pending), redis: findRedis(), postgres: findPostgres(), say: log.Printf}
	if *smoke {
		b.sizes = small(min(*pending, 1000))
	}
	if b.start, err = findAdapter(ctx, *binary, dir); err != nil {
		return err
	}
	save := func(r *report.Result) error {
		// Saved at once: the next scenario may fail, and takes long.
		return errors.Join(report.Save(filepath.Join("results", r.Name+".json"), r), render())
	}
	if *smoke {
		save = func(r *report.Result) error {
			page, err := report.Markdown([]*report.Result{r})
			fmt.Println(page)
			return err
		}
	}
	return b.runAll(ctx, wanted, save)
}

// scratch makes a directory. PostgreSQL, which does not run as root, may pass through it.
func scratch(parent, name string) (string, error) {
	dir, err := os.MkdirTemp(parent, name)
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		return "", fmt.Errorf("driver: %w", err)
	}
	return dir, nil
}

// findAdapter returns the adapter of the flag: built from the repository, a binary, or none.
func findAdapter(ctx context.Context, file, dir string) (starter, error) {
	if file == "-" {
		return func(context.Context, adapterConfig) (*service, error) { return nil, errors.New("the ceilings only") }, nil
	}
	if file == "" {
		log.Print("building the adapter")
		file = filepath.Join(dir, "adapter")
		cmd := exec.CommandContext(ctx, "go", "build", "-C", repo, "-tags", "grpcnotrace", "-o", file, "./cmd/adapter")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("driver: building the adapter: %w: %s", err, out)
		}
	}
	file, err := filepath.Abs(file)
	return adapterBinary(file).start, err
}

// render writes the page and the plots from the saved results.
func render() error {
	var results []*report.Result
	for _, s := range scenarios {
		r := new(report.Result)
		if err := report.Load(filepath.Join("results", s.name+".json"), r); err != nil {
			return err
		}
		if r.Name == "" {
			continue // never measured
		}
		results = append(results, r)
		if r.Chart != nil {
			if err := report.Draw(filepath.Join("plots", r.Name+".svg"), r.Chart); err != nil {
				return err
			}
		}
	}
	page, err := report.Markdown(results)
	if err != nil {
		return err
	}
	return report.Replace("RESULTS.md", page)
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
	self, err := os.Executable()
	if err := errors.Join(err, unix.SchedSetaffinity(0, &want)); err != nil {
		return fmt.Errorf("driver: %w", err)
	}
	return fmt.Errorf("driver: %w", syscall.Exec(self, os.Args, os.Environ()))
}
