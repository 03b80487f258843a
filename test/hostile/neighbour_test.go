package hostile

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// neighbour behaves: it schedules keys at a steady pace and answers their deliveries at once, in a namespace of its
// own, and keeps account of what it was told and what came.
type neighbour struct {
	url, admin string // the source's address, and the adapter's probes
	sink       *harness.Sink
	pooled     *http.Client
	single     *http.Client // a connection for each call

	together chan struct{} // of abreast: a delivery that is under way
	release  chan struct{} // closed when these deliveries may end

	mu     sync.Mutex
	n      int
	owed   map[string]string // acknowledged and not delivered yet, with the phase
	phases map[string]*figures
	calls  sync.WaitGroup
}

// probe is the number of a probe, and what it asks for.
type probe struct {
	path   string
	number int
}

// figures are a phase's.
type figures struct {
	answers  []time.Duration // how long calls took
	lateness []time.Duration // of deliveries that were scheduled in the phase
	errors   []string
	early    int
	probed   int              // probes that have begun
	probes   map[probe]string // that failed, and why

	processors float64 // that the adapter took, on average
}

const (
	good     = "good"
	pace     = 25 * time.Millisecond // 40 calls a second
	ahead    = 300 * time.Millisecond
	deadline = 30 * time.Second // by which all must have come, whatever goes on
	// inTime is the most that a delivery may be late, on two processors that others use too. It was at most 0.1 s in
	// ten minutes of all attacks, and 5.6 s where the adapter got an eighth of a processor.
	inTime = 10 * time.Second
	// unready is how many probes fail in a row before the kubelet takes the pod out of its Service. config/500-adapter.yaml
	// has the default.
	unready = 3
)

const goodManifest = `apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: neighbour, namespace: good}
spec:
  sink: {uri: %q}
`

func newNeighbour(t *testing.T) *neighbour {
	n := &neighbour{
		sink: harness.NewSink(), owed: map[string]string{}, phases: map[string]*figures{}, release: make(chan struct{}),
		pooled: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
		single: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	t.Cleanup(n.sink.Close)
	n.sink.Answer("neighbour", "", n.deliver)
	return n
}

func (n *neighbour) manifest() string { return fmt.Sprintf(goodManifest, n.sink.URL+"/neighbour") }

func (n *neighbour) deliver(w http.ResponseWriter, _ *http.Request, d *harness.Delivery) {
	n.mu.Lock()
	together := n.together
	if phase, ok := n.owed[d.Key]; ok {
		late := d.At.Sub(d.DueAt)
		f := n.phases[phase]
		f.lateness = append(f.lateness, late)
		if late < 0 {
			f.early++
		}
		delete(n.owed, d.Key)
	}
	n.mu.Unlock()
	if strings.HasPrefix(d.Key, "together") {
		together <- struct{}{}
		<-n.release
	}
	w.WriteHeader(http.StatusNoContent)
}

// abreast schedules some keys and holds their deliveries until all are under
// way: what others do must not leave the neighbour one at a time.
func (n *neighbour) abreast(t *testing.T) {
	t.Helper()
	const keys = 8
	patience := time.After(deadline)
	n.mu.Lock()
	n.together = make(chan struct{}, keys)
	n.mu.Unlock()
	defer close(n.release)
	for i := range keys { // due at once
		if said, err := n.do(n.pooled, http.MethodPut, fmt.Sprintf("%s/schedules/together%d", n.url, i), "{}"); err != nil {
			t.Errorf("a call of the neighbour during the attack: %v %s", err, said)
		}
	}
	for i := range keys {
		select {
		case <-n.together:
		case <-patience:
			t.Errorf("only %d of %d deliveries of the neighbour were under way together within %s", i, keys, deadline)
			return
		}
	}
}

// live goes on for a while in a phase: calls at the pace, and the probes of the kubelet.
func (n *neighbour) live(ctx context.Context, phase string, lasts time.Duration) {
	n.mu.Lock()
	f := n.phases[phase]
	if f == nil {
		f = &figures{probes: map[probe]string{}}
		n.phases[phase] = f
	}
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lasts)
	defer cancel()
	probes := time.NewTicker(time.Second)
	defer probes.Stop()
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-probes.C:
			number := f.probed
			f.probed++
			n.calls.Go(func() { n.probe(f, number) })
		case <-tick.C:
			i := n.n
			n.n++
			n.calls.Go(func() { n.call(f, phase, i) })
		}
	}
}

