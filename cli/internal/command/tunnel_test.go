package command

import (
	"context"
	"io"
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
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s, answer := c.session(), make(chan error, 1)
			go func() {
				_, err := s.scrapePod(ctx, pods[0])
				answer <- err
			}()
			received(t, c.begun, "no port-forward begins")
			begin := time.Now()
			time.AfterFunc(300*time.Millisecond, cancel) // the streams are asked for then
			select {
			case err := <-answer:
				if err == nil {
					t.Error("there is an answer")
				}
			case <-time.After(10 * time.Second):
				t.Error("the caller still waits")
			}
			if took := time.Since(begin); took > 3*time.Second {
				t.Errorf("the limit of 300ms was kept after %s", took)
			}
			if c.late != nil {
				close(c.late)
			}
			received(t, c.gone, "the port-forward is still there")
		})
	}
}

// received fails the test unless the channel has an item soon.
func received(t *testing.T, from <-chan struct{}, without string) {
	t.Helper()
	select {
	case <-from:
	case <-time.After(10 * time.Second):
		t.Error(without)
	}
}

// Of a Role that names fewer pods than there are, what the first pod said is reported.
func TestTunnel_RoleNamesFewerPods(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.group()
	c.refuse["GET "+podPath+"/portforward"] = 500
	c.refuse["GET -adapter-1/portforward"], c.refuse["POST -adapter-1/portforward"] = 403, 403
	if code, _, errs := c.run(true, "describe", "web", "--request-timeout", "15s"); code != exitUnavailable || strings.Contains(errs, "forbidden") || !strings.Contains(errs, "no connection to a pod") {
		t.Errorf("without any: %d: %s", code, errs)
	}
}

// called makes a call through the tunnel of the session.
func called(t *testing.T, s *session) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := s.tunnel.dial(ctx, httpPort)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /ops/web HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	_, err = io.ReadAll(conn)
	return err
}

// A port-forward outlives its pod: every stream is refused then. A page that had been open
// when the adapter's pod was replaced never reached the adapter again.
func TestTunnel_PodIsReplaced(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.session()
	if err := called(t, s); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.replaced = c.opened
	c.mu.Unlock()
	if err := called(t, s); err == nil || !strings.Contains(err.Error(), "nothing listens") {
		t.Fatalf("the pod is gone, and the call ends with %v", err)
	}
	if err := called(t, s); err != nil {
		t.Errorf("the new pod is not reached: %v", err)
	}
}

// A stream that the kubelet refuses ends the port-forward, and with it the other calls. They
// report the refusal too: which call was first decided whether a closed port was named.
func TestTunnel_AllCallsNameTheCause(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.session()
	other, err := s.tunnel.dial(t.Context(), httpPort)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if conn, err := s.tunnel.dial(t.Context(), 8443); err == nil {
		_, _ = io.ReadAll(conn)
		_ = conn.Close()
	}
	if _, err := io.ReadAll(other); err == nil || !strings.Contains(err.Error(), "nothing listens on port 8443") {
		t.Errorf("the other call ends with %v", err)
	}
}

// A group is reached although its first pod hangs, as on a machine that is gone, or its program restarts: its pod accepts a
// port-forward all the same.
func TestTunnel_FirstPodIsAway(t *testing.T) {
	t.Parallel()
	for _, hangs := range []bool{true, false} {
		c := newCluster(t)
		c.group()(1, 1, 1, 100, 0)
		if hangs {
			c.hangs = "-adapter-0/portforward"
		} else {
			c.refuses = "-adapter-0/portforward"
		}
		if code, out, errs := c.run(true, "describe", "web", "--request-timeout", "15s"); code != 0 || !strings.Contains(out, "3 pending") {
			t.Errorf("it hangs %t: %d: %s%s", hangs, code, out, errs)
		}
		if hangs {
			received(t, c.gone, "the port-forward that hangs is still there")
		}
	}
}
