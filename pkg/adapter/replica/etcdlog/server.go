package etcdlog

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/client/pkg/v3/logutil"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/reschedule-dev/reschedule/pkg/adapter/listener"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// The settings of etcd. It counts the entries of at most replica.MaxEntry: a start reads some snapshotCount of them again,
// and some catchUp are in memory, 100 MB, so that a member that is slow for a moment needs no copy of the file. While the
// leader sends such a copy, and for 30 s longer, etcd keeps in memory all that is written. A snapshot takes as long as a
// few appends.
const (
	heartbeatMs   = 50
	electionMs    = 500
	snapshotCount = 100
	catchUp       = 800
	maxRequest    = 2 * replica.MaxEntry
	// commitEvery is how often etcd writes its file; until then the write-ahead log has what is new. With etcd's 0.1 s a
	// member that does nothing writes 200 KB/s.
	commitEvery = time.Second
	// walBytes is the size of the files of the write-ahead log, of which walFiles are kept, and what a start would read.
	walBytes = 16 << 20
	walFiles = 2
	// purgeEvery is how often the others are removed. etcd does so each 30 s, in which a log grows by a gigabyte.
	purgeEvery = time.Second
)

func init() { wal.SegmentSizeBytes = walBytes } // it has no other setting

// Options are what a Server needs: group.LogOptions, which converts to them.
type Options struct {
	Dir         string
	Group       string                // the id of the group: members of another one are refused
	Member      string                // the name of this member, one of Peers
	Peers       map[string]string     // name → host:port; the same on all members
	Listen      string                // where to listen for the peers, default the address in Peers
	TLSDir      string                // tls.crt, tls.key and ca.crt; "": without TLS
	Connections *listener.Connections // of the other members; required
	// Replaces: this member takes the place of one that lost its disk, see Server.Replace.
	Replaces bool
	Log      *slog.Logger
	Stopped  func(error) // etcd has ended by itself: the process must end
}

func (o *Options) scheme() string {
	if o.TLSDir != "" {
		return "https"
	}
	return "http"
}

// url is the address at which the others know a member.
func (o *Options) url(member string) string { return o.scheme() + "://" + o.Peers[member] }

// Server is the member of the group in this process.
type Server struct {
	etcd    *embed.Etcd
	client  *clientv3.Client
	peers   *listener.Endpoint // for the other members
	served  chan struct{}      // peers has ended
	ended   chan struct{}      // etcd has ended
	closing atomic.Bool
	level   zap.AtomicLevel // of etcd's log
	opts    Options
	used    diskUse
}

// Start starts the member. It returns at once; until a majority is there, the log
// cannot be changed. A member that takes the place of another one first waits until the others know of it, for up to 5 s.
func Start(o Options) (*Server, error) {
	cfg, err := o.config()
	if err != nil {
		return nil, fmt.Errorf("etcdlog: %w", err)
	}
	if o.Replaces {
		ctx, cancel := context.WithTimeout(context.Background(), appliedTime)
		defer cancel()
		if err := o.awaitApplied(ctx, cfg.PeerTLSInfo); err != nil {
			return nil, fmt.Errorf("etcdlog: --peer-tls-dir: %w", err)
		}
	}
	level := zap.NewAtomicLevelAt(zap.ErrorLevel)
	if err := logErrors(cfg, level, o.Stopped); err != nil {
		return nil, fmt.Errorf("etcdlog: %w", err)
	}
	// No port for clients, and etcd's own port for peers takes any number of connections: embed
	// insists on listeners, so it gets sockets that only this user reaches, and that are not called.
	// The path of a socket is short, so it is not in the data directory.
	sockets, err := os.MkdirTemp("", "reschedule-")
	if err != nil {
		return nil, fmt.Errorf("etcdlog: %w", err)
	}
	cfg.ListenClientUrls = []url.URL{{Scheme: "unix", Path: filepath.Join(sockets, "c")}}
	cfg.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: filepath.Join(sockets, "p")}} // the host, unlike above
	port, files, err := o.listen(&cfg.PeerTLSInfo)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(sockets))
	}
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("etcdlog: starting etcd: %w", err), port.Close(), os.RemoveAll(sockets))
	}
	s := &Server{etcd: server, client: v3client.New(server.Server), served: make(chan struct{}), ended: make(chan struct{}), level: level, opts: o}
	s.peers = o.Connections.Over(port, peerServer(disconnecting(etcdhttp.NewPeerHandler(server.GetLogger(), server.Server), server.Server.StoppingNotify()), files))
	go func() {
		defer close(s.served)
		s.peers.Serve()
	}()
	purged := fileutil.PurgeFile(zap.NewNop(), filepath.Join(cfg.Dir, "member", "wal"), "wal", walFiles, purgeEvery, server.Server.StoppingNotify())
	go func() {
		defer func() { _ = os.RemoveAll(sockets) }() // it is empty by then, or a socket is left
		var why error
		select {
		case err := <-purged:
			why = fmt.Errorf("etcdlog: removing old files of the log: %w", err)
		case err := <-server.Err():
			why = fmt.Errorf("etcdlog: etcd has ended: %w", err)
		case <-server.Server.StoppingNotify():
		}
		select {
		case <-server.Server.StoppingNotify(): // etcd says no more than this, or what ended next
			why = fmt.Errorf("etcdlog: etcd has ended: this member was replaced, as one that lost its disk: empty the directory of member %s, and it joins the others", o.Member)
		default:
		}
		if !s.closing.Load() {
			o.Stopped(why)
		}
	}()
	return s, nil
}

