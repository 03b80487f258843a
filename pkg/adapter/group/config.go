package group

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/listener"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch"
	"github.com/reschedule-dev/reschedule/pkg/hostname"
)

// Peer is a member of a group, and the address of its log.
type Peer struct{ Name, Address string }

// PromiseOf returns what the log in a data directory may have promised to other members.
type PromiseOf func(dataDir string) (replica.Promise, error)

// Settings say which member of the group this one is.
type Settings struct {
	// Member is the name of this one, Peers are all three.
	Member string
	Peers  []Peer
	// PeerListen is where to listen for the other members' logs, default the address in Peers.
	PeerListen string
	// ForwardListen is where to listen for calls that other members forward, default the
	// port in Peers plus 1, at which they reach it.
	ForwardListen string
	// TLSDir holds tls.crt, tls.key and ca.crt for both ports; "": without TLS, only on loopback.
	TLSDir string
	// Open starts the log; nil: this program has none.
	Open func(LogOptions) (Log, error)
	// PromiseOf is required with Open.
	PromiseOf PromiseOf
	// ReadStopped is required with Open: it calls read with the log that a member which does not run has left in its
	// data directory, and writes into the empty directory work alone.
	ReadStopped func(ctx context.Context, dataDir, work string, read func(context.Context, replica.Log) error) error

	peers map[string]string // the addresses of Peers by their names; Check fills it in
}

// Replay is a [store.Replay], nil where there is no log.
func (s *Settings) Replay() store.Replay {
	if s.ReadStopped == nil {
		return nil
	}
	return func(ctx context.Context, dataDir, work string, v *store.View) error {
		err := s.ReadStopped(ctx, dataDir, work, func(ctx context.Context, l replica.Log) error { return replica.Replay(ctx, l, v) })
		if errors.Is(err, replica.ErrDamaged) || errors.Is(err, replica.ErrGap) {
			err = fmt.Errorf("%w: %w", store.ErrLogDamaged, err)
		}
		return err
	}
}

// LogOptions are what a log needs. They have the fields of etcdlog.Options, so that a program that
// imports both converts one to the other.
type LogOptions struct {
	Dir         string
	Group       string // the id of the group: members of another one are refused
	Member      string
	Peers       map[string]string
	Listen      string
	TLSDir      string
	Connections *listener.Connections // of the other members' logs
	// Replaces: this member takes the place of one that lost its disk, see Log.Replace.
	Replaces bool
	Log      *slog.Logger
	Stopped  func(error) // the log has ended by itself: the process must end
}

// Log is the log of the group, in this process.
type Log interface {
	// Entries returns the log itself, once it is ready.
	Entries() replica.Log
	// Ready is closed once the log can be read.
	Ready() <-chan struct{}
	// Tidy looks after the log's files until ctx ends.
	Tidy(ctx context.Context, owns func() bool)
	// DiskUse is how much the log takes on this member's disk, and how much it may take while no member takes a copy.
	DiskUse() (now, most int64)
	// Silence is how long an owner is silent before another member claims the group. Its lease is
	// 0.8 of that.
	Silence() time.Duration
	// Clock is a clock that goes on while the machine sleeps, for leases.
	Clock() time.Duration
	// Wall is the wall clock, by which keys come due.
	Wall() time.Time
	// HasMajority reports that the log takes changes, by what this member knows.
	HasMajority() bool
	// Replace removes another member, which has lost its disk, and adds one with its name
	// that does not count before Promote. It does not take the majority away.
	Replace(ctx context.Context, member string) error
	// Promote makes this member count, once it has caught up.
	Promote(ctx context.Context) error
	// StepDown hands over what this member does for the log, before it ends.
	StepDown()
	Close()
}

// Config is what a Member needs of its adapter.
type Config struct {
	Settings
	DataDir string
	Log     *slog.Logger
	Meter   metric.Meter
	// Deliver is how this member delivers while it owns the group, and Drain how long
	// deliveries under way may take when it hands the group over.
	Deliver dispatch.Config
	Drain   time.Duration
	// Watch is how the owner watches objects; its API is nil: sources cannot watch.
	Watch watch.Config
	// Gone is sources.Origin's: what exists no more was removed while no member owned the
	// group, or one that had not received its claim.
	Gone func(ctx context.Context, uids []string) ([]string, error)
	// Fatal is called when durability is unknown, or the log has ended; Stopping reports
	// that the adapter ends.
	Fatal    func(error)
	Stopping func() bool
}

