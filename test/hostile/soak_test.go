package hostile

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

var lasts = flag.Duration("hostile.for", 20*time.Second, "how long all attacks at once last")

// A soak long enough for its figures to mean something also holds the
// neighbour's lateness: under load, p99 within so many times the quiet one.
const (
	soak      = 5 * time.Minute
	mostLater = 3
)

// All attacks at once, from five namespaces: the sixth loses nothing, gets nothing early, and is always answered; and
// the adapter keeps within the memory that the page about capacity promises.
func TestNeighbour_OutlivesAllAttacksAtOnce(t *testing.T) {
	budget := memoryBudget(t)
	attacks := slices.Sorted(maps.Keys(assaults))
	s := newAttacked(t, harness.Pod(), t.TempDir(), len(evil), attacks...)
	if *lasts >= soak {
		goFirst(t)
	}
	beside := max(5*time.Second, min(*lasts/10, time.Minute))
	_, peak := s.live(t, beside, *lasts, beside)
	if peak > budget {
		t.Errorf("the adapter took %d MiB; docs/capacity.md promises %d", peak>>20, budget>>20)
	}
	t.Log(s.table(peak))
	quiet, attack := at(s.phases["quiet"].lateness, 99), at(s.phases["attack"].lateness, 99)
	if *lasts >= soak && attack > mostLater*quiet {
		t.Errorf("late p99 %s during the attacks, %s in quiet: more than %d times", attack, quiet, mostLater)
	}
}

// goFirst gives the threads of this process, which is the neighbour's, a processor as soon
// as they want one: in a cluster the neighbour has machines of its own, and it is the adapter's
// lateness that is measured. Processes that were started before are not concerned.
func goFirst(t *testing.T) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	must(t, err)
	for _, thread := range threads { // threads that come later inherit it
		id, err := strconv.Atoi(thread.Name())
		if err == nil {
			err = unix.SchedSetAttr(id, &unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 1}, 0)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatalf("a soak requires the right to real-time priority, as root has it: %v", err)
		}
	}
}

// table is what bench/RESULTS.md shows.
func (s *attacked) table(peak int64) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s of all attacks from %d namespaces; the adapter took at most %d MiB\n\n", *lasts, len(evil), peak>>20)
	text.WriteString("| the neighbour | calls | errors | answered p50 | p99 | deliveries | early | late p50 | p99 | processors |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, phase := range phases {
		f := s.phases[phase]
		fmt.Fprintf(&text, "| %s | %d | %d | %s | %s | %d | %d | %s | %s | %.2f |\n", phase, len(f.answers), len(f.errors),
			at(f.answers, 50), at(f.answers, 99), len(f.lateness), f.early, at(f.lateness, 50), at(f.lateness, 99), f.processors)
	}
	return text.String()
}

// memoryBudget is the total of the table of docs/capacity.md, which must fit into the pod's memory.
func memoryBudget(t *testing.T) (total int64) {
	t.Helper()
	_, total = memoryTable(t)
	if limit := harness.Pod().Memory; total > limit {
		t.Fatalf("docs/capacity.md promises %d MiB, the pod has %d", total>>20, limit>>20)
	}
	return total
}

// memoryTable reads the table of the page about capacity: its rows must add up to its total.
func memoryTable(t *testing.T) (rows map[string]int64, total int64) {
	t.Helper()
	page, err := os.ReadFile("../../docs/capacity.md")
	must(t, err)
	_, section, ok := strings.Cut(string(page), "\n## Memory\n")
	if !ok {
		t.Fatal("docs/capacity.md has no section Memory")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	rows = map[string]int64{}
	var sum int64
	for _, row := range regexp.MustCompile(`(?m)^\| (.+?) \| (?:\*\*)?([0-9,]+) MiB(?:\*\*)? \|`).FindAllStringSubmatch(section, -1) {
		mib, err := strconv.ParseInt(strings.ReplaceAll(row[2], ",", ""), 10, 64)
		must(t, err)
		if strings.Contains(row[1], "together") {
			total = mib << 20
		} else {
			rows[row[1]] = mib << 20
			sum += mib << 20
		}
	}
	if total == 0 || sum != total {
		t.Fatalf("the table of docs/capacity.md: %d MiB together, its rows add up to %d", total>>20, sum>>20)
	}
	return rows, total
}

// The first row of the table is the program itself.
func TestMemory_IdleAdapterKeepsItsPromise(t *testing.T) {
	rows, _ := memoryTable(t)
	n := newNeighbour(t)
	file := filepath.Join(t.TempDir(), "sources.yaml")
	must(t, os.WriteFile(file, []byte(n.manifest()), 0o600))
	a := harness.Pod().Start(t, harness.Flags(file, t.TempDir())...)
	n.url, n.admin = a.URL+"/good/neighbour", a.Admin
	n.live(t.Context(), "quiet", time.Second)
	n.judge(t)
	const part = "the program itself"
	for row, most := range rows {
		if peak := a.PeakMemory(t); strings.HasPrefix(row, part) && peak > most {
			t.Errorf("an adapter with little to do took %d MiB; docs/capacity.md promises %d", peak>>20, most>>20)
		}
	}
	if !slices.ContainsFunc(slices.Collect(maps.Keys(rows)), func(row string) bool { return strings.HasPrefix(row, part) }) {
		t.Errorf("docs/capacity.md has no row for %s", part)
	}
}
