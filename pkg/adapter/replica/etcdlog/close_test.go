package etcdlog_test

import (
	"bytes"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/etcdlog"
)

// wire is what is between the members: each calls the others through a port of its own, which
// can stop to carry anything, with its connections open.
type wire struct {
	mu    sync.Mutex
	cut   chan struct{} // closed: nothing is carried
	at    string        // it is cut when a member sends this; "": never
	conns []net.Conn
}

// carries reports whether the wire carries what a member sends.
func (w *wire) carries(sent []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at != "" && bytes.Contains(sent, []byte(w.at)) {
		w.at = ""
		close(w.cut)
	}
	select {
	case <-w.cut:
		return false
	default:
		return true
	}
}

// through listens for a member, and returns the address at which the others call it.
func (w *wire) through(t *testing.T, member string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", member)
			if err != nil {
				in.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, in, out)
			w.mu.Unlock()
			go w.carry(in, out)
			go w.carry(out, in)
		}
	}()
	return l.Addr().String()
}

func (w *wire) carry(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if !w.carries(buffer[:n]) {
			return
		}
		if err != nil {
			to.Close()
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			from.Close()
			return
		}
	}
}

// end closes what is open. The members have ended.
func (w *wire) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.Close()
	}
}

// leader waits until a member leads the log.
func leader(servers map[string]*etcdlog.Server) string {
	for {
		for name, s := range servers {
			if s.Leads() {
				return name
			}
		}
		<-time.After(10 * time.Millisecond)
	}
}

// startThree starts a log whose members call each other through the wire; nil: directly.
func startThree(t *testing.T, w *wire) map[string]*etcdlog.Server {
	t.Helper()
	listen, peers, servers := map[string]string{}, map[string]string{}, map[string]*etcdlog.Server{}
	for _, name := range []string{"a", "b", "c"} {
		listen[name] = free(t)
		if peers[name] = listen[name]; w != nil {
			peers[name] = w.through(t, listen[name])
		}
	}
	for name := range peers {
		s, err := etcdlog.Start(etcdlog.Options{Dir: t.TempDir(), Member: name, Peers: peers, Listen: listen[name], Connections: connections(), Log: slog.New(slog.DiscardHandler), Stopped: func(error) {}})
		if err != nil {
			t.Fatal(err)
		}
		servers[name] = s
	}
	for _, s := range servers {
		<-s.Ready()
	}
	return servers
}

// mostEnd is more than the end of a member may take: etcd alone waits for 6 s, twice.
const mostEnd = 5 * time.Second

// A member whose followers stand still, or are cut off, does not wait in vain for one of them
// to lead the log.
func TestClose_FollowersStandStill(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, at string }{
		{"AtOnce", ""},
		// etcd's leader asks the others for their versions, and for each answer it waits for 6 s. The end took 12 s.
		{"VersionIsAsked", "GET /version"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			followersStandStill(t, c.at)
		})
	}
}

func followersStandStill(t *testing.T, at string) {
	w := &wire{cut: make(chan struct{})}
	servers := startThree(t, w)
	defer w.end()
	first := servers[leader(servers)]
	if at == "" {
		close(w.cut)
	} else {
		w.mu.Lock()
		w.at = at
		w.mu.Unlock()
		<-w.cut
		first = servers[leader(servers)]
	}
	begun := time.Now()
	first.StepDown()
	stepped := time.Since(begun)
	first.Close()
	t.Logf("the lead was not handed over after %s, the member had ended after %s", stepped, time.Since(begun))
	if took := time.Since(begun); took > mostEnd {
		t.Errorf("the end of the leader took %s", took)
	}
	w.end()
	for _, s := range servers {
		if s != first {
			s.Close()
		}
	}
	<-first.Ended() // its directory is removed
}

// The members end one after the other, and all at once: none of them waits for one that is gone.
func TestClose_MembersInARow(t *testing.T) {
	t.Parallel()
	for _, apart := range []time.Duration{0, 50 * time.Millisecond, time.Second} {
		servers := startThree(t, nil)
		names := slices.Sorted(maps.Keys(servers))
		for first := leader(servers); names[0] != first; { // it hands the lead over
			names = append(names[1:], names[0])
		}
		var ends sync.WaitGroup
		for _, name := range names {
			ends.Go(func() {
				begun := time.Now()
				servers[name].StepDown()
				servers[name].Close()
				t.Logf("%s apart: %s had ended after %s", apart, name, time.Since(begun))
				if took := time.Since(begun); took > mostEnd {
					t.Errorf("%s apart: the end of %s took %s", apart, name, took)
				}
			})
			<-time.After(apart)
		}
		ends.Wait()
	}
}
