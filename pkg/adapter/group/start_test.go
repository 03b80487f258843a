package group

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// starting is a member that has not joined, and what it logs.
func starting(t *testing.T, s Settings) (*Member, *bytes.Buffer) {
	t.Helper()
	logged := new(bytes.Buffer)
	m, err := Open(Config{DataDir: t.TempDir(), Log: slog.New(slog.NewTextHandler(logged, nil)), Settings: s})
	if err != nil {
		t.Fatal(err)
	}
	return m, logged
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A first start that waits for the others says why they do not answer: a certificate may lack a
// name, or an address be wrong, and both would wait for ever.
func TestStart_SaysWhyItWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, logged := starting(t, Settings{Member: "a", peers: map[string]string{"a": "a.example:1", "b": "b.example:1", "c": "c.example:1"}})
		m.peers.client = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			return nil, errors.New("no way to " + r.URL.Hostname())
		})}
		ctx, cancel := context.WithTimeout(t.Context(), 2*waitLogEvery)
		defer cancel()
		if _, err := m.joining.admit(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		for _, want := range []string{`waitsFor="b and c"`, "no way to b.example", "no way to c.example"} {
			if !strings.Contains(logged.String(), want) {
				t.Errorf("it does not log %s:\n%s", want, logged)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second) // of a bubble: what has ended in it is gone
	})
}

// A member whose machine takes its own name for a loopback address, as Debian's does, warns: the
// others could not reach it. An address that looks like a loopback one is meant.
func TestStart_WarnsOfHiddenLoopback(t *testing.T) {
	t.Parallel()
	resolve := func(_, address string) (*net.TCPAddr, error) {
		host, _, err := net.SplitHostPort(address)
		return &net.TCPAddr{IP: map[string]net.IP{"machine": net.IPv4(127, 0, 1, 1), "other": net.IPv4(192, 0, 2, 1)}[host]}, err
	}
	for host, warns := range map[string]bool{"machine": true, "other": false, "LOCALHOST": false, "localhost": false, "127.0.0.1": false, "": false} {
		if got := hiddenLoopback(host+":1", resolve); got != warns {
			t.Errorf("%q: %v", host, got)
		}
	}
}
