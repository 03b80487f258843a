//go:build faults

package replicated

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// roughen sends the packets between members through the test, which delays each one by a
// time of its own, so that they overtake each other, and doubles or loses a few. Kernels that
// lack netem can do this too.
func (n *network) roughen() {
	n.t.Helper()
	wires := map[netip.Addr]*os.File{}
	for i, host := range n.hosts {
		wire := n.wire(i)
		n.t.Cleanup(func() { _ = wire.Close() }) // closes the reader below
		wires[netip.MustParseAddr(host)] = wire
	}
	for _, wire := range wires {
		go n.carry(wire, wires)
	}
}

// wire makes a network device in the namespace of a member. The file is its other end.
func (n *network) wire(i int) *os.File {
	n.t.Helper()
	const device = "rough"
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	request, err := unix.NewIfreq(device)
	if err != nil {
		n.t.Fatal(err)
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		n.t.Fatal(err)
	}
	command(n.t, "ip", "link", "set", device, "netns", n.spaces[i])
	command(n.t, "ip", "-n", n.spaces[i], "link", "set", device, "up")
	for k, host := range n.hosts {
		if k != i {
			command(n.t, "ip", "-n", n.spaces[i], "route", "add", host, "dev", device, "src", n.hosts[i])
		}
	}
	return os.NewFile(uintptr(fd), device) // not before: a device without a name cannot be polled
}

// carry takes the packets of one member to the others, until its wire is closed.
func (n *network) carry(from *os.File, to map[netip.Addr]*os.File) {
	packet := make([]byte, 64<<10)
	for {
		size, err := from.Read(packet)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			n.t.Errorf("a wire: %v", err)
			return
		}
		if size < 20 || packet[0]>>4 != 4 { // IPv6 looks for neighbours
			continue
		}
		wire := to[netip.AddrFrom4([4]byte(packet[16:20]))] // RFC 791: the destination
		copies := 1
		switch chance := rand.IntN(100); {
		case wire == nil || chance < 1:
			copies = 0
		case chance < 3:
			copies = 2
		}
		for range copies {
			late := time.Duration(1+rand.IntN(20)) * time.Millisecond
			data := append([]byte(nil), packet[:size]...)
			time.AfterFunc(late, func() { _, _ = wire.Write(data) }) // what cannot be written is lost
		}
	}
}

// A network that delays packets between members by up to 20 ms, so that they overtake each
// other, and doubles some, loses no schedule, and the group goes on without its owner.
func TestGroup_RoughNetwork(t *testing.T) {
	g := prepare(t, func(*group) {})
	g.hold = 100 * time.Millisecond
	n := g.separate()
	n.roughen()
	g.launchAll()
	stop := g.write()
	g.pass(5 * time.Second)
	g.killOwner("kill -9 of the owner in a network that delays and reorders packets")
	stop()
	g.settled()
}
