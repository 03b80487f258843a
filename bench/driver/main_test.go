package driver

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/bench/report"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

var (
	full    = flag.Bool("full", false, "measure with full numbers and write RESULTS.md; otherwise with small ones, to see that all works")
	disk    = flag.String("dir", "/var/tmp", "the directory of the data: on a real disk, not in memory")
	pending = flag.Int("pending", 1_000_000, "keys pending far away in lateness, growth and memory, and the keys of churn; up to 10,000,000")

	adapterFile = os.Getenv("ADAPTER_BINARY") // see hack/with-programs.sh
)

// sizes are the numbers of the scenarios.
type sizes struct {
	window             // of put, bulk and growth
	Rounds, LateRounds int
	Callers, Batch     int // Batch: items of a bulk call
	Burst              int // due at one instant
	LateRate           int // due a second
	LateFor            time.Duration
	Lead               time.Duration // between the end of scheduling and the first due time
	Sources, Pendings  []int         // of growth
	Churn, ChurnWindow time.Duration
	Pending            int           // far away; the keys of churn
	Settle             time.Duration // at most, for memory and disk
	Kills              int
	Idle               time.Duration
	ByCalendar         time.Duration // how long calendars are looked at
	Overtaking         int           // keys of priority that come while others wait
}

var size = sizes{
	window: window{100 * time.Millisecond, 500 * time.Millisecond}, Rounds: 1, LateRounds: 1, Callers: 64, Batch: 100, Burst: 1000,
	LateRate: 100, LateFor: time.Second, Lead: 2 * time.Second, Sources: []int{1, 10}, Pendings: []int{1000},
	Churn: time.Second, ChurnWindow: 500 * time.Millisecond, Pending: 1000, Settle: time.Second, Kills: 1, Idle: time.Second,
	Overtaking: 20, ByCalendar: time.Second,
}

var scenarios = []struct {
	name, title string
	run         func(t *testing.T, dir string, sink *sink, r *result)
}{
	{"put", "Durable PUT: every caller waits for its answer, every answer for its fsync", put},
	{"bulk", "Bulk POST, durable as well", bulkPost},
	{"burst", "Due at one instant, delivered to an HTTP sink", burst},
	{"lateness", "Lateness: arrival at the sink after the due time", lateness},
	{"priority", "A key of normal priority, while many low ones are due and the sink takes 100 a second", priority},
	{"growth", "The cost of one more, with more pending and more sources", growth},
	{"churn", "Churn: every key is rescheduled again and again", churn},
	{"memory", "Memory, disk and restart after kill -9, with far-away schedules", memory},
	{"calendars", "A cron expression a key, in 400 time zones, each once a day", calendars},
	{"idle", "Idle: one source, nothing due", idle},
}

// Every scenario runs, each in a directory and with a sink of its own. With -full it writes its part of RESULTS.md.
func TestScenarios_All(t *testing.T) {
	if adapterFile == "" {
		t.Fatal("ADAPTER_BINARY must be set: run it with hack/with-programs.sh")
	}
	scratch, err := os.MkdirTemp(*disk, "reschedule-bench")
	check(t, errors.Join(err, os.Chmod(scratch, 0o711))) // PostgreSQL, which does not run as root, may pass through it
	t.Cleanup(func() { os.RemoveAll(scratch) })
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	go func() {
		<-interrupted // the processes end with this one
		os.RemoveAll(scratch)
		os.Exit(1)
	}()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			r := &result{name: s.name, began: time.Now()}
			dir := filepath.Join(scratch, s.name)
			check(t, os.Mkdir(dir, 0o711))
			t.Cleanup(func() { os.RemoveAll(dir) }) // after the processes
			r.conditions = conditions(t, dir)
			t.Logf("%s (%s)", s.title, r.conditions)
			s.run(t, dir, newSink(t), r)
			part := r.markdown(s.title)
			t.Log(part)
			if !*full {
				return
			}
			check(t, report.Replace("../RESULTS.md", s.name, part))
			if r.chart != nil {
				check(t, report.Draw("../plots/"+s.name+".svg", *r.chart))
			}
		})
	}
}