// config is etcd's, but for its log and where it listens. It makes etcd's directory.
func (o *Options) config() (*embed.Config, error) {
	own := o.Peers[o.Member]
	host, _, err := net.SplitHostPort(own)
	if err != nil {
		return nil, fmt.Errorf("the address of member %s: %w", o.Member, err)
	}
	dir, err := filepath.Abs(filepath.Join(o.Dir, "log"))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var all []string
	for name := range o.Peers {
		all = append(all, name+"="+o.url(name))
	}
	slices.Sort(all)
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.InitialCluster, cfg.InitialClusterToken = o.Member, dir, strings.Join(all, ","), o.Group
	if o.Replaces {
		cfg.ClusterState = embed.ClusterStateFlagExisting
	}
	cfg.AdvertisePeerUrls = []url.URL{{Scheme: o.scheme(), Host: own}}
	cfg.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: net.JoinHostPort(host, "1")}} // never called
	if o.TLSDir != "" {
		cfg.PeerTLSInfo.CertFile = filepath.Join(o.TLSDir, "tls.crt")
		cfg.PeerTLSInfo.KeyFile = filepath.Join(o.TLSDir, "tls.key")
		cfg.PeerTLSInfo.TrustedCAFile = filepath.Join(o.TLSDir, "ca.crt")
		cfg.PeerTLSInfo.ClientCertAuth = true
	}
	cfg.TickMs, cfg.ElectionMs = heartbeatMs, electionMs
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = snapshotCount, catchUp
	cfg.MaxWalFiles, cfg.MaxSnapFiles = 0, 2 // 0: purged does it
	// Without a quota: once etcd's is used up, it refuses renewals, claims and trims too. The owner bounds the log instead.
	cfg.QuotaBackendBytes, cfg.MaxRequestBytes = -1, maxRequest
	cfg.CompactionSleepInterval, cfg.BackendBatchInterval = time.Millisecond, commitEvery
	return cfg, nil
}

// logErrors makes etcd log errors alone, at a level that may be raised. What it panics for ends the process by stopped.
func logErrors(cfg *embed.Config, level zap.AtomicLevel, stopped func(error)) error {
	logs := logutil.DefaultZapLoggerConfig
	logs.Level, logs.OutputPaths = level, []string{"stderr"}
	logger, err := logs.Build(zap.WrapCore(func(c zapcore.Core) zapcore.Core { return realErrors{c} }), zap.WithPanicHook(panics(stopped)))
	if err != nil {
		return err
	}
	cfg.ZapLoggerBuilder, cfg.LogLevel = embed.NewZapLoggerBuilder(logger), "error"
	return nil
}

// panics is called in the place of a panic of etcd.
type panics func(error)

