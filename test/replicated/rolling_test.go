package replicated

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/internal/certs"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// service is a Service as kube-proxy makes it: a new connection goes to one of the members that
// are known to be ready, and a connection that exists stays where it is.
type service struct {
	mu      sync.Mutex
	members map[int]endpoint
}

// endpoint is a member at which new connections arrive until an instant, zero for ever. A timer that removed it came
// 0.7 s late on a busy machine.
type endpoint struct {
	address string
	until   time.Time
}

func (s *service) set(i int, address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members[i] = endpoint{address: address}
}

func (s *service) remove(i int, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members[i] = endpoint{s.members[i].address, at}
}

// dial is http.Transport.DialContext.
func (s *service) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	s.mu.Lock()
	var all []string
	for _, e := range s.members {
		if e.until.IsZero() || time.Now().Before(e.until) {
			all = append(all, e.address)
		}
	}
	s.mu.Unlock()
	if len(all) == 0 {
		return nil, errors.New("no member is ready")
	}
	return new(net.Dialer).DialContext(ctx, network, all[rand.IntN(len(all))])
}

// roll ends the members and starts them again, one after the other, as a StatefulSet does, under
// callers of every kind.
type roll struct {
	*group
	plain, secured service
	addresses      [3]string // with TLS
	roots          *x509.CertPool

	mu       sync.Mutex
	calls    map[string]int // kind of caller → answered calls
	answered time.Time      // the last answer
	gap      time.Duration  // the longest time without one, since the last SIGTERM
	slowest  time.Duration  // of the calls since then
	ended    time.Time      // the last SIGTERM
	failed   []string
}

// call makes calls through the Service until ctx ends, each after a pause.
func (r *roll) call(ctx context.Context, kind, base string, client *http.Client, most time.Duration) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for key := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
			pause.Reset(rand.N(most))
		}
		method, path, body, wanted := http.MethodPut, "/schedules/", "", []int{http.StatusCreated}
		delay := time.Duration(200+rand.IntN(1500)) * time.Millisecond
		switch rand.IntN(6) {
		default:
			key = r.key()
			path, body = path+key, fmt.Sprintf(`{"delay":%q}`, delay)
		case 0:
			method, path, wanted = http.MethodGet, path+"far", []int{http.StatusOK}
		case 1:
			method, path, wanted = http.MethodDelete, path+"absent", []int{http.StatusOK, http.StatusNoContent, http.StatusNotFound}
		case 2:
			key = r.key()
			method, path, body, wanted = http.MethodPost, "/schedules", fmt.Sprintf(`{"items":[{"key":%q,"delay":%q}]}`, key, delay), []int{http.StatusOK}
		}
		sent := time.Now()
		status, answer, err := send(client, method, base+source+path, body)
		now := time.Now()
		r.mu.Lock()
		if err != nil || !slices.Contains(wanted, status) {
			what := fmt.Sprintf("%s, %s %s, sent %s after the last SIGTERM, took %s: %d %s %v", kind, method, path, sent.Sub(r.ended).Round(time.Millisecond), now.Sub(sent).Round(time.Millisecond), status, answer, err)
			if status == http.StatusServiceUnavailable {
				r.group.mu.Lock()
				r.refused = append(r.refused, refused{interval{sent, now}, what})
				r.group.mu.Unlock()
			} else {
				r.failed = append(r.failed, what)
			}
		} else {
			r.slowest = max(r.slowest, now.Sub(sent))
			r.gap, r.answered = max(r.gap, now.Sub(r.answered)), now
			r.calls[kind]++
		}
		r.mu.Unlock()
		r.group.mu.Lock()
		if body != "" && err == nil && status < 300 {
			r.acked[key] = sent.Add(delay)
		}
		r.group.mu.Unlock()
	}
}

func send(client *http.Client, method, url, body string) (status int, answer []byte, err error) {
	request, err := http.NewRequest(method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, nil, err
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// client is a caller of the Service, with HTTP/1.1 or, over TLS, with HTTP/2.
func (r *roll) client(secured bool, set func(*http.Transport)) *http.Client {
	transport := &http.Transport{DialContext: r.plain.dial, MaxIdleConnsPerHost: 64, DisableCompression: true}
	if secured {
		transport.DialContext, transport.ForceAttemptHTTP2 = r.secured.dial, true
		transport.TLSClientConfig = &tls.Config{RootCAs: r.roots, MinVersion: tls.VersionTLS13}
	}
	set(transport)
	r.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: harness.Patience}
}

// begin lets callers of every kind call, until the function that it returns is called.
func (r *roll) begin() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	add := func(n int, kind, base string, client *http.Client, most time.Duration) {
		for range n {
			callers.Go(func() { r.call(ctx, kind, base, client, most) })
		}
	}
	const plain, secured = "http://127.0.0.1", "https://127.0.0.1"
	const often, seldom = 40 * time.Millisecond, 6 * time.Second
	add(4, "keep-alive", plain, r.client(false, func(*http.Transport) {}), often)
	add(2, "a connection each", plain, r.client(false, func(t *http.Transport) { t.DisableKeepAlives = true }), often)
	add(2, "HTTP/2", secured, r.client(true, func(*http.Transport) {}), often)
	for range 20 { // their connections are idle for most of the time
		add(1, "seldom", plain, r.client(false, func(*http.Transport) {}), seldom)
		add(1, "seldom, HTTP/2", secured, r.client(true, func(*http.Transport) {}), seldom)
	}
	return func() {
		cancel()
		callers.Wait()
	}
}

