package etcdlog_test

import (
	"log/slog"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/listener"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/etcdlog"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/replicatest"
)

// connections are as many as three members need, and more.
func connections() *listener.Connections {
	return listener.New(listener.Config{Name: "log", Limit: 64, Heads: budget.New(1 << 20), Log: slog.New(slog.DiscardHandler)})
}

var given sync.Map // ports

// free is an address below the ports of outgoing connections, so that none takes it before the
// server listens. It is given once.
func free(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := 15000 + rand.IntN(15000)
		if _, was := given.LoadOrStore(port, true); was {
			continue
		}
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no free port")
	return ""
}

// Three servers of etcd on loopback are a log. Each case has keys of its own.
func TestEtcd_Conforms(t *testing.T) {
	t.Parallel()
	peers := map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		peers[name] = free(t)
	}
	servers, dirs := map[string]*etcdlog.Server{}, map[string]string{}
	var closing atomic.Bool
	for name := range peers {
		dirs[name] = t.TempDir()
		if promise, err := etcdlog.PromiseOf(dirs[name]); err != nil || promise != replica.Nothing {
			t.Errorf("an empty directory has promised something: %v, %v", promise, err)
		}
		s, err := etcdlog.Start(etcdlog.Options{Dir: dirs[name], Member: name, Peers: peers, Connections: connections(), Log: slog.New(slog.DiscardHandler),
			Stopped: func(err error) {
				if !closing.Load() {
					t.Errorf("%s: %v", name, err)
				}
			}})
		if err != nil {
			t.Fatal(err)
		}
		servers[name] = s
	}
	t.Cleanup(func() {
		closing.Store(true)
		for _, s := range servers {
			s.Close()
		}
	})
	for name, s := range servers {
		<-s.Ready()
		if promise, err := etcdlog.PromiseOf(dirs[name]); err != nil || promise != replica.More {
			t.Errorf("%s takes part, and has promised too little: %v, %v", name, promise, err)
		}
	}
	n := 0
	replicatest.Conformance(t, func(*testing.T) (a, b replica.Log) {
		n++
		return servers["a"].LogOf(n), servers["b"].LogOf(n)
	})
}
