//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// pythonExample is the folder of an operator in Python, and pythonName what all
// that it makes is called.
const (
	pythonExample = "../../examples/python-function"
	pythonName    = "namespace-ttl"
)

// An operator in Python that only answers does its work from zero.
func TestPython_WorksFromZero(t *testing.T) {
	beside(t)
	const (
		ttl    = pastZero + 40*time.Second // with the retries
		clocks = time.Second               // by which the clocks of several nodes may differ
	)
	n := newNamespace(t, "python")
	preview := n.name + "-preview"

	grant := applyPython(n)
	for _, kind := range []schema.GroupVersionKind{knativeService, rescheduling} {
		n.ready(kind, n.name)
	}
	s := existingSource(n, n.name)
	n.atZero(n.name)

	// It may not do its work yet: it is tried again and again, and as soon as it
	// may, it is done.
	born := makeNamespace(n, preview, map[string]string{n.name: fmt.Sprintf("%ds", int(ttl.Seconds()))})
	eventually(t, patience, "it failed twice", func() error {
		now := s.scheduled(preview)
		if now == nil || *now.Attempt < 2 {
			return fmt.Errorf("scheduled is %+v", now)
		}
		return nil
	})
	n.apply(grant)
	waiting := s.waiting(preview)
	if late := waiting.DueAt.Sub(born.Add(ttl)); late < -clocks || late > 5*time.Second || *waiting.Attempt != 0 {
		t.Errorf("made at %s for %s, it must be looked at %s after its end, at attempt %d", born, ttl, late, *waiting.Attempt)
	}

	n.atZero(n.name)
	if left := time.Until(waiting.DueAt); left < 0 {
		t.Fatalf("Serving took longer than %s to zero: make pastZero longer", ttl)
	}
	gone := func() error {
		found, err := n.Client.CoreV1().Namespaces().Get(t.Context(), preview, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err == nil && found.DeletionTimestamp != nil:
			if found.DeletionTimestamp.Time.Before(born.Add(ttl - clocks)) {
				return final{fmt.Errorf("deleted at %s, made at %s for %s", found.DeletionTimestamp, born, ttl)}
			}
			return nil
		case err == nil:
			return errors.New("it is there")
		}
		return err
	}
	eventually(t, ttl+patience, preview+" is deleted", gone)
	eventually(t, patience, "nothing is scheduled", func() error {
		if now := s.scheduled(preview); now != nil {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
	t.Logf("deleted and answered from zero within %s of its time", time.Since(waiting.DueAt).Round(10*time.Millisecond))
	n.atZero(n.name)
}

// rendered are the manifests of an example, with all that it makes, its
// namespace too, named as this namespace is.
func rendered(n *namespace, example, name string) string {
	n.t.Helper()
	text, err := exec.CommandContext(n.t.Context(), "kubectl", "kustomize", example).Output()
	if err != nil {
		n.t.Fatalf("kubectl kustomize %s: %v", example, err)
	}
	return strings.ReplaceAll(string(text), name, n.name)
}

// existingSource is a source that was applied with others and is ready.
func existingSource(n *namespace, name string) *source {
	n.t.Helper()
	s := &source{namespace: n, name: name}
	s.read()
	s.token = tokenOf(n, "caller", s.audience())
	return s
}

// applyPython applies the example under the name of the namespace, save what
// grants the function its rights, which it returns.
func applyPython(n *namespace) (grant string) {
	n.t.Helper()
	// With a label of its own, since the quick start runs the same example at the same time.
	own := strings.NewReplacer(`"preview-ttl"`, strconv.Quote(n.name), "key: preview-ttl\n", "key: "+n.name+"\n")
	objects := strings.Split(own.Replace(rendered(n, pythonExample, pythonName)), "\n---\n")
	at := slices.IndexFunc(objects, func(o string) bool {
		return strings.Contains(o, "\nkind: ClusterRoleBinding\nmetadata:\n  name: "+n.name+"\n")
	})
	if at < 0 {
		n.t.Fatalf("%s grants the function nothing:\n%s", pythonExample, strings.Join(objects, "\n---\n"))
	}
	grant = objects[at]
	n.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's own is over
		defer cancel()
		for _, name := range []string{n.name, n.name + "-watcher"} {
			for _, err := range []error{
				n.Client.RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{}),
				n.Client.RbacV1().ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{}),
			} {
				if err != nil && !apierrors.IsNotFound(err) {
					n.t.Error(err)
				}
			}
		}
	})
	n.apply(strings.Join(slices.Delete(objects, at, at+1), "\n---\n"))
	return grant
}

// makeNamespace makes one that is gone after the test, and returns when it was
// made.
func makeNamespace(n *namespace, name string, labels map[string]string) time.Time {
	n.t.Helper()
	namespaces := n.Client.CoreV1().Namespaces()
	made, err := namespaces.Create(n.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's own is over
		defer cancel()
		if err := namespaces.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			n.t.Error(err)
		}
	})
	return made.CreationTimestamp.Time
}