// OnWrite implements zapcore.CheckWriteHook. etcd must not go on, and its panic would be a dump of all goroutines.
func (p panics) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := explain(e.Message)
	for _, f := range fields {
		if cause, ok := f.Interface.(error); ok {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	p(err)
	select {}
}

// explain is the error for what raft panics for.
func explain(message string) error {
	switch {
	case strings.Contains(message, "is out of range [lastIndex("):
		return fmt.Errorf("etcdlog: %w: the next start removes the log, and joins the others anew (etcd: %s)", replica.ErrSetBack, message)
	case strings.Contains(message, "conflict with committed entry"):
		return fmt.Errorf("etcdlog: the log of this member has changes that the other members' log lacks: directories of different times are no group. "+
			"Restore a back-up into three empty directories; or empty the directory of this member, and its changes are lost (etcd: %s)", message)
	}
	return fmt.Errorf("etcdlog: etcd cannot go on; if this is so at each start, empty the directory of this member, and it joins the others: %s", message)
}

// realErrors leaves out what etcd logs as an error and is none.
type realErrors struct{ zapcore.Core }

// harmless are these messages. The first one is of a first start, before a new member has stored its first
// term; etcd tries again some seconds later. The next one is of a member that has not caught up, whose
// promotion is tried again until it has. The last one follows the end of etcd, which Stopped is called for.
var harmless = []string{"failed to update storage version", "rejecting promote learner: learner is not ready", "setting up serving from embedded etcd failed."}

// With implements zapcore.Core.
func (c realErrors) With(fields []zapcore.Field) zapcore.Core {
	return realErrors{c.Core.With(fields)}
}

// Check implements zapcore.Core.
func (c realErrors) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if slices.Contains(harmless, e.Message) {
		return to
	}
	return c.Core.Check(e, to)
}

// listen listens for the other members. What connects waits until etcd has started.
func (o *Options) listen(info *transport.TLSInfo) (l net.Listener, files *tls.Config, err error) {
	bind, err := bindable(cmp.Or(o.Listen, o.Peers[o.Member]))
	if err != nil {
		return nil, nil, fmt.Errorf("etcdlog: --peer-listen: %w", err)
	}
	if o.TLSDir != "" {
		if files, err = info.ServerConfig(); err != nil { // it reads the certificate for each connection
			return nil, nil, fmt.Errorf("etcdlog: --peer-tls-dir: %w", err)
		}
		files.MinVersion = tls.VersionTLS13
	}
	// As etcd's own: what is silent for so long is ended.
	l, err = transport.NewTimeoutListener(bind, "http", nil, rafthttp.ConnReadTimeout, rafthttp.ConnWriteTimeout)
	if err != nil {
		return nil, nil, fmt.Errorf("etcdlog: listening for the other members: %w", err)
	}
	return l, files, nil
}

// peerServer is the server of the other members' calls, as etcd's own.
func peerServer(h http.Handler, files *tls.Config) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true) // members speak nothing else
	return &http.Server{Handler: h, TLSConfig: files, Protocols: &protocols, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 5 * time.Minute}
}

// disconnecting is etcd's handler h. It panics with an error to disconnect a member whose message it could not
// take. While etcd ends, it also reads from files that are closed already. Neither is a defect.
func disconnecting(h http.Handler, ending <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			broken := recover()
			if broken == nil {
				return
			}
			err, disconnects := broken.(error)
			if _, ok := errors.AsType[runtime.Error](err); ok {
				disconnects = false
			}
			select {
			case <-ending:
				disconnects = true
			default:
			}
			if disconnects {
				broken = http.ErrAbortHandler
			}
			panic(broken)
		}()
		h.ServeHTTP(w, r)
	})
}

// bindable fills in the host of an address without one, which etcd does not take: all
// addresses of IPv6, and so of IPv4 too, or of IPv4 where the machine has no IPv6.
func bindable(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host != "" {
		return address, err
	}
	host = "0.0.0.0"
	if probe, err := (&net.ListenConfig{}).ListenPacket(context.Background(), "udp6", "[::]:0"); err == nil {
		host = "::"
		_ = probe.Close() // it was not used
	}
	return net.JoinHostPort(host, port), nil
}

