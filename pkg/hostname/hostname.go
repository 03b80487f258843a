// Package hostname says what a name of a host stands for: this machine, or a name of the cluster.
//
// It guarantees one answer for all spellings of a name: in upper or lower case, with the dot that
// ends a full name, in the brackets of an address with colons, and with the dots of other scripts.
//
// It leaves to others: resolving names, and splitting URLs.
package hostname

import (
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
)

// Plain is the one spelling of a name by which names are compared. It is not for dialling: the dot
// at the end keeps the resolver from other domains.
func Plain(host string) string {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.TrimSuffix(strings.ToLower(ASCII(host)), ".")
}

// ASCII is a name of other scripts as the resolver knows it. Other names stay as they are.
func ASCII(host string) string {
	if strings.IndexFunc(host, func(r rune) bool { return r > 127 }) >= 0 {
		if ascii, err := idna.Lookup.ToASCII(host); err == nil {
			return ascii
		}
	}
	return host
}

// Of is the name in a Host header or in an address, which may have a port.
func Of(address string) string {
	if name, _, err := net.SplitHostPort(address); err == nil {
		return name
	}
	return address
}

// IsLoopback reports whether only this machine can be reached under the name. A name other than
// localhost may resolve to any address, so it is not loopback.
func IsLoopback(host string) bool {
	host = Plain(host)
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// IsOfCluster reports whether the name is of a Service, which only the cluster can reach.
func IsOfCluster(host string) bool {
	host = Plain(host)
	return strings.HasSuffix(host, ".svc") || strings.HasSuffix(host, ".cluster.local")
}