// What the function answers, row by row, as a process of this machine against
// an API server that does as the row says.
func TestPython_Answers(t *testing.T) {
	beside(t)
	api := &fakeNamespaces{}
	function := startPython(t, api)
	const looked = "/api/v1/namespaces/preview"
	ago := func(d time.Duration) string { return time.Now().Add(-d).UTC().Format(time.RFC3339) }
	labelled := func(ttl string) map[string]any {
		return map[string]any{"labels": map[string]string{"preview-ttl": ttl}}
	}
	for _, c := range []struct {
		name    string
		key     string // "" is preview
		object  map[string]any
		age     time.Duration
		get     int // status; 0 is 200
		delete  int
		status  int
		after   time.Duration // 0 is never
		deleted bool
		path    string // "" is the path of preview
	}{
		{name: "young", object: labelled("20m"), age: time.Minute, status: 204, after: 19 * time.Minute},
		{name: "seconds", object: labelled("90s"), status: 204, after: 90 * time.Second},
		{name: "hours", object: labelled("12h"), age: 10 * time.Hour, status: 204, after: 2 * time.Hour},
		{name: "days", object: labelled("7d"), status: 204, after: 7 * 24 * time.Hour},
		{name: "as long as can be", object: labelled("9999d"), status: 204, after: 9999 * 24 * time.Hour},
		{name: "old enough", object: labelled("20m"), age: 20 * time.Minute, status: 204, deleted: true},
		{name: "long overdue", object: labelled("0s"), age: time.Hour, status: 204, deleted: true},
		{name: "not labelled", object: map[string]any{"labels": map[string]string{"team": "a"}}, age: time.Hour, status: 204},
		{name: "without labels", age: time.Hour, status: 204},
		{name: "no time", object: labelled("soon"), age: time.Hour, status: 204},
		{name: "a fraction", object: labelled("0.5h"), age: time.Hour, status: 204},
		{name: "longer than can be", object: labelled("10000d"), age: time.Hour, status: 204},
		{name: "on its way out", object: map[string]any{"labels": map[string]string{"preview-ttl": "1s"}, "deletionTimestamp": ago(0)}, age: time.Hour, status: 204},
		{name: "gone", get: 404, status: 204},
		{name: "gone meanwhile", object: labelled("1s"), age: time.Hour, delete: 404, status: 204, deleted: true},
		{name: "changed meanwhile", object: labelled("1s"), age: time.Hour, delete: 409, status: 503, deleted: true},
		{name: "may not look", get: 403, status: 503},
		{name: "may not delete", object: labelled("1s"), age: time.Hour, delete: 403, status: 503, deleted: true},
		{name: "the API server fails", get: 500, status: 503},
		{name: "a key with a path in it", key: "../nodes?x=/a", get: 404, status: 204, path: "/api/v1/namespaces/..%2Fnodes%3Fx%3D%2Fa"},
	} {
		t.Run(c.name, func(t *testing.T) { // one after the other: they share the API server
			metadata := map[string]any{"uid": "1", "resourceVersion": "7", "creationTimestamp": ago(c.age)}
			maps.Copy(metadata, c.object)
			api.set(metadata, c.get, c.delete)
			key := c.key
			if key == "" {
				key = "preview"
			}
			reply := deliver(t, function, key)
			after := reply.Header.Get("Reschedule-After")
			switch seconds, err := strconv.Atoi(after); {
			case reply.StatusCode != c.status:
				t.Errorf("%s, want %d", reply.Status, c.status)
			case c.status != 204 && after == "":
			case c.after == 0 && after == "never":
			case err != nil || time.Duration(seconds)*time.Second > c.after || time.Duration(seconds)*time.Second < c.after-10*time.Second:
				t.Errorf("Reschedule-After is %q, want %s", after, c.after)
			}
			want := []string{"GET " + looked}
			if c.path != "" {
				want = []string{"GET " + c.path}
			}
			if c.deleted {
				want = append(want, "DELETE "+looked+` {"preconditions": {"uid": "1", "resourceVersion": "7"}}`)
			}
			if asked := api.calls(); !slices.Equal(asked, want) {
				t.Errorf("it asked for %q, want %q", asked, want)
			}
		})
	}
}

// fakeNamespaces is an API server with one namespace.
type fakeNamespaces struct {
	mu          sync.Mutex
	metadata    map[string]any
	get, delete int // statuses that are not 200
	asked       []string
}

func (f *fakeNamespaces) set(metadata map[string]any, get, remove int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.metadata, f.get, f.delete, f.asked = metadata, get, remove, nil
}

func (f *fakeNamespaces) calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

func (f *fakeNamespaces) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var body json.RawMessage
	_ = json.NewDecoder(r.Body).Decode(&body) // a GET has none
	f.asked = append(f.asked, strings.TrimSpace(r.Method+" "+r.URL.EscapedPath()+" "+string(body)))
	status := f.get
	if r.Method == http.MethodDelete {
		status = f.delete
	}
	if r.Header.Get("Authorization") != "Bearer of-the-account" {
		status = http.StatusUnauthorized
	}
	if status != 0 {
		http.Error(rw, `{"kind": "Status"}`, status)
		return
	}
	_ = json.NewEncoder(rw).Encode(map[string]any{"metadata": f.metadata})
}

// startPython starts the function with an API server, and returns its URL. At
// the end it is asked to stop, and has to.
func startPython(t *testing.T, api http.Handler) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatalf("%s runs here too: install python3: %v", pythonExample, err)
	}
	server := httptest.NewTLSServer(api)
	t.Cleanup(server.Close)
	account := t.TempDir()
	for name, text := range map[string][]byte{
		"token":  []byte("of-the-account"),
		"ca.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	} {
		if err := os.WriteFile(filepath.Join(account, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address, err := harness.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(address)

	cmd := exec.Command(python, filepath.Join(pythonExample, "function.py"))
	cmd.Env = append(os.Environ(), "PORT="+port, "API="+server.URL, "ACCOUNT="+account, "no_proxy=*")
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("asked to stop, it ended with %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("asked to stop, it went on")
			_ = cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			t.Logf("the function said:\n%s", &said)
		}
	})
	eventually(t, time.Minute, "the function listens", func() error {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			err = connection.Close()
		}
		return err
	})
	return "http://" + address
}

// deliver sends an event about a key as a source does.
func deliver(t *testing.T, function, key string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, function, strings.NewReader(`{"kind":"Namespace"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Ce-Reschedulekey", key)
	reply, err := harness.Client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if err := reply.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return reply
}
