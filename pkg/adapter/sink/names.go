package sink

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// MaxLookups bounds the lookups of all names at one time; a namespace gets at most half of them, a
// source a quarter. One takes some 24 KB, for as long as its name server takes, and may outlast its
// deliveries.
const MaxLookups = 128

// A tenant decides what the name of a sink resolves to, and how soon.
const (
	// knownFor is how long addresses and failures are remembered, so that a source asks the name
	// server once a second at most. Names of Services are cached for longer by the server.
	knownFor = time.Second
	// maxAddresses of each family are tried.
	maxAddresses = 8
	// maxAnswer bounds what is read of an answer over TCP, and maxRecords its addresses: Go
	// opens a socket for each of them to sort them.
	maxAnswer  = 16 << 10
	maxRecords = 32

	// As in package net: how long an address has at least while others follow, and how much later
	// the other family is tried.
	leastDial     = 2 * time.Second
	fallbackDelay = 300 * time.Millisecond
)

var errLongAnswer = fmt.Errorf("the name server's answer has more than %d bytes", maxAnswer)

// names looks up the names of sinks. What a delivery holds of it is the same for each name: package
// net keeps each address that a name has for as long as it dials, and a goroutine for each caller that
// has gone, for as long as the name server does not answer.
type names struct {
	lookup func(ctx context.Context, host string) ([]netip.Addr, error) // another one in tests
	dialer net.Dialer
	budget *budget.Budget

	mu    sync.Mutex
	known map[name]*addresses
}

// name is looked up for each namespace by itself, so that none waits for a lookup that waits for the
// share of another.
type name struct{ namespace, host string }

// addresses are what a lookup has found when done is closed.
type addresses struct {
	done  chan struct{}
	all   []netip.Addr
	err   error
	dials atomic.Uint64 // that have asked for them
}

// next are the addresses for the next dial. The first one has them as the server sent them; for each later one
// the addresses of IPv4, which have no order, are turned. Else all connections of a second would go to the first
// pod of a headless Service, and stay there.
func (a *addresses) next() []netip.Addr {
	dials := a.dials.Add(1) - 1
	var four []netip.Addr
	for _, address := range a.all {
		if address.Is4() {
			four = append(four, address)
		}
	}
	all, at := slices.Clone(a.all), dials
	for i := range all {
		if all[i].Is4() {
			all[i] = four[at%uint64(len(four))]
			at++
		}
	}
	return all
}

// newNames asks the name servers of the system, to which server connects.
func newNames(server func(ctx context.Context, network, address string) (net.Conn, error)) *names {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := server(ctx, network, address)
		if _, ok := c.(net.PacketConn); ok || err != nil { // over UDP an answer has 1,232 bytes at most
			return c, err
		}
		return &shortAnswer{Conn: c}, nil
	}}
	return &names{
		lookup: func(ctx context.Context, host string) ([]netip.Addr, error) { return r.LookupNetIP(ctx, "ip", host) },
		dialer: net.Dialer{KeepAlive: 30 * time.Second},
		budget: budget.New(MaxLookups),
		known:  map[name]*addresses{},
	}
}

// dial connects to an address of a source's sink, host:port.
func (n *names) dial(ctx context.Context, src *schedule.Spec, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil || host == "" {
		return n.dialer.DialContext(ctx, "tcp", address)
	}
	all, err := n.find(ctx, src, host)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
	}
	var families [2][]string // the preferred family, and the other
	for _, a := range all {
		family := &families[0]
		if a.Is4() != all[0].Is4() {
			family = &families[1]
		}
		if len(*family) < maxAddresses {
			*family = append(*family, net.JoinHostPort(a.String(), port))
		}
	}
	if len(families[1]) == 0 {
		return n.dialEach(ctx, families[0])
	}
	return n.dialBoth(ctx, families)
}

