package listener

import (
	"net"

	"github.com/reschedule-dev/reschedule/pkg/hostname"
)

// IsLoopback reports whether only this machine can reach the address.
func IsLoopback(address string) (bool, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false, err
	}
	return hostname.IsLoopback(host), nil
}
