package sdk_test

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// patience is the generous upper bound of everything that is waited for.
const patience = 30 * time.Second

// token is what the adapter of the tests wants.
const token = "secret"

var (
	built      string // the adapter, when ADAPTER_BINARY names none
	adapterURL string
	inbox      = &sink{deliveries: map[string]chan *sdk.Delivery{}}
)

// sources are the sources of the tests, by name, with what their specs have beside the sink, which is the inbox.
var sources = map[string]string{
	"demo": "", "structured": ", delivery: {format: json}", "still": ", suspend: true, delay: 1h", "example": "",
}

const manifest = `---
apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: %s, namespace: default}
spec: {sink: {uri: %q}%s}
`

func TestMain(m *testing.M) {
	code, err := withAdapter(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sdk:", err)
		code = 1
	}
	os.Exit(code)
}

// withAdapter builds the adapter of this checkout, or takes ADAPTER_BINARY, and
// runs the tests against it.
func withAdapter(tests func() int) (code int, err error) {
	dir, err := os.MkdirTemp("", "reschedule-sdk-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if os.Getenv("ADAPTER_BINARY") == "" {
		built = filepath.Join(dir, "adapter")
		build := exec.Command("go", "build", "-C", "..", "-trimpath", "-tags", "grpcnotrace", "-o", built, "./cmd/adapter")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make test builds it, so that it is there already
		if out, err := build.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("building the adapter: %w\n%s", err, out)
		}
	}
	server := httptest.NewServer(inbox)
	defer server.Close()
	var manifests []byte
	for name, more := range sources {
		manifests = fmt.Appendf(manifests, manifest, name, server.URL, more)
	}
	file, tokens := filepath.Join(dir, "sources.yaml"), filepath.Join(dir, "token")
	err = errors.Join(
		os.WriteFile(file, manifests, 0o600),
		os.WriteFile(tokens, []byte(token+"\n"), 0o600),
		os.Setenv("RESCHEDULE_TOKEN_FILE", tokens),
	)
	if err != nil {
		return 0, err
	}
	var stop func() error
	adapterURL, stop, err = start("--sources", file, "--data-dir", filepath.Join(dir, "data"), "--token-file", tokens)
	if err != nil {
		return 0, err
	}
	if err := os.Setenv("RESCHEDULE_URL", adapterURL+"/default/example"); err != nil {
		return 0, err
	}
	code = tests()
	return code, stop()
}

// start starts an adapter in a shell that ends it when the shell's input ends, which it does also when this process is
// killed.
func start(args ...string) (address string, stop func() error, err error) {
	args = append([]string{"-c", `"$@" </dev/null & cat >/dev/null; kill $!; wait $!`, "sh", cmp.Or(os.Getenv("ADAPTER_BINARY"), built),
		"--standalone", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}, args...)
	shell := exec.Command("sh", args...)
	log := &strings.Builder{}
	shell.Stderr = log
	stdin, err := shell.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	stdout, err := shell.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := shell.Start(); err != nil {
		return "", nil, err
	}
	stop = func() error {
		_ = stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		if err := shell.Wait(); err != nil {
			return fmt.Errorf("the adapter ended with %w:\n%s", err, log)
		}
		return nil
	}
	late := time.AfterFunc(patience, func() { _ = stdin.Close() })
	defer late.Stop()
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if m := regexp.MustCompile(`^ready: schedule API on (http://\S+),`).FindStringSubmatch(lines.Text()); m != nil {
			return m[1], stop, nil
		}
	}
	_ = stop()
	return "", nil, fmt.Errorf("the adapter is not ready:\n%s", log)
}

// sink remembers its deliveries, and answers as the last segment of the key says.
type sink struct {
	mu         sync.Mutex
	deliveries map[string]chan *sdk.Delivery
}

func (s *sink) of(key string) chan *sdk.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deliveries[key] == nil {
		s.deliveries[key] = make(chan *sdk.Delivery, 100)
	}
	return s.deliveries[key]
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d, err := sdk.ReadDelivery(r)
	if err != nil {
		sdk.Reject(w, err)
		return
	}
	s.of(d.Key) <- d
	if strings.Contains(d.Key, "/raised/") {
		sdk.SetPriority(w, sdk.HighPriority)
	}
	switch {
	case strings.HasSuffix(d.Key, "/retry-in"):
		sdk.RetryIn(w, errors.New("not yet"), time.Hour)
	case strings.HasSuffix(d.Key, "/again"):
		sdk.Again(w, time.Hour)
	case strings.HasPrefix(d.Key, "yearly/"):
		answerYearly(w, r, d)
	case strings.HasSuffix(d.Key, "/reject"):
		sdk.Reject(w, errors.New("no"))
	default:
		sdk.Done(w)
	}
}

// next waits for the next delivery of the key.
func (s *sink) next(t *testing.T, key string) *sdk.Delivery {
	t.Helper()
	select {
	case d := <-s.of(key):
		return d
	case <-time.After(patience):
		t.Fatalf("%q was not delivered in %s", key, patience)
		return nil
	}
}

// source is a client of one of the sources of the tests. It reads ADAPTER_BINARY again: go test reuses a result only
// while the variables that tests read are the same, and it does not see what TestMain reads.
func source(t *testing.T, name string) *sdk.Client {
	t.Helper()
	_ = os.Getenv("ADAPTER_BINARY")
	c, err := sdk.New(adapterURL+"/default/"+name, sdk.WithToken(token))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
