//go:build faults

package replicated

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/internal/certs"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// command runs a program of the system, and returns what it printed.
func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// root refuses where the tests could not do what they are for.
func root(t testing.TB, programs ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("network namespaces and file systems of the test's own need root: run `make faults` as root")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("%v: install iproute2, nftables, util-linux and e2fsprogs", err)
		}
	}
}

// network is a network in which each member is on a machine of its own: in a network
// namespace that a bridge connects with the others and with the callers and the sink.
type network struct {
	t      testing.TB
	bridge string
	spaces [3]string
	hosts  [3]string
}

var networks int

// separate gives each member of a group that has not started a network namespace.
func (g *group) separate() *network {
	t := g.t
	root(t, "ip", "nft", "nsenter")
	// 198.18.0.0/15 is for tests of networks, and has no routes.
	networks++ // a network that was removed is there for a while
	id := fmt.Sprintf("rs%x-%d", os.Getpid(), networks)
	subnet := fmt.Sprintf("198.18.%d.", (os.Getpid()+networks)%256)
	n := &network{t: t, bridge: id}
	command(t, "ip", "link", "add", n.bridge, "type", "bridge")
	t.Cleanup(func() { command(t, "ip", "link", "delete", n.bridge) })
	command(t, "ip", "address", "add", subnet+"254/24", "dev", n.bridge)
	command(t, "ip", "link", "set", n.bridge, "up")
	var peers []string
	g.process = func(i int) harness.Process {
		inside := filepath.Join(g.dir, "within-"+name(i)) // the same process in the end
		script := fmt.Sprintf("#!/bin/sh\nexec nsenter --net=/run/netns/%s %q \"$@\"\n", n.spaces[i], program)
		// A process that is forked meanwhile has the file open for a moment, and the kernel
		// executes no file that is open for writing.
		syscall.ForkLock.RLock()
		err := os.WriteFile(inside, []byte(script), 0o700)
		syscall.ForkLock.RUnlock()
		if err != nil {
			t.Error(err)
		}
		return harness.Process{Binary: inside}
	}
	g.more = func(i int) []string {
		return []string{
			"--listen", n.hosts[i] + ":8080", "--admin-listen", n.hosts[i] + ":9090",
			"--token-file", filepath.Join(g.dir, "tokens"), "--peer-tls-dir", g.dir,
		}
	}
	for i := range n.spaces {
		space, outside := id+"-"+name(i), id+name(i)
		n.spaces[i], n.hosts[i] = space, fmt.Sprint(subnet, i+1)
		command(t, "ip", "netns", "add", space)
		t.Cleanup(func() { command(t, "ip", "netns", "delete", space) })
		command(t, "ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
		command(t, "ip", "link", "set", outside, "master", n.bridge, "up")
		command(t, "ip", "-n", space, "address", "add", n.hosts[i]+"/24", "dev", "eth0")
		command(t, "ip", "-n", space, "link", "set", "eth0", "up")
		command(t, "ip", "-n", space, "link", "set", "lo", "up")
		peers = append(peers, name(i)+"="+n.hosts[i]+":7400")
	}
	g.peers = strings.Join(peers, ",")
	g.headers = []string{"Authorization", "Bearer of-the-tests"}
	if err := os.WriteFile(filepath.Join(g.dir, "tokens"), []byte("of-the-tests\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, data := range membersFiles(certs.Authority("members"), 2, n.hosts[:]...) {
		if err := os.WriteFile(filepath.Join(g.dir, file), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", subnet+"254:0")
	if err != nil {
		t.Fatal(err)
	}
	sink := &http.Server{Handler: g.sink, ReadHeaderTimeout: time.Minute}
	go func() { _ = sink.Serve(listener) }()
	t.Cleanup(func() { _ = sink.Close() })
	g.deliverTo("http://" + listener.Addr().String())
	return n
}

// What a member's packet filter does to the packets of the other members.
const (
	hearsNothing = `chain in { type filter hook input priority 0; ip saddr { %[1]s } drop; }
`
	isNotHeard = `chain out { type filter hook output priority 0; ip daddr { %[1]s } drop; }
`
	cutOff = hearsNothing + isNotHeard
	loses  = `chain in { type filter hook input priority 0; ip saddr { %[1]s } numgen random mod 100 < 10 drop; }
`
)

// filter puts a filter in force at a member. Callers and the sink reach it all the same.
func (n *network) filter(i int, chains string) {
	n.t.Helper()
	others := n.hosts[(i+1)%3] + ", " + n.hosts[(i+2)%3]
	command(n.t, "ip", "netns", "exec", n.spaces[i], "nft", "table inet faults {\n"+fmt.Sprintf(chains, others)+"}")
}

func (n *network) heal(i int) {
	n.t.Helper()
	command(n.t, "ip", "netns", "exec", n.spaces[i], "nft", "delete table inet faults")
}

// disk gives a member of a group that has not started a file system of its own.
func (g *group) disk(i int) (dir string) { return g.diskOn(g.dir, i) }

// weakDisk gives it one whose device cannot store more than is on it as soon as the directory
// below is full: writes and fsync of new blocks fail, as on a broken disk.
func (g *group) weakDisk(i int) (dir, below string) {
	t := g.t
	root(t, "mount", "umount")
	below = filepath.Join(g.dir, "below-"+name(i))
	if err := os.Mkdir(below, 0o700); err != nil {
		t.Fatal(err)
	}
	command(t, "mount", "-t", "tmpfs", "-o", "size=768m", "tmpfs", below)
	t.Cleanup(func() { command(t, "umount", below) })
	return g.diskOn(below, i), below
}

func (g *group) diskOn(below string, i int) (dir string) {
	t := g.t
	root(t, "mkfs.ext4", "mount", "umount", "fsfreeze")
	if err := os.WriteFile(image(below, i), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image(below, i), 640<<20); err != nil { // it takes what is written
		t.Fatal(err)
	}
	dir = filepath.Join(g.dir, name(i))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mountNew(t, image(below, i), dir)
	t.Cleanup(func() { command(t, "umount", dir) })
	return dir
}

func image(below string, i int) string { return filepath.Join(below, name(i)+".ext4") }

// mountNew makes a file system in the image, and mounts it.
func mountNew(t testing.TB, image, dir string) {
	t.Helper()
	command(t, "mkfs.ext4", "-q", "-F", image)
	command(t, "mount", "-o", "loop", image, dir)
	if err := os.Remove(filepath.Join(dir, "lost+found")); err != nil {
		t.Fatal(err)
	}
}
