package adapter

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/reschedule-dev/reschedule/internal/heap"
	"github.com/reschedule-dev/reschedule/pkg/adapter/cluster"
	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/recent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sink"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/expression"
)

// constant reads a number, A << B, that another package does not export; of a list the last one.
func constant(t *testing.T, file, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^(?:\s+|var )` + name + `\s+= .*?(\d+) << (\d+)}?$`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s has no constant %s", file, name)
	}
	a, _ := strconv.ParseInt(string(found[1]), 10, 64) // digits
	b, _ := strconv.ParseInt(string(found[2]), 10, 64)
	return a << b
}

// measured are the parts that no constant bounds.
var measured = map[string]bool{"expressions:": true}

// aThousandSources measures what sources hold that nothing was sent to.
func aThousandSources(t *testing.T) int64 {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), wake: make(chan struct{}, 1), sinkURL: "http://x"}
	w.open()
	defer w.close()
	sets := make([]*schedule.Spec, 1000)
	before := heap.Held()
	for i := range sets {
		src, err := w.source(fmt.Sprint("source-", i), bothModes["json"])
		if err != nil {
			t.Fatal(err)
		}
		if err := (registry{w.a}).SetSource(src); err != nil {
			t.Fatal(err)
		}
	}
	return heap.Held() - before
}

// anEvaluation measures what an evaluation holds at its end: an event as large as may be, decoded, and
// a value about as large as the cost allows.
func anEvaluation(t *testing.T) int64 {
	t.Helper()
	const most = 1000 // numbers to compute with, about as many as the cost allows
	p, err := expression.Compile("", "dyn(event.data.some.map(x, [x, x]))")
	if err != nil {
		t.Fatal(err)
	}
	some := strings.Repeat("1,", most-1) + "1"
	text := `{"some":[` + some + `],"all":[` + strings.Repeat("1,", (schedule.MaxDataBytes-len(some))/2-20) + "1]}"
	before := heap.Held()
	var data any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&data); err != nil {
		t.Fatal(err)
	}
	view := map[string]any{"data": data}
	value, _, err := p.When.Eval(t.Context(), view)
	if err != nil {
		t.Fatal(err)
	}
	held := heap.Held() - before
	runtime.KeepAlive(view)
	runtime.KeepAlive(value)
	return held
}

// sumOf is what the parts take together, without the rest.
func sumOf(promised map[string]int64) (sum int64) {
	for row, bytes := range promised {
		if !strings.HasPrefix(row, "the rest") {
			sum += bytes
		}
	}
	return sum
}

// The table of the page about capacity promises what the constants bound. With a larger constant, or
// a smaller promise, a part took memory that the sum did not count.
func TestMemory_TableFollowsTheConstants(t *testing.T) {
	// Not in parallel: it reads what the process holds.
	const (
		rowBytes     = 560 // of a row with a key of 512 bytes
		waiting      = 1024
		waitingBytes = 24 << 10
		keyBits      = 10       // of a key in the filter
		lookupBytes  = 32 << 10 // of a name whose server does not answer
		idleTLS      = 90 << 10 // of a connection whose sink sends as many certificates as it may
	)
	page, err := os.ReadFile("../../docs/capacity.md")
	if err != nil {
		t.Fatal(err)
	}
	promised := map[string]int64{}
	for _, row := range regexp.MustCompile(`(?m)^\| (.+?) \| ([0-9]+) MiB \|`).FindAllStringSubmatch(string(page), -1) {
		mib, _ := strconv.ParseInt(row[2], 10, 64) // digits
		promised[row[1]] = mib << 20
	}
	for part, bound := range map[string]int64{
		"the store:":            constant(t, "store/options.go", "blockCache") + constant(t, "store/options.go", "memTable"),
		"deliveries in flight":  dispatch.DefaultMaxBytes,
		"answers of sinks":      sink.DefaultReplyBytes,
		"names of sinks":        sink.MaxLookups * lookupBytes,
		"idle connections":      sink.DefaultMaxIdle / 4 * idleTLS,
		"bodies and answers":    constant(t, "api/api.go", "defaultBudget"),
		"requests under way":    constant(t, "api/api.go", "defaultRequests") + waiting*waitingBytes,
		"connections:":          plainConnections*20<<10 + tlsConnections*(45+64)<<10 + adminConnections*20<<10 + headBytes + adminHeadBytes,
		"what is due next":      32 * queue.DefaultPageRows * rowBytes,
		"what happened lately":  recent.HistoryBytes + recent.FeedBytes,
		"the keys that are not": 2 * constant(t, "store/absent.go", "absentKeys") * keyBits / 8,
		"sources:":              cluster.SourceBytes,
		"watches:":              watch.Bytes,
		"expressions:":          expression.MaxBytes + 2*anEvaluation(t), // and what it made on the way
	} {
		var rows []string
		for row := range promised {
			if strings.HasPrefix(row, part) {
				rows = append(rows, row)
			}
		}
		if len(rows) != 1 {
			t.Errorf("%q: %d rows", part, len(rows))
			continue
		}
		// A part may be promised a little more than its constants say, but not much: the sum is all
		// that there is.
		// What is measured differs from run to run.
		slack := bound / 10
		if measured[part] {
			slack = bound
		}
		if got := promised[rows[0]]; got < bound || got > bound+slack {
			t.Errorf("%s: %d MiB are promised, the constants bound it at %s", rows[0], got>>20, fmt.Sprintf("%.1f MiB", float64(bound)/(1<<20)))
		}
	}
	if counted, held := constant(t, "cluster/capacity.go", "sourceBytes"), aThousandSources(t)/1000; held > counted {
		t.Errorf("a source takes %d bytes beside its object, and %d are counted", held, counted)
	} else {
		t.Logf("a source takes %d bytes beside its object, and %d are counted", held, counted)
	}
	if shipped := constant(t, "cluster/capacity.go", "shippedLimit"); sumOf(promised) != shipped {
		t.Errorf("the bound of sources is made for %d MiB, the parts are %d MiB", shipped>>20, sumOf(promised)>>20)
	}
	limit, err := os.ReadFile("../../config/500-adapter.yaml")
	if err != nil {
		t.Fatal(err)
	}
	sum := sumOf(promised)
	if !strings.Contains(string(limit), fmt.Sprintf("value: %dMiB\n", sum>>20)) {
		t.Errorf("the parts are %d MiB together, which is not GOMEMLIMIT", sum>>20)
	}
}
