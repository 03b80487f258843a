package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
	"golang.org/x/sync/errgroup"
)

const (
	// sourcePath is the path of the one source of most scenarios.
	sourcePath = "/default/bench"
	// noSink is the sink of scenarios without deliveries.
	noSink = "127.0.0.1:9"
)

// sourceName returns the name of one of several sources. The first is the one source.
func sourceName(i int) string {
	if i == 0 {
		return "bench"
	}
	return fmt.Sprintf("bench-%d", i)
}

// schedulesPath returns the path of the keys of one of so many sources.
func schedulesPath(i uint32, sources int) string {
	return "/default/" + sourceName(int(i%uint32(sources))) + "/schedules"
}

// putPath returns the path of a key. An escaped slash is part of the key.
func putPath(index uint32, sources int) string {
	return schedulesPath(index, sources) + "/" + strings.ReplaceAll(load.Key(index), "/", "%2F")
}

// adapterConfig is the configuration that a scenario chooses.
type adapterConfig struct {
	Dir     string // of its data, which stay
	Sink    string // host:port
	Sources int
}

// starter starts an adapter and waits until it is ready: the product's binary, in tests a fake.
type starter func(context.Context, adapterConfig) (*service, error)

// adapterBinary is the file of an adapter.
type adapterBinary string

const sourceManifest = `---
apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: %s, namespace: default}
spec:
  sink: {uri: "http://%s/"}
  limits: {maxPending: 100000000}
`

