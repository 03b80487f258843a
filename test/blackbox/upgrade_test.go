package blackbox

import (
	"cmp"
	"flag"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// hack/test-upgrade.sh sets it.
var older = flag.String("upgrade.from", "", "PROGRAM of an older adapter; default this one, which shows that load outlives restarts")

// One data directory is served by the older adapter, by this one, and by both again, while callers write.
func TestUpgrade_UnderLoadAndBack(t *testing.T) {
	t.Parallel()
	s := &source{name: "upgraded"}
	dir := t.TempDir()
	o := &own{file: filepath.Join(dir, "sources.yaml"), data: filepath.Join(dir, "data")}
	var url atomic.Value
	url.Store("http://127.0.0.1:1") // nothing answers there
	o.write(t, s)
	s.at = func() string { return url.Load().(string) }
	serve := func(binary string) {
		t.Helper()
		o.Adapter = harness.Process{Binary: binary}.Start(t, harness.Flags(o.file, o.data)...)
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
}