// call makes the i-th call: mostly a PUT, sometimes an event, a bulk call of a
// size that counts in the budget of bodies, a replacement or a list.
func (n *neighbour) call(f *figures, phase string, i int) {
	client := n.pooled
	if i%4 == 0 {
		client = n.single
	}
	key := fmt.Sprintf("k%d", i)
	method, below, body := http.MethodPut, "/schedules/"+url.PathEscape(key), fmt.Sprintf(`{"delay":%q}`, ahead)
	var headers []string
	switch i % 40 {
	case 7, 17, 27, 37:
		method, below, body = http.MethodPost, "", `{}`
		headers = []string{"Ce-Specversion", "1.0", "Ce-Id", key, "Ce-Source", "/good", "Ce-Type", "good", "Ce-Reschedulekey", key, "Ce-Rescheduleafter", ahead.String()}
	case 13, 33:
		method, below = http.MethodPost, "/schedules"
		body = fmt.Sprintf(`{"items":[{"key":%q,"delay":%q,"event":{"data":%q}}]}`, key, ahead, strings.Repeat("x", 80<<10))
	case 21:
		key, method, below, body = "", http.MethodGet, "/schedules?limit=100", ""
	}
	if key != "" {
		n.mu.Lock()
		n.owed[key] = phase
		n.mu.Unlock()
	}
	start := time.Now()
	said, err := n.do(client, method, n.url+below, body, headers...)
	took := time.Since(start)
	n.mu.Lock()
	defer n.mu.Unlock()
	f.answers = append(f.answers, took)
	if err != nil {
		f.errors = append(f.errors, fmt.Sprintf("%s %s after %s: %v %s", method, cmp.Or(below, "an event"), took.Round(time.Millisecond), err, said))
		delete(n.owed, key) // perhaps taken, and perhaps not
	}
}

func (n *neighbour) do(client *http.Client, method, target, body string, headers ...string) (said string, err error) {
	req, err := http.NewRequest(method, target, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var head [256]byte
	read, _ := resp.Body.Read(head[:])
	if resp.StatusCode >= 300 {
		return string(head[:read]), fmt.Errorf("status %d", resp.StatusCode)
	}
	return "", nil
}

// probe is the kubelet's: a new connection, and five seconds. The next one does not wait for it: a
// phase is too short for three that do.
func (n *neighbour) probe(f *figures, number int) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: n.single.Transport}
	for _, path := range []string{"/healthz", "/readyz"} {
		if said, err := n.do(client, http.MethodGet, n.admin+path, ""); err != nil {
			n.mu.Lock()
			f.probes[probe{path, number}] = fmt.Sprintf("%v %s", err, said)
			n.mu.Unlock()
		}
	}
}

// settle waits until all calls were answered and all that was promised came, and returns what did not.
func (n *neighbour) settle() (lost []string) {
	n.calls.Wait()
	patience := time.After(deadline)
	for {
		lost = lost[:0]
		n.mu.Lock()
		for key, phase := range n.owed {
			lost = append(lost, key+" of "+phase)
		}
		n.mu.Unlock()
		if len(lost) == 0 {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-patience:
			return lost
		}
	}
}

// judge is what holds in every phase: nothing lost, none early, no errors, and the kubelet finds the pod ready.
func (n *neighbour) judge(t *testing.T) {
	t.Helper()
	lost := n.settle()
	if len(lost) > 0 {
		t.Errorf("%d of the neighbour's keys did not come within %s: %q", len(lost), deadline, lost[:min(3, len(lost))])
	}
	for _, phase := range phases {
		f := n.phases[phase]
		if f == nil {
			continue
		}
		if f.early > 0 {
			t.Errorf("%s: %d deliveries were early", phase, f.early)
		}
		if late := at(f.lateness, 100); late > inTime {
			t.Errorf("%s: a delivery was %s late, more than %s", phase, late, inTime)
		}
		if len(f.errors) > 0 {
			t.Errorf("%s: %d of %d calls failed: %q", phase, len(f.errors), len(f.answers), f.errors[:min(3, len(f.errors))])
		}
		if row := f.failedInARow(); row >= unready {
			t.Errorf("%s: %d probes failed in a row: %v", phase, row, f.probes)
		} else if len(f.probes) > 0 {
			t.Logf("%s: %d probes failed: %v", phase, len(f.probes), f.probes)
		}
		t.Logf("%-6s %s", phase, f)
	}
}

// failedInARow is how many probes of one path failed one after the other, at most.
func (f *figures) failedInARow() (most int) {
	for p := range f.probes {
		row := 0
		for _, failed := f.probes[p]; failed; _, failed = f.probes[p] {
			row++
			p.number++
		}
		most = max(most, row)
	}
	return most
}

var phases = []string{"quiet", "attack", "after"}

func (f *figures) String() string {
	return fmt.Sprintf("%5d calls, %d errors, %d probes failed; calls p50 %s p99 %s; %5d deliveries, late p50 %s p99 %s max %s; %.2f processors",
		len(f.answers), len(f.errors), len(f.probes), at(f.answers, 50), at(f.answers, 99), len(f.lateness), at(f.lateness, 50), at(f.lateness, 99), at(f.lateness, 100), f.processors)
}

// at is a percentile.
func at(of []time.Duration, percent int) time.Duration {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)].Round(10 * time.Microsecond)
}