// enter adds a member to the Service once it is ready.
func (r *roll) enter(i int) {
	r.t.Helper()
	a := r.members[i]
	r.eventually("a member is ready", func() bool {
		answer, err := harness.Do(r.t.Context(), http.MethodGet, a.Admin+"/readyz", "")
		return err == nil && answer.Status == http.StatusOK
	})
	r.plain.set(i, strings.TrimPrefix(a.URL, "http://"))
	r.secured.set(i, r.addresses[i])
}

// replace ends a member, and starts it again. New connections come to it until lag after SIGTERM.
func (r *roll) replace(i int, lag time.Duration) {
	r.t.Helper()
	owner, a := r.owner(), r.members[i]
	r.group.mu.Lock()
	r.members[i] = nil
	r.group.mu.Unlock()
	begun := time.Now()
	r.mu.Lock()
	r.ended, r.gap, r.slowest = begun, 0, 0
	r.mu.Unlock()
	r.plain.remove(i, begun.Add(lag))
	r.secured.remove(i, begun.Add(lag))
	ctx, cancel := context.WithTimeout(r.t.Context(), harness.Patience)
	defer cancel()
	status, took, err := a.Terminate(ctx)
	if err != nil || status != 0 {
		r.t.Fatalf("status %d, %v:\n%s", status, err, a.Log())
	}
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Logf("%s, which was ended, said:\n%s", name(i), a.Log())
		}
	})
	r.pass(time.Until(begun.Add(lag)))
	r.launch(i)
	r.enter(i)
	r.mu.Lock()
	defer r.mu.Unlock()
	what := "a standby"
	if owner == i {
		what = "the owner"
	}
	r.t.Logf("%s, %s, ended within %s, with new connections for %s: the longest time without an answer was %s, the slowest call took %s",
		name(i), what, took.Round(time.Millisecond), lag, r.gap.Round(time.Millisecond), r.slowest.Round(time.Millisecond))
}

var rolls = flag.Int("rolls", 1, "how often TestGroup_RollFailsNoCall replaces all members")

// Members are ended and started again, one after the other, while callers with all kinds of
// connections call the Service, whose nodes learn of each end late: no call fails. A call may be refused
// while the disk of the members stands still, which is measured: the log cannot change its owner then.
func TestGroup_RollFailsNoCall(t *testing.T) {
	t.Parallel()
	authority := certs.Authority("callers")
	dir := filepath.Join(t.TempDir(), "tls")
	mount(t, dir, membersFiles(authority, 2))
	r := &roll{roots: x509.NewCertPool(), calls: map[string]int{}}
	r.roots.AddCert(authority.Certificate)
	r.plain.members, r.secured.members = map[int]endpoint{}, map[int]endpoint{}
	for i := range r.addresses {
		var err error
		if r.addresses[i], err = harness.FreeAddress(); err != nil {
			t.Fatal(err)
		}
	}
	process := patient(t)
	r.group = startWith(t, func(g *group) {
		g.process = process
		g.more = func(i int) []string {
			return []string{"--tls-listen", r.addresses[i], "--tls-dir", dir, "--peer-tls-dir", dir}
		}
		g.hold = 500 * time.Millisecond // the owner ends with deliveries under way
	})
	disk := watchDisk(t, r.dir)
	for i := range r.members {
		r.enter(i)
	}
	r.put("far", time.Hour)
	r.answered = time.Now()
	stop := r.begin()
	lags := []time.Duration{time.Second, 7 * time.Second, 100 * time.Millisecond}
	for range *rolls {
		for i := range r.members {
			r.pass(time.Second)
			r.replace(i, lags[i])
		}
	}
	r.pass(time.Second)
	stop()
	r.settled()
	t.Logf("answered calls: %v", r.calls)
	r.judge(disk)
	if r.cutOff > 0 && disk.longest() < leaseLeft {
		t.Errorf("%d deliveries were cut off", r.cutOff)
	}
	for _, failure := range r.failed {
		t.Error("a call failed: ", failure)
	}
}
