package sink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/reschedule-dev/reschedule/internal/heap"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// nameServer answers each question over UDP that the answer is too long, and over TCP with the records
// of reply. Without reply it never answers.
func nameServer(t *testing.T, reply func(q dnsmessage.Question) []dnsmessage.Resource) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	tcp, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	udp, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() {
		_ = tcp.Close()
		_ = udp.Close()
	})
	go func() {
		for b := make([]byte, 4096); ; {
			n, from, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			if reply != nil {
				_, _ = udp.WriteTo(answered(b[:n], true, nil), from)
			}
		}
	}()
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 4096)
				n, err := c.Read(b)
				if err != nil || n < 2 {
					return
				}
				a := answered(b[2:n], false, reply)
				_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...))
			}()
		}
	}()
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		at := tcp.Addr()
		if network == "udp" {
			at = udp.LocalAddr()
		}
		return new(net.Dialer).DialContext(ctx, network, at.String())
	}
}

func answered(question []byte, truncated bool, reply func(q dnsmessage.Question) []dnsmessage.Resource) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil {
		panic(err) // package net wrote it
	}
	m.Response, m.RecursionAvailable, m.Truncated, m.Additionals = true, true, truncated, nil
	if reply != nil {
		m.Answers = reply(m.Questions[0])
	}
	b, err := m.Pack()
	if err != nil {
		panic(err) // as many records as fit
	}
	return b
}

// addressed are n addresses for a question of IPv4, from 127.77.0.0 on.
func addressed(n int) func(dnsmessage.Question) []dnsmessage.Resource {
	return func(q dnsmessage.Question) (all []dnsmessage.Resource) {
		for i := 0; i < n && q.Type == dnsmessage.TypeA; i++ {
			all = append(all, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET},
				Body:   &dnsmessage.AResource{A: [4]byte{127, 77, byte(i >> 8), byte(i)}},
			})
		}
		return all
	}
}

// Of 4,000 addresses eight are tried. All were, which delayed a neighbour's deliveries by a second.
func TestNames_FewOfManyAddressesAreTried(t *testing.T) {
	s, _ := newSender(t)
	s.names = newNames(nameServer(t, addressed(4000)))
	var mu sync.Mutex
	tried := map[string]bool{}
	s.names.dialer.Control = func(_, address string, _ syscall.RawConn) error {
		mu.Lock()
		defer mu.Unlock()
		tried[address] = true
		return errors.New("refused")
	}
	o := send(t, s, attempt("http://many.test.:81"))
	if len(tried) != maxAddresses || o.Kind != schedule.Failed || !strings.Contains(string(o.Failure.Data), "refused") {
		t.Errorf("%d addresses were tried, want %d: %+v %s", len(tried), maxAddresses, o, o.Failure.Data)
	}
}

// A delivery to a name of many addresses takes no more memory than is counted for it.
func TestNames_ManyAddressesTakeLittleMemory(t *testing.T) {
	s, _ := newSender(t)
	s.names = newNames(nameServer(t, addressed(4000)))
	const n = 100
	var dialling sync.WaitGroup
	dialling.Add(n)
	s.names.dialer.ControlContext = func(ctx context.Context, _, _ string, _ syscall.RawConn) error {
		dialling.Done()
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	before := heap.WithStacks()
	var all sync.WaitGroup
	for range n {
		all.Go(func() { s.Send(ctx, attempt("http://many.test.:81")) })
	}
	dialling.Wait()
	got := (heap.WithStacks() - before) / n
	cancel()
	all.Wait()
	t.Logf("a delivery takes %d bytes", got)
	if got > counted {
		t.Errorf("it may take %d", counted)
	}
}

// Deliveries whose time is over leave nothing behind while the name server does not answer.
func TestNames_NoAnswerLeavesNoGoroutines(t *testing.T) {
	s, _ := newSender(t)
	s.names = newNames(nameServer(t, nil))
	before := runtime.NumGoroutine()
	for range 20 {
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if o := s.Send(t.Context(), attempt("http://never.test.", withTimeout(time.Millisecond))); !o.TimedOut {
					t.Errorf("%+v %s", o, o.Failure.Data)
				}
			})
		}
		all.Wait()
	}
	if left := runtime.NumGoroutine() - before; left > 20 { // of the one lookup
		t.Errorf("400 deliveries have left %d goroutines", left)
	}
}