// errNoLog names the program that has the log.
var errNoLog = errors.New("adapter: --replicated needs the program adapter-replicated: this one is built without etcd")

// Check refuses settings that are not of a group of three, and fills in what is left out.
func (s *Settings) Check() error {
	if s.Open == nil {
		return errNoLog
	}
	if n := len(s.Peers); n != members {
		return fmt.Errorf("adapter: --peers has %d members: give three, as in a=host:port,b=host:port,c=host:port", n)
	}
	own := slices.IndexFunc(s.Peers, func(p Peer) bool { return p.Name == s.Member })
	if own < 0 {
		return fmt.Errorf("adapter: --member %q is not in --peers", s.Member)
	}
	if err := s.checkPeers(); err != nil {
		return err
	}
	s.peers = map[string]string{}
	for _, p := range s.Peers {
		s.peers[p.Name] = p.Address
	}
	if s.ForwardListen == "" {
		s.ForwardListen = forwardAddress(s.Peers[own].Address)
	}
	log := cmp.Or(s.PeerListen, s.Peers[own].Address)
	if log == s.ForwardListen {
		return fmt.Errorf("adapter: the log and forwarded calls would both listen at %s: give --peer-listen or --forward-listen another port", log)
	}
	return errors.Join(s.checkListen("--peer-listen", log), s.checkListen("--forward-listen", s.ForwardListen))
}

// checkListen refuses an address beyond loopback without TLS.
func (s *Settings) checkListen(flag, address string) error {
	if !hostname.IsLoopback(hostname.Of(address)) && s.TLSDir == "" {
		return fmt.Errorf("adapter: %s %s is not on loopback: give --peer-tls-dir with tls.crt, tls.key and ca.crt, since the port obeys every caller", flag, address)
	}
	return nil
}

// checkPeers refuses names that are none, and addresses that cannot be the members'.
func (s *Settings) checkPeers() error {
	takenBy := map[string]string{} // address → member
	for _, p := range s.Peers {
		if strings.ContainsFunc(p.Name, func(r rune) bool { return !strings.ContainsRune(nameRunes, r) }) {
			return fmt.Errorf("adapter: --peers: the name %q of a member may have letters, digits, dots, hyphens and underscores alone", p.Name)
		}
		host, port, err := net.SplitHostPort(p.Address)
		if err != nil {
			return fmt.Errorf("adapter: --peers: member %s: %w", p.Name, err)
		}
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 65534 {
			return fmt.Errorf("adapter: --peers: member %s: the port is %q, want a number from 1 to 65534: calls are forwarded to the next port", p.Name, port)
		}
		if !hostname.IsLoopback(host) && s.TLSDir == "" {
			return fmt.Errorf("adapter: --peers: member %s is on %s, beyond loopback: give --peer-tls-dir with tls.crt, tls.key and ca.crt, since the peer port obeys every caller", p.Name, host)
		}
		if host = strings.ToLower(host); host == "localhost" {
			host = "127.0.0.1"
		}
		for _, n := range []int{n, n + 1} {
			address := net.JoinHostPort(host, strconv.Itoa(n))
			if other, taken := takenBy[address]; taken {
				return fmt.Errorf("adapter: --peers: members %s and %s both have %s: a member has the port of its address and the next one", other, p.Name, address)
			}
			takenBy[address] = p.Name
		}
	}
	return nil
}

const nameRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_"

// members is how many members a group has.
const members = 3

// forwardAddress is where the member with the log at the address takes forwarded calls: the
// port behind it.
func forwardAddress(peer string) string {
	host, port, _ := net.SplitHostPort(peer)
	n, _ := strconv.Atoi(port)
	return net.JoinHostPort(host, strconv.Itoa(n+1))
}

// names are the names of the members of the group, sorted.
func (s *Settings) names() []string { return slices.Sorted(maps.Keys(s.peers)) }

// others are the names of the other members of the group, sorted.
func (s *Settings) others() []string {
	return slices.DeleteFunc(s.names(), func(name string) bool { return name == s.Member })
}

// url is a path on the port for members of another member of the group.
func (s *Settings) url(member, path string) string {
	return s.scheme() + "://" + forwardAddress(s.peers[member]) + path
}

func (s *Settings) scheme() string {
	if s.TLSDir != "" {
		return "https"
	}
	return "http"
}
