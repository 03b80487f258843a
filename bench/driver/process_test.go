package driver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// process is a running server. It ends with its test, and when the driver dies.
type process struct {
	addr  string // host:port
	ready time.Duration
	cmd   *exec.Cmd
	ended chan struct{}
}

// start starts a server and waits until it is ready.
func start(t *testing.T, cmd *exec.Cmd, addr string, ready func() bool) *process {
	t.Helper()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	check(t, err)
	defer output.Close()
	cmd.Stderr = output
	p := &process{addr: addr, cmd: cmd, ended: make(chan struct{})}
	began := time.Now()
	check(t, cmd.Start())
	go func() {
		cmd.Wait() // ProcessState has it
		close(p.ended)
	}()
	t.Cleanup(func() { p.end(t, syscall.SIGINT) })
	for !ready() {
		select {
		case <-p.ended:
			text, _ := os.ReadFile(output.Name())
			t.Fatalf("%s ended before it was ready: %s: %s", cmd.Path, cmd.ProcessState, text[max(len(text)-2000, 0):])
		case <-time.After(2 * time.Millisecond):
			if time.Since(began) > 2*time.Minute {
				t.Fatalf("%s is not ready after %s", cmd.Path, time.Since(began))
			}
		}
	}
	p.ready = time.Since(began)
	return p
}

// end ends the process, if it runs, with a signal: SIGINT is the orderly end of each of them.
func (p *process) end(t *testing.T, s os.Signal) {
	p.cmd.Process.Signal(s) // fails when it has ended
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		p.cmd.Process.Kill()
		<-p.ended
		t.Errorf("%s did not end after %s", p.cmd.Path, s)
	}
}

// usage is what a process takes: CPU time since its start, with its children's (PostgreSQL
// serves each connection with one), and resident memory.
type usage struct {
	cpu       time.Duration
	rss, disk int64 // disk: of its data, when it is at rest
}

func (p *process) usage() (u usage) {
	all, _ := procfs.AllProcs()
	for _, one := range all {
		stat, err := one.Stat()
		if err != nil || stat.PID != p.cmd.Process.Pid && stat.PPID != p.cmd.Process.Pid {
			continue
		}
		u.cpu += time.Duration(stat.CPUTime() * float64(time.Second))
		if stat.PID == p.cmd.Process.Pid {
			u.rss = int64(stat.ResidentMemory())
		}
	}
	return u
}

func (p *process) cpu() time.Duration { return p.usage().cpu }

// written is how many bytes were written to the device of a directory, by all programs. The kernel also counts them for a
// process, but there a small write into a large cached folio counts as the whole folio.
func written(t *testing.T, dir string) int64 {
	var stat unix.Stat_t
	check(t, unix.Stat(dir, &stat))
	unix.Sync()
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(stat.Dev), unix.Minor(stat.Dev)))
	if err != nil {
		return 0 // not on a disk
	}
	sectors, err := strconv.ParseInt(strings.Fields(string(text))[6], 10, 64)
	check(t, err)
	return sectors * 512
}

// ownCPU returns the CPU time of the driver, which is the client in most scenarios.
func ownCPU() time.Duration {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// freeAddr returns a loopback address without a listener. Its port lies below the ports of
// outgoing connections, so that no connection takes it before the program listens.
func freeAddr() string {
	for {
		addr := fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(15000))
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			return addr
		}
	}
}

// answers says whether a server answers with a status.
func answers(url string, status int) bool {
	answer, err := http.Get(url)
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode == status
}

// getJSON reads an answer of a process.
func getJSON(t *testing.T, addr, path string, into any) {
	t.Helper()
	answer, err := http.Get("http://" + addr + path)
	check(t, err)
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(into); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v", path, answer.Status, err)
	}
}

// child returns the command of a part of the driver in a process of its own, see TestMain.
func child(t *testing.T, name string, args ...string) *exec.Cmd {
	self, err := os.Executable()
	check(t, err)
	return exec.Command(self, append([]string{name}, args...)...)
}

// bareServer only reads the body and always gives the same answer.
func bareServer(addr, status, answer string) error {
	code, _ := strconv.Atoi(status)
	body := []byte(answer)
	return http.ListenAndServe(addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		if code == http.StatusCreated {
			w.Header().Set("ETag", `"1844674"`)
		}
		w.WriteHeader(code)
		w.Write(body) // io.WriteString would copy it in small pieces
	}))
}

// sink is the receiver: it answers 202 to every event and stores the first arrival of each key.
type sink struct {
	addr          string
	mu            sync.Mutex
	first         uint32      // of the keys that it counts
	at            []time.Time // of their arrivals
	seen, repeats int         // distinct keys, and deliveries of a key that was there
	header        http.Header // of one of the events
	all           chan struct{}
	takes         time.Duration // an answer
}

func newSink(t *testing.T) *sink {
	s := new(sink)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.addr = server.Listener.Addr().String()
	return s
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	io.Copy(io.Discard, r.Body)
	if s.takes > 0 {
		wait(s.takes)
	}
	w.WriteHeader(http.StatusAccepted)
	index, ok := indexOf(r.Header.Get("Ce-Reschedulekey"))
	s.mu.Lock()
	defer s.mu.Unlock()
	i := int64(index) - int64(s.first)
	switch {
	case !ok || i < 0 || i >= int64(len(s.at)): // of an earlier round
	case !s.at[i].IsZero():
		s.repeats++
	default:
		s.at[i], s.header = now, r.Header
		if s.seen++; s.seen == len(s.at) {
			close(s.all)
		}
	}
}

