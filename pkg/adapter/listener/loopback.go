package listener

import (
	"net"
	"net/netip"
)

// IsLoopback reports whether only this machine can reach the address. A name other
// than localhost may resolve to any address, so it is not loopback.
func IsLoopback(address string) (bool, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false, err
	}
	if host == "localhost" {
		return true, nil
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback(), nil
}