// dialEach tries one address after the other.
func (n *names) dialEach(ctx context.Context, all []string) (c net.Conn, err error) {
	end, _ := ctx.Deadline()
	for i, address := range all {
		share := max(leastDial, time.Until(end)/time.Duration(len(all)-i))
		limited, cancel := context.WithTimeout(ctx, share)
		c, failed := n.dialer.DialContext(limited, "tcp", address)
		cancel()
		if failed == nil {
			return c, nil
		}
		if err == nil {
			err = failed
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// dialBoth tries both families, the second one a little later.
func (n *names) dialBoth(ctx context.Context, families [2][]string) (net.Conn, error) {
	type result struct {
		conn  net.Conn
		err   error
		first bool
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result)
	ended := make(chan struct{})
	defer close(ended)
	try := func(family int) {
		c, err := n.dialEach(ctx, families[family])
		select {
		case results <- result{c, err, family == 0}:
		case <-ended: // the other family was sooner
			if c != nil {
				_ = c.Close()
			}
		}
	}
	go try(0)
	other := time.NewTimer(fallbackDelay)
	defer other.Stop()
	var err error
	for started, left := false, 2; left > 0; {
		select {
		case <-other.C:
			started = true
			go try(1)
		case r := <-results:
			if r.err == nil {
				return r.conn, nil
			}
			left--
			if err == nil || r.first {
				err = r.err
			}
			if !started {
				other.Reset(0)
			}
		}
	}
	return nil, err
}

// find returns the addresses of a host. A lookup goes on when its callers have gone: the next one
// joins it.
func (n *names) find(ctx context.Context, src *schedule.Spec, host string) ([]netip.Addr, error) {
	key := name{src.Namespace, host}
	n.mu.Lock()
	a := n.known[key]
	if a == nil {
		a = &addresses{done: make(chan struct{})}
		n.known[key] = a
		go n.learn(key, a, src.UID)
	}
	n.mu.Unlock()
	select {
	case <-a.done:
		return a.next(), a.err
	case <-ctx.Done():
		return nil, &net.DNSError{UnwrapErr: ctx.Err(), Err: "i/o timeout", Name: host, IsTimeout: true}
	}
}

// learn looks a name up, and forgets it later.
func (n *names) learn(key name, a *addresses, source string) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	claim := n.budget.Claim(key.namespace, source)
	if claim.Grow(ctx, 1) != nil {
		a.err = &net.DNSError{Err: "too many names of the namespace are being looked up", Name: key.host, IsTemporary: true}
	} else {
		var all []netip.Addr
		all, a.err = n.lookup(ctx, key.host)
		claim.Release()
		for _, found := range all {
			a.all = append(a.all, found.Unmap())
		}
		if a.err == nil && len(a.all) == 0 {
			a.err = &net.DNSError{Err: "no such host", Name: key.host, IsNotFound: true}
		}
	}
	close(a.done)
	time.AfterFunc(knownFor, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.known, key)
	})
}

// shortAnswer is a connection to a name server whose one answer has maxRecords addresses at most.
type shortAnswer struct {
	net.Conn
	left []byte // of the answer with its length
	read bool
}

// Read implements io.Reader.
func (c *shortAnswer) Read(b []byte) (int, error) {
	if !c.read {
		c.read = true
		var err error
		if c.left, err = readAnswer(c.Conn); err != nil {
			return 0, err
		}
	}
	if len(c.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, c.left)
	c.left = c.left[n:]
	return n, nil
}

// readAnswer reads an answer with its length, and shortens it.
func readAnswer(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint16(length[:]))
	answer := make([]byte, min(size, maxAnswer))
	if _, err := io.ReadFull(r, answer); err != nil {
		return nil, err
	}
	if short := shorten(answer); short != nil {
		answer = short
	} else if size > maxAnswer {
		return nil, errLongAnswer
	}
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...), nil
}

// shorten returns an answer with the first maxRecords addresses, nil if there are no more. What it
// cannot read package net cannot read either.
func shorten(answer []byte) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(answer)
	if err != nil {
		return nil
	}
	questions, err := p.AllQuestions()
	if err != nil {
		return nil
	}
	m := dnsmessage.Message{Header: h, Questions: questions}
	for {
		head, err := p.AnswerHeader()
		if err != nil { // there are no more
			return nil
		}
		var body dnsmessage.ResourceBody
		switch head.Type {
		case dnsmessage.TypeA:
			r, failed := p.AResource()
			body, err = &r, failed
		case dnsmessage.TypeAAAA:
			r, failed := p.AAAAResource()
			body, err = &r, failed
		default:
			err = p.SkipAnswer()
		}
		if err != nil {
			return nil
		}
		if body != nil {
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: body})
		}
		if len(m.Answers) == maxRecords {
			break
		}
	}
	short, err := m.Pack()
	if err != nil {
		return nil
	}
	return short
}
