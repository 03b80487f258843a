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
	adapterURL string // of the adapter that most tests share
	inbox      = &sink{deliveries: map[string]chan *sdk.Delivery{}}
)

// manifests are the sources of the tests. The sink is the inbox.
const manifests = `
apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: demo, namespace: default}
spec: {sink: {uri: "%[1]s"}, delivery: {backoffDelay: PT0.01S}}
---
apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: structured, namespace: default}
spec: {sink: {uri: "%[1]s"}, delivery: {format: json}}
---
apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: still, namespace: default}
spec: {sink: {uri: "%[1]s"}, suspend: true, delay: 1h}
---
apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: many, namespace: default}
spec: {sink: {uri: "%[1]s"}, suspend: true}
---
apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: full, namespace: default}
spec: {sink: {uri: "%[1]s"}, suspend: true, limits: {maxPending: 1}}
---
apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: example, namespace: default}
spec: {sink: {uri: "%[1]s"}}
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
	sources, tokens := filepath.Join(dir, "sources.yaml"), filepath.Join(dir, "token")
	err = errors.Join(
		os.WriteFile(sources, fmt.Appendf(nil, manifests, server.URL), 0o600),
		os.WriteFile(tokens, []byte(token+"\n"), 0o600),
		os.Setenv("RESCHEDULE_TOKEN_FILE", tokens),
	)
	if err != nil {
		return 0, err
	}
	address, stop, err := start(sources, filepath.Join(dir, "data"), "127.0.0.1:0", "--token-file", tokens)
	if err != nil {
		return 0, err
	}
	adapterURL = address
	if err := os.Setenv("RESCHEDULE_URL", adapterURL+"/default/example"); err != nil {
		return 0, err
	}
	code = tests()
	return code, stop()
}

// start starts an adapter in a shell that ends it when the shell's input ends, which it
// does also when this process is killed. It reads ADAPTER_BINARY again: go test reuses a
// result only while the variables that tests read are the same, and it does not see what
// TestMain reads.
func start(sources, data, listen string, more ...string) (address string, stop func() error, err error) {
	args := append([]string{"--standalone", "--sources", sources, "--data-dir", data, "--listen", listen, "--admin-listen", "127.0.0.1:0"}, more...)
	shell := exec.Command("sh", append([]string{"-c", `"$@" </dev/null & cat >/dev/null; kill $!; wait $!`, "sh", cmp.Or(os.Getenv("ADAPTER_BINARY"), built)}, args...)...)
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
	switch first := d.Attempt == 0; {
	case strings.HasSuffix(d.Key, "/retry") && first:
		sdk.Retry(w, errors.New("not yet"))
	case strings.HasSuffix(d.Key, "/retry-in"):
		sdk.RetryIn(w, errors.New("not yet"), time.Hour)
	case strings.HasSuffix(d.Key, "/reject-again"):
		sdk.RejectAgain(w, errors.New("no"), time.Hour)
	case strings.HasSuffix(d.Key, "/again"):
		sdk.Again(w, time.Hour)
	case strings.HasSuffix(d.Key, "/never"):
		sdk.Never(w)
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

// source is a client of one of the sources of the tests.
func source(t *testing.T, name string, opts ...sdk.Option) *sdk.Client {
	t.Helper()
	c, err := sdk.New(adapterURL+"/default/"+name, append([]sdk.Option{sdk.WithToken(token)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