func TestMain(m *testing.M) {
	switch args := append(os.Args, ""); args[1] {
	case "server":
		log.Fatal(bareServer(args[2], args[3], args[4]))
	case "client":
		if err := bareClient(args[2], args[3], args[4], args[5]); err != nil {
			log.Fatal(err)
		}
		return
	}
	flag.Parse()
	if *full {
		size = sizes{
			window: window{time.Second, 5 * time.Second}, Rounds: 5, LateRounds: 3, Callers: 64, Batch: 100, Burst: 100_000,
			LateRate: 1000, LateFor: 30 * time.Second, Lead: 5 * time.Second, Sources: []int{1, 100, 10_000}, Pendings: []int{10_000, *pending},
			Churn: 10 * time.Minute, ChurnWindow: 10 * time.Second, Pending: *pending, Settle: 3 * time.Minute, Kills: 5, Idle: time.Minute,
			Overtaking: 300, ByCalendar: 5 * time.Minute,
		}
	}
	if runtime.NumCPU() > 2 && *full || *pending < 1 || *pending > 10_000_000 {
		log.Fatal("driver: want two cores (taskset -c 0,1 go test …), and -pending from 1 to 10000000")
	}
	m.Run()
}

// result is what a scenario found.
type result struct {
	name, conditions string
	began            time.Time
	rows             [][]string // the first is the header
	bars             []string
	note             string
	chart            *report.Chart
}

// bar says whether a requirement is met. It is not measured when a side of a comparison is missing.
func (r *result) bar(wants, got string, measured, ok bool) {
	verdict := "❌"
	switch {
	case !measured:
		got, verdict = "not measured", "–"
	case ok:
		verdict = "✅"
	}
	r.bars = append(r.bars, fmt.Sprintf("- %s %s: %s", verdict, wants, got))
}

func (r *result) markdown(title string) string {
	parts := []string{"## " + r.name, title + ".", report.Table(r.rows...), strings.Join(r.bars, "\n"), r.note}
	if r.chart != nil {
		parts = append(parts, fmt.Sprintf("![%s](plots/%s.svg)", r.chart.Title, r.name))
	}
	parts = append(parts, fmt.Sprintf("%s, %s.", r.began.UTC().Format("2006-01-02"), r.conditions))
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "\n\n")
}

// machine prints the conditions of a directory: a figure means nothing without them.
const machine = `printf '%s, %s cores, %s GB · Linux %s · %s\n· commit %s · load average before %s' \
	"$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" "$(awk '/^MemTotal/ {printf "%.0f", $2 * 1.024e-6}' /proc/meminfo)" \
	"$(uname -r)" "$(findmnt -n -o FSTYPE -T "$0")" "$(git describe --always --dirty)" "$(cut -d ' ' -f 1 /proc/loadavg)"`

// conditions describes the machine and the disk of a directory, where it measures an fsync of 4 KiB.
func conditions(t *testing.T, dir string) string {
	found, err := exec.Command("sh", "-c", machine, dir).Output()
	check(t, err)
	if *full && strings.Contains(string(found), "tmpfs") {
		t.Fatalf("-dir %s is in memory, where an fsync does nothing: choose a directory on a disk", *disk)
	}
	f, err := os.CreateTemp(dir, "fsync")
	check(t, err)
	defer f.Close()
	var times []time.Duration
	for range 300 {
		_, err := f.Write(make([]byte, 4096))
		check(t, err)
		began := time.Now()
		check(t, f.Sync())
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	if p50 := percentile(times, 0.5); p50 < 20*time.Microsecond {
		t.Logf("an fsync of %s is too fast to reach a disk: the figures do not hold for a durable disk", p50)
	}
	return fmt.Sprintf("%s · fsync of 4 KiB p50 %s, p99 %s · %s", found, short(percentile(times, 0.5)), short(percentile(times, 0.99)), runtime.Version())
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wait(d time.Duration) { <-time.After(d) }

// short prints a duration with three digits.
func short(d time.Duration) string {
	unit := time.Duration(1)
	for d.Abs() >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit).String()
}

// thousands prints a number with separators: 43,000.
func thousands[N int | int64 | float64](v N) string {
	return message.NewPrinter(language.English).Sprintf("%.0f", float64(v))
}

func count(n int, what string) string { return thousands(n) + " " + what }

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