// begun is how many entries a log begins with: one for each member, in term 1, in which no
// member leads.
const begun = 3

// PromiseOf returns what the member in the directory may have promised to other members. Of a log that is damaged, the
// error is [replica.ErrDamaged].
func PromiseOf(dataDir string) (replica.Promise, error) {
	dir := filepath.Join(dataDir, "log", "member", "wal")
	if !wal.Exist(dir) {
		return replica.Nothing, nil
	}
	promise, err := promiseIn(dir)
	if promise != replica.More && err == nil { // others have nothing of it
		return promise, nil
	}
	return promise, errors.Join(err, check(dataDir))
}

// promiseIn is PromiseOf of the write-ahead log.
func promiseIn(dir string) (replica.Promise, error) {
	state, err := wal.Verify(nil, dir, walpb.Snapshot{})
	if err != nil { // its beginning is gone, so it is old; check finds damage
		return replica.More, nil //nolint:nilerr // see above
	}
	switch {
	case state.Term <= 1 && state.Vote == 0:
		return replica.Nothing, nil
	case state.Commit > begun: // the entries of an old log would take memory
		return replica.More, nil
	}
	w, err := wal.OpenForRead(zap.NewNop(), dir, walpb.Snapshot{})
	if err != nil {
		return replica.More, fmt.Errorf("etcdlog: %w", err)
	}
	metadata, _, entries, err := w.ReadAll()
	_ = w.Close() // ReadAll has closed the files, which is an error here
	if err != nil {
		return replica.More, fmt.Errorf("etcdlog: %w", err)
	}
	var own etcdserverpb.Metadata
	if err := own.Unmarshal(metadata); err != nil {
		return replica.More, fmt.Errorf("etcdlog: %w", err)
	}
	if state.Vote == own.NodeID && len(entries) <= begun {
		return replica.OwnVote, nil
	}
	return replica.More, nil
}

// Ready is closed once the member knows a leader and takes part.
func (s *Server) Ready() <-chan struct{} { return s.etcd.Server.ReadyNotify() }

// Leads reports that this member's etcd leads the log.
func (s *Server) Leads() bool { return s.etcd.Server.Leader() == s.etcd.Server.MemberID() }

// HasMajority reports that this member knows a leader, which has a majority.
func (s *Server) HasMajority() bool { return s.etcd.Server.Leader() != 0 }

// Replace removes another member, which has lost its disk, and adds a learner at the same
// address. etcd refuses what would take the majority away. The id is a new one: what the old
// member promised does not count any more. ctx must have a deadline: etcd never answers a change that an election lost.
func (s *Server) Replace(ctx context.Context, member string) error {
	address := s.opts.url(member)
	all, err := s.client.MemberList(ctx)
	if err != nil {
		return fmt.Errorf("etcdlog: %w", err)
	}
	for _, m := range all.Members {
		if !slices.Contains(m.PeerURLs, address) {
			continue
		}
		if _, err := s.client.MemberRemove(ctx, m.ID); err != nil {
			return fmt.Errorf("etcdlog: removing the member that lost its disk: %w", err)
		}
	}
	if _, err := s.client.MemberAddAsLearner(ctx, []string{address}); err != nil {
		return fmt.Errorf("etcdlog: adding a member: %w", err)
	}
	return nil
}

// Promote lets this member count, once it has caught up.
func (s *Server) Promote(ctx context.Context) error {
	if !s.etcd.Server.IsLearner() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := s.client.MemberPromote(ctx, uint64(s.etcd.Server.MemberID())); err != nil && s.etcd.Server.IsLearner() {
		return fmt.Errorf("etcdlog: %w", err)
	}
	return nil
}

// StepDown lets another member lead the log, if this one does. Raft gives that up after the time
// of an election, but etcd waits for 5 s and two elections more, also for a member that is gone.
func (s *Server) StepDown() {
	if !s.Leads() {
		return
	}
	done := make(chan error, 1)
	go func() { done <- s.etcd.Server.TryTransferLeadershipOnShutdown() }() // it ends with etcd at the latest
	late := time.NewTimer(electionMs * time.Millisecond)
	defer late.Stop()
	err := errNoFollower
	select {
	case err = <-done:
	case <-late.C:
	}
	if err != nil {
		s.opts.Log.Info("the lead of the log could not be handed over: the others elect a leader", "error", err)
	}
}

