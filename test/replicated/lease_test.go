package replicated

import (
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// An owner whose log takes no change says that its lease has ended, and delivers again later.
func TestOwner_LogsTheEndOfItsLease(t *testing.T) {
	t.Parallel()
	g := start(t)
	stop := g.write()
	g.pass(time.Second)
	i := g.owner()
	others := func(sig syscall.Signal) {
		for j, a := range g.members {
			if j == i {
				continue
			}
			if err := a.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	others(syscall.SIGSTOP)
	g.members[i].AwaitLog(t, "lease of the group has ended")
	others(syscall.SIGCONT)
	stop()
	g.settled()
}

// A member without a majority answers 503 with Retry-After, and is not ready.
func TestGroup_NoMajority(t *testing.T) {
	g := start(t)
	last := (g.owner() + 1) % 3 // it still knows who owned the group
	first, second := (last+1)%3, (last+2)%3
	g.kill(first)
	g.kill(second)
	a := g.members[last]
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	begun := time.Now()
	r, err := harness.Do(ctx, http.MethodPut, a.URL+"/tests/s/schedules/x", `{"delay":"1h"}`)
	if err != nil || r.Status != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" || time.Since(begun) > 8*time.Second {
		t.Errorf("after %s: %v %v", time.Since(begun), r, err)
	}
	r, err = harness.Do(ctx, http.MethodGet, a.URL+"/tests/s/schedules/x", "")
	if err != nil || r.Status != http.StatusServiceUnavailable || !strings.Contains(string(r.Body), "unavailable") {
		t.Errorf("a read: %v %v", r, err)
	}
	g.eventually("the member is not ready", func() bool {
		r, err := harness.Do(ctx, http.MethodGet, a.Admin+"/readyz", "")
		return err == nil && r.Status == http.StatusServiceUnavailable
	})
	g.launch(first)
	g.put(g.key(), time.Hour)
	g.ready(last)
}