// A lookup that hangs takes no more memory than the table of the operators' page has for it.
func TestNames_LookupsTakeLittleMemory(t *testing.T) {
	server := nameServer(t, nil)
	asking := make(chan struct{}, 10*MaxLookups)
	n := newNames(func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := server(ctx, network, address)
		asking <- struct{}{}
		return c, err
	})
	const lookups = MaxLookups / 4
	before := heap.WithStacks()
	for i := range lookups {
		n.mu.Lock()
		key, a := name{"a", fmt.Sprintf("never-%d.test.", i)}, &addresses{done: make(chan struct{})}
		n.known[key] = a
		n.mu.Unlock()
		go n.learn(key, a, fmt.Sprint(i))
	}
	for range 2 * lookups { // of IPv4 and of IPv6
		<-asking
	}
	got := (heap.WithStacks() - before) / lookups
	t.Logf("a lookup takes %d bytes", got)
	if most := int64(32 << 10); got > most {
		t.Errorf("a lookup takes %d bytes, the table has %d", got, most)
	}
}

// sourceOf is a source of a namespace.
func sourceOf(namespace string) *schedule.Spec {
	return &schedule.Spec{UID: "u-" + namespace, Namespace: namespace, Name: "s"}
}

// The name server is asked once a second at most, also when it does not know the name.
func TestNames_AskedOnceASecond(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{nil, errors.New("no such host")} {
		synctest.Test(t, func(t *testing.T) {
			n := newNames(nil)
			asked := 0
			n.lookup = func(context.Context, string) ([]netip.Addr, error) {
				asked++
				return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, failure
			}
			for range 1000 {
				if all, err := n.find(t.Context(), sourceOf("a"), "x.test"); !errors.Is(err, failure) || err == nil && len(all) != 1 {
					t.Fatal(all, err)
				}
				time.Sleep(2 * time.Millisecond)
			}
			if asked != 2 {
				t.Errorf("it was asked %d times in 2 s", asked)
			}
			time.Sleep(2 * knownFor)
			synctest.Wait()
			if len(n.known) > 0 {
				t.Errorf("%d names are remembered", len(n.known))
			}
		})
	}
}

// Names that are never found do not delay the names of another namespace, nor the same name there, and have a bound.
func TestNames_NeverFoundDelayNoNeighbour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNames(nil)
		var hang atomic.Int64
		n.lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			if strings.HasPrefix(host, "good") {
				return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
			}
			hang.Add(1)
			defer hang.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var all sync.WaitGroup
		for i := range 3 * MaxLookups {
			all.Go(func() {
				_, err := n.find(ctx, sourceOf("evil"), fmt.Sprintf("never-%d", i))
				if !errors.Is(err, context.DeadlineExceeded) { // as the error of a lookup that ran out of time
					t.Errorf("it is found, or failed otherwise: %v", err)
				}
			})
		}
		late := make(chan error, 1)
		synctest.Wait()
		go func() {
			_, err := n.find(ctx, sourceOf("evil"), "good.test")
			late <- err
		}()
		synctest.Wait()
		if got := hang.Load(); got >= MaxLookups/2 {
			t.Errorf("one namespace has %d lookups at one time", got)
		}
		start := time.Now()
		if _, err := n.find(ctx, sourceOf("good"), "good.test"); err != nil || time.Since(start) > 0 {
			t.Errorf("the neighbour's name: %v after %s", err, time.Since(start))
		}
		all.Wait()
		if err := <-late; err == nil {
			t.Error("the share of the namespace was not used up, so that this test shows nothing")
		}
		time.Sleep(dialTimeout + 2*knownFor)
		synctest.Wait()
		if got := n.budget.Used(); got != 0 || hang.Load() != 0 || len(n.known) != 0 {
			t.Errorf("%d lookups of %d are under way, and %d names are remembered", hang.Load(), got, len(n.known))
		}
	})
}

