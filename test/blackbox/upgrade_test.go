package blackbox

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// hack/test-upgrade.sh sets these.
var (
	older    = flag.String("upgrade.from", "", "PROGRAM of an older adapter; default this one, which shows that load outlives restarts")
	readsTwo = flag.Bool("upgrade.reads2", false, "the older adapter reads format 2; 0.1.0 must refuse it")
)

// testdata/0.1.0 was written by the adapter of commit 975d2c0, with this source
// suspended: ten keys that are due, ten for the year 2100.
func TestUpgrade_FromDataOfZeroOne(t *testing.T) {
	t.Parallel()
	s := &source{name: "zero-one"}
	o := &own{dir: t.TempDir()}
	o.file = filepath.Join(o.dir, "sources.yaml")
	data := filepath.Join(o.dir, "data")
	if err := os.CopyFS(data, os.DirFS("testdata/0.1.0")); err != nil {
		t.Fatal(err)
	}
	if code, out := harness.Run("verify", data); code != 0 {
		t.Errorf("verify ends with %d: %s", code, out)
	}
	o.write(t, s)
	o.restart(t)
	check := func(when string) {
		t.Helper()
		for i := range 10 {
			key := fmt.Sprintf("far-%d", i)
			want := time.Date(2100, 1, 1, 0, 0, i, 0, time.UTC)
			if v := s.get(t, key); !v.DueAt.Equal(want) {
				t.Errorf("%s: %s is due %s, not %s", when, key, v.DueAt, want)
			}
			r := s.call(t, "GET", harness.KeyPath(key), "")
			if event := fmt.Sprintf(`"data":{"n":%d}`, i); !strings.Contains(string(r.Body), event) || !strings.Contains(string(r.Body), "com.example.far") {
				t.Errorf("%s: %s has another event: %s", when, key, r.Body)
			}
		}
	}
	check("after the upgrade")
	for i := range 10 {
		key := fmt.Sprintf("soon-%d", i)
		if d := s.next(t, key); string(d.Body) != fmt.Sprintf(`{"n":%d}`, i) || d.Attr("type") != "com.example.soon" {
			t.Errorf("%s was delivered as %v %s", key, d.Attributes, d.Body)
		}
	}
	o.terminate(t)
	o.restart(t)
	check("after a restart")
}

// One data directory is served by the older adapter, by this one, and by both
// again, while callers write and keys come due.
func TestUpgrade_UnderLoadAndBack(t *testing.T) {
	t.Parallel()
	s := &source{name: "upgraded"}
	o := &own{dir: t.TempDir()}
	o.file = filepath.Join(o.dir, "sources.yaml")
	var url atomic.Value
	url.Store("http://127.0.0.1:1") // nothing answers there
	o.write(t, s)
	s.at = func() string { return url.Load().(string) }
	serve := func(binary string) {
		t.Helper()
		o.Adapter = harness.Process{Binary: binary}.Start(t, harness.Flags(o.file, filepath.Join(o.dir, "data"))...)
		url.Store(o.URL)
	}

	var mu sync.Mutex
	far, soon := map[string]time.Time{}, map[string]time.Time{} // what was acknowledged, and until when it waits
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for caller := range 4 {
		callers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-t.Context().Done(): // the test has failed
					return
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond): // some hundred calls a second
				}
				key, delay, acknowledged := fmt.Sprintf("soon-%d-%d", caller, i), time.Duration(i%20)*100*time.Millisecond, soon
				if i%10 == 0 {
					key, delay, acknowledged = fmt.Sprintf("far-%d-%d", caller, i), time.Hour, far
				}
				sent := time.Now()
				r, err := harness.Do(t.Context(), "PUT", s.url()+harness.KeyPath(key), fmt.Sprintf(`{"delay":%q}`, delay))
				if err == nil && r.Status == 201 {
					mu.Lock()
					acknowledged[key] = sent.Add(delay)
					mu.Unlock()
				}
			}
		})
	}
	known := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(soon)
	}
	for _, binary := range []string{*older, "", *older, ""} {
		before := known()
		serve(binary)
		eventually(t, "callers are served again", func() bool { return known() > before+100 })
		o.terminate(t)
	}
	serve("")
	close(stop)
	callers.Wait()
	t.Logf("from %q: %d keys were due, %d wait", cmp.Or(*older, "this program"), len(soon), len(far))
	for key, due := range soon {
		if d := sink.Next(t, s.name, key); d.At.Before(due) {
			t.Errorf("%s was delivered %s early", key, due.Sub(d.At))
		}
	}
	for key := range far {
		if v := s.get(t, key); time.Until(v.DueAt) < 50*time.Minute {
			t.Errorf("%s is due %s", key, v.DueAt)
		}
	}

	// The first failed attempt makes format 2, which has no way back to 0.1.0.
	s.answer("fails", harness.Status(500))
	s.put(t, "fails", `{"delay":"0s"}`)
	eventually(t, "an attempt has failed", func() bool { return *s.get(t, "fails").Attempt > 0 })
	o.terminate(t)
	if *older != "" && !*readsTwo {
		_, err := harness.Process{Binary: *older}.Launch(harness.Flags(o.file, filepath.Join(o.dir, "data"))...)
		if err == nil || !strings.Contains(err.Error(), "its format is version 2, this program reads version 1") {
			t.Fatalf("the older adapter on format 2: %v", err)
		}
		t.Log("the older adapter refuses format 2:", err)
	}
	serve("")
	for key := range far {
		s.get(t, key)
	}
}