var errNoFollower = errors.New("etcdlog: no member took it over in the time of an election")

// Close ends the member. What etcd has not ended after endTime ends with the process: it has no
// effect any more. One such thing is a leader's question for a follower's version, of 6 s for
// each follower, which nothing cuts off.
func (s *Server) Close() {
	s.closing.Store(true)
	_ = s.client.Close()
	s.StepDown()
	s.level.SetLevel(zap.FatalLevel) // it calls it an error that its listeners are closed
	go func() {
		defer close(s.ended)
		s.etcd.Server.HardStop() // else embed hands the lead over once more, in its own time
		s.etcd.Close()
	}()
	late := time.NewTimer(endTime)
	defer late.Stop()
	select {
	case <-s.ended:
	case <-late.C:
		s.opts.Log.Info("etcd waits for a member that does not answer: it ends with the process")
	}
	s.peers.Close() // nothing answers any more
	<-s.served
}

// endTime is longer than etcd takes to end where no member makes it wait.
const endTime = 2 * time.Second

// DBSize returns the bytes of etcd's file, and the bytes of it that are used.
func (s *Server) DBSize() (size, used int64) {
	b := s.etcd.Server.Backend()
	return b.Size(), b.SizeInUse()
}

// mostBytes is what the log takes on the disk while no member takes a copy: 200 MB of the write-ahead log, and the rest
// for the file, of which replica.KeepBytes and the newest entries are used, and for the file that a member which was away
// receives of the leader.
const mostBytes = 512 << 20

// diskUse is how much the log took on the disk when it was last looked at.
type diskUse struct {
	mu    sync.Mutex
	at    time.Time
	bytes int64
}

// useEvery is how long that counts.
const useEvery = time.Second

// DiskUse returns how much the log takes on the disk, and how much it may take while no member takes a copy.
func (s *Server) DiskUse() (now, most int64) {
	u := &s.used
	u.mu.Lock()
	defer u.mu.Unlock()
	if time.Since(u.at) < useEvery {
		return u.bytes, mostBytes
	}
	u.at, u.bytes = time.Now(), 0
	_ = filepath.WalkDir(filepath.Join(s.opts.Dir, "log"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil { // it was removed meanwhile
			return nil //nolint:nilerr // see above
		}
		if info, err := d.Info(); err == nil {
			if stat, is := info.Sys().(*syscall.Stat_t); is {
				u.bytes += stat.Blocks * 512
			}
		}
		return nil
	})
	return u.bytes, mostBytes
}

// The file is defragmented when it has this many bytes and three quarters of them are free.
const (
	tidyEvery = 30 * time.Second
	tidyBytes = 256 << 20
)

// Tidy keeps etcd's file small until ctx ends. A defragmentation stops what etcd applies for seconds. So neither the
// member that owns the group makes one, nor the one that leads the log.
func (s *Server) Tidy(ctx context.Context, owns func() bool) {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if size, used := s.DBSize(); size < tidyBytes || used > size/4 || owns() || s.Leads() {
			continue
		}
		if err := s.etcd.Server.Backend().Defrag(); err != nil {
			s.opts.Log.Warn("etcd's file could not be defragmented", "error", err)
		}
	}
}

// ownerTimeout is short, since nothing is delivered meanwhile, and no shorter than an election,
// which takes electionMs and more.
const ownerTimeout = 600 * time.Millisecond

// Silence is how long an owner is silent before another member claims it.
func (s *Server) Silence() time.Duration { return ownerTimeout }

// Clock is CLOCK_BOOTTIME: it goes on while the machine sleeps.
func (s *Server) Clock() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // Linux has had it since 2.6.39
	return time.Duration(t.Nano())
}

// Wall is the machine's wall clock.
func (s *Server) Wall() time.Time { return time.Now() }