// Connections of one second are spread over the addresses of a headless Service.
func TestNames_ConnectionsAreSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNames(nil)
		sent := []string{"127.0.0.1", "::1", "127.0.0.2", "127.0.0.3"}
		n.lookup = func(context.Context, string) (all []netip.Addr, _ error) {
			for _, address := range sent {
				all = append(all, netip.MustParseAddr(address))
			}
			return all, nil
		}
		firsts := map[string]int{}
		for i := range 6 {
			found, err := n.find(t.Context(), sourceOf("a"), "headless.test")
			must(t, err)
			var all []string
			for _, address := range found {
				all = append(all, address.String())
			}
			if i == 0 && !slices.Equal(all, sent) || all[1] != "::1" || !slices.Equal(slices.Sorted(slices.Values(all)), slices.Sorted(slices.Values(sent))) {
				t.Errorf("connection %d has %v, the server sent %v", i, all, sent)
			}
			firsts[all[0]]++
		}
		if len(firsts) != 3 || firsts["127.0.0.1"] != 2 || firsts["127.0.0.2"] != 2 {
			t.Errorf("the first addresses of 6 connections: %v", firsts)
		}
	})
}

// When the addresses of one family do not answer, or refuse, the other family is tried soon.
func TestNames_OtherFamilyIsTried(t *testing.T) {
	t.Parallel()
	address, _ := listen(t, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
	})
	_, port, err := net.SplitHostPort(address)
	must(t, err)
	for name, family6 := range map[string]func(context.Context) error{
		"hangs":   func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"refuses": func(context.Context) error { return errors.New("refused") },
	} {
		s, _ := newSender(t)
		s.names.lookup = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("::1"), netip.MustParseAddr("127.0.0.1")}, nil
		}
		s.names.dialer.ControlContext = func(ctx context.Context, network, _ string, _ syscall.RawConn) error {
			if network == "tcp6" {
				return family6(ctx)
			}
			return nil
		}
		if o := send(t, s, attempt("http://both.test:"+port)); o.Status != http.StatusNoContent {
			t.Errorf("%s: %+v %s", name, o, o.Failure.Data)
		}
	}
}

// When no address answers, the failure is of the preferred family.
func TestNames_FailureOfBothFamilies(t *testing.T) {
	t.Parallel()
	s, _ := newSender(t)
	s.names.lookup = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("::1"), netip.MustParseAddr("127.0.0.1")}, nil
	}
	s.names.dialer.Control = func(network, _ string, _ syscall.RawConn) error { return errors.New(network + " refused") }
	if o := send(t, s, attempt("http://both.test")); !strings.Contains(string(o.Failure.Data), "tcp6 refused") {
		t.Errorf("%+v %s", o, o.Failure.Data)
	}
}

// An answer over TCP keeps 32 addresses, is as it was with fewer, and has 16 KiB at most without.
func TestNames_AnswersAreBounded(t *testing.T) {
	t.Parallel()
	other := func(n int) func(dnsmessage.Question) []dnsmessage.Resource {
		return func(q dnsmessage.Question) (all []dnsmessage.Resource) {
			for range n {
				all = append(all, dnsmessage.Resource{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET},
					Body:   &dnsmessage.TXTResource{TXT: []string{strings.Repeat("x", 250)}},
				})
			}
			return append(all, addressed(1)(q)...)
		}
	}
	for name, c := range map[string]struct {
		reply func(dnsmessage.Question) []dnsmessage.Resource
		want  int
	}{
		"one":                 {addressed(1), 1},
		"as many as are kept": {addressed(maxRecords), maxRecords},
		"one more":            {addressed(maxRecords + 1), maxRecords},
		"thousands":           {addressed(4000), maxRecords},
		"behind others":       {other(10), 1},
		"too far behind":      {other(100), 0},
	} {
		n := newNames(nameServer(t, c.reply))
		all, err := n.find(t.Context(), sourceOf("a"), "x.test.")
		if len(all) != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%s: %d addresses, %v; want %d", name, len(all), err, c.want)
		}
	}
}
