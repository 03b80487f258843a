package command

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A port-forward that is given up is closed, whatever the other side does: it hangs, it
// accepts too late, or it answers no stream. The caller waits no longer than it wants to.
func TestTunnel_GivenUpIsClosed(t *testing.T) {
	t.Parallel()
	for name, stage := range map[string]func(c *cluster){
		"hangs":            func(c *cluster) { c.hangs = "/portforward" },
		"accepts too late": func(c *cluster) { c.late = make(chan struct{}) },
		"too late, SPDY":   func(c *cluster) { c.late, c.onlySPDY = make(chan struct{}), true },
		"mute":             func(c *cluster) { c.mute = true },
		"mute, SPDY":       func(c *cluster) { c.mute, c.onlySPDY = true, true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			stage(c)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			begin := time.Now()
			if _, err := c.session().scrapePod(ctx, pods[0]); err == nil {
				t.Error("there is an answer")
			}
			if took := time.Since(begin); took > 3*time.Second {
				t.Errorf("the limit of 300ms was kept after %s", took)
			}
			if c.late != nil {
				close(c.late)
			}
			select {
			case <-c.gone:
			case <-time.After(10 * time.Second):
				t.Error("the port-forward is still there")
			}
		})
	}
}

// A group is reached although its first pod hangs, as on a machine that is gone.
func TestTunnel_FirstPodHangs(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.group()(1, 1, 1, 100, 0)
	c.hangs = "-adapter-0/portforward"
	if code, out, errs := c.run(true, "describe", "web", "--request-timeout", "15s"); code != 0 || !strings.Contains(out, "3 pending") {
		t.Errorf("%d: %s%s", code, out, errs)
	}
	select {
	case <-c.gone:
	case <-time.After(10 * time.Second):
		t.Error("the port-forward that hangs is still there")
	}
}

// All pods of the first group are away: the members of another one answer. Only the first
// group's were tried. Of a Role that names fewer pods, what the first pod said is reported.
func TestTunnel_FirstGroupIsAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	says := c.groups(2)
	c.refuse["GET "+podPath+"/portforward"] = 500
	c.refuse["GET -adapter-3/portforward"], c.refuse["POST -adapter-3/portforward"] = 403, 403
	if code, _, errs := c.run(true, "describe", "web", "--request-timeout", "15s"); code != exitUnavailable || strings.Contains(errs, "forbidden") || !strings.Contains(errs, "no connection to a pod") {
		t.Errorf("without any: %d: %s", code, errs)
	}
	says(4, 1, 1, 100, 0)
	if code, out, errs := c.run(true, "describe", "web", "--request-timeout", "15s"); code != 0 || !strings.Contains(out, "3 pending") {
		t.Errorf("%d: %s%s", code, out, errs)
	}
}
