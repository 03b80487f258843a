package harness

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// FreePort finds a port without a listener, for a program that must be told its port. It
// lies below the ports that systems give to outgoing connections: a port that listens on
// 127.0.0.1:0 and is closed again may belong to a connection of another test by the time
// the program listens on it. No port is given twice, also not by two processes of tests that
// run beside each other: the first program may not listen yet.
func FreePort() (int, error) {
	var err error
	for range 100 {
		port := 15000 + rand.IntN(15000)
		if err = give(port); err != nil {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", ":"+strconv.Itoa(port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("harness: no free port: %w", err)
}

// given has the UDP ports that this process keeps.
var given sync.Map

// give fails if the port was given before, here or by another process of the tests. This
// process keeps the UDP port of the same number until it ends: no program of the tests uses
// UDP in this range.
func give(port int) error {
	kept, err := net.ListenPacket("udp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return err
	}
	given.Store(port, kept)
	return nil
}

// FreeAddress is a loopback address with a port of FreePort.
func FreeAddress() (string, error) {
	port, err := FreePort()
	return "127.0.0.1:" + strconv.Itoa(port), err
}

// FreePair is such an address whose next port is free too.
func FreePair() (string, error) {
	for range 100 {
		port, err := FreePort()
		if err != nil {
			return "", err
		}
		if give(port+1) != nil {
			continue
		}
		next, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port+1))
		if err == nil {
			return "127.0.0.1:" + strconv.Itoa(port), next.Close()
		}
	}
	return "", errors.New("harness: no two ports in a row are free")
}
