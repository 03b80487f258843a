package adapter

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/recent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sink"
)

// constant reads a number of bytes, A << B, that another package does not export.
func constant(t *testing.T, file, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^\s+` + name + `\s+= (\d+) << (\d+)$`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s has no constant %s", file, name)
	}
	a, _ := strconv.ParseInt(string(found[1]), 10, 64) // digits
	b, _ := strconv.ParseInt(string(found[2]), 10, 64)
	return a << b
}

// The table of the operators' page promises what the constants bound. With a larger constant, or
// a smaller promise, a part took memory that the sum did not count.
func TestMemory_TableFollowsTheConstants(t *testing.T) {
	t.Parallel()
	const (
		rowBytes     = 560 // of a row with a key of 512 bytes
		waiting      = 1024
		waitingBytes = 24 << 10
	)
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	promised := map[string]int64{}
	for _, row := range regexp.MustCompile(`(?m)^\| (.+?) \| ([0-9]+) MiB \|`).FindAllStringSubmatch(string(page), -1) {
		mib, _ := strconv.ParseInt(row[2], 10, 64) // digits
		promised[row[1]] = mib << 20
	}
	for part, bound := range map[string]int64{
		"the store:":           constant(t, "store/options.go", "blockCache") + constant(t, "store/options.go", "memTable"),
		"deliveries in flight": dispatch.DefaultMaxBytes,
		"answers of sinks":     sink.DefaultReplyBytes,
		"bodies and answers":   constant(t, "api/api.go", "defaultBudget"),
		"requests under way":   constant(t, "api/api.go", "defaultRequests") + waiting*waitingBytes,
		"connections:":         plainConnections*20<<10 + tlsConnections*(45+64)<<10 + adminConnections*20<<10 + headBytes + adminHeadBytes,
		"what is due next":     32 * queue.DefaultPageRows * rowBytes,
		"what happened lately": recent.HistoryBytes + recent.FeedBytes,
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
		if got := promised[rows[0]]; got < bound || got > bound+bound/10 {
			t.Errorf("%s: %d MiB are promised, the constants bound it at %s", rows[0], got>>20, fmt.Sprintf("%.1f MiB", float64(bound)/(1<<20)))
		}
	}
}