func (file adapterBinary) start(ctx context.Context, c adapterConfig) (*service, error) {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, err
	}
	var manifest bytes.Buffer
	for i := range c.Sources {
		fmt.Fprintf(&manifest, sourceManifest, sourceName(i), c.Sink)
	}
	sources := c.Dir + ".yaml"
	if err := os.WriteFile(sources, manifest.Bytes(), 0o644); err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	admin, err := freeAddr()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(string(file), "--standalone", "--sources", sources, "--data-dir", c.Dir, "--listen", addr, "--admin-listen", admin)
	return serve(ctx, cmd, addr, syscall.SIGTERM, 2*time.Millisecond, func() bool {
		answer, err := control.Get("http://" + admin + "/readyz")
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}

// adapter is an adapter on its data, over several starts. After an error it does
// nothing more, so that a scenario looks at err once.
type adapter struct {
	b       *bench
	config  adapterConfig
	running *service // nil between a stop and a start
	err     error
}

func (b *bench) adapter(dir, sink string, sources int) *adapter {
	return &adapter{b: b, config: adapterConfig{Dir: filepath.Join(dir, "adapter"), Sink: sink, Sources: sources}}
}

func (a *adapter) do(step func() error) {
	if a.err == nil {
		a.err = step()
	}
}

// get is do for a step that finds something.
func get[T any](a *adapter, step func(*service) (T, error)) (found T) {
	a.do(func() (err error) {
		found, err = step(a.running)
		return err
	})
	return found
}

// start starts the adapter.
func (a *adapter) start(ctx context.Context) {
	a.running = get(a, func(*service) (*service, error) { return a.b.start(ctx, a.config) })
}

// stop ends the adapter in order. It also ends one whose scenario failed, which would disturb the next.
func (a *adapter) stop() error {
	if s := a.running; s != nil {
		a.running = nil
		if err := s.stop(); a.err == nil {
			a.err = err
		}
	}
	return a.err
}

func (a *adapter) kill() {
	a.do(func() error {
		s := a.running
		a.running = nil
		return s.kill()
	})
}

func (a *adapter) usage() usage {
	return get(a, func(s *service) (usage, error) { return s.usage() })
}

// pending returns how many keys of the one source are pending.
func (a *adapter) pending() int64 {
	var counts struct{ Pending int64 }
	a.do(func() error { return getJSON(a.running.addr, sourcePath, &counts) })
	return counts.Pending
}

func (a *adapter) disk() int64 {
	return get(a, func(*service) (int64, error) { return diskBytes(a.config.Dir) })
}

// state is the memory and the disk space of an idle adapter.
type state struct{ rss, disk int64 }

// settled waits until memory and disk have changed by less than a fiftieth over
// six looks: the Go runtime returns memory to the system slowly.
func (a *adapter) settled(ctx context.Context) (now state) {
	const looks = 6
	var seen []state
	near := func(a, b int64) bool { return max(a, b)-min(a, b) <= max(a, b)/50 }
	for end := time.Now().Add(a.b.settle); a.err == nil && time.Now().Before(end); {
		now = state{rss: a.usage().rss, disk: a.disk()}
		seen = append(seen, now)
		if n := len(seen) - looks; n >= 0 && near(now.rss, seen[n].rss) && near(now.disk, seen[n].disk) {
			break
		}
		a.do(func() error { return sleep(ctx, a.b.settleEvery) })
	}
	return now
}

// quiet waits until the work behind earlier calls is done: compactions would count as the
// cost of the next ones.
func (a *adapter) quiet(ctx context.Context) {
	before := a.usage()
	for end := time.Now().Add(a.b.settle); a.err == nil && time.Now().Before(end); {
		a.do(func() error { return sleep(ctx, a.b.settleEvery) })
		now := a.usage()
		if now.cpu-before.cpu <= a.b.settleEvery/50 {
			return
		}
		before = now
	}
}

// fill schedules n keys from the index first on as fast as the adapter takes
// them: bulk calls of up to a thousand over several connections, to one source after the
// other. It returns items a second.
func (a *adapter) fill(ctx context.Context, first uint32, n int, binary bool, when func(index uint32) load.When) (rate float64) {
	const connections = 8
	sources := a.config.Sources
	each := min(max(n/sources, 1), 1000)
	var next atomic.Int64
	began := time.Now()
	a.do(func() error {
		callers, running := errgroup.WithContext(ctx)
		for caller := range connections {
			callers.Go(func() error {
				client := load.NewClient(a.running.addr)
				defer client.Close()
				maker := load.NewMaker(uint64(first)<<8 + uint64(caller))
				maker.Binary = binary
				var body []byte
				for running.Err() == nil {
					at := int(next.Add(int64(each))) - each
					if at >= n {
						return nil
					}
					count := min(each, n-at)
					body = maker.AppendBulk(body[:0], first+uint32(at), count, when)
					if _, err := bulk(client, schedulesPath(uint32(at/each), sources), body, count); err != nil {
						return err
					}
				}
				return context.Cause(running)
			})
		}
		return callers.Wait()
	})
	rate = float64(n) / time.Since(began).Seconds()
	if a.err == nil {
		a.b.say("  filled at %s/s", report.Thousands(rate))
	}
	return rate
}

// bulk makes one bulk call and checks that every item was created. It returns the answer.
func bulk(client *load.Client, path string, body []byte, n int) ([]byte, error) {
	status, text, err := client.Call(http.MethodPost, path, body)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("bulk POST answered %d: %.300s", status, text)
	}
	// Counting is much cheaper than decoding, and keys and random letters cannot contain this text.
	if err == nil && bytes.Count(text, []byte(`"status":201`)) != n {
		_, refused, _ := bytes.Cut(text, []byte(`"code":`))
		err = fmt.Errorf("bulk POST: not all %d items were created: %.300s", n, refused)
	}
	return text, err
}

// put makes one PUT, which must answer with the status. It returns the answer.
func put1(client *load.Client, path string, body []byte, want int) ([]byte, error) {
	status, text, err := client.Call(http.MethodPut, path, body)
	if err == nil && status != want {
		err = fmt.Errorf("PUT answered %d: %.300s", status, text)
	}
	return text, err
}

// farAway spreads keys over the year after next month.
func farAway(now time.Time) func(uint32) time.Time {
	return func(index uint32) time.Time {
		spread := time.Duration(index*2654435761) * (365 * 24 * time.Hour / (1 << 32))
		return now.Add(30*24*time.Hour + spread).Truncate(time.Millisecond)
	}
}

func farWhen() func(uint32) load.When {
	far := farAway(time.Now())
	return func(index uint32) load.When { return load.At(far(index)) }
}
