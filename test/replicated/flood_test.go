package replicated

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/internal/certs"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// The address of a caller that misbehaves: all of 127.0.0.0/8 is this machine.
const hostile = "127.0.0.2"

// dialFrom connects from an address of this machine.
func dialFrom(ctx context.Context, address, to string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: harness.Patience}
	return d.DialContext(ctx, "tcp", to)
}

// drip writes the text, and then a byte now and then until the connection ends. Without a text
// the connection is silent.
func drip(ctx context.Context, c net.Conn, text string) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	if text == "" {
		_, _ = io.Copy(io.Discard, c)
		return
	}
	if _, err := io.WriteString(c, text); err != nil {
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for range tick.C {
		if _, err := io.WriteString(c, "x"); err != nil {
			return
		}
	}
}

// A caller whose 520 connections to a standby send their bodies byte by byte has a quarter of
// the slots for forwarded calls, and for 10 s: the calls of another address go through at once.
func TestStandby_DripsLeaveSlots(t *testing.T) {
	g := start(t)
	standby := g.members[(g.owner()+1)%3]
	ctx, cancel := context.WithCancel(t.Context())
	var drips sync.WaitGroup
	defer drips.Wait()
	defer cancel()
	to := strings.TrimPrefix(standby.URL, "http://")
	for i := range 520 {
		c, err := dialFrom(ctx, hostile, to)
		if err != nil {
			t.Fatal(err)
		}
		drips.Go(func() {
			drip(ctx, c, fmt.Sprintf("PUT %s/schedules/drip%d HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{", source, i))
		})
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, to string) (net.Conn, error) {
		return dialFrom(ctx, hostile, to)
	}}
	another := func() int { // one more call of the address
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, standby.URL+source+"/schedules/another", strings.NewReader(`{"delay":"1h"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		return answer.StatusCode
	}
	g.eventually("the address has its share of the slots", func() bool { return another() == http.StatusServiceUnavailable })
	var took []time.Duration
	begun := time.Now()
	g.eventually("the address has slots again", func() bool {
		sent := time.Now()
		r, err := harness.Do(ctx, http.MethodPut, standby.URL+source+"/schedules/other", `{"delay":"1h"}`)
		if took = append(took, time.Since(sent)); err != nil || r.Status >= 300 {
			t.Fatalf("the call of another address: %v %v", r, err)
		}
		return another() < 300
	})
	slices.Sort(took)
	longest := took[len(took)-1]
	t.Logf("%d calls of another address beside the drips took %s, the longest one %s; the drips had their slots for %s", len(took), took[len(took)/2], longest, time.Since(begun))
	if longest > time.Second {
		t.Errorf("a call took %s", longest)
	}
	if lasted := time.Since(begun); lasted > 20*time.Second {
		t.Errorf("the drips had their slots for %s", lasted)
	}
}

// flooded is how many connections a flood has to a port: more than the limit.
const flooded = 2500

// mostOpen is more than the files and connections of a member whose two ports have 2,048
// connections each, and less than the flood of one port adds to the limit of the other.
const mostOpen = 2*2048 + 200

// handshakes makes one TLS handshake without a certificate after the other, and waits until the
// connection is closed.
func handshakes(ctx context.Context, to string) {
	for ctx.Err() == nil {
		raw, err := dialFrom(ctx, hostile, to)
		if err != nil {
			continue
		}
		c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // an attacker trusts everybody
		if err := c.HandshakeContext(ctx); err == nil {
			drip(ctx, c, "")
		}
		c.Close()
	}
}

// Floods of connections without a certificate to both ports of the owner and of a standby, some
// silent, some in the middle of a handshake, some at its end: the members' connections are
// bounded, calls go on at all of them, and a member that starts anew meanwhile finds the others.
func TestMembers_FloodWithoutCertificate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "peers")
	mount(t, dir, membersFiles(certs.Authority("all"), 2))
	process := patient(t) // two processors that the flood keeps busy end a lease of two seconds
	g := startWith(t, func(g *group) {
		g.process = process
		g.more = func(int) []string { return []string{"--peer-tls-dir", dir} }
	})
	owner := g.owner()
	standby, third := (owner+1)%3, (owner+2)%3
	before := map[int]int64{owner: g.members[owner].PeakMemory(t), standby: g.members[standby].PeakMemory(t)}
	ctx, cancel := context.WithCancel(t.Context())
	var flood, open sync.WaitGroup
	defer flood.Wait()
	defer cancel()
	for _, i := range []int{owner, standby} {
		n, err := strconv.Atoi(g.ports[i])
		if err != nil {
			t.Fatal(err)
		}
		for _, port := range []int{n, n + 1} {
			to := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			flood.Go(func() { handshakes(ctx, to) })
			for n := range flooded {
				open.Add(1)
				flood.Go(func() {
					opened := sync.OnceFunc(open.Done)
					defer opened()
					for ctx.Err() == nil { // the member may close it
						c, err := dialFrom(ctx, hostile, to)
						if err != nil {
							if ctx.Err() == nil {
								t.Errorf("port %d: %v", port, err)
							}
							return
						}
						opened()
						text := ""
						if n%2 == 0 { // the head of a handshake
							text = "\x16\x03\x01\x10\x00\x01\x00\x0f\xfc\x03\x03"
						}
						drip(ctx, c, text)
					}
				})
			}
		}
	}
	open.Wait()
	disk := watchDisk(t, g.dir)
	g.beStrict(true)
	stop := g.write()
	g.pass(3 * time.Second)
	for i, was := range before {
		now, files := g.members[i].PeakMemory(t), g.members[i].OpenFiles(t)
		t.Logf("member %s: %d MiB, before the flood %d MiB; %d open files", name(i), now>>20, was>>20, files)
		if files > mostOpen {
			t.Errorf("the flood has %d connections of member %s", files, name(i))
		}
		if now-was > 400<<20 {
			t.Errorf("the flood takes %d MiB of member %s", (now-was)>>20, name(i))
		}
	}
	leaving := g.withdraw(third)
	ended, end := context.WithTimeout(ctx, harness.Patience)
	defer end()
	if status, _, err := leaving.Terminate(ended); err != nil || status != 0 {
		t.Fatalf("SIGTERM: status %d, %v", status, err)
	}
	g.launch(third)
	g.ready(third)
	g.setAvoided(-1)
	g.pass(3 * time.Second)
	stop()
	t.Logf("the longest call took %s", g.longest.Round(time.Millisecond))
	g.judge(disk)
	if now := g.owner(); now != owner && disk.longest() < excuse {
		t.Errorf("%s owns the group, before the flood %s did", name(now), name(owner))
	}
	cancel()
	g.settled()
}
