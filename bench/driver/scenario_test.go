package main

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
)

// Each fault of an adapter fails the bar that is there for it, and a side that is absent is not measured.
func TestScenarios_FaultsFailBars(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, test := range []struct {
		scenario string
		fake     *fake
		bar      string // its beginning
		want     report.Verdict
		row      string // what a row of the table has
	}{
		{"put", &fake{}, "above PostgreSQL", report.NotMeasured, "PostgreSQL not here"},
		{"put", &fake{broken: true}, "at least 60", report.NotMeasured, "adapter failed in round 1: broken"},
		{"bulk", &fake{failItem: true}, "at least a fifth", report.NotMeasured, "quota_exceeded"},
		{"burst", &fake{}, "nothing early", report.Pass, ""},
		{"burst", &fake{late: -200 * ms}, "nothing early", report.Fail, ""},
		{"lateness", &fake{}, "nothing early", report.Pass, ""},
		{"lateness", &fake{late: -200 * ms}, "nothing early", report.Fail, ""},
		{"growth", &fake{}, "a PUT costs", report.NotMeasured, "3 300"}, // a fake takes no CPU time
		{"churn", &fake{}, "every key", report.Pass, "longest call"},
		{"churn", &fake{stall: 110 * ms}, "no call", report.Fail, ""},
		{"memory", &fake{rss: 99e6}, "memory", report.Pass, "99.0 MB"},
		{"memory", &fake{rss: 101e6}, "memory", report.Fail, "101.0 MB"},
		{"memory", &fake{forget: 1}, "nothing acknowledged", report.Fail, ""},
		{"memory", &fake{late: 1100 * ms}, "deliveries", report.Fail, ""},
		{"idle", &fake{}, "no CPU", report.Pass, ""},
		{"idle", &fake{idleCPU: 0.01}, "no CPU", report.Fail, ""},
	} {
		t.Run(fmt.Sprintf("%s %s %s", test.scenario, test.bar, test.want), func(t *testing.T) {
			t.Parallel()
			r := scenarioOf(t, test.scenario, test.fake)
			if got := verdict(t, r.Bars, test.bar); got != test.want {
				t.Errorf("%s: %v", got, r.Bars)
			}
			if rows := fmt.Sprint(r.Rows); !strings.Contains(rows, test.row) {
				t.Errorf("no row has %q: %s", test.row, rows)
			}
		})
	}
}

// Lateness is taken from each one's due time: from the first it would be half of the second that they take.
func TestLateness_FromEachDueTime(t *testing.T) {
	t.Parallel()
	r := scenarioOf(t, "lateness", &fake{late: 500 * time.Millisecond})
	if p50 := r.Chart.Curves[0].Values[slices.Index(report.Percentiles, 0.5)]; p50 < 500 || p50 > 900 {
		t.Errorf("p50 of %v ms with deliveries 500 ms late", p50)
	}
}

// The sink stores the first arrival of each key.
func TestSink_FirstArrivals(t *testing.T) {
	t.Parallel()
	s, err := server(t.Context(), "sink", serverConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	if err := resetSink(s.addr, 100, 2); err != nil {
		t.Fatal(err)
	}
	began := time.Now().UnixNano()
	for _, index := range []uint32{100, 101, 101, 102, 99} {
		deliver(s.addr, load.Key(index), nil)
	}
	got, err := awaitSink(t.Context(), s.addr, 2, time.Millisecond, time.Second)
	if err != nil || got.Seen != 2 || got.Repeats != 1 || got.Header.Get("Ce-Reschedulekey") != load.Key(100) {
		t.Errorf("%+v, %v", got, err)
	}
	if len(got.At) != 2 || got.At[0] < began || got.At[1] < got.At[0] {
		t.Errorf("arrivals %v", got.At)
	}
	if u, err := s.usage(); err != nil || u.rss < 1e6 {
		t.Errorf("usage = %+v, %v", u, err)
	}
}

// deliver posts an event.
func deliver(addr, key string, data []byte) {
	request, _ := http.NewRequest(http.MethodPost, "http://"+addr+"/", strings.NewReader(string(data)))
	request.Header.Set("Ce-Reschedulekey", key)
	if answer, err := http.DefaultClient.Do(request); err == nil { // otherwise the test is over
		answer.Body.Close()
	}
}

// CPU time, memory, and disk space are read from the kernel, and no condition is missing.
func TestConditions_Complete(t *testing.T) {
	t.Parallel()
	dir, before := t.TempDir(), ownCPU()
	u, err := processUsage(os.Getpid())
	if err != nil || u.rss < 1e6 || u.cpu < before-time.Second || u.cpu > ownCPU()+time.Second {
		t.Errorf("%+v, %v", u, err)
	}
	c, err := conditions(dir)
	if err != nil || c.CPU == "" || c.Kernel == "" || c.FileSystem == "unknown" || c.Cores < 1 || c.MemoryGB <= 0 || c.FsyncP50 <= 0 {
		t.Errorf("%+v, %v", c, err)
	}
	f, err := os.Create(dir + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Write(make([]byte, 100_000))
	f.Sync() // blocks are allocated late
	if n, err := diskBytes(dir); err != nil || n < 100_000 || n > 200_000 {
		t.Errorf("%d bytes, %v", n, err)
	}
}