// expect sets the keys that the sink counts.
func (s *sink) expect(first uint32, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first, s.at, s.seen, s.repeats, s.all = first, make([]time.Time, n), 0, 0, make(chan struct{})
}

// arrivals waits until the sink has seen all that it expects, and returns when they came.
func (s *sink) arrivals(t *testing.T) []time.Time {
	select {
	case <-s.all:
	case <-time.After(2 * time.Minute):
		t.Fatal("not all events have come to the sink within 2 minutes")
	}
	return s.at
}

// diskBytes returns the disk space of a directory.
func diskBytes(t *testing.T, dir string) (bytes int64) {
	// du complains about a file that a compaction removes meanwhile.
	out, _ := exec.CommandContext(t.Context(), "du", "--summarize", "--block-size=1", dir).Output()
	if _, err := fmt.Sscan(strings.TrimSpace(string(out)), &bytes); err != nil {
		t.Fatalf("du %s: %v", dir, err)
	}
	return bytes
}

// noSink is the sink of scenarios without deliveries.
const noSink = "127.0.0.1:9"

// sourceName returns the name of one of several sources. The first is the one source of most scenarios.
func sourceName(i int) string { return strings.TrimSuffix(fmt.Sprintf("bench-%d", i), "-0") }

// schedulesPath returns the path of the keys of one of so many sources.
func schedulesPath(i uint32, sources int) string {
	return "/default/" + sourceName(int(i%uint32(sources))) + "/schedules"
}

// keyPath returns the path of a key. An escaped slash is part of the key.
func keyPath(index uint32, sources int) string {
	return schedulesPath(index, sources) + "/" + strings.ReplaceAll(keyOf(index), "/", "%2F")
}

const sourceManifest = `---
apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: %s, namespace: default}
spec:
  sink: {uri: "http://%s/"}
  limits: {maxPending: 100000000%s}
`

// adapter is an adapter on its data, over several starts.
type adapter struct {
	*process
	dir, sink string
	sources   int
	limits    string // of the sources, more than the usual
}

func startAdapter(t *testing.T, dir, sink string, sources int) *adapter {
	a := &adapter{dir: filepath.Join(dir, "adapter"), sink: sink, sources: sources}
	a.start(t)
	return a
}

func (a *adapter) start(t *testing.T) {
	var manifest bytes.Buffer
	for i := range a.sources {
		fmt.Fprintf(&manifest, sourceManifest, sourceName(i), a.sink, a.limits)
	}
	check(t, os.MkdirAll(a.dir, 0o755))
	check(t, os.WriteFile(a.dir+".yaml", manifest.Bytes(), 0o644))
	addr, admin := freeAddr(), freeAddr()
	cmd := exec.Command(adapterFile, "--standalone", "--sources", a.dir+".yaml", "--data-dir", a.dir, "--listen", addr, "--admin-listen", admin)
	a.process = start(t, cmd, addr, func() bool { return answers("http://"+admin+"/readyz", http.StatusOK) })
}

// pending returns how many keys of the one source are pending.
func (a *adapter) pending(t *testing.T) int {
	var counts struct{ Pending int }
	getJSON(t, a.addr, "/default/bench", &counts)
	return counts.Pending
}

// rest waits until the work behind earlier calls is done, and memory and disk have changed
// by less than a fiftieth over some looks: the Go runtime returns memory to the system slowly.
func (a *adapter) rest(t *testing.T, looks int) usage {
	every := size.Settle / 60
	var seen []usage
	near := func(a, b int64) bool { return max(a, b)-min(a, b) <= max(a, b)/50 }
	for end := time.Now().Add(size.Settle); ; wait(every) {
		now := a.usage()
		now.disk = diskBytes(t, a.dir)
		seen = append(seen, now)
		if n := len(seen) - 1 - looks; time.Now().After(end) ||
			n >= 0 && now.cpu-seen[len(seen)-2].cpu <= every/50 && near(now.rss, seen[n].rss) && near(now.disk, seen[n].disk) {
			return now
		}
	}
}

// fill schedules n keys from the index first on as fast as the adapter takes them, with bulk
// calls of up to a thousand over eight connections, to one source after the other. It
// returns items a second.
func (a *adapter) fill(t *testing.T, first uint32, n int, binary bool, when func(index uint32) string) float64 {
	each, began := min(max(n/a.sources, 1), 1000), time.Now()
	check(t, eachOf(t.Context(), 8, (n+each-1)/each, func() func(int) error {
		client, maker := newClient(a.addr), newMaker()
		return func(i int) error {
			count := min(each, n-i*each)
			_, err := client.bulk(schedulesPath(uint32(i), a.sources), maker.bulk(first+uint32(i*each), count, binary, when), count)
			return err
		}
	}))
	return float64(n) / time.Since(began).Seconds()
}

// starts kills the adapter and starts it again, so many times, and returns how long the starts took.
func (a *adapter) starts(t *testing.T, before func(i int)) spread {
	var all []time.Duration
	for i := range size.Kills {
		before(i)
		a.end(t, syscall.SIGKILL)
		a.start(t)
		all = append(all, a.ready)
	}
	return spreadOf(all, func(d time.Duration) time.Duration { return d })
}

// farAway spreads keys over the year after next month.
func farAway(now time.Time) func(index uint32) time.Time {
	return func(index uint32) time.Time {
		spread := time.Duration(index*2654435761) * (365 * 24 * time.Hour / (1 << 32))
		return now.Add(30*24*time.Hour + spread).Truncate(time.Millisecond)
	}
}

func whenFar() func(index uint32) string {
	far := farAway(time.Now())
	return func(index uint32) string { return at(far(index)) }
}
